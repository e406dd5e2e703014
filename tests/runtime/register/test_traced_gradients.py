"""In a graph that torch.compile traces, a derived gradient is the reference's own operations, or one operator."""

from __future__ import annotations

import enum

import numpy as np
import pytest
import torch
from functorch.compile import make_boxed_func
from jaxtyping import Float
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd

import opwright as ow


def compiled(function, *, dynamic=None):
    """A function that torch.compile compiles, and the operations of its backward graphs."""
    seen: list[str] = []

    def backward(module, _):
        seen.extend(str(node.target) for node in module.graph.nodes if node.op == "call_function")
        return make_boxed_func(module)

    backend = aot_autograd(fw_compiler=lambda module, _: make_boxed_func(module), bw_compiler=backward)
    torch.compiler.reset()
    return torch.compile(function, fullgraph=True, backend=backend, dynamic=dynamic), seen


def scaled(x: Float[Tensor, "m n"], w: Float[Tensor, " n"], a: float = 2.0) -> Float[Tensor, "m n"]:
    return a * torch.softmax(x * w, -1)


def numpy_norm(x: Float[np.ndarray, "m n"]) -> Float[np.ndarray, " m"]:
    return np.sqrt((x * x).sum(axis=1))


def branching(x: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
    return x.sin() if x.sum().item() > 0 else x.cos()


def repeated(x: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
    for _ in range(200):
        x = x.sin() + 0.5
    return x


@pytest.mark.parametrize(
    ("reference", "is_traced"), [(scaled, True), (numpy_norm, True), (branching, False), (repeated, False)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_backward_graph(namespace, reference, is_traced, dtype):
    op = ow.op(f"{namespace}::{reference.__name__}")(reference)
    x = torch.randn(5, 7, dtype=dtype).abs()
    inputs = [x, torch.randn(7, dtype=dtype)][: 2 if reference is scaled else 1]
    step, operations = compiled(lambda *values: op(*(2 * v for v in values)))

    def gradients(function):
        tracked = [v.clone().requires_grad_() for v in inputs]
        return torch.autograd.grad(function(*tracked).square().sum(), tracked)

    for _ in range(2):
        torch.testing.assert_close(gradients(step), gradients(lambda *values: op(*(2 * v for v in values))))
    assert any("_vjp" in operation for operation in operations) is not is_traced, operations
    assert operations


def test_sizes_may_be_symbols(namespace):
    op = ow.op(f"{namespace}::scaled")(scaled)
    step, operations = compiled(lambda x, w: op(x, w), dynamic=True)
    for m in (3, 4, 5, 9):
        x, w = torch.randn(m, 6, requires_grad=True), torch.randn(6, requires_grad=True)
        expected = torch.autograd.grad(op(x, w).square().sum(), (x, w))
        torch.testing.assert_close(torch.autograd.grad(step(x, w).square().sum(), (x, w)), expected)
    assert operations
    assert not any("_vjp" in operation for operation in operations)


def test_only_what_is_needed_is_traced(namespace):
    op = ow.op(f"{namespace}::scaled")(scaled)
    counts = []
    for needs in ((False, True), (True, True)):
        step, operations = compiled(lambda x, w: op(x, w))
        tracked = [torch.ones(shape).requires_grad_(need) for shape, need in zip([(3, 4), (4,)], needs, strict=True)]
        step(*tracked).square().sum().backward()
        assert [t.grad is not None for t in tracked] == [*needs]
        counts.append(len(operations))
    assert counts[0] < counts[1]


def test_a_choice_is_its_member_in_the_traced_reference(namespace):
    class Mode(enum.StrEnum):
        MEAN = "mean"
        SUM = "sum"

    @ow.op(f"{namespace}::reduced")
    def reduced(x: Float[Tensor, "n m"], how: Mode = Mode.SUM) -> Float[Tensor, " m"]:
        return getattr(x, how.value)(0)

    step, operations = compiled(lambda x: reduced(x, Mode.MEAN))
    x = torch.randn(4, 3, requires_grad=True)
    (found,) = torch.autograd.grad(step(x).sum(), x)
    assert found.tolist() == [[0.25] * 3] * 4
    assert not any("_vjp" in operation for operation in operations)


def test_autocast_leaves_it_alone(namespace):
    @ow.op(f"{namespace}::product")
    def product(x: Float[Tensor, "m k"], w: Float[Tensor, "k n"]) -> Float[Tensor, "m n"]:
        return x @ w

    step, operations = compiled(lambda x, w: product(x, w))
    x, w = torch.randn(5, 6, requires_grad=True), torch.randn(6, 7, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = torch.autograd.grad(step(x, w).sum(), (x, w))
        expected = torch.autograd.grad(product(x, w).sum(), (x, w))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    assert not any("_vjp" in operation for operation in operations)
