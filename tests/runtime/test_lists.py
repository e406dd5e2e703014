"""Lists of tensors, in and out: each of its own size, of any length; calls, gradients, compile, export, checks."""

from __future__ import annotations

from typing import Annotated

import pytest
import torch
from jaxtyping import Float, Int64
from torch import Tensor

import opwright as ow
from opwright.contract.inputs.arguments import arguments_of
from opwright.contract.inputs.cases import cases
from opwright.contract.inputs.text import parse_case
from opwright.timing.request import Request
from opwright.timing.run import measure


@pytest.fixture
def add_all(namespace):
    @ow.op(f"{namespace}::add_all")
    def add_all(
        xs: list[Float[Tensor, "?n d"]], ys: list[Float[Tensor, "?n d"]], a: float = 2.0
    ) -> list[Float[Tensor, "?n d"]]:
        return [x + a * y for x, y in zip(xs, ys, strict=True)]

    return add_all


@pytest.fixture
def halves(namespace):
    @ow.op(f"{namespace}::halves")
    def halves(x: Float[Tensor, " n"], parts: int = 2) -> list[Float[Tensor, " _"]]:
        return list(x.tensor_split(parts))

    return halves


def tensors(*sizes, **options):
    return [torch.randn(n, 4, **options) for n in sizes]


@pytest.mark.parametrize("sizes", [(), (3,), (3, 0, 5)])
def test_each_has_its_own_size(add_all, sizes):
    xs, ys = tensors(*sizes), tensors(*sizes)
    if not sizes:
        with pytest.raises(ow.errors.ArgumentError, match="must get at least one tensor"):
            add_all(xs, ys)
        return
    for call in (add_all, add_all.overload):
        found = call(xs, ys, 3.0)
        assert isinstance(found, list)
        for got, x, y in zip(found, xs, ys, strict=True):
            torch.testing.assert_close(got, x + 3 * y)


def test_sizes_are_compared_by_place(add_all):
    with pytest.raises(
        ow.errors.ArgumentError, match=r"dim '\?n' of argument 'ys\[1\]' must be 5 \(as in argument 'xs\[1\]'\)"
    ):
        add_all(tensors(3, 5), tensors(3, 4))
    with pytest.raises(
        ow.errors.ArgumentError, match=r"argument 'ys' must have 2 tensors, as 'xs' has, got 1; both have the dim \?n"
    ):
        add_all(tensors(3, 5), tensors(3))
    with pytest.raises(ow.errors.ArgumentError, match="dim 'd'"):
        add_all(tensors(3), [torch.ones(3, 5)])


@pytest.mark.slow
@pytest.mark.parametrize("backend", [None, "aot_eager", "inductor"])
def test_gradients(add_all, halves, backend):
    def loss(xs, ys, z):
        return sum((x * i).sum() for i, x in enumerate(add_all(xs, ys))) + (halves(z, 3)[1] ** 2).sum()

    run = loss if backend is None else torch.compile(loss, fullgraph=True, backend=backend)
    xs, ys = tensors(3, 2, requires_grad=True), tensors(3, 2, requires_grad=True)
    z = torch.randn(7, requires_grad=True)
    run(xs, ys, z).backward()
    assert [x.grad.unique().tolist() for x in xs] == [[0], [1]]
    assert [y.grad.unique().tolist() for y in ys] == [[0], [2]]
    expected = torch.zeros(7)
    expected[3:5] = 2 * z.detach()[3:5]
    torch.testing.assert_close(z.grad, expected)


def test_export_and_vmap(add_all, halves):
    class Model(torch.nn.Module):
        def forward(self, xs, z):
            return add_all(xs, xs)[1], halves(z)[0]

    arguments = (tensors(2, 3), torch.ones(5))
    exported = torch.export.export(Model(), arguments)
    for got, expected in zip(exported.module()(*arguments), Model()(*arguments), strict=True):
        assert torch.equal(got, expected)
    batched = torch.vmap(lambda z: halves(z)[1])(torch.arange(12.0).view(2, 6))
    assert batched.tolist() == [[3, 4, 5], [9, 10, 11]]


def test_cases_have_lists_of_every_length_and_of_different_sizes(add_all):
    contract = add_all.contract
    lengths = {len(arguments_of(contract, case, "cpu")[0]) for case in cases(contract, "quick")}
    assert lengths == {0, 1, 2, 3, 5, 33, 111}
    xs, ys, _ = arguments_of(contract, parse_case(contract, "n=6 d=2 lists=5"), "cpu")
    assert [tuple(x.shape) for x in xs] == [tuple(y.shape) for y in ys] == [(6, 2), (3, 2), (7, 2), (0, 2), (8, 2)]


def right(xs, ys, a):
    return [(x + a * y).contiguous() for x, y in zip(xs, ys, strict=True)]


@pytest.mark.slow  # every check of two operators
def test_a_right_kernel_passes_every_check(add_all, halves):
    add_all.python(right, name="kernel")
    halves.python(lambda x, parts: [t.clone() for t in x.tensor_split(parts)], name="kernel")
    report = ow.check(add_all, halves, device="cpu")
    assert report.passed, [v.failures for v in report.verdicts]


@pytest.mark.slow  # a whole check for each kernel
@pytest.mark.parametrize(
    ("wrong", "check", "case"),
    [
        (lambda xs, ys, a: right(xs[:4], ys[:4], a), "values", "lists=5"),
        (lambda xs, ys, a: [t * (i < 4) for i, t in enumerate(right(xs, ys, a))], "values", "lists=5"),
        (lambda xs, ys, a: right(xs, [ys[0][:1], *ys[1:]] if len(ys) > 1 else ys, a), "values", ""),
        (lambda xs, ys, a: [t.mT.contiguous().mT for t in right(xs, ys, a)], "metadata", ""),
        (lambda xs, ys, a: [x if i else x + a * ys[0] for i, x in enumerate(xs)], "values", ""),
        (lambda xs, ys, a: [xs[0].add_(ys[0], alpha=a), *right(xs[1:], ys[1:], a)], "inputs unchanged", ""),
    ],
)
def test_a_wrong_kernel_is_found(add_all, wrong, check, case):
    add_all.python(wrong, name="kernel")
    report = ow.check(add_all, device="cpu", checks=["values", "metadata", "inputs unchanged"])
    found = next(f for f in report.verdicts[0].failures if f.check == check)
    assert case in found.case


@pytest.mark.slow
def test_a_list_may_have_properties(halves):
    @halves.register_property
    def parts_cover_it(x, result):
        assert torch.equal(torch.cat(result), x)

    halves.python(lambda x, parts: [t.clone() for t in x.tensor_split(parts)], name="kernel")
    halves.python(lambda x, parts: [t.flip(0) for t in x.tensor_split(parts)], name="wrong")
    report = ow.check(halves, device="cpu", checks=["properties"])
    assert [v.status.value for v in report.verdicts] == ["pass", "fail"]


def test_it_is_timed(halves):
    halves.python(lambda x, parts: [t.clone() for t in x.tensor_split(parts)], name="kernel")
    report = measure(Request([halves], device="cpu", quick=True, sizes={"n": [64]}, iters=3, limits=False))
    assert not report.errors
    assert {m.kernel for m in report.measurements} >= {"kernel", "reference"}


def test_what_no_schema_expresses_is_refused(namespace):
    def in_a_tuple(x: Float[Tensor, " n"]) -> tuple[Float[Tensor, " n"], list[Float[Tensor, " _"]]]:
        return x.clone(), [x.clone()]

    def perhaps(x: Float[Tensor, " n"]) -> Float[Tensor, " n"] | None:
        return None

    def alone(x: Float[Tensor, "?n"]) -> Float[Tensor, " _"]:
        return x.clone()

    def writes(x: Annotated[Float[Tensor, " n"], ow.mutated]) -> list[Int64[Tensor, " _"]]:
        x.zero_()
        return []

    for function, message in (
        (in_a_tuple, "or one list of them"),
        (perhaps, "an empty tensor for one that may be absent"),
        (alone, "must be a list, because its shape has a dim of each tensor"),
        (writes, "it returns a list, and writes its argument 'x'"),
    ):
        with pytest.raises(ow.errors.ContractError) as error:
            ow.op(f"{namespace}::{function.__name__}")(function)
        assert message in str(error.value)


def test_languages_that_return_tensors_refuse(halves):
    with pytest.raises(ow.errors.KernelError, match="returns tensors, and this operator a list of them"):
        halves.cpp("halves.cpp")
