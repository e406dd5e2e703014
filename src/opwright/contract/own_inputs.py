"""The inputs that an author states of an operator, besides what annotations say: samples, and typical sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from opwright.errors import CheckError

__all__ = ["OwnInputs", "Rule", "Samples"]

# Yields the arguments of one call after another: a tuple, or a dictionary by name.
Samples = Callable[[], Iterable[Any]]


@dataclass(frozen=True)
class Rule:
    """What a published format calls correct: ``torch.allclose`` of each output, for the samples.

    Attributes:
        of_half: both tolerances for results in float16 and bfloat16; those of other results if it is zero.
        strict_state: whether a module must take the reference's state with ``load_state_dict(strict=True)``.
    """

    format: str
    atol: float
    rtol: float
    of_half: float = 0.0
    strict_state: bool = False


@dataclass(eq=False)
class OwnInputs:
    """What is added to a contract after its definition.

    Attributes:
        samples: the function of ``op.samples``.
        recorded: recorded calls, which are the only inputs while a check or a benchmark replays them.
        sizes: the sizes of ``op.sizes``, by dim, in step; a tuple where a dim stands for several axes.
        rule: the rule of the format in which the operator's task was published.
        may_refuse: whether a kernel may raise an exception for other inputs than the samples, as a contract that was
            inferred may have more sizes than its kernels were written for.
        samples_are_smaller: whether the samples stand for larger inputs, which a kernel may be written for: it may
            refuse them, too, but not what has the sizes of ``op.sizes``.
        contiguous: whether tensors have no other layout.
        reference_code: where a published task has the reference: a file, and a function in it, or "" for the whole.
        expects_kernel: whether a kernel in any language must not leave all of the work to torch's functions.
        parameters: the names of the arguments that a published module has as parameters and buffers; None if the task
            says of no argument whether it is one.
        not_applicable: why a kernel does not run on some inputs.
    """

    samples: Samples | None = None
    recorded: Samples | None = None
    sizes: dict[str, tuple[int | tuple[int, ...], ...]] = field(default_factory=dict)
    rule: Rule | None = None
    may_refuse: bool = False
    samples_are_smaller: bool = False
    contiguous: bool = False
    reference_code: tuple[tuple[str, str], ...] = ()
    expects_kernel: bool = False
    parameters: tuple[str, ...] | None = None
    not_applicable: str = "the kernel is not applicable (dtypes, when)"

    def draw(self, qualname: str) -> list[Any]:
        """The arguments of every sample, on the CPU; the same ones each time.

        Raises:
            CheckError: the author's function raised an exception.
        """
        samples = self.recorded or self.samples
        if samples is None:
            return []
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            try:
                return list(samples())
            except CheckError:
                raise  # of recorded calls: it says by itself what is wrong
            except Exception as error:  # the author's function may raise anything
                raise CheckError(
                    f"{qualname}: op.samples raised {type(error).__name__}: {error}", fix="correct the function"
                ) from error
