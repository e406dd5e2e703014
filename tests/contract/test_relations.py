"""Conditions on sizes: reading them, validating calls, choosing sizes that satisfy them."""

from __future__ import annotations

from typing import Annotated

import pytest
import torch
from jaxtyping import Float, Int64
from torch import Tensor

import opwright as ow
from opwright.contract.definition.define import make_contract
from opwright.contract.inputs.arguments import arguments_of
from opwright.contract.inputs.cases import cases
from opwright.contract.inputs.sizes import smaller
from opwright.contract.inputs.text import parse_case
from opwright.contract.shapes.relations import parse_relation
from opwright.contract.shapes.search import nearest
from opwright.timing.sizes import bench_cases


def attention(q: Float[Tensor, "b hq s d"], k: Float[Tensor, "b hk s d"]) -> Float[Tensor, "b hq s d"]:
    return q + k.repeat_interleave(q.shape[1] // k.shape[1], 1)


ATTENTION = ("hq % hk == 0", "d in (64, 128)", "hk >= 1")


def topk(x: Float[Tensor, "*b n"], k: int) -> Float[Tensor, "*b k"]:
    return x.topk(k).values


def contract(function, *where):
    return make_contract("relations::f", function, {}, where=where)


@pytest.mark.parametrize(
    ("text", "env", "holds"),
    [
        ("hq % hk == 0", {"hq": 8, "hk": 4}, True),
        ("hq % hk == 0", {"hq": 8, "hk": 3}, False),
        ("hq % hk == 0", {"hq": 8, "hk": 0}, False),
        ("hk == 0 or hq % hk == 0", {"hq": 8, "hk": 0}, True),
        ("d in (64, 2*64)", {"d": 128}, True),
        ("d not in (64, 128)", {"d": 128}, False),
        ("1 <= k <= n", {"k": 0, "n": 3}, False),
        ("not (k > n or n == 7)", {"k": 1, "n": 3}, True),
        ("m == n*k+1 and n != k", {"m": 7, "n": 2, "k": 3}, True),
    ],
)
def test_a_condition(text, env, holds):
    assert parse_relation(text).holds(env) is holds


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("n", "compares nothing"),
        ("n % 8", "compares nothing"),
        ("n ==", "is not a condition"),
        ("n in 5", "write `in` with several sizes"),
        ("n == len(x)", "uses more than"),
        ("3 == 4", "names no dim"),
        ("n is k", "uses more than"),
        ("min(n) > k", "uses more than"),
        ("b == 2", "must use dims of one axis and int arguments, got ['b']"),
        ("heads == 2", "got ['heads']"),
        (3, "where must be a condition in text, or a list of them, got 3"),
        (lambda n: n < 5, "where must be a condition in text, or a list of them, got <function"),
    ],
)
def test_a_wrong_one_is_refused_at_definition(wrong, message):
    with pytest.raises(ow.errors.ContractError) as error:
        contract(topk, wrong)
    assert message in str(error.value)


def test_calls_are_validated(namespace):
    operator = ow.op(f"{namespace}::attention", where=ATTENTION)(attention)
    assert operator(torch.ones(1, 4, 2, 64), torch.ones(1, 2, 2, 64)).shape == (1, 4, 2, 64)
    with pytest.raises(ow.errors.ArgumentError) as error:
        operator(torch.ones(1, 6, 2, 64), torch.ones(1, 4, 2, 64))
    assert "hq % hk == 0 must hold, got hk=4 (from argument 'k') and hq=6 (from argument 'q')" in str(error.value)
    assert "where hq % hk == 0, d in (64, 128)" in str(error.value)
    with pytest.raises(ow.errors.ArgumentError, match=r"d in \(64, 128\) must hold"):
        torch.ops.__getattr__(namespace).attention(torch.ones(1, 4, 2, 32), torch.ones(1, 4, 2, 32))
    operator(torch.ones(1, 4, 2, 64), torch.ones(1, 2, 2, 64))  # a guarded call
    with pytest.raises(ow.errors.ArgumentError):
        operator(torch.ones(1, 4, 2, 64), torch.ones(1, 3, 2, 64))


def test_an_int_argument_is_validated_in_each_call(namespace):
    operator = ow.op(f"{namespace}::topk", where="k <= n")(topk)
    x = torch.arange(3.0)
    for k in (1, 3, 1):
        assert operator(x, k).shape == (k,)
    with pytest.raises(ow.errors.ArgumentError, match="k <= n must hold, got k=4 and n=3"):
        operator(x, 4)


def test_each_example_of_a_batch_is_validated(namespace):
    operator = ow.op(f"{namespace}::attention", where=ATTENTION)(attention)
    q, k = torch.ones(3, 1, 4, 2, 64), torch.ones(3, 1, 2, 2, 64)
    assert torch.vmap(operator)(q, k).shape == q.shape
    with pytest.raises(ow.errors.ArgumentError, match="d in"):
        torch.vmap(operator)(q[..., :32], k[..., :32])


def test_compiled_with_symbolic_sizes(namespace):
    operator = ow.op(f"{namespace}::attention", where=ATTENTION)(attention)
    compiled = torch.compile(operator, dynamic=True, fullgraph=True, backend="aot_eager")
    for heads, groups in ((6, 3), (8, 2)):
        q, k = torch.randn(2, heads, 3, 64), torch.randn(2, groups, 3, 64)
        torch.testing.assert_close(compiled(q, k), operator(q, k))


@pytest.mark.slow  # compiles with symbolic sizes
def test_compiled_with_a_symbolic_power_of_a_symbol(namespace):
    """torch cannot decide a condition on such a size, and the call was refused."""

    @ow.op(f"{namespace}::knots", where="(degree+1)**d <= 1024")
    def knots(x: Float[Tensor, "n d"], degree: int) -> Float[Tensor, " n (degree+1)**d"]:
        return x.sum(1, keepdim=True).expand(-1, (degree + 1) ** x.shape[1]).clone()

    compiled = torch.compile(knots, dynamic=True, fullgraph=True, backend="aot_eager")
    for d, degree in ((3, 2), (3, 3), (5, 2)):
        x = torch.randn(4, d)
        torch.testing.assert_close(compiled(x, degree), knots(x, degree))
    with pytest.raises(RuntimeError, match="must hold, got d=7"):  # torch's error, with ours in its text
        compiled(torch.randn(4, 7), 2)


@pytest.mark.parametrize("level", ["smoke", "quick", pytest.param("full", marks=pytest.mark.slow)])
def test_every_case_satisfies_them_and_they_still_vary(level):
    of = contract(attention, *ATTENTION)
    found = cases(of, level)
    sizes = [dict(case.sizes) for case in found]
    assert all(s["hk"] and s["hq"] % s["hk"] == 0 and s["d"] in (64, 128) for s in sizes)
    groups = {s["hq"] // s["hk"] for s in sizes}
    assert len(groups) > {"smoke": 0, "quick": 4, "full": 6}[level]
    assert level == "smoke" or {s["d"] for s in sizes} == {64, 128}
    assert level == "smoke" or {s["s"] for s in sizes} >= {0, 1, 128, 129}
    assert all(dict(case.sizes)["d"] in (64, 128) for case in smaller(of, found[-1]))


def test_int_arguments_of_cases_satisfy_them():
    of = contract(topk, "k <= n")
    drawn = [(dict(case.sizes)["n"], arguments_of(of, case, "cpu")[1]) for case in cases(of, "quick")]
    assert all(k <= n for n, k in drawn)
    assert {k for _, k in drawn} >= {0, 1, 2, 3}


def test_a_condition_on_an_absent_int_is_left_out(namespace):
    @ow.op(f"{namespace}::head", where="k <= n")
    def head(x: Float[Tensor, " n"], k: Annotated[int | None, ow.values(0, 5)] = None) -> Float[Tensor, " _"]:
        return x[:k].clone()

    assert head(torch.ones(3)).shape == (3,)
    assert head(torch.ones(3), 2).shape == (2,)
    with pytest.raises(ow.errors.ArgumentError, match="k <= n must hold, got k=4"):
        head(torch.ones(3), 4)
    found = [(dict(c.sizes)["n"], arguments_of(head.contract, c, "cpu")[1]) for c in cases(head.contract, "quick")]
    assert all(k is None or k <= n for n, k in found)
    assert {None, 0, 1, 2} <= {k for _, k in found}


def test_a_case_as_text_keeps_its_sizes_or_is_refused():
    of = contract(attention, *ATTENTION)
    assert dict(parse_case(of, "hq=6").sizes)["hq"] == 6
    assert dict(parse_case(of, "hq=6 hk=3 d=128").sizes) | {"b": 0, "s": 0} == {
        "b": 0, "s": 0, "hq": 6, "hk": 3, "d": 128,
    }  # fmt: skip
    with pytest.raises(ow.errors.CheckError, match="satisfy"):
        parse_case(of, "hq=6 hk=4")


def test_sizes_to_time_satisfy_them():
    of = contract(attention, *ATTENTION)
    options = {"dtypes": (), "quick": False}
    for case in bench_cases(of, "cpu", sizes={}, **options):
        sizes = dict(case.sizes)
        assert sizes["hq"] % sizes["hk"] == 0
        assert sizes["d"] in (64, 128)
    assert [dict(c.sizes)["hq"] for c in bench_cases(of, "cpu", sizes={"hq": [6, 32]}, **options)] == [6, 32]
    with pytest.raises(ow.errors.CheckError, match="no sizes satisfy"):
        bench_cases(of, "cpu", sizes={"d": [65]}, **options)


def test_the_nearest_sizes():
    where = [parse_relation("n % 8 == 0"), parse_relation("m == n*k")]
    found = nearest(where, {"n": 30, "m": 100, "k": 3, "other": 5})
    assert found is not None
    assert found["n"] % 8 == 0
    assert found["m"] == found["n"] * found["k"]
    assert found["other"] == 5
    assert nearest(where, {"n": 32, "m": 96, "k": 3}) == {"n": 32, "m": 96, "k": 3}
    assert nearest(where, {"n": 30, "m": 100, "k": 3}, keep=["n"]) is None


@pytest.mark.slow  # whole checks
def test_a_check_runs_all_cases_and_finds_what_is_wrong(namespace):
    @ow.op(f"{namespace}::gather", where="m <= n")
    def gather(x: Float[Tensor, " n"], index: Int64[Tensor, " m"]) -> Float[Tensor, " m"]:
        return x[: index.shape[0]].clone()

    gather.python(lambda x, index: x[: index.shape[0]].clone(), name="right")
    gather.python(lambda x, index: x[: index.shape[0]] * (1 if x.shape[0] % 2 else 1.5), name="wrong")
    report = ow.check(gather, device="cpu", checks=["values"])
    assert [v.status.value for v in report.verdicts] == ["pass", "fail"]
    assert not report.verdicts[0].not_checked or all(n.check != "values" for n in report.verdicts[0].not_checked)
