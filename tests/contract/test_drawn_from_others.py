"""Values that are drawn from those of other arguments: after them, from what kernels get, and kept together."""

from __future__ import annotations

from typing import Annotated

import pytest
import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

import opwright as ow
from opwright.checks.calls import repeated_calls
from opwright.checks.context import Context
from opwright.checks.observation import Prepared
from opwright.contract.definition.define import make_contract
from opwright.contract.inputs.arguments import arguments_of
from opwright.contract.inputs.arranged import draw_by
from opwright.contract.inputs.cases import cases
from opwright.contract.inputs.text import parse_case
from opwright.errors import CheckError, ContractError
from opwright.target import Target
from opwright.timing.candidates import input_sets


def table_of(shape, generator, lengths, pages):
    drawn = torch.randint(pages, shape, generator=generator)
    return drawn.where(torch.arange(shape[1]) < lengths[:, None], -1)


def paged(
    cache: Float[Tensor, "pages d"],
    table: Annotated[Int[Tensor, "b p"], ow.inputs.drawn_by(table_of)],  # before what it is drawn from
    lengths: Annotated[Int64[Tensor, " b"], ow.values(0, "p")],
) -> Float[Tensor, "b d"]:
    used = torch.arange(table.shape[1], device=table.device) < lengths[:, None]
    return torch.where(used[..., None], cache[table.long().clamp(0)], 0).sum(1)


def contract_of(function):
    return make_contract("drawn::f", function, {})


def is_right(arguments):
    _, table, lengths = arguments
    return torch.equal(table >= 0, torch.arange(table.shape[1]) < lengths[:, None])


def test_it_follows_from_what_kernels_get_in_every_case():
    contract, ran, layouts = contract_of(paged), 0, set()
    for case in cases(contract, "quick", longest=64):
        sizes, dtypes = dict(case.sizes), dict(case.dtypes)
        if 0 in sizes.values() or (sizes["pages"] > 128 and dtypes["Int"] in (torch.int8, torch.uint8)):
            continue
        arguments = arguments_of(contract, case, "cpu")
        assert is_right(arguments), case
        layouts.add(case.layout)
        ran += 1
    assert ran > 100
    assert {"contiguous", "expanded", "sliced"} <= layouts
    with pytest.raises(CheckError, match=r"the function of ow\.inputs\.drawn_by raised RuntimeError"):
        arguments_of(contract, parse_case(contract, "pages=0 d=3 b=4 p=6"), "cpu")
    with pytest.raises(CheckError, match="int8 has no value"):
        arguments_of(contract, parse_case(contract, "pages=999 d=3 b=40 p=600 Float=float32 Int=int8"), "cpu")


def test_other_draws_follow_too_and_values_stay_together():
    operator = ow.op("drawn::paged")(paged)
    operator.python(name="k")(paged)
    case = parse_case(operator.contract, "pages=9 d=3 b=4 p=6")
    first, second = (arguments_of(operator.contract, case, "cpu", draw=i) for i in (0, 1))
    assert is_right(first)
    assert is_right(second)
    assert not torch.equal(first[2], second[2])
    assert all(map(is_right, input_sets(operator, case, "cpu", 1 << 10, 1 << 20)))
    context = Context(operator, "k", Target("cpu"), [case])
    prepared, other = (context.prepare(case, draw=i) for i in (0, 1))
    assert isinstance(prepared, Prepared)
    assert isinstance(other, Prepared)
    varied = repeated_calls._nearly_the_same(context, prepared, other)
    assert varied
    assert all(is_right(each.arguments) for each in varied)


def test_fakes_need_no_values():
    contract = contract_of(paged)
    case = parse_case(contract, "pages=9 d=3 b=4 p=6")
    assert [t.device.type for t in arguments_of(contract, case, "meta", only_sizes=True)] == ["meta"] * 3


def of(shape, generator, k, parts, n, mask, own=7):
    assert (k, own, mask) == (2, 7, None)
    assert n == (3, 5)
    return sum(parts) + k


def test_numbers_lists_several_axes_and_absent_arguments():
    def f(
        y: Annotated[Float[Tensor, "*n"], ow.inputs.drawn_by(of)],
        parts: list[Float[Tensor, "*n"]],
        k: Annotated[int, ow.values(2, 2)],
        mask: Float[Tensor, "*n"] | None = None,
    ) -> Float[Tensor, "*n"]:
        return y

    contract = contract_of(f)
    y, parts, *_ = arguments_of(contract, parse_case(contract, "n=3x5 optional=absent"), "cpu")
    assert torch.equal(y, sum(parts) + 2)


def double(shape, generator, b):
    return 2 * b


def half(shape, generator, c):
    return c / 2


def test_one_after_another():
    def f(
        a: Annotated[Float[Tensor, " n"], ow.inputs.drawn_by(double)],
        b: Annotated[Float[Tensor, " n"], ow.inputs.drawn_by(half)],
        c: Float[Tensor, " n"],
    ) -> Float[Tensor, " n"]:
        return a

    contract = contract_of(f)
    a, b, c = arguments_of(contract, parse_case(contract, "n=5"), "cpu")
    assert torch.equal(a, c)
    assert torch.equal(b, c / 2)

    f.__annotations__["c"] = Annotated[Float[Tensor, " n"], ow.inputs.drawn_by(lambda shape, generator, a: a)]
    with pytest.raises(ContractError, match="one after another, got 'a' and 'b' and 'c', which are drawn from each"):
        contract_of(f)


def test_an_unknown_name_is_refused():
    def f(x: Annotated[Float[Tensor, " n"], ow.inputs.drawn_by(lambda shape, generator, m: m)]) -> Float[Tensor, " n"]:
        return x

    with pytest.raises(ContractError, match=r"draws 'x' must have parameters that are arguments or dims, got 'm'"):
        contract_of(f)


def test_descending():
    def f(x: Annotated[Float[Tensor, "m n"], ow.values(-1, 1, sorted="descending")]) -> Float[Tensor, "m n"]:
        return x

    contract = contract_of(f)
    for case in cases(contract, "quick", longest=64):
        (x,) = arguments_of(contract, case, "cpu")
        assert (x.double().diff(dim=-1) <= 0).all(), case
    with pytest.raises(ContractError, match="sorted must be True, False or 'descending', got 'down'"):
        ow.values(sorted="down")


@pytest.mark.parametrize(("default", "is_small"), [(1e-6, True), (1e-2, True), (0.1, False)])
def test_a_small_positive_default_is_of_its_size(default, is_small):
    def f(x: Float[Tensor, " n"], eps: float) -> Float[Tensor, " n"]:
        return x

    f.__defaults__ = (default,)
    contract = contract_of(f)
    drawn = {arguments_of(contract, case, "cpu")[1] for case in cases(contract, "quick", longest=64)}
    assert len(drawn) > 9
    assert all(default / 2 <= eps <= default * 2 for eps in drawn) == is_small


def test_what_draws_must_be_a_function():
    with pytest.raises(ow.errors.ContractError, match="drawn_by must be given a function, got Tensor"):
        ow.inputs.drawn_by(torch.ones(3))


@pytest.mark.parametrize("values", ["", "confident", "dyadic"])
def test_a_function_may_draw_a_dtype_with_few_operations(values: str) -> None:
    """Torch does not truncate float8, nor ask whether it is finite."""
    drawn = draw_by(
        lambda shape, generator: torch.randn(shape, generator=generator).to(torch.float8_e4m3fn),
        (5,), torch.float8_e4m3fn, torch.Generator().manual_seed(0), values,
    )  # fmt: skip
    assert drawn.dtype is torch.float8_e4m3fn
    assert drawn.float().isfinite().all()
