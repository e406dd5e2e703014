"""Custom gradients: the forward is right, and the backward has one fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.planted.catalogue import Row, correct, planted
from opwright.runtime.op import Op

__all__ = ["OPERATORS", "ROWS"]

# Of the incoming gradient, both arguments, and which of them need a gradient: the gradients of both.
Backward = Callable[[Tensor, Tensor, Tensor, tuple[bool, bool]], tuple[Tensor | None, Tensor | None]]
_CHECKS = ("values", "gradients")


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _square(name: str, backward: Backward, setup_context: Callable[..., None] = _save) -> Op:
    """``x² y`` with a backward."""

    @ow.op(f"selftest_gradients::{name}")
    def operator(x: Float[Tensor, "*n"], y: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return x * x * y

    operator.python(lambda x, y: (x * x * y).contiguous(), name="kernel")

    def run(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, y = ctx.saved_tensors
        return backward(g, x, y, ctx.needs_input_grad)

    operator.register_autograd(run, setup_context=setup_context)
    return operator


def _flat(g: Tensor) -> Tensor:
    """What a kernel reads that takes an incoming gradient for contiguous."""
    return torch.as_strided(g, (max(g.numel(), 1),), (1,))[: g.numel()].view(g.shape) if 0 not in g.stride() else g


def _raise() -> tuple[None, None]:
    raise RuntimeError("both gradients are expected to be needed")


def _with_zero_end(t: Tensor) -> Tensor:
    t = t.contiguous().clone()
    t.view(-1)[-1:] = 0
    return t


_kept: dict[Any, Tensor] = {}


def _save_in_one_buffer(ctx: Any, inputs: Any, output: Any) -> None:
    """Keep ``x`` in memory that the next forward of the same size overwrites."""
    x, y = (t.detach() for t in inputs)
    ctx.save_for_backward(_kept.setdefault((tuple(x.shape), x.dtype), torch.empty_like(x)).copy_(x), y.clone())


def _save_copies(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*(t.detach().clone() for t in inputs))


_all: list[Tensor] = []


def _remember(g: Tensor, memory: list[Tensor]) -> Tensor:
    memory.append(g)
    return g


_FAULTS: dict[str, Backward] = {
    "a factor is missing": lambda g, x, y, needs: (g * x * y, g * x**2),
    "the sign is wrong": lambda g, x, y, needs: (-2 * g * x * y, g * x**2),
    "the gradients are exchanged": lambda g, x, y, needs: (g * x**2, 2 * g * x * y),
    "the incoming gradient is ignored": lambda g, x, y, needs: (2 * x * y, x**2),
    "the second gradient is missing": lambda g, x, y, needs: (2 * g * x * y, None),
    "the second gradient is zero": lambda g, x, y, needs: (2 * g * x * y, torch.zeros_like(g)),
    "the last element is zero": lambda g, x, y, needs: (_with_zero_end(2 * g * x * y), g * x**2),
    "past 1024 elements it is zero": lambda g, x, y, needs: (2 * g * x * y * (g.numel() <= 1024), g * x**2),
    "in bfloat16": lambda g, x, y, needs: ((2 * g * x * y).bfloat16().to(g.dtype), g * x**2),
    "the strides of the incoming gradient are ignored": lambda g, x, y, needs: (2 * _flat(g) * x * y, _flat(g) * x**2),
    "the incoming gradient is written": lambda g, x, y, needs: (2 * g.mul_(x) * y, g * x),
    "a gradient of another shape": lambda g, x, y, needs: ((2 * g * x * y).sum(), g * x**2),
    "it raises where one gradient is needed": lambda g, x, y, needs: (2 * g * x * y, g * x**2) if all(needs) else _raise(),
}  # fmt: skip
# Faults that show with a second forward or backward only.
_FAULTS_LATER: dict[str, tuple[Backward, Callable[..., None]]] = {
    "saved in one buffer": (lambda g, x, y, needs: (2 * g * x * y, g * x**2), _save_in_one_buffer),
    "what is saved is changed": (lambda g, x, y, needs: (2 * g * x * y, g * x.data.mul_(x)), _save_copies),
}
# Faults of what stays in memory.
_FAULTS_OF_MEMORY: dict[str, Backward] = {
    "each gradient is kept": lambda g, x, y, needs: (_remember(2 * g * x * y, _all), g * x**2),
}
_RIGHT: dict[str, Backward] = {
    "as it is": lambda g, x, y, needs: (2 * g * x * y, g * x**2),
    "in float64": lambda g, x, y, needs: ((2.0 * g.double() * x * y).to(g.dtype), (g.double() * x**2).to(g.dtype)),
    "only what is needed": lambda g, x, y, needs: (2 * g * x * y if needs[0] else None, g * x**2 if needs[1] else None),
    "of a contiguous copy": lambda g, x, y, needs: (2 * g.contiguous() * x * y, g.contiguous() * x**2),
    "as a sum": lambda g, x, y, needs: (g * x * y + g * x * y, g * x**2),
}  # fmt: skip


_OF_SOFTPLUS_FAULTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "overflows": lambda g, x: g * (x.exp() / (1 + x.exp())),
}
_OF_SOFTPLUS_RIGHT: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "as a sigmoid": lambda g, x: g * x.sigmoid(),
    "overflows to zero": lambda g, x: (g.double() / (1 + (-x.double()).exp())).to(g.dtype),
}


def _softplus(name: str, backward: Callable[[Tensor, Tensor], Tensor]) -> Op:
    """``log(1 + exp(x))`` with a backward."""

    @ow.op(f"selftest_gradients::{name}")
    def operator(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return torch.nn.functional.softplus(x)

    operator.python(lambda x: torch.nn.functional.softplus(x).contiguous(), name="kernel")
    operator.register_autograd(lambda ctx, g: backward(g, *ctx.saved_tensors), setup_context=_save)
    return operator


# Of the incoming gradients, which are None for an output that is not used, and the argument.
_OF_TWO_FAULTS: dict[str, Callable[[Tensor | None, Tensor | None, Tensor], Tensor]] = {
    "an unused output's gradient is zeros": lambda g, h, x: (
        (torch.zeros_like(x) if g is None else g) / (2 * x.sqrt()) + (0 if h is None else 2 * h * x)
    ),
    "all outputs are expected to be used": lambda g, h, x: _needed(g) / (2 * x.sqrt()) + 2 * _needed(h) * x,
}
_OF_TWO_RIGHT: dict[str, Callable[[Tensor | None, Tensor | None, Tensor], Tensor]] = {
    "of used outputs only": lambda g, h, x: (
        (torch.zeros_like(x) if g is None else g / (2 * x.sqrt())) + (0 if h is None else 2 * h * x)
    ),
}


def _needed(g: Tensor | None) -> Tensor:
    if g is None:
        raise RuntimeError("each output is expected to be used")
    return g


def _two_outputs(name: str, backward: Callable[[Tensor | None, Tensor | None, Tensor], Tensor]) -> Op:
    """``sqrt(x)`` and ``x²`` with a backward."""

    @ow.op(f"selftest_gradients::{name}")
    def operator(x: Annotated[Float[Tensor, " n"], ow.values(0, 4)]) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        return x.sqrt(), x * x

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)

    operator.python(lambda x: (x.sqrt().contiguous(), (x * x).contiguous()), name="kernel")
    operator.register_autograd(lambda ctx, g, h: backward(g, h, *ctx.saved_tensors), setup_context=setup)
    return operator


def _rows() -> list[Row]:
    found = []
    for i, (name, of_two) in enumerate(_OF_TWO_FAULTS.items()):
        operator = _two_outputs(f"wrong_two_{i}", of_two)
        found.append(planted(operator, "kernel", "gradients", defect=f"backward: {name}", checks=_CHECKS))
    for i, (name, of_two) in enumerate(_OF_TWO_RIGHT.items()):
        operator = _two_outputs(f"right_two_{i}", of_two)
        found.append(correct(operator, "kernel", defect=f"backward: {name}", checks=_CHECKS))
    for i, (name, of_softplus) in enumerate(_OF_SOFTPLUS_FAULTS.items()):
        operator = _softplus(f"wrong_softplus_{i}", of_softplus)
        found.append(planted(operator, "kernel", "gradients", defect=f"backward: {name}", checks=_CHECKS))
    for i, (name, of_softplus) in enumerate(_OF_SOFTPLUS_RIGHT.items()):
        operator = _softplus(f"right_softplus_{i}", of_softplus)
        found.append(correct(operator, "kernel", defect=f"backward: {name}", checks=_CHECKS))
    for i, (name, backward) in enumerate(_FAULTS.items()):
        found.append(
            planted(_square(f"wrong_{i}", backward), "kernel", "gradients", defect=f"backward: {name}", checks=_CHECKS)
        )
    for i, (name, (backward, setup)) in enumerate(_FAULTS_LATER.items()):
        operator = _square(f"wrong_later_{i}", backward, setup)
        found.append(planted(operator, "kernel", "gradients", defect=f"backward: {name}", checks=_CHECKS))
    for i, (name, backward) in enumerate(_FAULTS_OF_MEMORY.items()):
        operator = _square(f"wrong_memory_{i}", backward)
        checks = (*_CHECKS, "repeated calls")
        found.append(planted(operator, "kernel", "repeated calls", defect=f"backward: {name}", checks=checks))
    for i, (name, backward) in enumerate(_RIGHT.items()):
        found.append(correct(_square(f"right_{i}", backward), "kernel", defect=f"backward: {name}", checks=_CHECKS))
    return found


ROWS = _rows()
OPERATORS = [row.op for row in ROWS]
