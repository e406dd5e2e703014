"""Arguments that are no tensors: choices, enumerations, tuples of numbers; validation, drawn values, kernels."""

from __future__ import annotations

import enum
from typing import Literal

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.contract.inputs.arguments import arguments_of
from opwright.contract.inputs.cases import cases


class Mode(enum.StrEnum):
    SUM = "sum"
    MEAN = "mean"


def reduce(
    x: Float[Tensor, "n m"], how: Literal["sum", "mean"] = "sum", axis: Literal[0, 1] = 0
) -> Float[Tensor, " _"]:
    return getattr(x, how)(axis)


def reduce_by(x: Float[Tensor, "n m"], how: Mode, keep: Mode | None = None) -> Float[Tensor, " m"]:
    return x.sum(0) if how == Mode.SUM else x.mean(0)


def pad(x: Float[Tensor, "n m"], before: tuple[int, int], scale: tuple[float, ...] = ()) -> Float[Tensor, "_ _"]:
    return torch.nn.functional.pad(x, (before[0], 0, before[1], 0)) * sum(scale, 1.0)


@pytest.fixture
def define(namespace):
    return lambda function: ow.op(f"{namespace}::{function.__name__}")(function)


@pytest.mark.slow  # compiles each choice
def test_only_the_choices_are_taken(define):
    operator = define(reduce)
    x = torch.arange(6.0).view(2, 3)
    for call in (operator, operator.overload):
        assert call(x, "mean", 1).tolist() == [1, 4]
        with pytest.raises(ow.errors.ArgumentError, match="'how' must be one of 'sum', 'mean', got str 'max'"):
            call(x, "max")
        with pytest.raises(ow.errors.ArgumentError, match="argument 'axis' must be one of 0, 1, got int 2"):
            call(x, "sum", 2)
    assert "how: 'sum' | 'mean' = 'sum', axis: 0 | 1 = 0" in operator.contract.call_form
    compiled = torch.compile(lambda x: operator(x, "mean", 1), fullgraph=True)
    assert compiled(x).tolist() == [1, 4]


def test_an_enumeration_of_strings(define):
    operator = define(reduce_by)
    x = torch.ones(2, 3)
    assert operator(x, Mode.MEAN).tolist() == operator(x, "mean").tolist() == [1, 1, 1]
    assert operator.overload(x, Mode.SUM).tolist() == [2, 2, 2]
    with pytest.raises(ow.errors.ArgumentError, match="one of 'sum', 'mean', got str 'median'"):
        operator(x, "median")


def test_every_choice_is_tried(define):
    contract = define(reduce).contract
    drawn = {arguments_of(contract, case, "cpu")[1:] for case in cases(contract, "quick")}
    assert drawn == {("sum", 0), ("sum", 1), ("mean", 0), ("mean", 1)}
    contract = define(reduce_by).contract
    assert {arguments_of(contract, case, "cpu")[1] for case in cases(contract, "quick")} == {"sum", "mean"}


def test_tuples_have_their_length(define):
    operator = define(pad)
    x = torch.ones(1, 1)
    assert operator(x, (1, 2)).shape == operator.overload(x, [1, 2]).shape == (3, 2)
    assert operator(x, (0, 0), (1.0, 2.0)).item() == 4
    for wrong in ((1,), (1, 2, 3)):
        with pytest.raises(ow.errors.ArgumentError, match="argument 'before' must be 2 ints"):
            operator(x, wrong)
    drawn = {arguments_of(operator.contract, case, "cpu")[1] for case in cases(operator.contract, "quick")}
    assert all(len(each) == 2 for each in drawn)
    assert len(drawn) > 5
    assert "before: tuple[int, int], scale: list[float] = ()" in operator.contract.call_form


@pytest.mark.slow
def test_a_kernel_that_forgets_a_choice_is_found(define):
    operator = define(reduce)
    operator.python(lambda x, how="sum", axis=0: getattr(x, how)(axis), name="right")
    operator.python(lambda x, how="sum", axis=0: x.sum(axis), name="wrong")
    report = ow.check(operator, device="cpu", checks=["values"])
    assert [v.status.value for v in report.verdicts] == ["pass", "fail"]
    assert "how='mean'" in report.verdicts[1].failures[0].message


def test_what_a_schema_cannot_express_is_refused(define):
    for annotation in (Literal["a", 1], tuple[int, str], tuple[str, ...], enum.Enum):

        def f(x, y):
            return x

        f.__annotations__ = {"x": Float[Tensor, "n"], "y": annotation, "return": Float[Tensor, "n"]}
        with pytest.raises(ow.errors.ContractError, match="must have a type that a schema can express"):
            define(f)


def named(x: Float[Tensor, "n m"], how: Mode = Mode.SUM) -> Float[Tensor, " m"]:
    return getattr(x, how.value)(0) ** (1 if how is Mode.SUM else 2)


@pytest.mark.slow
@pytest.mark.parametrize("how", [Mode.MEAN, "mean"])
def test_the_reference_and_kernels_get_members_on_every_path(define, how):
    operator = define(named)
    x = torch.arange(6.0).view(2, 3)
    seen = set()

    def kernel(x, how):
        seen.add(type(how))
        return named(x, how).contiguous()

    def calls():
        tracked = x.clone().requires_grad_()
        for call in (operator, operator.overload):
            for _ in range(2):
                assert call(x, how).tolist() == (x.mean(0) ** 2).tolist()
            assert torch.autograd.grad(call(tracked, how).sum(), tracked)[0].tolist() == [[1.5, 2.5, 3.5]] * 2
            first = torch.func.grad(lambda x, call=call: call(x, how).sum())
            assert torch.func.grad(lambda x, first=first: first(x).sum())(x).tolist() == [[1.0] * 3] * 2
            assert torch.vmap(lambda x, call=call: call(x, how))(x[None]).tolist() == [(x.mean(0) ** 2).tolist()]
        torch.compiler.reset()
        compiled = torch.compile(lambda x: operator(x, how), fullgraph=True, backend="aot_eager")
        assert torch.autograd.grad(compiled(tracked).sum(), tracked)[0].tolist() == [[1.5, 2.5, 3.5]] * 2

    calls()
    operator.python(kernel, name="kernel")
    calls()
    assert seen == {Mode}
    assert operator(x).tolist() == x.sum(0).tolist()
    with pytest.raises(ow.errors.ArgumentError, match="must be one of 'sum', 'mean', got str 'median'"):
        operator(x, "median")
