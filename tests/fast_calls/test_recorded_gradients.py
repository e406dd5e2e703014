"""Recorded gradients: the same bits as Python's, and left out where they would not be."""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import opwright as ow
from opwright.fast_path import operations, recorded_gradient
from opwright.fast_path.recorded_gradient import GradientRecorder
from tests.fast_calls.recorders import noted_recorders, nothing_in_python, recordings

pytestmark = pytest.mark.compiler
GPU = pytest.param("cuda", marks=pytest.mark.gpu)
FACTOR = 3.0


@pytest.fixture(autouse=True)
def recorders(monkeypatch: pytest.MonkeyPatch) -> list[GradientRecorder]:
    return noted_recorders(monkeypatch)


def operator(namespace: str, reference: Callable[..., Any]) -> ow.Op:
    op = ow.op(f"{namespace}::{reference.__name__}")(reference)
    op.python(reference, name="kernel")
    return op


def scaled(x: Float[Tensor, "*n"], y: Float[Tensor, "*n"], a: float = 2.0) -> Float[Tensor, "*n"]:
    return a * x * torch.sin(y)


def norm(x: Float[Tensor, "m n"], y: Float[Tensor, " n"], eps: float = 1e-5) -> Float[Tensor, "m n"]:
    mean = x.mean(-1, keepdim=True)
    return (x - mean) * torch.rsqrt(((x - mean) ** 2).mean(-1, keepdim=True) + eps) * y


def attention(x: Float[Tensor, "m n"], y: Float[Tensor, "k n"]) -> Float[Tensor, "m n"]:
    return torch.softmax(x @ y.T / math.sqrt(x.shape[-1]), dim=-1) @ y


def in_place(x: Float[Tensor, "m n"], y: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
    result = torch.zeros_like(x)
    result[:, 1:] = x[:, :-1] * y[:, 1:]
    result[0] += y[0]
    return result


def pieces(x: Float[Tensor, "m n"], y: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
    parts = [p * i for i, p in enumerate(x.unbind(0))]
    return torch.cat([torch.stack(parts).flip(0)[:1], F.gelu(y[1:], approximate="tanh")])


def _helped(x: Tensor) -> Tensor:
    return F.silu(x) * FACTOR


def with_a_helper(x: Float[Tensor, "*n"], y: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    return _helped(x) + y


def gathered(x: Float[Tensor, "m n"], y: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
    indices = torch.arange(x.shape[0] - 1, -1, -1, device=x.device)
    return x[indices] + torch.where(y > 0, y, y.to(torch.float64).exp().to(y.dtype))


REFERENCES = [scaled, norm, attention, in_place, pieces, with_a_helper, gathered]


def inputs(reference: Callable[..., Any], device: str = "cpu", dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(0)
    shapes = {norm: [(3, 5), (5,)], attention: [(3, 5), (4, 5)]}.get(reference, [(3, 5), (3, 5)])
    return [torch.randn(s, device=device, dtype=dtype, requires_grad=True) for s in shapes]


def gradients(function: Callable[..., Tensor], arguments: list[Tensor], grad: Tensor | None = None) -> list[Tensor]:
    result = function(*arguments)
    return list(torch.autograd.grad(result, arguments, torch.cos(result.detach()) if grad is None else grad))


def are_equal(ones: list[Tensor], others: list[Tensor]) -> bool:
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(ones, others, strict=True))


def warm(op: ow.Op, arguments: list[Tensor]) -> None:
    """A guard is made, and then a gradient behind it is seen."""
    for _ in range(3):
        gradients(op, arguments)


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("reference", REFERENCES)
def test_the_same_bits_as_torchs(
    reference: Callable[..., Any],
    dtype: torch.dtype,
    device: str,
    recorders: list[GradientRecorder],
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    op, arguments = operator(namespace, reference), inputs(reference, device, dtype)
    warm(op, arguments)
    assert recordings(recorders) == 1
    nothing_in_python(monkeypatch)
    torch.manual_seed(1)
    others = [torch.randn_like(a).requires_grad_() for a in arguments]
    expected = [g.contiguous() for g in gradients(reference, others)]
    assert are_equal(gradients(op, others), expected)
    versions = [a._version for a in others]
    assert are_equal(gradients(op, others), expected)
    assert [a._version for a in others] == versions


def test_only_what_is_needed_is_run(recorders: list[GradientRecorder], namespace: str) -> None:
    op, (x, y) = operator(namespace, scaled), inputs(scaled)
    for _ in range(3):
        torch.autograd.grad(op(x, y.detach()).sum(), x)
    assert recordings(recorders) == 1
    with torch.profiler.profile() as seen:  # then the operator of the gradient runs, as profilers show it
        torch.autograd.grad(op(x, y.detach()).sum(), x)
    assert any("scaled_vjp" in event.name for event in seen.events() or ())


def test_each_layout_of_the_incoming_gradient(recorders: list[GradientRecorder], namespace: str) -> None:
    op, arguments = operator(namespace, scaled), inputs(scaled)
    for grad in (torch.ones(3, 5), torch.ones(5, 3).T, torch.ones(1, 1).expand(3, 5)):
        for _ in range(3):
            assert are_equal(gradients(op, arguments, grad), gradients(scaled, arguments, grad))
    assert recordings(recorders) == 3


def test_a_name_that_is_rebound(
    recorders: list[GradientRecorder], namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    op, arguments = operator(namespace, with_a_helper), inputs(with_a_helper)
    warm(op, arguments)
    before = gradients(op, arguments)
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    after = gradients(op, arguments)
    assert not are_equal(before, after)
    assert are_equal(after, gradients(with_a_helper, arguments))
    monkeypatch.setitem(globals(), "_helped", torch.exp)
    assert are_equal(gradients(op, arguments), gradients(with_a_helper, arguments))


def test_another_default_dtype(recorders: list[GradientRecorder], namespace: str) -> None:
    def made(x: Float[Tensor, "*n"], y: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return x * y * torch.full((), 1 / 3).double().to(x.dtype)

    op, arguments = operator(namespace, made), inputs(made, dtype=torch.float64)
    warm(op, arguments)
    before = gradients(op, arguments)
    torch.set_default_dtype(torch.float64)
    try:
        after, expected = gradients(op, arguments), gradients(made, arguments)
    finally:
        torch.set_default_dtype(torch.float32)
    assert recordings(recorders) == 2
    assert are_equal(after, expected)
    assert not are_equal(before, after)


def attention_by_torch(x: Float[Tensor, "b h m n"], y: Float[Tensor, "b h k n"]) -> Float[Tensor, "b h m n"]:
    return F.scaled_dot_product_attention(x, y, y)


def test_an_operation_that_torch_chooses_by_a_setting(recorders: list[GradientRecorder], namespace: str) -> None:
    op = operator(namespace, attention_by_torch)
    torch.manual_seed(0)
    arguments = [torch.randn(1, 2, n, 8, requires_grad=True) for n in (64, 48)]
    for backends in (SDPBackend.MATH, [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]):
        with sdpa_kernel(backends):
            warm(op, arguments)
            assert recordings(recorders) == 1  # of the first one; the other may draw numbers
            assert are_equal(gradients(op, arguments), gradients(attention_by_torch, arguments))


def test_second_derivatives_and_modes(recorders: list[GradientRecorder], namespace: str) -> None:
    op, arguments = operator(namespace, scaled), inputs(scaled)
    warm(op, arguments)

    def second(function: Callable[..., Tensor]) -> list[Tensor]:
        first = torch.autograd.grad(function(*arguments).sum(), arguments, create_graph=True)
        return list(torch.autograd.grad(first[0].sin().sum() + first[1].sum(), arguments))

    assert all(torch.allclose(*pair) for pair in zip(second(op), second(scaled), strict=True))
    with torch.autograd.set_detect_anomaly(True):
        assert are_equal(gradients(op, arguments), gradients(scaled, arguments))
    with torch.utils.flop_counter.FlopCounterMode(display=False):
        assert are_equal(gradients(op, arguments), gradients(scaled, arguments))


class Settings:
    sign = 1.0


SETTINGS, TABLE = Settings(), torch.ones(5)


def by_value(x: Float[Tensor, "*n"], y: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    return x * y if float(x.detach().sum()) > 0 else x + 2 * y


def by_an_object(x: Float[Tensor, "*n"], y: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    return SETTINGS.sign * x * y


def by_a_tensor(x: Float[Tensor, "*n"], y: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    return x * y * TABLE


def by_the_moment(x: Float[Tensor, "*n"], y: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    return x * y if torch.are_deterministic_algorithms_enabled() else y * x * 2


def by_numpy(x: Float[Tensor, "*n"], y: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    return x * y * float(x.detach().numpy().max())


COUNTED = []


@torch.library.custom_op("recorded_gradients::counted", mutates_args=())
def counted(x: Tensor) -> Tensor:
    COUNTED.append(1)  # what an operation does besides, such as communicating
    return x * 1


counted.register_fake(torch.empty_like)
counted.register_autograd(lambda ctx, grad: counted(grad))


def by_an_operator(x: Float[Tensor, "*n"], y: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    return torch.ops.recorded_gradients.counted(x) * y


def by_storage(x: Float[Tensor, "*n"], y: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    return x * y + y.as_strided((1, 1), (1, 1), 2)


UNRECORDABLE = [by_storage, by_value, by_an_object, by_a_tensor, by_the_moment, by_numpy, by_an_operator]


def test_an_operation_that_does_more_is_not_run_once_more(namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_gradient, "watched_names", lambda *_: ())  # which refuses "ops"
    op, arguments = operator(namespace, by_an_operator), inputs(by_an_operator)
    gradients(op, arguments)
    counts = []
    for _ in range(4):
        before = len(COUNTED)
        gradients(op, arguments)
        counts.append(len(COUNTED) - before)
    assert len(set(counts)) == 1


@pytest.mark.parametrize("reference", UNRECORDABLE)
def test_what_depends_on_more_is_computed_in_python(
    reference: Callable[..., Any], recorders: list[GradientRecorder], namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    op, arguments = operator(namespace, reference), inputs(reference)
    warm(op, arguments)
    assert recorders
    assert recordings(recorders) == 0
    others = [(-a).detach().requires_grad_() for a in arguments]
    monkeypatch.setattr(SETTINGS, "sign", -1.0)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    TABLE.mul_(2)
    assert are_equal(gradients(op, others), gradients(reference, others))


def test_a_part_of_a_larger_tensor(recorders: list[GradientRecorder], namespace: str) -> None:
    op, arguments = operator(namespace, in_place), inputs(in_place)
    warm(op, arguments)
    others = [torch.randn(9, 5)[3:6].requires_grad_() for _ in arguments]
    assert are_equal(gradients(op, others), gradients(in_place, others))
    assert recordings(recorders) == 1


def test_a_recording_that_gives_something_else_is_not_used(
    recorders: list[GradientRecorder], namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = operations.record

    def wrong(*arguments: Any) -> operations.Operations:
        made = original(*arguments)
        return operations.Operations(made.steps, made.slots, made.results[::-1])

    monkeypatch.setattr(recorded_gradient, "record", wrong)
    op, arguments = operator(namespace, scaled), inputs(scaled)
    warm(op, arguments)
    assert recordings(recorders) == 0
    assert are_equal(gradients(op, arguments), gradients(scaled, arguments))


@pytest.mark.parametrize("error", [RuntimeError("a new kind of operation"), RecursionError(), MemoryError()])
def test_a_recording_that_fails_leaves_the_gradient_as_it_is_and_is_not_tried_again(
    namespace: str, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    tried = []

    def fails(*_: Any) -> Any:
        tried.append(1)
        raise error

    monkeypatch.setattr(recorded_gradient, "record", fails)
    op, arguments = operator(namespace, scaled), inputs(scaled)
    for _ in range(4):
        warm(op, arguments)
        assert are_equal(gradients(op, arguments), gradients(scaled, arguments))
    assert len(tried) == 1


def test_ever_new_sizes_are_recorded_so_often_only(
    recorders: list[GradientRecorder], namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_gradient, "_MOST_OF_AN_OPERATOR", 3)
    op = operator(namespace, scaled)
    for n in range(1, 9):
        arguments = [torch.randn(n, requires_grad=True) for _ in range(2)]
        for _ in range(3):
            assert are_equal(gradients(op, arguments), gradients(scaled, arguments))
    assert recordings(recorders) == 3


def test_other_numbers_behind_a_guard_for_any_size(recorders: list[GradientRecorder], namespace: str) -> None:
    op = operator(namespace, scaled)
    for a in (2.0, 3.0, 2.0, 5.0):
        for n in (*range(1, 12), *[4] * 4):
            arguments = [torch.randn(n, requires_grad=True) for _ in range(2)]

            def times(function: Callable[..., Tensor], factor: float) -> Callable[..., Tensor]:
                return lambda x, y: function(x, y, factor)

            assert are_equal(gradients(times(op, a), arguments), gradients(times(scaled, a), arguments))
    assert recordings(recorders)


def test_what_references_depend_on_is_said() -> None:
    assert [recorded_gradient.unknown_in(r) for r in REFERENCES] == [None] * len(REFERENCES)
    assert recorded_gradient.unknown_in(by_an_object) == "it uses SETTINGS"
    assert recorded_gradient.unknown_in(by_the_moment) == "it uses _get_deterministic_algorithms"
    linear = torch.nn.Linear(2, 2)
    assert recorded_gradient.unknown_in(lambda x: linear(x)) == "it uses linear"
    assert "is not a plain function" in str(recorded_gradient.unknown_in(linear))
    assert recorded_gradient.unknown_in(types.FunctionType(compile("print(x)", "", "exec"), {}))
