"""An operator's contract, as a task states it or as it was inferred."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from opwright.judged.shown import Place

__all__ = ["Inferred", "InferredTensor"]


@dataclass(frozen=True)
class InferredTensor:
    """An argument or an output.

    Attributes:
        dtype: by its short name; of a number, its type's name.
        dims: as text; None of a number.
        low, high: the range of its values, if they have one.
        drawn_as: its number among the tensors that the task draws, if its values are drawn as the task does; else -1.
        values: the text of another statement about its values, such as ``ow.inputs.offsets('n')``.
    """

    name: str
    dtype: str
    dims: tuple[str, ...] | None
    low: float | None = None
    high: float | str | None = None
    drawn_as: int = -1
    values: str = ""


@dataclass(frozen=True)
class Inferred:
    """What was inferred of a task.

    Attributes:
        arguments: of the operator: those of a call, then parameters and buffers.
        state: the names of parameters and buffers, as the module has them.
        fixed_state: how many parameters and buffers keep the constructor's values: an operator of torch takes no more.
        constants: by name, the argument and the axis that has their size, or one that follows from it.
        own: sizes of the task's own inputs, by the name of a dim.
        own_elements: how many elements the task's own inputs, parameters and buffers have.
        where: relations of the constants.
        fixed: what was taken as fixed, and why; one sentence each.
        is_random: whether the reference draws random numbers.
        layouts: of the tensors of a call that are not contiguous, by position: ``Run.layouts``.
    """

    arguments: tuple[InferredTensor, ...]
    outputs: tuple[InferredTensor, ...]
    state: tuple[str, ...] = ()
    fixed_state: int = 0
    constants: Mapping[str, Place] = field(default_factory=dict)
    own: Mapping[str, int] = field(default_factory=dict)
    own_elements: int = 0
    where: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()
    is_random: bool = False
    returns_tuple: bool = False
    scalars: Mapping[int, Any] = field(default_factory=dict)
    layouts: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def has_one_shape(self) -> bool:
        """Whether only the given sizes are possible."""
        dims = [dim for argument in self.arguments for dim in argument.dims or ()]
        return not any(letter.isalpha() for dim in dims for letter in dim)
