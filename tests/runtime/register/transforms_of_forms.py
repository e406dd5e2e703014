"""What PyTorch's transforms make of operators of other forms: one that writes its argument, one with lists, one with a
size that depends on data; the second table in docs/transforms.md.

``python -m tests.runtime.register.transforms_of_forms`` prints it; ``--write`` puts it into the page.
"""

from __future__ import annotations

import copy
import io
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import opwright as ow
from tests.runtime.register.transforms import PAGE, first_line

START, END = "<!-- forms: start -->", "<!-- forms: end -->"


@ow.op("forms::scale_")
def scale_(x: Annotated[Float[Tensor, " n"], ow.mutated], w: Float[Tensor, " n"]) -> None:
    x.mul_(w)


@ow.op("forms::scale_each")
def scale_each(xs: list[Float[Tensor, "?n"]], a: float = 2.0) -> list[Float[Tensor, "?n"]]:
    return [a * x * x for x in xs]


@ow.op("forms::positive")
def positive(x: Float[Tensor, " n"]) -> Float[Tensor, " m"]:
    return x[x > 0] * 3


def write(x, w):
    x.copy_(x * w)


scale_.python(write, name="kernel")
scale_each.python(lambda xs, a: [(a * x * x).contiguous() for x in xs], name="kernel")
positive.python(lambda x: x.index_select(0, (x > 0).nonzero()[:, 0]) * 3, name="kernel")


@dataclass(frozen=True)
class Form:
    """A function of one vector that calls an operator, and what it should compute."""

    call: Callable[[Tensor], Tensor]
    expected: Callable[[Tensor], Tensor]


def writes(x):
    y = x.sin()
    scale_(y, x)
    return y


FORMS = {
    "writes an argument": Form(writes, lambda x: x.sin() * x),
    "lists": Form(lambda x: torch.cat(scale_each([x, x[:2]])), lambda x: torch.cat([2 * x * x, 2 * x[:2] * x[:2]])),
    "size depends on data": Form(lambda x: positive(x) + 1, lambda x: x[x > 0] * 3 + 1),
}


# On which rows are tried now.
device = "cpu"


def vector(*, grad=False):
    return torch.tensor([0.5, -1.0, 2.0, 0.25], dtype=torch.float64, device=device).requires_grad_(grad)


def same(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


ROWS: dict[str, Callable[[Form], str | None]] = {}


def row(what):
    def add(run):
        ROWS[what] = run
        return run

    return add


def gradient(function, x):
    return torch.autograd.grad(function(x).square().sum(), x, create_graph=True)[0]


@row("`loss.backward()`")
def backward(form):
    x = vector(grad=True)
    same(gradient(form.call, x), gradient(form.expected, x))


@row("second derivatives (`create_graph=True`)")
def higher(form):
    x = vector(grad=True)
    got, expected = (torch.autograd.grad(gradient(f, x).sum(), x)[0] for f in (form.call, form.expected))
    same(got, expected)


@row("`torch.no_grad()`, `torch.inference_mode()`")
def without_grad(form):
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            same(form.call(vector()), form.expected(vector()))


@row("`torch.compile(fullgraph=True)`, forward and backward, static and dynamic shapes")
def compiled(form):
    for dynamic in (False, True):
        torch.compiler.reset()
        function = torch.compile(form.call, fullgraph=True, dynamic=dynamic)
        for x in (vector(grad=True), vector().repeat(2).requires_grad_()):
            same(function(x), form.expected(x))
            same(torch.autograd.grad(function(x).sum(), x), torch.autograd.grad(form.expected(x).sum(), x))


@row("`torch.export`, strict or not, saved and loaded")
def export(form):
    class Model(torch.nn.Module):
        def forward(self, x):
            return form.call(x)

    for strict in (False, True):
        file = io.BytesIO()
        torch.export.save(torch.export.export(Model(), (vector(),), strict=strict), file)
        file.seek(0)
        same(torch.export.load(file).module()(vector()), form.expected(vector()))


@row("`torch.func.grad`, `vjp`")
def reverse(form):
    got, expected = (torch.func.grad(lambda x, f=f: f(x).square().sum())(vector()) for f in (form.call, form.expected))
    same(got, expected)


@row("`torch.func.jvp`, `forward_ad`")
def forward_mode(form):
    x, t = vector(), torch.ones_like(vector())
    same(torch.func.jvp(form.call, (x,), (t,))[1], torch.func.jvp(form.expected, (x,), (t,))[1])
    with forward_ad.dual_level():
        got = forward_ad.unpack_dual(form.call(forward_ad.make_dual(x, t))).tangent
    same(got, torch.func.jvp(form.expected, (x,), (t,))[1])


@row("`torch.vmap`")
def vmap(form):
    batch = torch.stack([vector(), vector() + 0.5])
    same(torch.vmap(form.call)(batch), torch.stack([form.expected(x) for x in batch]))


@row("`torch.func.functionalize`")
def functionalize(form):
    same(torch.func.functionalize(form.call)(vector()), form.expected(vector()))


@row("activation checkpointing")
def checkpointing(form):
    x = vector(grad=True)
    got = checkpoint(form.call, x, use_reentrant=False)
    same(torch.autograd.grad(got.sum(), x), torch.autograd.grad(form.expected(x).sum(), x))


@row("`make_fx`")
def tracing(form):
    graph = make_fx(form.call, tracing_mode="symbolic")(vector())
    same(graph(vector()), form.expected(vector()))


@row("fake tensors of known sizes")
def fake(form):
    with FakeTensorMode() as mode:
        assert form.call(mode.from_tensor(vector())).shape == form.expected(vector()).shape


@row("`FlopCounterMode`, the profiler")
def counting(form):
    with FlopCounterMode(display=False) as counter, torch.profiler.profile():
        form.call(vector())
    assert counter.get_total_flops() > 0


@row("modules that hold it: `copy.deepcopy`")
def modules(form):
    module = torch.nn.Module()
    module.function = form.call
    same(copy.deepcopy(module).function(vector()), form.expected(vector()))


def outcome(what, name, on="cpu"):
    """``works``, or ``refused: `` and what was said."""
    global device
    torch.compiler.reset()
    device = on
    try:
        remark = ROWS[what](FORMS[name])
    except Exception as error:
        return f"refused: {type(error).__name__}: {first_line(error)}"[:160].replace("|", "\\|")
    return "works" + (f"; {remark}" if remark else "")


def recorded():
    """What the page says: outcomes by row and form."""
    text = PAGE.read_text().partition(START)[2].partition(END)[0]
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line.startswith("|")][2:]
    return {r[0].strip(): dict(zip(FORMS, (c.strip() for c in r[1:]), strict=True)) for r in rows}


def render():
    lines = [f"| | {' | '.join(FORMS)} |", "|---|" + "---|" * len(FORMS)]
    lines += [f"| {what} | {' | '.join(outcome(what, name) for name in FORMS)} |" for what in ROWS]
    return "\n".join(lines)


if __name__ == "__main__":
    table = render()
    if "--write" in sys.argv:
        before, _, rest = PAGE.read_text().partition(START)
        PAGE.write_text(f"{before}{START}\n{table}\n{END}{rest.partition(END)[2]}")
    print(table)
