"""A kernel attached to an operator: built when first needed, callable by name."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from opwright import tree
from opwright.backends import get_backend, import_all, under_check
from opwright.backends.base import Artifact, KernelSpec, Launch, launch_for_calls_like
from opwright.backends.build_tools import build_tools
from opwright.contract.binding import Binding, bind, fill
from opwright.contract.contract import Contract
from opwright.contract.dtypes import short
from opwright.contract.fingerprint import digest, fingerprint
from opwright.errors import KernelRefusedError
from opwright.internals.autograd import below_autograd
from opwright.internals.dispatch import has_memory, is_intercepted
from opwright.machine import Machine
from opwright.results import Accepted, Probe, Refused
from opwright.results.outcomes import Instrumented
from opwright.runtime.call.argument_utils import dtypes_that_count, gpu_of
from opwright.runtime.call.fast_path import (
    GuardedCall,
    guard_call,
    guarded_arity,
    is_plain_call,
    newest_first,
    with_visible_outputs,
)
from opwright.runtime.call.guard import Guard
from opwright.runtime.call.launch import prepare_launch
from opwright.runtime.call.native_guards import holds_natively, take_calls_of
from opwright.runtime.register.registration import registered

__all__ = ["Kernel", "gpu_of", "import_all", "under_check"]


def _text_of(source: Path) -> str:
    """A file's text. One that is gone says so: torch.compile asks for the fingerprint of every operator of the process,
    also while it compiles others."""
    try:
        return source.read_text()
    except OSError as error:
        return f"{source}: {error.strerror}"


class Kernel:
    """One implementation of an operator in one language.

    Calling it runs only this kernel, after checking the arguments against the contract. It returns
    results without gradients, which only the operator has.
    """

    def __init__(self, spec: KernelSpec, contract: Contract) -> None:
        self.spec = spec
        self.contract = contract
        # The user's predicate on the operator's arguments in order, and the language's own condition.
        self._user_when = contract.signature.flat(spec.when) if spec.when is not None else None
        self._condition = get_backend(spec.backend).condition(spec, contract)
        self.when = self._user_when if self._condition is None else self._when_and_condition
        self._built: Artifact | None = None
        self._launch: Launch | None = None
        self._lock = threading.Lock()
        # Guards of calls of the kernel itself, as an operator has them.
        self._guarded_calls: tuple[GuardedCall, ...] = ()
        self._arity, self._tails = guarded_arity(contract), contract.tails

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def backend(self) -> str:
        return self.spec.backend

    @property
    def fingerprint(self) -> str:
        """A digest of the kernel's source and applicability."""
        spec = self.spec
        source = _text_of(spec.source) if isinstance(spec.source, Path) else fingerprint(spec.source)
        return digest(
            spec.name, spec.backend, source, spec.entry, repr(spec.devices), repr(spec.dtypes),
            fingerprint(spec.when), *(f"{k}={fingerprint(v)}" for k, v in sorted(spec.options.items())),
        )  # fmt: skip

    def probe(self, device: str, machine: Machine | None = None) -> Probe:
        """Whether the kernel can run on a type of device, on this or another machine."""
        return get_backend(self.backend).probe(self.spec, device, machine or build_tools().machine)

    def applies_to(self, binding: Binding, arguments: Sequence[Any]) -> Probe:
        """Whether the kernel can run on the arguments' device and dtypes, independent of shapes and values."""
        assert binding.device is not None  # bind() refuses calls without a tensor
        device = binding.device.type
        probe = self.probe(device)
        dtypes = get_backend(self.backend).dtypes_here(self.spec, device, build_tools().machine)
        if isinstance(probe, Accepted) and dtypes is not None:
            others = [short(d) for d in dtypes_that_count(arguments) if d not in dtypes]
            if others:
                names = map(short, dtypes)
                taken = ", ".join(names if dtypes is self.spec.dtypes else sorted(names))
                return Refused(f"takes {taken}, not {', '.join(others)}")
        return probe

    def accepts(self, binding: Binding, arguments: Sequence[Any]) -> Probe:
        """Whether the kernel can run on these arguments: device, then dtypes, then ``when``."""
        applies = self.applies_to(binding, arguments)
        if isinstance(applies, Refused) or self.when is None:
            return applies
        condition = self._condition(*arguments) if self._condition is not None else applies
        if isinstance(condition, Refused):
            return condition
        if self._user_when is not None and not self._user_when(*arguments):
            return Refused("its `when` predicate is False for these arguments")
        return applies

    def _when_and_condition(self, *arguments: Any) -> bool:
        assert self._condition is not None  # else only the user's predicate is used
        holds = isinstance(self._condition(*arguments), Accepted)
        return holds and (self._user_when is None or bool(self._user_when(*arguments)))

    def unchecked_dtypes(self, device: str, machine: Machine | None = None) -> dict[torch.dtype, str]:
        """Dtypes that cannot be checked on this type of device, each with the reason."""
        return get_backend(self.backend).unchecked_dtypes(self.spec, device, machine or build_tools().machine)

    @property
    def is_loaded(self) -> bool:
        """Whether the kernel is loaded."""
        return self._launch is not None

    def load(self) -> Launch:
        """Build the kernel, or take it from the cache. CompileError if its source does not compile."""
        if self._launch is None:
            with self._lock:
                if self._launch is None:
                    built, self._built = self._built or self._compiled(), None
                    self._launch = get_backend(self.backend).load(built, self.spec, self.contract)
        return self._launch

    def build(self) -> None:
        """Compile the kernel, or take it from the cache, for ``load``. CompileError if its source does not compile."""
        with self._lock:
            if self._launch is None and self._built is None:
                self._built = self._compiled()

    def _compiled(self) -> Artifact:
        others = [(other.spec, other.contract) for other in self._in_same_source()]
        return get_backend(self.backend).compile_together(self.spec, self.contract, others, build_tools())

    def _in_same_source(self) -> list[Kernel]:
        """The kernels of all operators in this kernel's file that are built in the same way: they are compiled once."""
        found = [kernel for operator in registered() for kernel in getattr(operator, "kernels", {}).values()]
        return [kernel for kernel in found if kernel is not self and kernel.spec.is_built_with(self.spec)]

    def launch(self, arguments: Sequence[Any], device: int | None) -> Any:
        """Run the kernel on checked arguments, with their GPU as the current one (None: not on a GPU)."""
        return self._prepared(self._launch or self.load(), device)(*arguments)

    def launch_for_calls_like(self, arguments: Sequence[Any], device: int | None) -> Launch:
        """The function for arguments like those of the last call (see ``base.launch_for_calls_like``)."""
        return self._prepared(launch_for_calls_like(self.load(), arguments), device)

    def _prepared(self, launch: Launch, device: int | None) -> Launch:
        return prepare_launch(launch, device, self.contract.signature)

    @property
    def runs_python(self) -> bool:
        """Whether its source is Python, such as a launcher of Triton kernels."""
        source = self.spec.source
        return source.suffix == ".py" if isinstance(source, Path) else callable(source)

    def configurations(self) -> Sequence[tuple[str, contextlib.AbstractContextManager[None]]]:
        """The configurations of a kernel that tunes itself, each with a block in which it is the only one."""
        return get_backend(self.backend).configurations(self.spec, self.contract)

    def measuring(self) -> contextlib.AbstractContextManager[None] | None:
        """A block in which a kernel that tunes itself launches each configuration as if to measure it, in each call;
        None if it does so anyway, or has nothing to measure."""
        return get_backend(self.backend).measuring(self.spec, self.contract)

    @property
    def compiles_for_sizes(self) -> bool:
        """Whether it is compiled anew for other sizes or dtypes."""
        return get_backend(self.backend).compiles_for_sizes

    def unspecified(self, byte: int) -> contextlib.AbstractContextManager[None] | None:
        """A block in which values that the language leaves open consist of such bytes, in a simulator; None if none are
        left open, or if they cannot be chosen."""
        return get_backend(self.backend).unspecified(byte)

    def compiling_only(self) -> contextlib.AbstractContextManager[None]:
        """A block in which calls compile what they need, as far as that is known without results, and run nothing."""
        return get_backend(self.backend).compiling_only()

    def instrumented(self, device: str) -> Instrumented | Refused:
        """How a tool watches the kernel's memory accesses."""
        return get_backend(self.backend).instrumented(self.spec, device, build_tools().machine)

    def with_flags(self, flags: Sequence[str]) -> Kernel:
        """The same kernel, compiled with more flags."""
        if not flags:
            return self
        options = {**self.spec.options, "options": [*self.spec.options.get("options", ()), *flags]}
        return Kernel(dataclasses.replace(self.spec, options=options), self.contract)

    def traceable(self) -> Launch | None:
        """A form that torch.compile may trace into, if the language has one."""
        return get_backend(self.backend).traceable(self.spec, self.contract, self.load())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        arguments: Any = args if not kwargs and len(args) == self._arity else fill(self.contract, args, kwargs)
        guarded_calls = self._guarded_calls
        if guarded_calls and not is_dynamo_compiling() and not is_intercepted():
            for holds, run in guarded_calls:
                if holds(*arguments):
                    return run(*arguments)
        return self._call_unguarded(*fill(self.contract, args, kwargs))

    def _call_unguarded(self, *arguments: Any) -> Any:
        outcome = self.accepts(bind(self.contract, arguments), arguments)
        if isinstance(outcome, Refused):
            raise KernelRefusedError(
                f"{self.contract.qualname}: kernel {self.name!r} cannot run on these arguments: {outcome.reason}",
                fix=outcome.remedy or f"ow.explain({self.contract.name}, ...) shows which kernel can",
            )
        self._refuse_without_memory(arguments)
        with below_autograd():
            result = self.contract.visible(self.launch(arguments, gpu_of(arguments)))
        if is_plain_call(arguments):
            self._guard(arguments)
        return result

    def _refuse_without_memory(self, arguments: Sequence[Any]) -> None:
        for argument, value in zip(self.contract.signature.arguments, arguments, strict=True):
            for tensor in tree.tensors([value]):
                if not has_memory(tensor):
                    raise KernelRefusedError(
                        f"{self.contract.qualname}: kernel {self.name!r} cannot run on {argument.name!r}: a "
                        f"{type(tensor).__name__} has no memory of its own",
                        fix=f"call the operator, which torch dispatches; in a block of "
                        f"{self.contract.name}.only({self.name!r}) it runs this kernel",
                    )

    def _guard(self, arguments: Sequence[Any]) -> None:
        """Let later calls like this plain one run the kernel at once; where ``when`` refuses one, it is refused."""
        guarded = guard_call(arguments, [self], self._call_unguarded, holds=self._holds)
        if guarded is not None:
            self._guarded_calls = newest_first(with_visible_outputs(guarded, self.contract), self._guarded_calls)

    def _holds(self, guard: Guard) -> Callable[..., bool]:
        return holds_natively(guard, self)

    def _forget_guards(self) -> None:
        self._guarded_calls = ()

    def __repr__(self) -> str:
        return f"<{self.backend} kernel {self.name!r} of {self.contract.qualname}>"


take_calls_of(Kernel)
