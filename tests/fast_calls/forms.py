"""The forms in which a program runs: with fast calls, without them, and as operators of ``torch.library.custom_op``.

This file and ``driver.py`` are the only ones of this folder that know how fast calls are switched off and counted.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import inspect
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

import opwright as ow
from opwright.backends.build_tools import build_tools
from opwright.backends.gpu.recording import Recorder
from opwright.backends.native.native_call import native_calls
from opwright.fast_path import recorded_gradient, recorded_launch, switch
from opwright.fast_path.extension import FastCalls, fast_calls_extension
from tests.fast_calls import driver

__all__ = [
    "CUSTOM", "FAST", "SLOW", "Definition", "Form", "defined", "fast_counts", "prepare", "recordings_that_differed",
]  # fmt: skip


@dataclass(frozen=True)
class Definition:
    """An operator of a program. Its functions are in the program's module, with its name as a suffix.

    Attributes:
        schema: for ``custom_op``.
        kernel: "python", "cuda" or "none".
        gradient: "derived", "registered" or "operator" (a backward operator).
        mutated: the argument that it writes, or an empty text.
        portable: whether ``custom_op`` can express it.
    """

    name: str
    schema: str
    kernel: str = "python"
    gradient: str = "derived"
    mutated: str = ""
    portable: bool = True


@dataclass(frozen=True)
class Form:
    """One way to run a program."""

    name: str
    is_fast: bool = False
    is_custom: bool = False

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """A block, in each thread of the program, in which calls are of this form."""
        if self.is_fast or self.is_custom:
            yield
        else:
            with ow.fast_calls(False):
                yield


FAST, SLOW, CUSTOM = Form("fast", is_fast=True), Form("slow"), Form("custom_op", is_custom=True)


# -- fast calls: loaded from the start, and counted -------------------------------------------------------------------

_counts: collections.Counter[str] = collections.Counter()


@functools.cache
def prepare(gpu: bool = False) -> None:
    """Once in a process, or before it forks workers: load what makes calls fast, record at once, and count."""
    torch.set_num_threads(1)
    switch.set_mode("1")  # whatever the environment says: FAST is compared with SLOW
    fast_calls_extension.load(build_tools(), build=True)
    native_calls(build_tools())
    recorded_gradient._GRADIENTS_BEFORE = 1
    _count_calls(FastCalls, "guard", "guards")
    _count_calls(FastCalls, "operations_of", "recorded gradients")
    _count_calls(FastCalls, "recorded_call", "recorded launchers")
    _count_calls(Recorder, "number", "numbers passed on")
    if not gpu and driver.is_available():
        driver.imitate()
    _define_one_of_each()


def _define_one_of_each() -> None:
    """The first definition takes a second. Without a backward, so that forks of this process can make their own."""
    source = "import torch\nfrom jaxtyping import Float\ndef kernel_f(x):\n    return x * 1\n"
    module = ModuleType("fuzz_first")
    exec(
        f"{source}def reference_f(x: Float[torch.Tensor, '*n']) -> Float[torch.Tensor, '*n']:\n    return x * 1",
        vars(module),
    )
    for form in (FAST, CUSTOM):
        defined(Definition("f", "(Tensor x) -> Tensor"), module, form).op(torch.ones(1))


def _count_calls(owner: Any, name: str, kind: str) -> None:
    function = getattr(owner, name)

    def counting(*arguments: Any, **keywords: Any) -> Any:
        _counts[kind] += 1
        return function(*arguments, **keywords)

    setattr(owner, name, counting)


def fast_counts() -> dict[str, int]:
    """What was counted in this process: recordings, misses, and launches of recorded launchers."""
    launches = driver.recorded_launches() if driver.is_available() else 0
    return {**_counts, "recorded launches": launches}


def recordings_that_differed() -> list[str]:
    """The kinds of recordings of which a verified repetition differed. The caller got the right result, and a warning
    that nobody reads here. Recording goes on for the next program."""
    ended = []
    for module in (recorded_gradient, recorded_launch):
        if not module._is_on:
            ended.append(module.__name__.rpartition(".")[2])
            module._is_on = True
    return ended


# -- operators --------------------------------------------------------------------------------------------------------

_numbers = itertools.count()


def defined(definition: Definition, module: ModuleType, form: Form) -> OpwrightOperator | CustomOperator:
    """An operator of a program, under a name that no other one has."""
    namespace = f"fuzz{next(_numbers)}"
    return (CustomOperator if form.is_custom else OpwrightOperator)(definition, module, namespace)


class _Operator:
    """What steps use of an operator."""

    def __init__(self, definition: Definition, module: ModuleType, namespace: str) -> None:
        self.definition, self.module, self.namespace = definition, module, namespace
        self.qualname = f"{namespace}::{definition.name}"
        self._libraries: list[torch.library.Library] = []

    def part(self, name: str) -> Callable[..., Any]:
        """A function of the program's module for this operator."""
        function: Callable[..., Any] = getattr(self.module, f"{name}_{self.definition.name}")
        return function

    @property
    def torch_ops(self) -> Any:
        return getattr(getattr(torch.ops, self.namespace), self.definition.name)

    @property
    def default(self) -> Any:
        return self.torch_ops.default

    def register_kernel(self, function: Callable[..., Any]) -> None:
        """Somebody else's kernel, through ``Library.impl``."""
        library = torch.library.Library(self.namespace, "FRAGMENT")
        for key in ("CPU", "CUDA"):
            library.impl(self.definition.name, function, key)
        self._libraries.append(library)

    def destroy_libraries(self) -> None:
        """Undo ``register_kernel``."""
        while self._libraries:
            self._libraries.pop()._destroy()


class OpwrightOperator(_Operator):
    """An operator of ``ow.op``."""

    def __init__(self, definition: Definition, module: ModuleType, namespace: str) -> None:
        super().__init__(definition, module, namespace)
        self.op = ow.op(self.qualname)(self.part("reference"))
        if definition.kernel != "none":
            self.attach("kernel")
        if definition.gradient == "registered":
            self.register_autograd("backward")
        elif definition.gradient == "operator":
            self.backward_op = ow.op(f"{self.qualname}_backward")(self.part("backward_reference"))
            self.op.register_autograd(self.backward_op)

    @property
    def kernel(self) -> Any:
        return self.op.kernels.get("k")

    def attach(self, part: str) -> None:
        """Attach a function of the module as the kernel."""
        if self.definition.kernel == "cuda" and part == "kernel":
            self.op.cuda(self.part(part), name="k", devices=["cpu", "cuda"], dtypes=[torch.float32])
        else:
            self.op.python(self.part(part), name="k")

    def only(self, name: str) -> contextlib.AbstractContextManager[None]:
        return self.op.only(name)

    def register_autograd(self, part: str) -> None:
        self.op.register_autograd(self.part(part), setup_context=self.part("setup"))

    def register_fake(self) -> None:
        self.op.register_fake(self.part("reference"))


class CustomOperator(_Operator):
    """The same operator by ``torch.library.custom_op``."""

    kernel = None  # ``custom_op`` has no kernels by name

    def __init__(self, definition: Definition, module: ModuleType, namespace: str) -> None:
        super().__init__(definition, module, namespace)
        self._only_reference = False
        self.attach("reference" if definition.kernel == "none" else "kernel")
        mutated = (definition.mutated,) if definition.mutated else ()
        parameters = inspect.signature(self.part("reference")).parameters.values()
        self._defaults = tuple(parameter.default for parameter in parameters)
        self.op = torch.library.custom_op(
            self.qualname, self._run_with_defaults, mutates_args=mutated, schema=definition.schema
        )
        self.op.register_fake(self.part("reference"))
        if definition.gradient == "registered":
            self.register_autograd("backward")
        elif not mutated:
            self.op.register_autograd(self._derived_backward, setup_context=_save_inputs)

    def _run_with_defaults(self, *arguments: Any) -> Any:
        """Run the kernel. The dispatcher leaves out arguments that equal their defaults."""
        arguments = (*arguments, *self._defaults[len(arguments) :])
        is_other_dtype = any(isinstance(a, Tensor) and a.dtype != torch.float32 for a in arguments)
        if self._only_reference or (self._run_is_for_float32 and is_other_dtype):
            return self.part("reference")(*arguments)
        return self._run(*arguments)

    def attach(self, part: str) -> None:
        self._run = self.part(part)
        self._run_is_for_float32 = self.definition.kernel == "cuda" and part == "kernel"

    @contextlib.contextmanager
    def only(self, name: str) -> Iterator[None]:
        before = self._only_reference
        self._only_reference = before or name == "reference"
        try:
            yield
        finally:
            self._only_reference = before

    def register_autograd(self, part: str) -> None:
        self.op.register_autograd(self.part(part), setup_context=self.part("setup"))

    def register_fake(self) -> None:
        self.op.register_fake(self.part("reference"))

    def _derived_backward(self, ctx: Any, *grads: Any) -> Any:
        """The gradient of the reference, as opwright derives it."""
        saved = iter(ctx.saved_tensors)
        given = [next(saved) if isinstance(i, Tensor) else i for i in ctx.inputs]
        needs = (*ctx.needs_input_grad, *(False for _ in given[len(ctx.needs_input_grad) :]))
        inputs = [i.detach().requires_grad_() if n else i for i, n in zip(given, needs, strict=True)]
        with torch.enable_grad():
            outputs = self.part("reference")(*inputs)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        wanted = [i for i, needed in zip(inputs, needs, strict=True) if needed]
        pairs = [(o, g) for o, g in zip(outputs, grads, strict=True) if g is not None and o.requires_grad]
        found = iter(torch.autograd.grad([o for o, _ in pairs], wanted, [g for _, g in pairs], materialize_grads=True))
        return tuple(next(found) if needed else None for needed in ctx.needs_input_grad)


def _save_inputs(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.inputs = inputs
    ctx.save_for_backward(*(i for i in inputs if isinstance(i, Tensor)))
