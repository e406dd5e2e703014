"""A guard for other sizes and numbers holds for exactly those calls that the contract takes."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

import opwright as ow
from opwright.contract.binding import bind, fill
from opwright.errors import ArgumentError
from opwright.fast_path.extension import fast_calls_extension
from opwright.fast_path.guards import expected_arguments, has_any_size
from opwright.fast_path.learning import Learner


def guard_of(op, *arguments, tracking=-1):
    """Whether a guard of any size of these arguments holds for others."""
    extension = fast_calls_extension.loaded
    assert extension is not None
    assert has_any_size(op.contract)
    items = expected_arguments(op.contract, arguments, any_size=True, free_kinds=(int, float))
    learner = Learner(op.contract)
    learner._guarded_calls = ((extension.guard(items, tracking, tracking != 1, None), None),)
    return lambda *others: extension.find_guarded(learner, others) is not None


def takes(op, arguments):
    try:
        bind(op.contract, fill(op.contract, arguments, {}))
    except ArgumentError:
        return False
    return True


@ow.op("any_size::add")
def add(x: Float[Tensor, "*n"], y: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    return x + y


@ow.op("any_size::rows")
def rows(
    x: Float32[Tensor, "b n"],
    w: Float32[Tensor, "n m"],
    bias: Float32[Tensor, " m"] | None,
    index: Int64[Tensor, "k 2"],
) -> Float32[Tensor, "b m"]:
    return x @ w + (0 if bias is None else bias)


@ow.op("any_size::numbers")
def numbers(
    x: Float32[Tensor, "*batch n"], k: int, a: float, flag: bool, how: Literal["up", "down"]
) -> Float32[Tensor, "*batch n"]:
    return a * x


@ow.op("any_size::square")
def square(x: Float32[Tensor, "... _ n n"], y: Float32[Tensor, "... _ n n"]) -> Float32[Tensor, "... _ n n"]:
    return x


f, i = torch.zeros, lambda *shape: torch.zeros(shape, dtype=torch.int64)
CALLS = {
    add: (
        (f(3), f(3)),
        [(f(5), f(5)), (f(0), f(0)), (f(1), f(1)), (f(8)[::2], f(4))],
        [(f(5), f(4)), (f(1), f(4)), (f(3).double(), f(3).double()), (f(3, 1), f(3, 1)), (f(3), f(3, 1)), (3, f(3))],
    ),
    rows: (
        (f(2, 3), f(3, 4), f(4), i(5, 2)),
        [(f(1, 7), f(7, 2), f(2), i(0, 2)), (f(3, 2).mT, f(3, 9), f(9), i(1, 2))],
        [
            (f(2, 3), f(4, 4), f(4), i(5, 2)), (f(2, 3), f(3, 4), f(5), i(5, 2)), (f(2, 3), f(3, 4), f(4), i(5, 3)),
            (f(2, 3), f(3, 4), None, i(5, 2)), (f(2, 3), f(3, 4), f(4), i(5, 2).int()),
        ],
    ),
    numbers: (
        (f(2, 3), 3, 1.5, True, "up"),
        [(f(4, 5), 5, 2.5, True, "up"), (f(9, 1), 1, -0.0, True, "up"), (f(9, 1), 1, 2, True, "up")],
        [
            (f(2, 3), True, 1.5, True, "up"), (f(2, 3), 1 << 70, 1.5, True, "up"), (f(2, 3), 3, True, True, "up"),
            (f(2, 3), 3, 1.5, False, "up"), (f(2, 3), 3, 1.5, 1, "up"),
            (f(2, 3), 3, 1.5, True, "down"), (f(2, 3), 3, 1.5, True, "left"),
            (f(3), 3, 1.5, True, "up"),
        ],
    ),
    square: (
        (f(2, 5, 3, 3), f(2, 5, 3, 3)),
        [(f(1, 7, 4, 4), f(6, 2, 4, 4)), (f(2, 5, 1, 1), f(2, 5, 1, 1))],
        [(f(2, 5, 3, 4), f(2, 5, 3, 3)), (f(2, 5, 3, 3), f(2, 5, 4, 4)), (f(5, 3, 3), f(5, 3, 3))],
    ),
}  # fmt: skip


@pytest.mark.parametrize("op", CALLS, ids=lambda op: op.contract.name)
def test_it_holds_for_calls_of_other_sizes_and_for_no_others(op):
    like, right, others = CALLS[op]
    holds = guard_of(op, *like)
    assert holds is not None
    assert holds(*like)
    for arguments in right:
        assert takes(op, arguments), arguments
        assert holds(*arguments), arguments
    for arguments in others:
        assert not holds(*arguments), arguments


def test_gradients_subclasses_and_repeated_tensors_are_other_calls():
    x = f(3)
    holds = guard_of(add, f(3), f(3))
    assert not holds(f(4, requires_grad=True), f(4))
    assert not holds(torch.nn.Parameter(f(4)), f(4))
    assert not holds(f(4).to("meta"), f(4).to("meta"))
    assert not holds(x, x)
    twice = guard_of(add, x, x)
    other = f(7)
    assert twice(other, other)
    assert not twice(other, f(7))
    tracked = guard_of(add, f(3, requires_grad=True), f(3), tracking=1)
    assert tracked(f(5, requires_grad=True), f(5))
    with torch.no_grad():
        assert not tracked(f(5, requires_grad=True), f(5))


@ow.op("any_size::broadcast")
def broadcast(x: Float[Tensor, " n"], y: Float[Tensor, "#n"]) -> Float[Tensor, " n"]:
    return x + y


@ow.op("any_size::computed")
def computed(x: Float[Tensor, " n"], y: Float[Tensor, " n+1"]) -> Float[Tensor, " n"]:
    return x + y[1:]


@ow.op("any_size::limited", where="n <= 4")
def limited(x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    return x + y


@pytest.mark.parametrize(("op", "sizes"), [(broadcast, (3, 3)), (computed, (3, 4)), (limited, (3, 3))])
def test_a_contract_with_other_conditions_has_no_such_guard(op, sizes):
    assert sizes
    assert not has_any_size(op.contract)


def test_operators_whose_kernels_depend_on_sizes_keep_guards_of_sizes(monkeypatch):
    @ow.op("any_size::tuned")
    def tuned(x: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
        return x + x

    tuned.python(lambda x: x + x, name="library")
    monkeypatch.setattr(tuned.kernels["library"], "is_for_any_size", lambda: False)
    for n in (3, 4, 5):
        tuned(f(n))
    assert len(tuned._learner._guarded_calls) == 3
    assert fast_calls_extension.loaded.find_guarded(tuned._learner, (f(6),)) is None
    add.python(torch.add, name="library")
    for n in (3, 4, 5):
        add(f(n), f(n))
    assert len(add._learner._guarded_calls) == 1
