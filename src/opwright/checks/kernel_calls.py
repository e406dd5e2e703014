"""Calls of the kernel that is checked, and what a check learns from one.

A check asks for them through ``Calls``. The kernel's process makes them here; the
checker process gets what they return as bytes (``process/kernel_client.py``).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from opwright import tree
from opwright.checks.exceptions import Raised, in_words, is_lost_gpu, pass_on_refusal, text_of, where_raised
from opwright.checks.limits.shortage import lacks_memory
from opwright.checks.settings import state
from opwright.contract.signature import Argument
from opwright.errors import ContractError, KernelError, NotSimulatedError, OpwrightError
from opwright.internals.compiler import as_fakes
from opwright.runtime.kernel import in_backward
from opwright.runtime.languages import REFERENCE
from opwright.runtime.op import Op
from opwright.workers.copies import same_layout_copy
from opwright.workers.wire import NotATensor

__all__ = [
    "Call",
    "Calls",
    "CallsHere",
    "Gradients",
    "Layout",
    "Meanwhile",
    "gradients_of",
    "lacks_fake",
    "layout_of",
    "same_layout",
    "without_gradient",
]

# With more bytes of arguments and outputs, there is no second call.
_SMALL = 1 << 12


@dataclass(frozen=True)
class Layout:
    """What torch.compile relies on of an output. A size or stride that depends on data is None."""

    shape: tuple[int | None, ...]
    strides: tuple[int | None, ...]
    dtype: torch.dtype
    device: str


@dataclass(frozen=True)
class Call:
    """One call.

    Attributes:
        passed: what the kernel got; it may have been written.
        outputs: what it returned, on the CPU if that is where the check compares; or the exception that it raised.
        layouts: those of the outputs where the kernel ran.
        promised: the layouts that the operator's fake gives; or what is wrong with the fake.
        shared: what an output has its memory from, if it is not its own.
        changed: settings of the process that the call left changed, and how.
    """

    passed: tuple[Any, ...]
    outputs: tuple[torch.Tensor | NotATensor, ...] | Raised
    layouts: tuple[Layout | None, ...] = ()
    promised: tuple[Layout, ...] | str = ()
    shared: str = ""
    changed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Gradients:
    """One forward and backward.

    Attributes:
        passed: the arguments, and the incoming gradients; the backward may have written them.
        of_inputs: for each tracked tensor; None if there is none. Or what is wrong.
        again: those of a second backward of the same forward, if one was asked for; or the exception that it raised.
        changed: settings of the process that the backward left changed, and how.
    """

    passed: tuple[list[Any], list[torch.Tensor | None]]
    of_inputs: tuple[torch.Tensor | None, ...] | str
    is_undefined: bool = False
    again: tuple[torch.Tensor | None, ...] | str = ()
    changed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Meanwhile:
    """What happens to a graph besides its backward.

    Attributes:
        arguments: those of another forward, before the backward; of the same sizes.
        incoming: the incoming gradients of a second backward.
    """

    arguments: Sequence[Any]
    incoming: Sequence[torch.Tensor | None]


class Calls(Protocol):
    """How a check calls the kernel."""

    def chosen(self, arguments: Sequence[Any]) -> str:
        """The name of the kernel that would run if this were the only one."""

    def observe(self, arguments: Sequence[Any]) -> Call:
        """Call it with a copy of some arguments, and look at all that it does."""

    def begin(self, arguments: Sequence[Any]) -> None:
        """Let a call of ``observe`` with these arguments, which follows, run until then in another process."""

    def results(self, arguments: Sequence[Any], *, seed: int | None = None) -> tuple[Any, ...]:
        """What a call returns, followed by the arguments that it has written. A seed is for torch's generators."""

    def gradients(
        self,
        arguments: Sequence[Any],
        tracked: Sequence[bool],
        incoming: Sequence[torch.Tensor | None],
        meanwhile: Meanwhile | None = None,
    ) -> Gradients:
        """The gradients of the tracked ones among the tensors of some arguments."""


@dataclass
class CallsHere:
    """Calls in this process."""

    op: Op
    kernel: str
    device: str

    def chosen(self, arguments: Sequence[Any]) -> str:
        with self.op.only(self.kernel):
            return str(self.op.contract.signature.call(self.op.explain, arguments).chosen.kernel)

    def call(self, arguments: Sequence[Any]) -> Any:
        """Call the operator like a user, restricted to this kernel; returns all its outputs."""
        with self.op.only(self.kernel):
            return self.op.contract.signature.call(self.op.with_saved, arguments)

    def results(self, arguments: Sequence[Any], *, seed: int | None = None) -> tuple[Any, ...]:
        return (*self.returned(arguments, seed=seed), *self.op.contract.signature.written(arguments))

    def returned(self, arguments: Sequence[Any], *, seed: int | None = None) -> tuple[Any, ...]:
        """What a call returns."""
        if seed is not None:
            torch.manual_seed(seed)
        return self.op.contract.unpack(self.call(arguments))

    def synchronize(self) -> None:
        """Wait for the device, so that an asynchronous error is raised in the step that caused it."""
        if self.device == "cuda":
            torch.cuda.synchronize()
            _raise_failed_launch()

    def observe(self, arguments: Sequence[Any]) -> Call:
        return self.observe_in(same_layout(tuple(arguments)))

    def begin(self, arguments: Sequence[Any]) -> None:
        """Nothing: here, a call runs when it is observed."""

    def observe_in(self, passed: tuple[Any, ...]) -> Call:
        """``observe``, with a copy that was made already."""
        again = same_layout(passed) if _bytes(passed) <= _SMALL else None
        before = state.settings(self.device)
        try:
            outputs = self.returned(passed)
            self.synchronize()
            arguments = self.op.contract.signature.arguments
            shared = "" if self.op.may_share_memory else _shared_memory(outputs, passed, arguments)
            shared = shared or self._kept_memory(outputs, again)
        except Exception as error:  # an exception of the kernel is a finding
            pass_on_refusal(error, self.op.contract)
            found = Call(passed, self.described(error))
            if is_lost_gpu(str(found.outputs)):  # which answers no more questions about its settings
                return found
        else:
            known = tuple(o if _is_dense(o) else NotATensor(_name_of(o)) for o in outputs)
            layouts = tuple(None if isinstance(o, NotATensor) else layout_of(o) for o in known)
            found = Call(passed, known, layouts, self._promised(passed), shared)
        changed = state.changes(before, self.device)
        state.restore(before, changed, self.device)
        return Call(found.passed, found.outputs, found.layouts, found.promised, found.shared, changed)

    def described(self, error: Exception) -> Raised:
        # opwright's own errors name the place.
        quiet = self.kernel == REFERENCE or isinstance(error, OpwrightError)
        text, kind = text_of(error), type(error).__name__
        if isinstance(error, RuntimeError) and lacks_memory(error):
            kind = torch.OutOfMemoryError.__name__
        return Raised(kind, text, "" if quiet else where_raised(error))

    def _kept_memory(self, outputs: Sequence[Any], arguments: Sequence[Any] | None) -> str:
        """Whether a second call returns the memory of the first, so that the caller's earlier result changes. Small
        cases find a reused buffer as well."""
        if arguments is None or _bytes(outputs) > _SMALL:
            return ""
        earlier = {_address(t) for t in outputs if _is_dense(t) and t.numel()}
        for i, again in enumerate(self.returned(arguments)):
            if _is_dense(again) and again.numel() and _address(again) in earlier:
                return f"output {i} of a second call is in the memory of an earlier result: return a new tensor"
        return ""

    def _promised(self, arguments: Sequence[Any]) -> tuple[Layout, ...] | str:
        contract = self.op.contract
        if not self.op.has_fake:  # fakes have no memory, which a function that was adopted may read by address
            return ()
        with as_fakes(list(arguments), data_dependent=bool(contract.signature.data_dependent)) as fakes:
            try:
                promised = contract.unpack(contract.signature.call(self.op.with_saved, fakes))
            except Exception as error:  # a custom fake may raise anything
                if self.op.adopted and lacks_fake(self.op, error):
                    return ()
                return f"the fake raises {in_words(error)}"
            return tuple(layout_of(fake) for fake in promised)

    def gradients(
        self,
        arguments: Sequence[Any],
        tracked: Sequence[bool],
        incoming: Sequence[torch.Tensor | None],
        meanwhile: Meanwhile | None = None,
    ) -> Gradients:
        inputs = _leaves(arguments, tracked)
        try:
            outputs = self._tracked_call(inputs)
            other = None if meanwhile is None else self._tracked_call(_leaves(meanwhile.arguments, tracked))
        except Exception as error:  # the dispatcher, which autograd needs, may reject the kernel's outputs
            pass_on_refusal(error, self.op.contract)
            wrong = f"the forward under autograd raised {in_words(error)}"
            return Gradients((inputs, list(incoming)), wrong)
        again = None if meanwhile is None else meanwhile.incoming
        before = state.settings(self.device)
        found = gradients_of(inputs, outputs, incoming, self.synchronize, again)
        del other  # until now, what it has saved was kept
        changed = state.changes(before, self.device)
        state.restore(before, changed, self.device)
        if self.op.adopted and isinstance(found.of_inputs, str) and any(t in found.of_inputs for t in _NO_GRADIENT):
            why = f"{without_gradient(self.op)}: {found.of_inputs}"
            found = dataclasses.replace(found, of_inputs=why, is_undefined=True)
        return dataclasses.replace(found, changed=changed)

    def _tracked_call(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        # An operator that writes its arguments has the gradient of its functional form.
        form = self.op.functional
        with self.op.only(self.kernel):
            return form.contract.unpack(form.contract.signature.call(form.with_saved, inputs))


# What an operator without a gradient says, of ``torch.library.custom_op`` and of ``torch.library.Library``.
_NOT_CONNECTED = "an output is not connected to the inputs: the kernel's result carries no gradient"
_NO_GRADIENT = (_NOT_CONNECTED, "no autograd formula was registered", "autograd kernel was not registered")
# What one without a fake says.
_NO_FAKE = (
    "no fake impl registered",
    "UnsupportedOperatorException",
    "no fake implementation",
    "with the 'Meta' backend",
)


def without_gradient(operator: Op) -> str:
    """How a message begins that says that what was adopted has no gradient."""
    return f"{operator.adopted} has no gradient"


def lacks_fake(operator: Op, error: Exception) -> bool:
    """Whether what was adopted has no fake, which is not wrong: torch.compile refuses it."""
    text = f"{type(error).__name__}: {error}"
    return not operator.has_fake or any(each in text for each in _NO_FAKE)


def _raise_failed_launch() -> None:
    """Raise the error of a launch that failed, and that nothing has asked for: CUDA keeps it for whoever asks next.

    Raises:
        KernelError: there is such an error.
    """
    try:
        _one_element().zero_()  # torch asks after each launch of its own
    except RuntimeError as error:
        if is_lost_gpu(str(error)):
            raise
        raise KernelError(
            f"a launch failed, and the kernel returned all the same: {str(error).splitlines()[0]}",
            fix="look at cudaGetLastError() after each launch",
        ) from None


@functools.cache
def _one_element() -> torch.Tensor:
    return torch.zeros(1, device="cuda")


def _leaves(arguments: Sequence[Any], tracked: Sequence[bool]) -> list[Any]:
    remaining = iter(tracked)
    return tree.map_tensors(lambda t: t.detach().requires_grad_(next(remaining)), list(arguments))  # type: ignore[no-any-return]


def same_layout(values: Any) -> Any:
    """Tensors copied with their memory layout, and with what lies around their elements."""
    return tree.map_tensors(same_layout_copy, values)


def gradients_of(
    inputs: list[Any],
    outputs: Sequence[Any],
    incoming: Sequence[torch.Tensor | None],
    synchronize: Callable[[], None] = lambda: None,
    again: Sequence[torch.Tensor | None] | None = None,
) -> Gradients:
    """The backward of a forward with tracked inputs.

    Args:
        incoming: a gradient for each output that is differentiated; None for others, and for all that follow.
        again: the same for a second backward, if there is one.
    """
    passed = inputs, list(incoming)
    used = [o for o, g in zip(outputs, incoming, strict=False) if g is not None]
    wanted = [t for t in tree.tensors(inputs) if t.requires_grad]
    if not all(isinstance(o, torch.Tensor) and o.requires_grad for o in used):
        return Gradients(passed, _NOT_CONNECTED)

    def backward(grads: Sequence[torch.Tensor | None], *, last: bool) -> tuple[torch.Tensor | None, ...]:
        known = [g for g in grads if g is not None]
        with in_backward(tree.tensors([inputs, list(outputs), known])):
            found = torch.autograd.grad(used, wanted, known, allow_unused=True, retain_graph=not last)
        synchronize()
        return tuple(found)

    try:
        got = backward(incoming, last=again is None)
    except ContractError as error:  # the reference writes over what its gradient needs
        return Gradients(passed, error.message, is_undefined=True)
    except NotSimulatedError as error:  # of a kernel that the backward launches; the forward runs
        return Gradients(passed, f"the backward is not simulated: {error.message}", is_undefined=True)
    except Exception as error:  # an exception of the backward is a finding
        pass_on_refusal(error)
        return Gradients(passed, f"the backward raised {_in_words_with_line(error)}")
    if again is None:
        return Gradients(passed, got)
    try:
        return Gradients(passed, got, again=backward(again, last=True))
    except Exception as error:
        pass_on_refusal(error)
        return Gradients(passed, got, again=f"it raised {_in_words_with_line(error)}")


def _in_words_with_line(error: Exception) -> str:
    """An exception of a backward; opwright's own errors name the place."""
    return in_words(error) + ("" if isinstance(error, OpwrightError) else where_raised(error))


def _bytes(values: Sequence[Any]) -> int:
    return sum(t.nbytes for t in tree.tensors(list(values)))


def _is_dense(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def _name_of(value: Any) -> str:
    return f"a tensor with the layout {value.layout}" if isinstance(value, torch.Tensor) else type(value).__name__


def layout_of(tensor: torch.Tensor) -> Layout:
    shape, strides = (tuple(n if isinstance(n, int) else None for n in ns) for ns in (tensor.shape, tensor.stride()))
    return Layout(shape, strides, tensor.dtype, tensor.device.type)


def _shared_memory(outputs: Sequence[Any], values: Sequence[Any], arguments: Sequence[Argument]) -> str:
    """Which memory an output shares with an argument or another output."""
    named = [(a.name, t) for a, value in zip(arguments, values, strict=True) for t in tree.tensors([value])]
    taken = {_address(tensor): f"argument {name!r}" for name, tensor in named}
    for i, output in enumerate(outputs):
        if not _is_dense(output):
            continue
        if output.numel() and _address(output) in taken:
            return f"output {i} shares memory with {taken[_address(output)]}: return a new tensor"
        taken[_address(output)] = f"output {i}"
    return ""


def _address(tensor: torch.Tensor) -> int:
    """Where its memory begins: storages differ, if a view is made through NumPy or DLPack."""
    return tensor.untyped_storage().data_ptr()
