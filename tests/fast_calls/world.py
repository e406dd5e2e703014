"""Runs a program in one form: the names that its steps use, and the records of what they gave."""

from __future__ import annotations

import contextlib
import enum
import functools
import linecache
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad

import opwright as ow
from tests.fast_calls.contexts import CONTEXTS, Notes
from tests.fast_calls.driver import forget_launches
from tests.fast_calls.forms import Definition, Form, defined
from tests.fast_calls.records import described, described_error, described_thread

__all__ = ["NOT_EXPRESSIBLE", "World"]

# The record of a call that a form cannot make.
NOT_EXPRESSIBLE = "not expressible"
Pack = tuple[tuple[Any, ...], dict[str, Any]]


class Half(float):
    """A float of another class."""


class Count(int):
    """An int of another class."""


class Word(str):
    """A text of another class."""

    __slots__ = ()


class Level(enum.IntEnum):
    ONE = 1
    TWO = 2


def pack(*args: Any, **kwargs: Any) -> Pack:
    return args, kwargs


# torch gives an autograd.Function zeros for the gradients of outputs that are saved for the backward. A native node
# does not ask for them, and nothing reads them.
_OF_NO_INTEREST = frozenset({"dispatched aten.zeros.default"})


class World:
    """A program's module, operators and tensors in one form.

    Attributes:
        records: one for each step that was run: a list of what its calls gave.
    """

    def __init__(self, source: str, definitions: Sequence[Definition], form: Form, device: str = "cpu") -> None:
        self.form, self.records, self.calls = form, [], 0
        forget_launches()
        self.module = _module(source)
        self._undo: list[Callable[[], None]] = []
        self._current: list[Any] = []
        with form.active():
            self.operators = [defined(definition, self.module, form) for definition in definitions]
        # Another namespace in each form, and the same in records.
        self._renamed = {operator.namespace: "ns" for operator in self.operators}
        self.names = {
            "torch": torch, "np": np, "F": F, "ow": ow, "module": self.module, "call": self.call, "patch": self.patch,
            "pack": pack, "Half": Half, "Count": Count, "Word": Word, "Level": Level, "nn": torch.nn,
            "ones": functools.partial(torch.ones, device=device),
            **dict(zip("fg", self.operators, strict=False)), **_tensors(device),
        }  # fmt: skip

    def run(self, step: str) -> None:
        """Run a step; what it gives, or raises, is appended to ``records``."""
        self._current = []
        try:
            with self.form.active():
                exec(_compiled(step), self.names)
        except Exception as error:
            self._current.append(described_error(error, self._renamed))
        self.records.append(self._current)

    def close(self) -> None:
        """Undo what steps have changed outside of the program."""
        for undo in reversed(self._undo):
            undo()
        for operator in self.operators:
            operator.destroy_libraries()
        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float32)

    # -- what steps call ----------------------------------------------------------------------------------------------

    def patch(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute of a library until the program ends."""
        had, before = name in vars(owner), vars(owner).get(name)
        self._undo.append(lambda: setattr(owner, name, before) if had else delattr(owner, name))
        setattr(owner, name, value)

    def call(
        self,
        target: Callable[..., Any] | None,
        arguments: Callable[[int], Pack],
        repeats: int = 1,
        *,
        inside: Sequence[str] = (),
        backward: str = "",
        incoming: str = "ones",
        backward_inside: Sequence[str] = (),
        between: Callable[[], None] | None = None,
        block: Callable[[], Any] = contextlib.nullcontext,
        transform: str = "",
        thread: bool = False,
    ) -> None:
        """Call an operator, and record what is seen of it. The arguments are made anew for each repeat.

        Args:
            inside: names of ``CONTEXTS`` around the forward.
            backward: how gradients are taken: "grad", "retained", "second", "sparse"; empty for not at all.
            incoming: the incoming gradient's layout.
            backward_inside: names of ``CONTEXTS`` around the backward.
            between: runs between forward and backward.
            block: makes a block around both.
            transform: a transform of ``torch.func``, or a tracer, around the call.
        """
        if target is None or (self.form.is_custom and _is_opwrights(inside, backward, backward_inside, transform)):
            self._current.append(NOT_EXPRESSIBLE)

            def events() -> None:
                # Only what other steps can see. As in the other forms, arguments that cannot be made end the step.
                with contextlib.suppress(Exception):
                    for number in range(repeats if between is not None else 0):
                        arguments(number)
                        between()

            _in_thread(events) if thread else events()
            return

        def repeat() -> None:
            with self.form.active(), block():
                for number in range(repeats):
                    self._call_once(target, arguments(number), inside, transform, between, backward, incoming,
                                    backward_inside)  # fmt: skip

        if thread:
            _in_thread(repeat)
        else:
            repeat()

    # -- one call -----------------------------------------------------------------------------------------------------

    def _call_once(
        self, target: Callable[..., Any], packed: Pack, inside: Sequence[str], transform: str,
        between: Callable[[], None] | None, backward: str, incoming: str, backward_inside: Sequence[str],
    ) -> None:  # fmt: skip
        args, kwargs = packed
        self.calls += 1
        self.module.SEEN.clear()
        flat = [*args, *kwargs.values()]
        notes: Notes = []
        record: dict[str, Any] = {"backward_inside": tuple(backward_inside)}
        self._current.append(record)
        output = None
        with self._noting(record, "forward"):
            with contextlib.ExitStack() as stack:
                for name in inside:
                    stack.enter_context(CONTEXTS[name](notes))
                output = _TRANSFORMS[transform](target, args, kwargs)
            record["forward"] = described(output, flat)
        record["arguments"] = [_after(a) for a in flat if isinstance(a, torch.Tensor)]
        record["lists"] = [list(a) for a in flat if type(a) is list]
        if between is not None:
            between()
        if backward and output is not None:
            with self._noting(record, "backward"), contextlib.ExitStack() as stack:
                for name in backward_inside:
                    stack.enter_context(CONTEXTS[name](notes))
                record["backward"] = described(_gradients(output, flat, backward, incoming))
        record["notes"] = [self._rename(note) for note in notes if note not in _OF_NO_INTEREST]
        record["seen"] = list(self.module.SEEN)

    @contextlib.contextmanager
    def _noting(self, record: dict[str, Any], part: str) -> Any:
        try:
            yield
        except Exception as error:
            record[part] = described_error(error, self._renamed)

    def _rename(self, text: str) -> str:
        for name, other in self._renamed.items():
            text = text.replace(name, other)
        return text


def _is_opwrights(inside: Sequence[str], backward: str, backward_inside: Sequence[str], transform: str) -> bool:
    """Whether opwright derives something from the reference that ``custom_op`` does not have: transforms, second
    derivatives, and modes that see the operator of a gradient."""
    seen_by_modes = {"dispatch_mode", "inference_mode", "function_mode"}
    return bool(transform) or "dual_level" in inside or backward == "second" or bool(seen_by_modes & {*backward_inside})


def _after(tensor: torch.Tensor) -> Any:
    version = None if tensor.is_inference() else tensor._version
    return described(tensor), f"version={version}"


def _plain(target: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return target(*args, **kwargs)


def _mapped(target: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    batch = torch.stack([args[0], args[0] + 1])
    return torch.vmap(lambda one: target(one, *args[1:], **kwargs))(batch)


def _differentiated(target: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    def total(one: torch.Tensor) -> torch.Tensor:
        output = target(one, *args[1:], **kwargs)
        return (output[0] if isinstance(output, tuple) else output).sum()

    return torch.func.grad(total)(args[0].detach())


def _forward_mode(target: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    with forward_ad.dual_level():
        output = target(forward_ad.make_dual(args[0].detach(), torch.ones_like(args[0])), *args[1:], **kwargs)
        outputs = output if isinstance(output, tuple) else (output,)
        return [part for each in outputs for part in forward_ad.unpack_dual(each)]


def _traced_by_fx(target: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    graph = torch.fx.symbolic_trace(lambda one: target(one, *args[1:], **kwargs))
    return graph(args[0])


_TRANSFORMS = {
    "": _plain, "vmap": _mapped, "grad": _differentiated, "forward_mode": _forward_mode, "fx": _traced_by_fx,
}  # fmt: skip


def _incoming(output: torch.Tensor, layout: str) -> torch.Tensor:
    ones = torch.cos(torch.arange(output.numel(), device=output.device).to(output.dtype)).reshape(output.shape)
    if layout == "transposed" and output.dim() == 2:
        return ones.T.contiguous().T
    if layout == "expanded":
        return torch.ones((), dtype=output.dtype, device=output.device).expand(output.shape)
    return ones


def _gradients(output: Any, arguments: Sequence[Any], how: str, layout: str) -> Any:
    outputs = [o for o in (output if isinstance(output, tuple | list) else (output,)) if isinstance(o, torch.Tensor)]
    outputs = [o for o in outputs if o.requires_grad]
    leaves = [a for a in arguments if isinstance(a, torch.Tensor) and a.requires_grad]
    if how == "sparse":
        rows = torch.arange(outputs[0].shape[0] - 1, -1, -1, device=outputs[0].device)
        return torch.autograd.grad(F.embedding(rows, outputs[0], sparse=True).sum(), leaves, allow_unused=True)
    grads = [_incoming(o, layout) for o in outputs]
    if how == "grad":
        return torch.autograd.grad(outputs, leaves, grads, allow_unused=True)
    if how == "retained":
        first = torch.autograd.grad(outputs, leaves, grads, allow_unused=True, retain_graph=True)
        return first, torch.autograd.grad(outputs, leaves, grads, allow_unused=True)
    first = torch.autograd.grad(outputs, leaves, grads, allow_unused=True, create_graph=True)
    total = sum(g.sin().sum() for g in first if g is not None and g.requires_grad)
    second = torch.autograd.grad(total, leaves, allow_unused=True) if isinstance(total, torch.Tensor) else ()
    return first, second


def _in_thread(function: Callable[[], None]) -> None:
    raised: list[BaseException] = []

    def work() -> None:
        try:
            function()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


# -- modules and tensors ----------------------------------------------------------------------------------------------

_codes: dict[str, Any] = {}
_modules = 0


def _compiled(step: str) -> Any:
    if len(_codes) > 4096:
        _codes.clear()
    if step not in _codes:
        _codes[step] = compile(step, "<step>", "exec")
    return _codes[step]


def _module(source: str) -> ModuleType:
    """The program's module. ``inspect`` finds its source, as of a file."""
    global _modules
    _modules += 1
    module = ModuleType(f"fuzz_program_{_modules}")
    file = module.__file__ = f"/fuzz/{module.__name__}.py"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    sys.modules[module.__name__] = module
    exec(compile(source, file, "exec"), vars(module))
    module.seen = lambda *values: module.SEEN.append((described_thread(), *map(described, values)))
    return module


def _tensors(device: str) -> dict[str, Any]:
    """Tensors of 4 × 3 elements, and ``q``, whose rows have as many."""
    generator = torch.Generator().manual_seed(0)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device)

    special = torch.tensor([0.0, -0.0, float("nan"), float("inf"), -1.0, 1.0] * 2)
    return {
        "x": [randn(4, 3) for _ in range(4)],
        "w": [randn(4, 3).requires_grad_() for _ in range(2)],
        "p": torch.nn.Parameter(randn(4, 3)),
        "q": randn(8, 12),
        "s": special.reshape(4, 3).to(device),
    }
