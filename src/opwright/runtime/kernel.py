"""A kernel attached to an operator: built when first needed, callable by name."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opwright import tree
from opwright.backends import check_hooks, get_backend, import_all, in_backward, under_check
from opwright.backends.base import Artifact, KernelSpec, Launch, free_kinds, is_for_any_size, launch_for_calls_like
from opwright.backends.build_tools import build_tools
from opwright.backends.check_hooks import CheckHooks
from opwright.backends.gpu.recording import RecordableLauncher
from opwright.contract.binding import Binding, bind, fill
from opwright.contract.contract import Contract
from opwright.contract.dtypes import short
from opwright.contract.fingerprint import digest, fingerprint
from opwright.errors import KernelRefusedError
from opwright.fast_path.extension import take_calls_of
from opwright.fast_path.learning import Learner, run_of
from opwright.fast_path.recorded_launch import repeated
from opwright.internals.autograd import below_autograd
from opwright.internals.dispatch import has_memory
from opwright.machine import Machine
from opwright.results import Accepted, Probe, Refused
from opwright.runtime.call.argument_utils import dtypes_that_count, gpu_of, of_open_dtype
from opwright.runtime.call.launch import prepare_launch, prepare_visible
from opwright.runtime.call.simulated import writing_mutated_only
from opwright.runtime.register.registration import registered
from opwright.target import Target, targets_here

__all__ = ["CheckHooks", "Kernel", "gpu_of", "hooks_of", "import_all", "in_backward", "under_check"]


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
        self._prepared_by_device: dict[int | None, Launch] = {}
        self._lock = threading.Lock()
        self._learner = Learner(contract)  # of calls of the kernel itself

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
            *(f"{argument}: {dtypes}" for argument, dtypes in sorted(spec.argument_dtypes.items())),
            fingerprint(spec.when), *(f"{k}={fingerprint(v)}" for k, v in sorted(spec.options.items())),
        )  # fmt: skip

    def probe(self, where: Target | str, machine: Machine | None = None) -> Probe:
        """Whether the kernel can run somewhere, on this or another machine.

        Args:
            where: a target, or a type of device, on which this process may have more than one engine. If none of them
                takes the kernel, the last one says why: if an engine is switched on, that is what the user wants.
        """
        targets = targets_here(where) if isinstance(where, str) else [where]
        backend, machine = get_backend(self.backend), machine or build_tools().machine
        for target in targets:
            probe = backend.probe(self.spec, target, machine)
            if isinstance(probe, Accepted):
                break
        return probe

    def applies_to(self, binding: Binding, arguments: Sequence[Any]) -> Probe:
        """Whether the kernel can run on the arguments' device and dtypes, independent of shapes and values."""
        assert binding.device is not None  # bind() refuses calls without a tensor
        device = binding.device.type
        probe = self.probe(device)
        dtypes = get_backend(self.backend).dtypes_here(self.spec, device, build_tools().machine)
        if isinstance(probe, Accepted) and dtypes is not None:
            is_stated = dtypes is self.spec.dtypes
            concerned = of_open_dtype(self.contract.signature, arguments) if is_stated else arguments
            others = [short(d) for d in dtypes_that_count(concerned) if d not in dtypes]
            if others:
                names = map(short, dtypes)
                taken = ", ".join(names if is_stated else sorted(names))
                return Refused(f"takes {taken}, not {', '.join(others)}")
        return self._why_not(arguments) or probe

    def _why_not(self, arguments: Sequence[Any]) -> Refused | None:
        """Why the kernel does not take the dtype of a single argument."""
        given = dict(zip((a.name for a in self.contract.signature.arguments), arguments, strict=False))
        for name, taken in self.spec.argument_dtypes.items():
            if others := {t.dtype for t in tree.tensors(given.get(name))}.difference(taken):
                return Refused(f"takes {', '.join(map(short, taken))} as {name!r}, not {', '.join(map(short, others))}")
        return None

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
        prepared = self._prepared_by_device.get(device)
        if prepared is None:
            prepared = self._prepared_by_device[device] = self._prepared(self.load(), device)
        return prepared(*arguments)

    def launch_for_calls_like(self, arguments: Sequence[Any], device: int | None) -> Launch:
        """The function for arguments like those of the last call (see ``base.launch_for_calls_like``)."""
        launch = self.load()
        if isinstance(launch, RecordableLauncher):
            return self._prepared(repeated(launch, arguments, self.contract.free_numbers), device)
        return self._prepared(launch_for_calls_like(launch, arguments), device)

    def is_for_any_size(self) -> bool:
        """Whether ``launch_for_calls_like`` returns a function for calls of any sizes."""
        return self._launch is None or is_for_any_size(self._launch)

    def free_kinds(self) -> tuple[type, ...]:
        """The types of numbers in which calls of that function may differ."""
        return (int, float) if self._launch is None else free_kinds(self._launch)

    def _prepared(self, launch: Launch, device: int | None) -> Launch:
        signature = self.contract.signature
        return prepare_launch(writing_mutated_only(launch, device, signature), device, signature)

    @property
    def runs_python(self) -> bool:
        """Whether its source is Python, such as a launcher of Triton kernels."""
        source = self.spec.source
        return source.suffix == ".py" if isinstance(source, Path) else callable(source)

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
        arguments = fill(self.contract, args, kwargs)
        learning = self._learner.begin(arguments, may_be_tracked=False)
        result = self._call(*arguments)
        if learning is not None:
            general = self._learner.is_last
            run = run_of([self], arguments, gpu_of(arguments), self._call, specialise=not general)
            run = prepare_visible(run, self.contract)
            self._learner.learn(learning, run, [self], None, any_size=general or self.is_for_any_size())
        return result

    def _call(self, *arguments: Any) -> Any:
        outcome = self.accepts(bind(self.contract, arguments), arguments)
        if isinstance(outcome, Refused):
            raise KernelRefusedError(
                f"{self.contract.qualname}: kernel {self.name!r} cannot run on these arguments: {outcome.reason}",
                fix=outcome.remedy or f"ow.explain({self.contract.name}, ...) shows which kernel can",
            )
        self._refuse_without_memory(arguments)
        with below_autograd():
            return self.contract.visible(self.launch(arguments, gpu_of(arguments)))

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

    def __repr__(self) -> str:
        return f"<{self.backend} kernel {self.name!r} of {self.contract.qualname}>"


def hooks_of(kernel: Kernel, target: Target) -> CheckHooks:
    """What checks ask of a kernel's language."""
    return check_hooks(kernel.spec, kernel.contract, target)


take_calls_of(Kernel, owner="_learner")
