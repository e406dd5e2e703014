"""Checks that must pass whichever of torch's private names are missing: a script that ``test_without.py`` runs.

A computed value is right. If a value cannot be computed, there is an error of opwright's or torch's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.checks.context import Context
from opwright.checks.table import CHECKS
from opwright.contract.inputs.cases import cases
from opwright.internals.guards import guard_tensors
from opwright.internals.lookup import problems
from opwright.runtime.kernel import under_check
from opwright.target import Target


def equal(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected)


@ow.op("core::scaled_sin")
def scaled_sin(x: Float[Tensor, "*n"], a: float) -> Float[Tensor, "*n"]:
    return a * x.sin()


@scaled_sin.python(name="right")
def right(x: Tensor, a: float) -> Tensor:
    return torch.mul(torch.sin(x), a).contiguous()


@ow.op("core::forgets_its_tail")
def forgets_its_tail(x: Float[Tensor, "*n"], a: float) -> Float[Tensor, "*n"]:
    return a * x.sin()


@forgets_its_tail.python(name="wrong")
def wrong(x: Tensor, a: float) -> Tensor:
    out = torch.mul(torch.sin(x), a).contiguous()
    if out.numel() > 100:
        out.view(-1)[-1] = 0
    return out


@ow.op("core::total")
def total(x: Float[np.ndarray, "n m"]) -> Float[np.ndarray, " n"]:
    return np.sum(x, axis=1)


x = torch.randn(8, 16)


def calls() -> None:
    expected = 2 * x.sin()
    for _ in range(3):
        equal(scaled_sin(x, 2.0), expected)
        equal(torch.ops.core.scaled_sin(x, 2.0), expected)
    equal(scaled_sin(x.t(), 2.0), expected.t())
    equal(scaled_sin(x[:0], 2.0), expected[:0])
    equal(scaled_sin(torch._neg_view(x), 2.0), -expected)
    with torch.inference_mode():
        equal(scaled_sin(x, 2.0), expected)
    equal(scaled_sin(torch.empty(3, 4, device="meta"), 2.0).shape, torch.Size([3, 4]))
    assert "right" in str(scaled_sin.explain(x, 2.0))


def a_mode_sees_calls() -> None:
    class Sees(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(function)
            return function(*args, **(kwargs or {}))

    seen: list[Any] = []
    with Sees():
        scaled_sin(x, 2.0)
    assert scaled_sin.overload in seen


def subclasses_see_calls() -> None:
    class Special(Tensor):
        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(function)
            return super().__torch_function__(function, types, args, kwargs or {})

    seen: list[Any] = []
    scaled_sin(x, 2.0)
    scaled_sin(x.as_subclass(Special), 2.0)
    assert scaled_sin.overload in seen


def gradients() -> None:
    tracked = x.clone().requires_grad_()
    for _ in range(2):
        (gradient,) = torch.autograd.grad(scaled_sin(tracked, 2.0).sum(), tracked)
        equal(gradient, 2 * x.cos())
    with torch.no_grad():
        assert not scaled_sin(tracked, 2.0).requires_grad
    assert scaled_sin(tracked, 2.0).requires_grad


def transforms() -> None:
    unless_refused(lambda: equal(torch.func.grad(lambda x: scaled_sin(x, 2.0).sum())(x), 2 * x.cos()))
    unless_refused(lambda: equal(torch.func.vmap(lambda x: scaled_sin(x, 2.0))(x), 2 * x.sin()))
    unless_refused(lambda: equal(torch.func.jvp(lambda x: scaled_sin(x, 2.0), (x,), (x,))[1], 2 * x * x.cos()))


def unless_refused(run: Callable[[], None]) -> None:
    try:
        run()
    except (ow.errors.OpwrightError, RuntimeError, NotImplementedError) as error:
        print("  refused:", str(error).splitlines()[0][:150])
        assert problems(), "nothing is missing, so nothing may be refused"


def compiled() -> None:
    tracked = x.clone().requires_grad_()
    function = torch.compile(lambda x: scaled_sin(x + 1, 2.0) * 3, backend="aot_eager", fullgraph=True)
    found = function(tracked)
    equal(found, 6 * (x + 1).sin())
    equal(torch.autograd.grad(found.sum(), tracked)[0], 6 * (x + 1).cos())


def arrays() -> None:
    unless_refused(lambda: equal(total(x), x.sum(1)))
    np.testing.assert_allclose(total(x.numpy()), x.numpy().sum(1), rtol=1e-5)
    assert total(np.ones((2, 3))).dtype == np.float64


def guards_of_graphs() -> None:
    """``ow.cuda_graphed`` shares a graph among calls for which this holds."""
    holds = guard_tensors([x, x[0]])
    assert holds(x.clone(), x[1])
    others = [x.double(), x[:4], x.t(), x.clone().requires_grad_()]
    assert not any(holds(other, x[0]) for other in others)


def compiled_arrays() -> None:
    add = ow.compile_numpy(lambda a, b: a + np.sqrt(b) + np.ones(3))
    given = x[0, :3].numpy(), np.ones(3, dtype=np.float32)
    unless_refused(lambda: equal(torch.as_tensor(add(*given)), x[0, :3].double() + 2))


def checks() -> None:
    def findings(operator: Any, kernel: str) -> list[Any]:
        chosen = cases(operator.contract, "quick")
        context = Context(operator, kernel, Target("cpu"), chosen)
        with operator.only(kernel), under_check():
            found = [finding for check in CHECKS.values() for finding in check.run(context)]
        return [f for f in found if getattr(f, "status", None) is ow.results.Status.FAIL]

    assert not findings(scaled_sin, "right"), findings(scaled_sin, "right")
    assert any(f.check == "values" for f in findings(forgets_its_tail, "wrong"))


def main() -> None:
    parts = [
        calls,
        a_mode_sees_calls,
        subclasses_see_calls,
        gradients,
        transforms,
        compiled,
        arrays,
        guards_of_graphs,
        checks,
    ]
    if "compiled_arrays" in sys.argv:  # Inductor takes its time
        parts.append(compiled_arrays)
    for part in parts:
        part()
        print(part.__name__, "ok", flush=True)
    for problem in problems():
        print("problem", problem.internal.key, flush=True)


if __name__ == "__main__":
    sys.exit(main())
