"""Operators whose outputs have sizes that depend on data: calls, fakes, compile, export, gradients, checks."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import Bool, Float, Float32, Int64, Shaped
from torch import Tensor

import opwright as ow
from opwright.timing.request import Request
from opwright.timing.run import measure
from tests.sampled import quick


@pytest.fixture
def nonzero(namespace):
    @ow.op(f"{namespace}::nonzero")
    def nonzero(x: Shaped[Tensor, "h w"]) -> Int64[Tensor, "m 2"]:
        return torch.nonzero(x)

    return nonzero


@pytest.fixture
def compact(namespace):
    @ow.op(f"{namespace}::compact")
    def compact(
        x: Float32[Tensor, "n d"], keep: Bool[Tensor, " n"]
    ) -> tuple[Float32[Tensor, "m d"], Int64[Tensor, " m"]]:
        return x[keep], keep.nonzero()[:, 0]

    return compact


def of_columns(x):
    rows, columns = torch.where(x != 0)
    return torch.stack([rows, columns], 1)


X = torch.tensor([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]])


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_it_compiles_into_one_graph_for_any_number(nonzero, backend):
    compiled = torch.compile(lambda x: nonzero(x) + 1, fullgraph=True, backend=backend)
    for x in (X, torch.ones(2, 3), torch.zeros(2, 3)):
        assert torch.equal(compiled(x), torch.nonzero(x) + 1)


@pytest.mark.slow  # a whole check
def test_two_outputs_share_the_size_and_a_gradient_flows(compact):
    keep = torch.tensor([True, False, True, True])

    def loss(x):
        values, index = compact(x, keep)
        return (values * index[:, None]).sum()

    eager, compiled = (torch.randn(4, 2, requires_grad=True) for _ in range(2))
    loss(eager).backward()
    torch.compile(loss, fullgraph=True)(compiled).backward()
    expected = torch.tensor([0.0, 0.0, 2.0, 3.0])[:, None].expand(4, 2)
    assert torch.equal(eager.grad, expected)
    assert torch.equal(compiled.grad, expected)


def test_export_keeps_the_operator(compact):
    class Model(torch.nn.Module):
        def forward(self, x, keep):
            return compact(x, keep)[0]

    x, keep = torch.randn(3, 2), torch.tensor([True, False, True])
    exported = torch.export.export(Model(), (x, keep))
    assert compact.overload in {node.target for node in exported.graph.nodes}
    assert torch.equal(exported.module()(x, ~keep), x[~keep])


@pytest.mark.slow
def test_such_a_size_goes_into_another_operator_and_its_conditions(namespace, nonzero):
    @ow.op(f"{namespace}::first_columns", where="m <= 6")
    def first_columns(index: Int64[Tensor, "m 2"], other: Int64[Tensor, "m 2"]) -> Int64[Tensor, " m"]:
        return index[:, 0] + other[:, 0]

    compiled = torch.compile(lambda x: first_columns(nonzero(x), nonzero(x) + 1), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(X), 2 * torch.nonzero(X)[:, 0] + 1)
    with pytest.raises((ow.errors.ArgumentError, RuntimeError), match=r"m <= 6 must hold, got m=8|u0 <= 6"):
        compiled(torch.ones(2, 4))


@pytest.mark.slow  # every check
def test_a_right_kernel_passes_every_check(nonzero, compact):
    nonzero.python(of_columns, name="kernel")

    @compact.python(name="kernel")
    def kernel(x, keep):
        index = keep.nonzero()[:, 0].contiguous()
        return x.index_select(0, index), index

    report = ow.check(nonzero, compact, device="cpu")
    assert report.passed, [v.failures for v in report.verdicts]
    assert all(n.check in ("streams", "gradients") for v in report.verdicts for n in v.not_checked)


# Each is a whole check.
@pytest.mark.parametrize(
    ("wrong", "check"),
    quick(
        [
            (lambda x: of_columns(x.clamp(min=0)), "values"),
            (lambda x: of_columns(x)[:-1].contiguous(), "values"),
            # A whole check each.
            pytest.param(lambda x: of_columns(x).flip(0), "values", marks=pytest.mark.slow),
            pytest.param(lambda x: of_columns(x).to(torch.int32), "metadata", marks=pytest.mark.slow),
            (lambda x: of_columns(x).mT.contiguous().mT, "metadata"),
        ],
        1,
    ),
)
def test_a_wrong_kernel_is_found(nonzero, wrong, check):
    nonzero.python(wrong, name="kernel")
    report = ow.check(nonzero, device="cpu", checks=["values", "metadata"])
    assert check in {f.check for f in report.verdicts[0].failures}


@pytest.mark.slow  # a whole check
def test_a_custom_fake_that_promises_something_else_is_found(nonzero):
    nonzero.python(of_columns, name="kernel")
    nonzero.register_fake(lambda x: x.new_empty((torch.library.get_ctx().new_dynamic_size(), 3), dtype=torch.int64))
    report = ow.check(nonzero, device="cpu", checks=["metadata"])
    assert "the fake promises" in report.verdicts[0].failures[0].message


def test_a_dim_that_does_not_depend_on_data_is_a_typing_error(namespace):
    with pytest.raises(
        ow.errors.ContractError, match="must have dims of the arguments, or sizes that depend on data, got 'm'"
    ):

        @ow.op(f"{namespace}::doubled")
        def doubled(x: Float[Tensor, " n"]) -> Float[Tensor, " m"]:
            return 2 * x


def test_what_is_not_possible_says_so(nonzero, compact):
    with pytest.raises(ow.errors.ContractError, match="the size 'm' depends on data"):
        torch.vmap(compact)(torch.randn(2, 3, 4), torch.ones(2, 3, dtype=torch.bool))
    with pytest.raises(ow.errors.ContractError, match="the size 'm' depends on data, and meta tensors have none"):
        nonzero(X.to("meta"))
    with pytest.raises(ow.errors.KernelError, match="get their outputs allocated, but the size 'm' is known only when"):
        nonzero.mojo("nonzero.mojo")
    assert {name for name, part in nonzero.parts.items() if part.origin.value == "missing"} == {
        "decomposition", "sharding", "vmap",
    }  # fmt: skip


def test_it_is_timed(compact):
    compact.python(lambda x, keep: (x[keep], keep.nonzero()[:, 0].contiguous()), name="kernel")
    report = measure(Request([compact], device="cpu", quick=True, sizes={"n": [64], "d": [4]}, iters=3, limits=False))
    assert not report.errors
    assert {m.kernel for m in report.measurements} >= {"kernel", "reference"}


def test_annotations_decide_where_they_say_enough(namespace):
    @ow.op(f"{namespace}::reads_values")
    def reads_values(x: Float[Tensor, " n"], k: int) -> tuple[Float[Tensor, "n k"], Int64[Tensor, ""]]:
        assert x.sum().item() == x.sum().item()  # cannot run on fake tensors
        return x[:, None].expand(-1, k).clone(), torch.tensor(k, device=x.device)

    result = torch.compile(reads_values, fullgraph=True)(torch.ones(3, dtype=torch.float16), 2)
    assert result[0].dtype is torch.float16
    assert result[0].shape == (3, 2)


def test_of_symbolic_sizes_the_fake_is_asked_and_not_the_reference(namespace):
    @ow.op(f"{namespace}::noisy")
    def noisy(x: Float[Tensor, "n"], seed: int) -> Float[Tensor, "n"]:
        generator = torch.Generator().manual_seed(seed)  # refuses a symbol
        return x + torch.rand(x.shape, generator=generator).to(x)

    @ow.op(f"{namespace}::other")
    def other(x: Float[Tensor, "n"]) -> Float[Tensor, " _"]:
        return x.repeat(2)

    asked = []
    other.register_fake(lambda x: asked.append(x.shape) or x.new_empty(2 * x.shape[0]))
    compiled = torch.compile(lambda x: other(noisy(x, x.shape[0])), dynamic=True, fullgraph=True, backend="aot_eager")
    for n in (3, 5):
        assert torch.equal(compiled(torch.ones(n)), noisy(torch.ones(n), n).repeat(2))
    assert any(isinstance(shape[0], torch.SymInt) for shape in asked)


def test_an_output_has_the_dtype_of_the_arguments_of_its_class(namespace):
    @ow.op(f"{namespace}::statistic")
    def statistic(x: Float[Tensor, " n"]) -> Float[Tensor, ""]:
        return x.float().sum()

    report = ow.check(statistic, device="cpu", checks=["metadata"])
    message = report.verdicts[0].failures[0].message
    assert "the arguments annotated with Float are float16: annotate it with its dtype, such as Float32" in message
