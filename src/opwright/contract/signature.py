"""The operator's signature: its arguments, their types, and its outputs; and the markers that annotations carry."""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, Literal, Union

import torch

from opwright import tree
from opwright.contract.shapes.dims import Dim, NamedDim
from opwright.contract.values import Values

__all__ = [
    "Argument", "ByProperty", "Kind", "Mutated", "NoGradient", "Replicated", "Return", "Saved", "Signature",
    "TensorType", "by_property", "mutated", "no_gradient", "replicated", "saved_for_backward", "unwrap_optional",
]  # fmt: skip

Language = Literal["torch", "numpy"]


class Saved:
    """The type of ``ow.saved_for_backward``."""

    def __repr__(self) -> str:
        return "ow.saved_for_backward"


saved_for_backward = Saved()
"""Marks an output that a kernel saves for its backward, and that ``op(...)`` does not return.

``-> tuple[Float[Tensor, "b n"], Annotated[Float[Tensor, "b m"], ow.saved_for_backward]]``: the last outputs of a tuple.
The reference and every kernel return them; ``torch.ops`` and ``setup_context``'s ``output`` include them; no gradient
flows through them. (For a type checker, a call of such an operator returns everything that the reference returns.)
"""


class ByProperty:
    """The type of ``ow.by_property``."""

    def __repr__(self) -> str:
        return "ow.by_property"


by_property = ByProperty()
"""Marks an output of which several values are right: the indices of equal elements, a factorisation.

``-> tuple[Float[Tensor, "n k"], Annotated[Int64[Tensor, "n k"], ow.by_property]]``: checks compare only its shape and
dtype with the reference's. What must hold of its values is stated with ``op.register_property``.
"""


class Mutated:
    """The type of ``ow.mutated``."""

    def __repr__(self) -> str:
        return "ow.mutated"


mutated = Mutated()
"""Marks a tensor argument that the operator writes, or a list of such tensors.

``x: Annotated[Float[Tensor, "t d"], ow.mutated]``: the reference writes it with ordinary PyTorch, and so does every
kernel. An operator with a mutated argument may return nothing (``-> None``). It never returns the argument itself.
"""


class NoGradient:
    """The type of ``ow.no_gradient``."""

    def __repr__(self) -> str:
        return "ow.no_gradient"


no_gradient = NoGradient()
"""Marks a floating tensor argument, or a list of such tensors, that gets no gradient.

``rstd: Annotated[Float32[Tensor, "n"], ow.no_gradient]``: the operator is differentiated as if the reference began with
``rstd = rstd.detach()``. A custom backward returns None for it, and a backward operator has no output for it.
"""


class Replicated:
    """The type of ``ow.replicated``."""

    def __repr__(self) -> str:
        return "ow.replicated"


replicated = Replicated()
"""Marks a tensor argument that has the same values in every process of a group.

``scale: Annotated[Float[Tensor, "n"], ow.replicated]``: checks of an operator that communicates draw it once. Other
tensors have values of their own in each process.
"""


class Kind(Enum):
    """How the dispatcher treats an argument."""

    TENSOR = "tensor"
    TENSOR_LIST = "list of tensors"
    SCALAR = "scalar"


@dataclass(frozen=True)
class TensorType:
    """The parts of a jaxtyping annotation.

    ``dtype_class`` is jaxtyping's name (``Float``, ``Int32``); ``dtypes`` the torch dtypes in it.
    Arguments with the same abstract class (``Float``, ``Int``) have the same dtype in a call, like a type
    variable; a concrete class (``Float32``) is that dtype.
    """

    dims: tuple[Dim, ...]
    dtype_class: str
    dtypes: tuple[torch.dtype, ...]
    language: Language

    def __str__(self) -> str:
        return f"{self.dtype_class}[{' '.join(map(str, self.dims))}]"


@dataclass(frozen=True)
class Argument:
    """One parameter of the operator. ``schema_type`` is its type in torch's schema."""

    name: str
    kind: Kind
    schema_type: Any
    tensor: TensorType | None = None
    optional: bool = False
    default: Any = inspect.Parameter.empty
    keyword_only: bool = False
    values: Values | None = None
    mutated: bool = False
    # The only values that a ``Literal`` or a ``StrEnum`` admits, and the length of a ``tuple[int, int]``.
    choices: tuple[Any, ...] = ()
    length: int | None = None
    # Whether it is a process group, whose name the schema has.
    is_group: bool = False
    # Whether a tensor has the same values in all processes of a group.
    replicated: bool = False
    # Whether no gradient flows to a tensor, as the author states.
    no_gradient: bool = False
    # Whether the values of another argument are drawn from this one's.
    is_read: bool = False

    @property
    def goes_together(self) -> bool:
        """Whether values cannot be moved or replaced, because they go together: with each other, or with those of other
        arguments."""
        return self.is_read or (self.values is not None and self.values.is_arranged)

    @property
    def has_default(self) -> bool:
        return self.default is not inspect.Parameter.empty

    @property
    def has_list_default(self) -> bool:
        return isinstance(self.default, list | tuple)

    @property
    def is_tensor(self) -> bool:
        return self.kind is not Kind.SCALAR

    @cached_property
    def scalar_type(self) -> Any:
        """``schema_type`` without its ``| None``."""
        return unwrap_optional(self.schema_type)[0]


@dataclass(frozen=True)
class Return:
    """One output of the operator. ``saved``: it is saved for the backward, and not returned to the caller;
    ``by_property``: several values are right, so that only its shape and dtype are compared with the reference's."""

    tensor: TensorType
    saved: bool = False
    by_property: bool = False


@dataclass(frozen=True)
class Signature:
    """The operator's arguments in order, its outputs, and whether they come as a tuple."""

    arguments: tuple[Argument, ...]
    returns: tuple[Return, ...]
    returns_tuple: bool
    # A list of tensors, of any length; ``returns`` has what is stated of each.
    returns_list: bool = False

    def output_count(self, results: Sequence[Any]) -> int:
        """How many of a call's results are outputs; mutated arguments follow."""
        return len(results) if self.returns_list else len(self.returns)

    def stated_returns(self, count: int) -> tuple[Return, ...]:
        """What is stated of each of a number of outputs."""
        return self.returns * count if self.returns_list else self.returns

    @cached_property
    def visible(self) -> int:
        """The number of outputs returned to the caller; later ones are saved for the backward. Of a list, whose length
        no signature knows, a number that none reaches."""
        if self.returns_list:
            return sys.maxsize
        return sum(not r.saved for r in self.returns)

    @cached_property
    def positional(self) -> tuple[Argument, ...]:
        return tuple(a for a in self.arguments if not a.keyword_only)

    @cached_property
    def keyword_only(self) -> tuple[Argument, ...]:
        return tuple(a for a in self.arguments if a.keyword_only)

    @cached_property
    def mutated(self) -> tuple[int, ...]:
        """The positions of the arguments that the operator writes."""
        return tuple(i for i, a in enumerate(self.arguments) if a.mutated)

    @cached_property
    def without_gradient(self) -> frozenset[int]:
        """The positions of the arguments that get no gradient, as is stated of them."""
        return frozenset(i for i, a in enumerate(self.arguments) if a.no_gradient)

    def detached(self, arguments: Sequence[Any]) -> Sequence[Any]:
        """The arguments, those that get no gradient without autograd's graph and without tangents."""
        if not self.without_gradient:
            return arguments
        detach = torch.Tensor.detach
        return [tree.map_tensors(detach, a) if i in self.without_gradient else a for i, a in enumerate(arguments)]

    @cached_property
    def drawing_order(self) -> tuple[int, ...]:
        """The positions of the arguments whose values are drawn from others, each after those that it reads; without
        those that are drawn from each other."""
        reads = {
            i: set(a.values.reads) for i, a in enumerate(self.arguments) if a.values is not None and a.values.reads
        }
        order: list[int] = []
        while waiting := [i for i in reads if i not in order]:
            names = {self.arguments[i].name for i in waiting}
            ready = [i for i in waiting if not names & reads[i]]
            if not ready:
                break
            order += ready
        return tuple(order)

    def written(self, arguments: Sequence[Any]) -> list[torch.Tensor]:
        """The tensors of mutated arguments, lists flattened, in signature order; absent optional ones left out."""
        return tree.tensors([arguments[i] for i in self.mutated])

    def read_only(self, arguments: Sequence[Any]) -> list[torch.Tensor]:
        """The tensors of all other arguments."""
        return tree.tensors([value for value, a in zip(arguments, self.arguments, strict=True) if not a.mutated])

    @cached_property
    def single_sizes(self) -> frozenset[str]:
        """The names of dims of one axis, of int arguments and of process groups (for their sizes), from which sizes and
        conditions are computed."""
        dims = (d for a in self.arguments if a.tensor for d in a.tensor.dims)
        named = {d.name for d in dims if isinstance(d, NamedDim) and not d.each}
        return frozenset(named | {a.name for a in self.arguments if a.schema_type is int or a.is_group})

    @cached_property
    def groups(self) -> tuple[int, ...]:
        """The positions of process groups. An operator with one communicates."""
        return tuple(i for i, a in enumerate(self.arguments) if a.is_group)

    @cached_property
    def data_dependent(self) -> frozenset[str]:
        """The dims of outputs that no argument has: sizes that depend on values."""
        known = {d.name for a in self.arguments if a.tensor for d in a.tensor.dims if isinstance(d, NamedDim)}
        dims = (d for r in self.returns for d in r.tensor.dims)
        return frozenset(d.name for d in dims if isinstance(d, NamedDim) and not d.each) - known - self.single_sizes

    @cached_property
    def language(self) -> Language:
        """``numpy`` if the reference is written on arrays."""
        tensors = [a.tensor for a in self.arguments if a.tensor] + [r.tensor for r in self.returns]
        return "numpy" if any(t.language == "numpy" for t in tensors) else "torch"

    def call(self, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        """Call a Python function of this signature with the arguments in signature order."""
        if not self.keyword_only:
            return function(*arguments)
        positional, keywords = self.split(arguments)
        return function(*positional, **keywords)

    def flat(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A Python function of this signature as one that takes all arguments by position, in signature order."""
        if not self.keyword_only:
            return function  # no wrapper in the common case
        return functools.partial(_call_flat, self, function)

    def split(self, arguments: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Split arguments in signature order into positional and keyword-only ones."""
        count = len(self.positional)
        return tuple(arguments[:count]), {a.name: v for a, v in zip(self.keyword_only, arguments[count:], strict=True)}

    def to_python(self) -> inspect.Signature:
        """The signature with torch's plain types, for ``torch.library.infer_schema``. It takes no default for a list:
        such an argument is optional here."""
        parameters = [
            inspect.Parameter(
                a.name,
                inspect.Parameter.KEYWORD_ONLY if a.keyword_only else inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=None if a.has_list_default else a.default,
                annotation=a.schema_type | None if a.has_list_default else a.schema_type,
            )
            for a in self.arguments
        ]
        out: Any = torch.Tensor if self.returns else None
        if self.returns_list:
            out = list[torch.Tensor]
        elif self.returns_tuple:
            out = tuple.__class_getitem__(tuple(torch.Tensor for _ in self.returns))
        return inspect.Signature(parameters, return_annotation=out)


def _call_flat(signature: Signature, function: Callable[..., Any], *arguments: Any) -> Any:
    return signature.call(function, arguments)


def unwrap_optional(annotation: Any) -> tuple[Any, bool]:
    if typing.get_origin(annotation) not in (Union, types.UnionType):
        return annotation, False
    others = [a for a in typing.get_args(annotation) if a is not type(None)]
    return (others[0], True) if len(others) == 1 else (annotation, False)
