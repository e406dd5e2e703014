"""What checks ask of a language beyond running its kernels. Each default is the answer of a language that has nothing
of the kind; a language with more has a subclass, which its ``Backend`` names."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from opwright.backends.base import KernelSpec
from opwright.backends.instrumented import compute_sanitizer
from opwright.contract.contract import Contract
from opwright.machine import Machine
from opwright.results import Refused
from opwright.results.outcomes import Instrumented, RunOnMeta
from opwright.target import Target

__all__ = ["CheckHooks"]


@dataclass(frozen=True)
class CheckHooks:
    """The answers for one kernel on one target."""

    spec: KernelSpec
    contract: Contract
    target: Target

    # Whether a kernel says that it does not leave the work to torch's functions.
    computes_itself: ClassVar[bool] = False
    # Whether the language compiles the user's function itself. Such a kernel need not be watched for torch's functions.
    is_compiled_function: ClassVar[bool] = False
    # Whether the authors of its kernels place barriers between threads.
    has_barriers: ClassVar[bool] = False

    @staticmethod
    def under_check(order: int) -> contextlib.AbstractContextManager[None]:
        """A context for every kernel of a check, in any language. In it, simulators run threads and programs in an
        order that follows from the number ``order``."""
        return contextlib.nullcontext()

    @staticmethod
    def in_backward(tensors: Sequence[torch.Tensor]) -> contextlib.AbstractContextManager[None]:
        """A context for a backward whose function may launch kernels, in any language.

        Args:
            tensors: the inputs and outputs of its forward, and the incoming gradients.
        """
        return contextlib.nullcontext()

    def unchecked_dtypes(self, machine: Machine) -> dict[torch.dtype, str]:
        """Dtypes that cannot be checked on this machine, each with the reason."""
        return {}

    def makes_launcher(self) -> Callable[[], Callable[..., Any]] | None:
        """Makes the Python function, of the operator's arguments in order, that launches Triton kernels; None for other
        kernels. For a process in which no kernel runs: those that tune themselves take a configuration unmeasured."""
        return None

    def configurations(self) -> Sequence[tuple[str, contextlib.AbstractContextManager[None]]]:
        """The configurations among which a kernel that tunes itself chooses, each with a block in which it is the only
        one. Empty if there are none."""
        return ()

    def measuring(self) -> contextlib.AbstractContextManager[None] | None:
        """A block in which a kernel that tunes itself launches each configuration on the caller's tensors in each call,
        before the launch that counts, where it would do so on a GPU only. None if it has nothing to measure."""
        return None

    def on_meta(self) -> Callable[[Sequence[Any]], RunOnMeta] | Refused | None:
        """A function that runs the kernel's launcher on meta tensors, and records its launches. Refused if this one has
        no launcher that can be run so; None if no launcher of the language launches kernels."""
        return None

    def unspecified(self, byte: int) -> contextlib.AbstractContextManager[None] | None:
        """A block in which values that the language leaves open consist of such bytes, in a simulator; None if none are
        left open, or if they cannot be chosen."""
        return None

    def instrumented(self, machine: Machine) -> Instrumented | Refused:
        """How a tool watches the memory accesses of the kernel."""
        if self.target.device == "cuda":
            return compute_sanitizer(barriers=self.has_barriers)
        return Refused(f"no tool watches what {self.spec.backend} kernels access on a CPU")
