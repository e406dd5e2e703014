"""Drawn backwards: each gives what it gives in plain Python, whether it is recorded, and however its inputs change."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from tests.fast_calls.recorders import noted_recorders, recordings

pytestmark = pytest.mark.compiler
_PROGRAMS, _CALLS = 50, 60
_EXPRESSIONS = (
    "{t} * {t}", "{t} - {s}", "{t} * {s}", "-{t}", "torch.sin({t})", "torch.where({t} > {s}, {t}, {t})", "{t}.flip(0)",
    "{t}.sum(0, keepdim=True) + {t}", "{t}.roll(k, 1)", "torch.cat([{t}[1:], {t}[:1]])", "{t}.clamp(min={s})",
    "{t}.softmax(-1)", "{t}.detach()", "{t}.reshape(-1).reshape({t}.shape)", "{t}.double().to({t}.dtype)",
    "{t}[:, torch.arange(2, -1, -1)]", "torch.zeros_like({t})", "{t}.new_full({t}.shape, {s})",
    "sum({t}.split(1)) + {t}", "{t}.sort(0).values", "{t}.max(0).values + {t}", "{t}.T.contiguous().T",
    "({t} * 1j).imag", "{t}.masked_fill({t} < {s}, a)",
)  # fmt: skip
_WRITES = ("w.mul_({s})", "w[0] = {t}[0]", "w[:, 0] += {t}[:, 0]", "w.T[0] = {s}", "w.add_({t})")
_BRANCHES = (
    "if k > 1:\n        w = w * 2",
    "if g.is_contiguous():\n        w = -w",
    "for row in x:\n        w = w + row",
)


def backward(draw: random.Random) -> Callable[..., Any]:
    lines, names = ["x, y = ctx.saved_tensors", "a, k = ctx.a, ctx.k", "w = g.clone()"], ["x", "y", "g", "w"]
    for i in range(draw.randint(1, 8)):
        template = draw.choice(draw.choice((_EXPRESSIONS, _EXPRESSIONS, _WRITES, _BRANCHES)))
        while "{t}" in template:
            template = template.replace("{t}", draw.choice(names), 1)
        line = template.replace("{s}", draw.choice(("a", "k", "0.5", "-0.0", "float(k)", "-a")))
        if template.startswith(("w", "if", "for")):
            lines.append(line)
        else:
            lines.append(f"t{i} = {line}")
            names.append(f"t{i}")
    results = f"return {draw.choice(names)}, {draw.choice((*names, 'None'))}, None, None"
    made: dict[str, Any] = {"torch": torch}
    exec("def backward(ctx, g):\n    " + "\n    ".join((*lines, results)), made)
    function: Callable[..., Any] = made["backward"]
    return function


def product(x: Float[Tensor, "m n"], y: Float[Tensor, "m n"], a: float, k: int) -> Float[Tensor, "m n"]:
    return x * y * a * k


def save(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.a, ctx.k = inputs[2:]


def tensor(draw: random.Random, rows: int) -> Tensor:
    layouts = (
        torch.randn(rows, 3),
        torch.randn(3, rows).T,
        torch.randn(1, 3).expand(rows, 3),
        torch.ones(rows, 3) * torch.nan,
    )
    return draw.choice(layouts)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.slow  # many programs
def test_drawn_backwards(seed: int, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recorders, draw = noted_recorders(monkeypatch), random.Random(seed)
    torch.manual_seed(seed)
    for i in range(_PROGRAMS):
        op = ow.op(f"{namespace}::product_{seed}_{i}")(product)
        op.python(product, name="kernel")
        function = backward(draw)
        op.register_autograd(function, setup_context=save)
        for _ in range(_CALLS):
            rows, a, k = draw.choice((1, 3)), draw.choice((0.0, -0.0)), draw.choice((1, 2))
            x, y, grad = torch.randn(rows, 3), torch.randn(rows, 3), tensor(draw, rows)
            leaves = [x.detach().requires_grad_(), y.detach().requires_grad_()]
            found = torch.autograd.grad(op(*leaves, a, k), leaves, grad, allow_unused=True)
            with torch.no_grad():
                expected = function(SimpleNamespace(saved_tensors=(x, y), a=a, k=k), grad)[:2]
            assert [f is None for f in found] == [e is None for e in expected]
            pairs = [(f, e) for f, e in zip(found, expected, strict=True) if f is not None]
            assert all(torch.equal(f.nan_to_num(nan=7), e.nan_to_num(nan=7)) for f, e in pairs)
    assert recordings(recorders) > 20
