"""Parts derived from the reference: fake, gradient, vmap, FLOPs, bytes, decomposition, placements."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils.flop_counter import FlopCounterMode

import opwright as ow
from opwright.contract import derive


def f64(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def scaled_softmax(namespace: str) -> ow.Op:
    @ow.op(f"{namespace}::scaled_softmax")
    def scaled_softmax(x: Float[Tensor, "*b n"], w: Float[Tensor, " n"], a: float = 1.0) -> Float[Tensor, "*b n"]:
        return torch.softmax(x * w, -1) * a

    return scaled_softmax


def with_index(namespace: str) -> ow.Op:
    @ow.op(f"{namespace}::with_index")
    def with_index(x: Float[Tensor, "n k"]) -> tuple[Float[Tensor, " n"], Int[Tensor, " n"], Float[Tensor, " n"]]:
        return x.amax(1), x.argmax(1), (x * x).sum(1)

    return with_index


def concatenate(namespace: str) -> ow.Op:
    @ow.op(f"{namespace}::concatenate")
    def concatenate(xs: list[Float[Tensor, "_ k"]], w: Float[Tensor, " k"]) -> Float[Tensor, "_ k"]:
        return torch.cat(xs) * w

    return concatenate


# -- fake -------------------------------------------------------------------------------------------


def test_the_fake_has_the_shapes_dtypes_and_device_of_the_reference(namespace: str) -> None:
    op = with_index(namespace)
    with FakeTensorMode():
        top, where, total = op(torch.empty(3, 4, dtype=torch.float16))
    assert (top.shape, top.dtype) == ((3,), torch.float16)
    assert where.dtype == torch.int64
    assert total.device.type == "cpu"


def test_outputs_are_contiguous_whatever_the_reference_s_layout(namespace: str) -> None:
    @ow.op(f"{namespace}::transpose")
    def transpose(x: Float[Tensor, "n k"]) -> Float[Tensor, "k n"]:
        return x.T

    x = torch.randn(3, 4)
    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = transpose(x)
    for out in (transpose(x), transpose.overload(x), fake, transpose(x.to("meta")), transpose(x.T)):
        assert out.is_contiguous()
    assert fake.shape == (4, 3)
    assert transpose(x).untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


def test_the_fake_keeps_symbolic_sizes(namespace: str) -> None:
    op = scaled_softmax(namespace)
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    x = mode.from_tensor(torch.randn(5, 7), static_shapes=False)
    w = mode.from_tensor(torch.randn(7), static_shapes=False)
    with mode:
        out = op(x, w)
    assert all(isinstance(size, torch.SymInt) for size in out.shape)


def test_export_with_dynamic_dims_keeps_the_operator_and_takes_other_sizes(namespace: str) -> None:
    op = scaled_softmax(namespace)

    class Module(torch.nn.Module):
        def forward(self, x: Tensor, w: Tensor) -> Tensor:
            return op(x, w, 2.0)

    dynamic = {"x": {0: torch.export.Dim("b"), 1: torch.export.Dim("n")}, "w": {0: torch.export.Dim("n")}}
    program = torch.export.export(Module(), (torch.randn(5, 7), torch.randn(7)), dynamic_shapes=dynamic)
    assert op.overload in {node.target for node in program.graph.nodes}
    x, w = torch.randn(3, 9), torch.randn(9)
    torch.testing.assert_close(program.module()(x, w), torch.softmax(x * w, -1) * 2)


def test_torch_compile_with_dynamic_shapes_agrees(namespace: str) -> None:
    op = scaled_softmax(namespace)
    compiled = torch.compile(lambda x, w: op(x + 1, w, a=3.0) * 2, dynamic=True, fullgraph=True, backend="aot_eager")
    for b, n in ((2, 3), (5, 7), (4, 2)):
        x, w = torch.randn(b, n), torch.randn(n)
        torch.testing.assert_close(compiled(x, w), torch.softmax((x + 1) * w, -1) * 6)


def test_a_numpy_reference_has_a_fake_too(namespace: str) -> None:
    @ow.op(f"{namespace}::norm")
    def norm(x: Float[np.ndarray, "n k"]) -> Float[np.ndarray, " n"]:
        return np.sqrt((x * x).sum(axis=1))

    mode = FakeTensorMode(shape_env=ShapeEnv())
    x = mode.from_tensor(torch.randn(4, 5), static_shapes=False)
    with mode:
        out = norm(x)
    assert isinstance(out.shape[0], torch.SymInt)


# -- gradient ---------------------------------------------------------------------------------------


def test_the_gradient_is_that_of_the_reference(namespace: str) -> None:
    op = scaled_softmax(namespace)
    x, w, g = f64(2, 3, 4), f64(4), torch.randn(2, 3, 4, dtype=torch.float64)
    ours = torch.autograd.grad(op(x, w, 1.5), (x, w), g)
    theirs = torch.autograd.grad(torch.softmax(x * w, -1) * 1.5, (x, w), g)
    torch.testing.assert_close(ours, theirs)
    assert all(grad.is_contiguous() for grad in ours)


def test_only_gradients_that_are_needed_are_computed(namespace: str) -> None:
    op = scaled_softmax(namespace)
    vjp = getattr(getattr(torch.ops, namespace), "scaled_softmax_vjp")  # noqa: B009
    x, w = torch.randn(3, 4), torch.randn(4)
    assert len(vjp([torch.ones(3, 4)], x, w, 1.0, [True, False])) == 1
    assert len(vjp([torch.ones(3, 4)], x, w, 1.0, [False, False])) == 0
    w.requires_grad_()
    op(x, w).sum().backward()
    assert x.grad is None
    assert w.grad is not None


def test_gradients_alias_neither_each_other_nor_what_came_in(namespace: str) -> None:
    @ow.op(f"{namespace}::add")
    def add(x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x + y

    g, x = torch.ones(3), torch.ones(3)
    first, second = getattr(torch.ops, namespace).add_vjp([g], x, x, [True, True])
    assert len({t.data_ptr() for t in (first, second, g)}) == 3
    torch.library.opcheck(getattr(torch.ops, namespace).add_vjp.default, ([g], x, x, [True, True]))


def test_integer_and_unused_outputs_take_no_part(namespace: str) -> None:
    op, x = with_index(namespace), f64(3, 4)
    _, where, total = op(x)
    assert not where.requires_grad
    (grad,) = torch.autograd.grad(total.sum(), x)
    torch.testing.assert_close(grad, 2 * x.detach())
    (grad,) = torch.autograd.grad(op(x)[0].sum(), x)
    assert (grad != 0).sum() == 3


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0)])
def test_an_unused_output_without_elements_takes_no_part(namespace: str, shape: tuple[int, int]) -> None:
    @ow.op(f"{namespace}::both")
    def both(x: Float[Tensor, "m n"], w: Float[Tensor, " k"]) -> tuple[Float[Tensor, "m n"], Float[Tensor, " m"]]:
        return x * w.sum(), (x * w.sum()).sum(1)

    for used in (0, 1):
        x, w = torch.ones(shape, requires_grad=True), torch.ones(3, requires_grad=True)
        found = torch.autograd.grad(both(x, w)[used].sum(), (x, w))
        assert [g.shape for g in found] == [x.shape, w.shape]
        assert not found[1].any()


def test_lists_of_tensors_have_gradients(namespace: str) -> None:
    op = concatenate(namespace)
    xs, w = [f64(1, 3), f64(2, 3).detach(), f64(2, 3)], f64(3)
    op(xs, w).sum().backward()
    torch.testing.assert_close(xs[2].grad, w.detach().expand(2, 3))
    assert xs[1].grad is None
    torch.testing.assert_close(w.grad, torch.cat(xs).detach().sum(0))
    torch.autograd.gradcheck(lambda a, b, c: op([a, b], c), (f64(1, 3), f64(2, 3), f64(3)))


def test_integer_tensors_and_absent_optionals_have_none(namespace: str) -> None:
    @ow.op(f"{namespace}::take")
    def take(
        x: Float[Tensor, " n"], i: Int[Tensor, " k"], bias: Float[Tensor, " k"] | None = None, *, a: float = 1.0
    ) -> Float[Tensor, " k"]:
        y = x[i] * a
        return y if bias is None else y + bias

    x, i = f64(4), torch.tensor([0, 0, 2])
    take(x, i, a=2.0).sum().backward()
    assert x.grad.tolist() == [4, 0, 2, 0]
    torch.autograd.gradcheck(lambda x, b: take(x, i, b, a=3.0), (f64(4), f64(3)))


def test_lists_of_numbers_beside_a_gradient(namespace: str) -> None:
    @ow.op(f"{namespace}::reshape")
    def reshape(x: Float[Tensor, " n"], shape: list[int], s: list[float], f: list[bool]) -> Float[Tensor, "..."]:
        return (x * s[0]).reshape(shape)

    torch.autograd.gradcheck(lambda x: reshape(x, [2, 3], [2.0], [True, False]), (f64(6),))
    torch.autograd.gradgradcheck(lambda x: reshape(x, [2, 3], [2.0], []), (f64(6),))


def test_a_list_of_tensors_with_defaults_that_the_dispatcher_drops(namespace: str) -> None:
    @ow.op(f"{namespace}::stack")
    def stack(
        xs: list[Float[Tensor, " n"]], s: list[int], a: float = 1.0, o: Float[Tensor, " n"] | None = None
    ) -> Float[Tensor, "_ n"]:
        return torch.stack(xs) * a * len(s)

    for s in ([], [1, 2, 3]):
        xs = [f64(2), f64(2)]
        stack(xs, s).sum().backward()
        assert xs[0].grad.tolist() == [len(s)] * 2
        stack(xs, s, 2.0).sum().backward()
        torch.autograd.gradgradcheck(lambda x, y, s=s: stack([x, y], s), (f64(2), f64(2)))
    stack.register_autograd(lambda ctx, grad: ([grad[0] * 7, grad[1]], None, None, None))
    xs = [f64(2), f64(2)]
    stack(xs, [1]).sum().backward()
    assert xs[0].grad.tolist() == [7, 7]


def test_an_argument_that_the_reference_ignores_has_a_zero_gradient(namespace: str) -> None:
    @ow.op(f"{namespace}::first")
    def first(x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x * 2

    x, y = f64(3), f64(3)
    first(x, y).sum().backward()
    assert y.grad.tolist() == [0, 0, 0]


def test_second_derivatives_beside_an_integer_output(namespace: str) -> None:
    @ow.op(f"{namespace}::with_index")
    def with_index(x: Float[Tensor, " n"]) -> tuple[Float[Tensor, " n"], Int[Tensor, " n"]]:
        return x * x * x, torch.argsort(x)

    x = torch.randn(4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: with_index(x)[0], x)


@pytest.mark.parametrize("which", ["softmax", "several outputs", "list", "numpy"])
def test_second_derivatives_are_right(which: str, namespace: str) -> None:
    if which == "softmax":
        op = scaled_softmax(namespace)
        torch.autograd.gradcheck(op, (f64(2, 3), f64(3)))
        torch.autograd.gradgradcheck(op, (f64(2, 3), f64(3)))
    elif which == "several outputs":
        several = with_index(namespace)
        torch.autograd.gradgradcheck(lambda x: several(x)[0] * several(x)[2], (f64(2, 3),))
    elif which == "list":
        cat = concatenate(namespace)
        torch.autograd.gradgradcheck(lambda a, b, w: cat([a, b], w), (f64(1, 2), f64(2, 2), f64(2)))
    else:

        @ow.op(f"{namespace}::cube")
        def cube(x: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
            return np.sin(x) * x**2

        torch.autograd.gradgradcheck(cube, (f64(4),))


def test_third_derivatives_follow(namespace: str) -> None:
    @ow.op(f"{namespace}::quartic")
    def quartic(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x**4

    x = f64(3)
    y = quartic(x).sum()
    for factor in (4 * x**3, 12 * x**2, 24 * x):
        (first,) = torch.autograd.grad(y, x, create_graph=True)
        torch.testing.assert_close(first, factor)
        y = first.sum()


def test_the_gradient_under_torch_compile_is_the_vjp_operator(namespace: str) -> None:
    op = scaled_softmax(namespace)
    x, w = torch.randn(2, 3, requires_grad=True), torch.randn(3, requires_grad=True)
    compiled = torch.compile(lambda x, w: op(x, w), fullgraph=True, backend="aot_eager")
    ours = torch.autograd.grad(compiled(x, w).square().sum(), (x, w))
    torch.testing.assert_close(ours, torch.autograd.grad(torch.softmax(x * w, -1).square().sum(), (x, w)))


def test_torch_func_grad_is_that_of_the_reference(namespace: str) -> None:
    op = scaled_softmax(namespace)
    x, w = torch.randn(2, 3), torch.randn(3)
    for call in (op, op.overload):
        ours = torch.func.grad(lambda x, w, call=call: call(x, w).square().sum(), argnums=(0, 1))(x, w)
        meant = torch.func.grad(lambda x, w: torch.softmax(x * w, -1).square().sum(), argnums=(0, 1))(x, w)
        torch.testing.assert_close(ours, meant)


def test_forward_mode_carries_the_reference_s_tangent(namespace: str) -> None:
    from torch.autograd import forward_ad

    op = scaled_softmax(namespace)
    primal, tangent, w = torch.randn(2, 3), torch.randn(2, 3), torch.randn(3)
    _, meant = torch.func.jvp(lambda x: torch.softmax(x * w, -1), (primal,), (tangent,))
    with forward_ad.dual_level():
        x = forward_ad.make_dual(primal, tangent)
        for call in (op, op.overload):
            torch.testing.assert_close(forward_ad.unpack_dual(call(x, w)).tangent, meant)


# -- vmap -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_dims", [(0, None), (None, 0), (0, 0), (1, 1), (-1, None), (2, 0)])
def test_vmap_is_that_of_the_reference(in_dims: tuple[int | None, int | None], namespace: str) -> None:
    op = scaled_softmax(namespace)
    x = torch.randn(5, 5, 5) if in_dims[0] is not None else torch.randn(3, 5)
    w = torch.randn(5, 5) if in_dims[1] is not None else torch.randn(5)
    ours = torch.vmap(op, in_dims)(x, w)
    torch.testing.assert_close(ours, torch.vmap(lambda x, w: torch.softmax(x * w, -1), in_dims)(x, w))


def test_nested_vmap(namespace: str) -> None:
    op = scaled_softmax(namespace)
    x, w = torch.randn(2, 3, 4), torch.randn(3, 4)
    ours = torch.vmap(torch.vmap(op), (0, None))(x, w)
    torch.testing.assert_close(ours, torch.softmax(x * w, -1))


def test_vmap_of_several_outputs_and_of_lists(namespace: str) -> None:
    x = torch.randn(5, 3, 4)
    top, where, total = torch.vmap(with_index(namespace))(x)
    torch.testing.assert_close((top, where, total), (x.amax(2), x.argmax(2), (x * x).sum(2)))
    xs, w = [torch.randn(6, 1, 2), torch.randn(2, 2)], torch.randn(2)
    out = torch.vmap(concatenate(namespace), ([0, None], None))(xs, w)
    torch.testing.assert_close(out[3], torch.cat([xs[0][3], xs[1]]) * w)


def test_vmap_under_autograd(namespace: str) -> None:
    op, x, w = scaled_softmax(namespace), f64(3, 4), f64(4)
    ours = torch.autograd.grad(torch.vmap(op, (0, None))(x, w).square().sum(), (x, w))
    torch.testing.assert_close(ours, torch.autograd.grad(torch.softmax(x * w, -1).square().sum(), (x, w)))


# -- FLOPs and bytes ----------------------------------------------------------------------------------


def test_flops_of_a_matrix_product_are_two_m_n_k_and_of_elementwise_one_an_element(namespace: str) -> None:
    @ow.op(f"{namespace}::mm")
    def mm(x: Float[Tensor, "m k"], y: Float[Tensor, "k n"]) -> Float[Tensor, "m n"]:
        return x @ y

    @ow.op(f"{namespace}::axpy")
    def axpy(x: Float[Tensor, " n"], y: Float[Tensor, " n"], a: float) -> Float[Tensor, " n"]:
        return a * x + y

    x, y = torch.randn(3, 5), torch.randn(5, 7)
    assert mm.flops(x, y) == 2 * 3 * 5 * 7
    assert axpy.flops(torch.randn(10), torch.randn(10), 2.0) == 20
    with FlopCounterMode(display=False) as counter:
        mm(x, y)
    assert counter.get_total_flops() == 210
    with torch.inference_mode():
        assert mm.flops(x, y) == 210


def test_flops_of_reductions_and_of_data_movement(namespace: str) -> None:
    @ow.op(f"{namespace}::total")
    def total(x: Float[Tensor, "n k"]) -> Float[Tensor, " n"]:
        return x.T.clone().sum(0)

    assert total.flops(torch.randn(4, 5)) == 20


WORKS = {
    "matrix product": lambda x: x @ x.mT,
    "attention": lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x),  # a function of its own on a CPU
    "softmax": lambda x: x.softmax(-1),
    "scan": lambda x: x.cumsum(1),
    "convolution": lambda x: torch.nn.functional.conv1d(x, torch.ones(4, x.shape[1], 2)),
    "factorisation": lambda x: torch.linalg.cholesky(x @ x.mT + 100 * torch.eye(x.shape[1])),
    "sum": lambda x: x.sum((0, 2)),
    "what reads values": lambda x: x.exp() if bool(x.sum() > -1e9) else x,
}


@pytest.mark.parametrize("reference", WORKS.values(), ids=WORKS)
def test_small_references_run_for_their_work_and_count_what_their_shapes_tell(reference, namespace, monkeypatch):
    @ow.op(f"{namespace}::some")
    def some(x: Float32[Tensor, "b m n"]) -> Float32[Tensor, "..."]:
        return reference(x)

    x = torch.randn(2, 8, 16)
    found = derive.work(some.contract, [x])
    assert max(found) > 1
    monkeypatch.setattr(derive, "_is_quick_here", lambda tensors: False)
    assert derive.work(some.contract, [x]) == found


def test_hand_written_flops_are_what_torch_shows(namespace: str) -> None:
    op = scaled_softmax(namespace)

    @op.register_flops
    def _(x: Tensor, w: Tensor, a: float) -> int:
        return 5 * x.numel()

    with FlopCounterMode(display=False) as counter:
        op(torch.randn(3, 4), torch.randn(4))
    assert counter.get_total_flops() == 60


def test_least_bytes_are_inputs_and_outputs_once(namespace: str) -> None:
    op = scaled_softmax(namespace)
    x, w = torch.randn(3, 4), torch.randn(4)
    assert derive.least_bytes(op.contract, [x, w, 1.0]) == 4 * (12 + 4 + 12)
    expanded = torch.randn(1, 4).expand(3, 4)
    assert derive.least_bytes(op.contract, [expanded, w, 1.0]) == 4 * (4 + 4 + 12)
    assert derive.least_bytes(op.contract, [torch.randn(0, 4), w, 1.0]) == 4 * 4


# -- decomposition and placements -----------------------------------------------------------------------


@pytest.mark.slow
def test_the_decomposition_is_the_reference(namespace: str) -> None:
    op = scaled_softmax(namespace)
    (function,) = torch._decomp.get_decompositions([op.overload]).values()
    x, w = torch.randn(2, 3), torch.randn(3)
    torch.testing.assert_close(function(x, w), op(x, w))

    class Module(torch.nn.Module):
        def forward(self, x: Tensor, w: Tensor) -> Tensor:
            return op(x, w, 2.0)

    program = torch.export.export(Module(), (x, w))
    decomposed = program.run_decompositions(torch._decomp.get_decompositions([op.overload]))
    assert op.overload not in {node.target for node in decomposed.graph.nodes}
    torch.testing.assert_close(decomposed.module()(x, w), torch.softmax(x * w, -1) * 2)


@pytest.mark.slow
def test_distributed_tensors_get_placements_from_the_reference(run_python) -> None:  # type: ignore[no-untyped-def]
    done = run_python("""
    import tempfile, torch, opwright as ow
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
    from jaxtyping import Float
    from torch import Tensor

    @ow.op("placed::gelu")
    def gelu(x: Float[Tensor, "n k"], w: Float[Tensor, "k"]) -> Float[Tensor, "n k"]:
        return torch.tanh(x) * w

    store = dist.FileStore(tempfile.mktemp(), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    x, w = torch.randn(4, 3), torch.randn(3)
    dx, dw = distribute_tensor(x, mesh, [Shard(0)]), distribute_tensor(w, mesh, [Replicate()])
    out = gelu(dx, dw)
    assert isinstance(out, DTensor)
    torch.testing.assert_close(out.full_tensor(), torch.tanh(x) * w)
    print("placements", out.placements)
    dist.destroy_process_group()
    """)
    assert "placements (Shard(dim=0),)" in done.stdout
