"""Operators that write their arguments: calls, autograd, transforms, torch.compile, export, overlapping arguments."""

from __future__ import annotations

import gc
import logging
import weakref
from random import Random
from typing import Annotated

import pytest
import torch
from jaxtyping import Complex, Float, Float32
from torch import Tensor
from torch.nn.functional import rms_norm

import opwright as ow
from opwright.errors import ArgumentError
from opwright.timing.request import Request
from opwright.timing.run import measure
from tests.sampled import quick

Written = Annotated[Float[Tensor, "t d"], ow.mutated]


@pytest.fixture
def residual_norm(namespace):
    @ow.op(f"{namespace}::residual_norm")
    def residual_norm(
        x: Annotated[Float[Tensor, "t d"], ow.mutated],
        residual: Annotated[Float[Tensor, "t d"], ow.mutated],
        weight: Float[Tensor, " d"],
        eps: float = 1e-6,
    ) -> None:
        residual.add_(x)
        x.copy_(residual * torch.rsqrt(residual.pow(2).mean(-1, keepdim=True) + eps) * weight)

    @residual_norm.python(name="kernel")
    def kernel(x, residual, weight, eps):
        residual += x
        x[:] = rms_norm(residual, (residual.shape[-1],), weight, eps)

    return residual_norm


@pytest.fixture
def state():
    return torch.randn(4, 8), torch.randn(4, 8), torch.rand(8)


def expected(x, residual, weight):
    total = residual + x
    return rms_norm(total, (x.shape[-1],), weight, 1e-6), total


def copies(*tensors):
    return tuple(t.clone() for t in tensors)


def assert_written(arguments, state):
    for got, wanted in zip(arguments[:2], expected(*state), strict=True):
        torch.testing.assert_close(got, wanted)


def test_the_schema_says_what_is_written(residual_norm):
    schema = residual_norm.overload._schema
    assert [a.is_write for a in schema.arguments] == [True, True, False, False]
    assert schema.returns == []


@pytest.mark.parametrize("kernel", ["kernel", "reference"])
def test_the_first_call_later_calls_and_torch_ops_write_the_arguments(residual_norm, state, kernel):
    with residual_norm.only(kernel):
        for call in (residual_norm, residual_norm, residual_norm, residual_norm.overload):
            arguments = copies(*state)
            assert call(*arguments) is None
            assert_written(arguments, state)


def test_the_functional_form_returns_the_new_values_and_writes_nothing(residual_norm, state):
    for _ in range(3):
        arguments = copies(*state)
        found = residual_norm.functional(*arguments)
        assert_written(found, state)
        assert all(torch.equal(a, b) for a, b in zip(arguments, state, strict=True))
    assert residual_norm.functional.functional is residual_norm.functional


def test_gradients_flow_through_what_is_written(residual_norm, state):
    def loss(x, residual, weight, norm):
        x, residual = x * 1, residual * 1
        norm(x, residual, weight)
        return (x.sin() + residual).sum()

    def in_torch(x, residual, weight):
        new_x, new_residual = expected(x, residual, weight)
        x.copy_(new_x)
        residual.copy_(new_residual)

    ours, theirs = ([t.clone().requires_grad_() for t in state] for _ in range(2))
    for _ in range(2):
        found = torch.autograd.grad(loss(*ours, residual_norm), ours)
        wanted = torch.autograd.grad(loss(*theirs, in_torch), theirs)
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_custom_gradient_is_that_of_the_functional_form(residual_norm, state):
    def backward(ctx, grad_x, grad_residual):
        return torch.full_like(grad_x, 7), None, None, None

    residual_norm.register_autograd(backward, setup_context=lambda ctx, inputs, output: None)
    leaf = state[0].clone().requires_grad_()
    x = leaf * 1
    residual_norm(x, state[1].clone(), state[2])
    x.sum().backward()
    assert (leaf.grad == 7).all()
    assert residual_norm.parts["autograd"].origin == "custom"


def test_a_reference_that_overwrites_what_its_gradient_needs_says_what_to_do(namespace):
    @ow.op(f"{namespace}::square")
    def square(x: Annotated[Float[Tensor, " n"], ow.mutated]) -> None:
        x.copy_(x[:] * x[:])

    @square.python(name="kernel")
    def kernel(x):
        x *= x

    leaf = torch.ones(3, requires_grad=True)
    x = leaf * 2
    square(x)
    with pytest.raises(
        ow.errors.ContractError, match=r"cannot be differentiated[\s\S]*x\.clone\(\)[\s\S]*register_autograd"
    ):
        x.sum().backward()


def test_a_leaf_that_requires_a_gradient_is_refused_as_by_torch(residual_norm, state):
    leaf = state[0].clone().requires_grad_()
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        residual_norm(leaf, *state[1:])


def test_a_backward_that_saved_a_written_tensor_says_so(residual_norm, state):
    for _ in range(3):  # the first call, and guarded ones
        x, residual, weight = copies(*state)
        factor = torch.ones(4, 8, requires_grad=True)
        product = factor * x
        residual_norm(x, residual, weight)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.sum().backward()


# Inductor compiles for some 20 s.
@pytest.mark.parametrize(
    "backend", ["aot_eager", pytest.param("inductor", marks=[pytest.mark.compiler, pytest.mark.slow])]
)
def test_torch_compile_writes_the_arguments_themselves(residual_norm, state, backend):
    def step(x, residual, weight):
        residual_norm(x, residual, weight)
        return x + residual

    compiled = torch.compile(step, fullgraph=True, backend=backend)
    for _ in range(2):
        arguments = copies(*state)
        out = compiled(*arguments)
        assert_written(arguments, state)
        torch.testing.assert_close(out, sum(expected(*state)))


@pytest.mark.compiler
def test_inductor_makes_no_copy_where_none_is_needed(residual_norm, state):
    from torch._inductor.utils import run_and_get_code

    def step(x, residual, weight):
        residual_norm(x, residual, weight)

    arguments = copies(*state)
    _, (code,) = run_and_get_code(torch.compile(step, fullgraph=True), *arguments)
    assert_written(arguments, state)
    body = code.partition("def call(")[2].partition("def benchmark")[0]
    assert body.count("residual_norm.default(") == 1
    assert "empty_strided" not in body.partition("residual_norm.default(")[0], "nothing is allocated before the call"
    assert "cpp_fused" not in body
    assert "copy_" not in body


def test_export_keeps_the_operator(residual_norm, state):
    class Step(torch.nn.Module):
        def forward(self, x, residual, weight):
            residual_norm(x, residual, weight)
            return x + 1

    program = torch.export.export(Step(), copies(*state))
    targets = [n.target for n in program.graph.nodes if n.op == "call_function"]
    assert any("residual_norm" in str(t) for t in targets)
    torch.testing.assert_close(program.module()(*copies(*state)), expected(*state)[0] + 1)


def test_transforms_of_torch_func_go_through_the_functional_form(residual_norm, state):
    def new_x(x, residual):
        x, residual = x.clone(), residual.clone()
        residual_norm(x, residual, state[2])
        return x

    stacked = torch.func.vmap(new_x)(torch.stack([state[0]] * 3), torch.stack([state[1]] * 3))
    torch.testing.assert_close(stacked[2], expected(*state)[0])
    torch.testing.assert_close(torch.func.functionalize(new_x)(*state[:2]), expected(*state)[0])
    gradient = torch.func.grad(lambda x, r: new_x(x, r).sin().sum())(*state[:2])
    wanted = torch.func.grad(lambda x, r: expected(x, r, state[2])[0].sin().sum())(*state[:2])
    torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-5)


def test_what_overlaps_is_refused_and_what_only_lies_between_is_not(residual_norm, state):
    x, residual, weight = copies(*state)
    for _ in range(3):
        residual_norm(x, residual, weight)
    for call in (residual_norm, residual_norm.overload):
        with pytest.raises(ow.errors.ArgumentError, match="'x' is written, and shares memory with 'residual'"):
            call(x, x, weight)
        with pytest.raises(ow.errors.ArgumentError, match="several of its elements share an address"):
            call(x, residual[:1].expand(4, 8), weight)
    memory = torch.randn(5, 8)
    with pytest.raises(ow.errors.ArgumentError, match="shares memory"):
        residual_norm(memory[:4], memory[1:], weight)
    with pytest.raises(
        ow.errors.ArgumentError, match=r"'x' is written, and shares memory with 'weight'[\s\S]*weight\.clone"
    ):
        residual_norm(x, residual, x[0])
    with pytest.raises(ow.errors.ArgumentError, match="share an address"):
        residual_norm(torch.randn(11).unfold(0, 8, 1), residual, weight)
    tracked = x.clone().requires_grad_() * 1
    with pytest.raises(ow.errors.ArgumentError, match="shares memory with 'residual'"):
        residual_norm(tracked, tracked, weight)
    with pytest.raises(ow.errors.ArgumentError, match="shares memory with 'residual'"):
        torch.func.vmap(lambda a: residual_norm(a, a, weight))(x[None])
    columns = torch.randn(8, 4).mT  # each axis steps over what the other reaches, in another order
    residual_norm(columns, residual, weight)
    halves = torch.stack(copies(*state[:2]), dim=1)  # rows of the two lie between each other
    residual_norm(halves[:, 0], halves[:, 1], weight)
    assert_written((halves[:, 0], halves[:, 1]), state)


@pytest.mark.slow  # compiles C++
def test_what_is_remembered_of_a_call_keeps_no_tensor_alive(residual_norm, state):
    arguments = copies(*state)
    alive = [weakref.ref(t) for t in arguments]
    for _ in range(3):
        residual_norm(*arguments)
    residual_norm.functional(*arguments)
    del arguments
    gc.collect()
    assert [reference() for reference in alive] == [None] * 3


def test_lists_of_written_tensors_of_any_length(namespace):
    @ow.op(f"{namespace}::decay")
    def decay(weights: Annotated[list[Float[Tensor, "_"]], ow.mutated], rate: float) -> None:
        for weight in weights:
            weight.mul_(1 - rate)

    @decay.python(name="foreach")
    def foreach(weights, rate):
        torch._foreach_mul_(weights, 1 - rate)

    for _ in range(2):
        weights = [torch.ones(3), torch.ones(5)]
        decay(weights, 0.5)
        assert [w.sum().item() for w in weights] == [1.5, 2.5]
    with pytest.raises(ow.errors.KernelError, match=r"has no functional form[\s\S]*return the new values"):
        decay.functional(weights, 0.5)
    tracked = [torch.ones(3, requires_grad=True) * 1]
    with pytest.raises(ow.errors.KernelRefusedError, match="has no functional form"):
        decay(tracked, 0.5)


def test_overlaps_in_long_lists_are_those_that_comparing_each_pair_finds(namespace):
    @ow.op(f"{namespace}::scale_into_")
    def scale_into_(
        targets: Annotated[list[Float32[Tensor, "?n"]], ow.mutated], values: list[Float32[Tensor, "?n"]], factor: float
    ) -> None:
        for target, value in zip(targets, values, strict=True):
            target.copy_(value * factor)

    random, storage, found = Random(0), torch.zeros(10_000), []
    for _ in range(200):

        def view(size):
            step = random.choice((1, 1, 2, 3))  # some only interleave
            return storage[random.randrange(0, 9000) :][: size * step : step]

        sizes = [random.randrange(1, 60) for _ in range(random.randrange(1, 12))]
        targets, values = [view(size) for size in sizes], [view(size) for size in sizes]
        addresses = [{x.data_ptr() + 4 * i * x.stride(0) for i in range(len(x))} for x in (*targets, *values)]
        of_targets = addresses[: len(sizes)]
        overlaps = any(a & b for i, a in enumerate(of_targets) for j, b in enumerate(addresses) if i != j)
        try:
            scale_into_(targets, values, 1.0)
        except ArgumentError:
            found.append((overlaps, True))
        else:
            found.append((overlaps, False))
    assert set(found) == {(True, True), (False, False)}


def test_outputs_beside_what_is_written(namespace):
    @ow.op(f"{namespace}::push")
    def push(stack: Annotated[Float[Tensor, " n"], ow.mutated], value: float) -> Float[Tensor, ""]:
        lost = stack[0].clone()
        stack.copy_(torch.cat([stack[1:], stack.new_tensor([value])]))
        return lost

    for _ in range(2):
        stack = torch.tensor([1.0, 2.0, 3.0])
        assert push(stack, 4.0).item() == 1
        assert stack.tolist() == [2, 3, 4]
    lost, new = push.functional(torch.tensor([1.0, 2.0, 3.0]), 4.0)
    assert (lost.item(), new.tolist()) == (1, [2, 3, 4])


# -- what is refused at definition ---------------------------------------------------------------------------------


def refuse(namespace, message, reference):
    with pytest.raises(ow.errors.ContractError, match=message):
        ow.op(f"{namespace}::wrong")(reference)


def test_a_declaration_must_be_what_the_reference_does(namespace):
    def does_not_write(x: Annotated[Float[Tensor, " n"], ow.mutated]) -> None:
        x = x + 1

    def writes_another(x: Annotated[Float[Tensor, " n"], ow.mutated], y: Float[Tensor, " n"]) -> None:
        x.add_(1)
        y.add_(1)

    def returns_it(x: Annotated[Float[Tensor, " n"], ow.mutated]) -> Float[Tensor, " n"]:
        return x.add_(1)

    def returns_a_view(x: Annotated[Float[Tensor, "n m"], ow.mutated]) -> Float[Tensor, " m"]:
        x.add_(1)
        return x[0]

    def marks_a_number(x: Float[Tensor, " n"], k: Annotated[int, ow.mutated]) -> Float[Tensor, " n"]:
        return x + k

    def marks_nothing(x: Float[Tensor, " n"]) -> None:
        pass

    refuse(namespace, "must write 'x', which is marked ow.mutated", does_not_write)
    refuse(namespace, r"must leave its argument 'y' unchanged[\s\S]*Annotated\[.*ow\.mutated\]", writes_another)
    refuse(namespace, "must return new tensors, got an argument that it writes", returns_it)
    refuse(namespace, "must return new tensors, got an argument that it writes, or a view", returns_a_view)
    refuse(namespace, "'k' is marked ow.mutated, but it is int", marks_a_number)
    refuse(namespace, "no argument is marked as mutated", marks_nothing)


def test_kernels_in_languages_that_only_return_are_refused(residual_norm):
    with pytest.raises(ow.errors.KernelError, match=r"op\.numpy kernels return their results[\s\S]*python"):
        residual_norm.numpy(lambda x, residual, weight, eps: None, name="n")


CPP = """
#include <opwright/tensor.h>
using torch::stable::Tensor;

void scale(Tensor x, double a) {
  float* data = x.mutable_data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i) data[i] *= a;
}
"""


@pytest.mark.slow
@pytest.mark.compiler
def test_a_host_function_in_cpp_returns_nothing(namespace, tmp_path):
    @ow.op(f"{namespace}::scale")
    def scale(x: Annotated[Float[Tensor, " n"], ow.mutated], a: float) -> None:
        x.mul_(a)

    (tmp_path / "scale.cpp").write_text(CPP)
    scale.cpp(tmp_path / "scale.cpp", dtypes=[torch.float32], when=lambda x, a: x.is_contiguous())
    for _ in range(3):
        x = torch.ones(3)
        scale(x, 2.0)
        assert x.tolist() == [2, 2, 2]
    assert scale.explain(x, 2.0).chosen.kernel == "cpp"
    (tmp_path / "wrong.cpp").write_text(CPP.replace("void scale", "Tensor scale"))
    with pytest.raises(ow.errors.SignatureMismatchError, match="must return 'void', got 'Tensor'"):
        scale.cpp(tmp_path / "wrong.cpp", name="wrong")


# -- on a GPU --------------------------------------------------------------------------------------------------------

CUDA = """
__global__ void axpy(float* x, const float* y, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] += a * y[i];
}
"""


def axpy_on_a_gpu(namespace):
    kernels = ow.cuda_module(CUDA)

    @ow.op(f"{namespace}::axpy")
    def axpy(
        x: Annotated[Float[Tensor, " n"], ow.mutated], y: Float[Tensor, " n"], a: Annotated[float, ow.values(-2, 2)]
    ) -> None:
        x.add_(y, alpha=a)

    def right(x, y, a):
        kernels["axpy"][ow.cdiv(x.numel(), 256), 256](x, y, a, x.numel())

    def wrong(x, y, a):
        kernels["axpy"][ow.cdiv(x.numel(), 256), 256](x, y, a, max(0, x.numel() - 1))

    contiguous = {"dtypes": [torch.float32], "when": lambda x, y, a: x.is_contiguous() and y.is_contiguous()}
    axpy.cuda(right, name="right", **contiguous)
    axpy.cuda(wrong, name="wrong", **contiguous)
    return axpy


@pytest.mark.slow  # a whole check
@pytest.mark.nvrtc
@pytest.mark.compiler
def test_cuda_kernels_that_write_are_checked_in_the_simulator(namespace):
    axpy = axpy_on_a_gpu(namespace)
    assert ow.check(axpy, kernels=["right"], device="cpu-sim").passed
    (verdict,) = ow.check(axpy, kernels=["wrong"], device="cpu-sim").verdicts
    assert "argument 'x' after the call" in verdict.failures[0].message


@pytest.mark.gpu
def test_a_gpu_writes_the_arguments_alone_compiled_and_in_graphs(namespace):
    from torch._inductor.utils import run_and_get_code

    axpy = axpy_on_a_gpu(namespace)
    right, wrong = (ow.check(axpy, kernels=[name], device="cuda").verdicts[0] for name in ("right", "wrong"))
    assert right.status == "pass", right.failures
    assert "streams" in {f.check for f in right.findings}
    assert "argument 'x' after the call" in wrong.failures[0].message
    x, y = torch.zeros(1000, device="cuda"), torch.ones(1000, device="cuda")
    with axpy.only("right"):
        for _ in range(3):
            axpy(x, y, 2.0)
        _, (code,) = run_and_get_code(torch.compile(lambda x, y: axpy(x, y, 2.0), fullgraph=True), x, y)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            axpy(x, y, 2.0)
        for _ in range(2):
            graph.replay()
    assert x.tolist() == [12.0] * 1000
    body = code.partition("def call(")[2]
    assert body.count("axpy.default(") == 1
    assert "triton_" not in body.partition("def benchmark")[0], "no copy"


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_what_is_written_is_timed_and_compared(residual_norm, device):
    report = measure(
        Request([residual_norm], device=device, quick=True, sizes={"t": [64], "d": [64]}, iters=5, limits=False)
    )
    assert not report.errors
    assert {m.kernel for m in report.measurements} >= {"kernel", "reference"}
    assert {m.direction for m in report.measurements} == {"forward"}


@pytest.mark.parametrize("backend", quick(["eager", "aot_eager", "inductor"], 0, 2))
@pytest.mark.parametrize("call", [lambda op, x: op(x, x), lambda op, x: op(x[:4], x[1:5])])
def test_overlapping_arguments_are_refused_under_torch_compile(shifted, backend, call):
    with pytest.raises(Exception, match="is written, and shares memory with"):
        torch.compile(lambda x: call(shifted, x), backend=backend)(torch.ones(6))
    x = torch.ones(6)
    torch.compile(lambda x: shifted(x[::2], x[1::2]), backend=backend, dynamic=True)(x)
    assert x.tolist() == [2, 1, 2, 1, 2, 1]


@pytest.fixture
def shifted(namespace):
    @ow.op(f"{namespace}::shifted")
    def shifted(x: Annotated[Float[Tensor, " n"], ow.mutated], by: Float[Tensor, " n"]) -> None:
        x.add_(by)

    return shifted


def test_the_functional_forms_name_belongs_to_one_operator(namespace):
    def double(x: Annotated[Float[Tensor, " n"], ow.mutated]) -> None:
        x.mul_(2)

    def other(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return 2 * x

    first = ow.op(f"{namespace}::first_functional")(other)
    with pytest.raises(ow.errors.NameClashError, match=r"the functional form of .*::first would have this name"):
        ow.op(f"{namespace}::first")(double)
    assert first(torch.ones(1)).item() == 2
    assert not hasattr(getattr(torch.ops, namespace), "first")
    second = ow.op(f"{namespace}::second")(double)
    with pytest.raises(ow.errors.NameClashError, match="is the functional form of"):
        ow.op(f"{namespace}::second_functional")(other)
    assert second.functional(torch.ones(1)).item() == 2
    again = ow.op(f"{namespace}::second")(double)
    assert again.functional(torch.ones(1)).item() == 2
    ow.op(f"{namespace}::second")(other)  # writes nothing any more: the form goes with it
    assert not hasattr(getattr(torch.ops, namespace), "second_functional")


def test_a_kernel_that_returns_something_is_refused(shifted):
    shifted.python(lambda x, by: x.add_(by), name="kernel")
    for call in (shifted, shifted.overload):
        with pytest.raises(ow.errors.KernelError, match="returned Tensor, but the operator only writes its arguments"):
            call(torch.ones(2), torch.ones(2))


@pytest.mark.slow  # whole checks
def test_an_out_argument(namespace):
    @ow.op(f"{namespace}::add_out")
    def add_out(
        x: Float[Tensor, " n"],
        y: Float[Tensor, " n"],
        *,
        alpha: float = 1.0,
        out: Annotated[Float[Tensor, " n"], ow.mutated],
    ) -> None:
        out.copy_(x + alpha * y)

    @add_out.python(name="kernel")
    def kernel(x, y, *, alpha, out):
        out.copy_(x + alpha * y)

    assert "Tensor(a2!) out" in add_out.contract.schema or "!) out" in add_out.contract.schema
    x, y, out = torch.ones(3), torch.arange(3.0), torch.empty(3)
    for call in (add_out, add_out.overload, torch.compile(add_out, fullgraph=True)):
        assert call(x, y, out=out.zero_(), alpha=2.0) is None
        assert out.tolist() == [1, 3, 5]
    y.requires_grad_()
    written = torch.zeros(3)
    add_out(x, y, alpha=3.0, out=written)
    written.sum().backward()
    assert y.grad.tolist() == [3, 3, 3]
    assert add_out.functional(x, x, 2.0, out).tolist() == [3, 3, 3]
    batch = torch.stack([x, 2 * x])
    assert torch.vmap(lambda x: add_out.functional(x, x, 1.0, x))(batch).tolist() == [[2] * 3, [4] * 3]
    report = ow.check(add_out, device="cpu")
    assert report.passed, report.verdicts[0].failures


def test_a_reference_that_writes_with_out_has_no_gradient_and_says_so(namespace):
    @ow.op(f"{namespace}::exp_out")
    def exp_out(x: Float[Tensor, " n"], *, out: Annotated[Float[Tensor, " n"], ow.mutated]) -> None:
        torch.exp(x, out=out)

    x = torch.zeros(2, requires_grad=True)
    out = torch.empty(2)
    exp_out(x.detach(), out=out)
    assert out.tolist() == [1, 1]
    with pytest.raises(ow.errors.ContractError, match="because it writes with out="):
        exp_out.functional(x, out).sum().backward()
    assert ow.check(exp_out, device="cpu", level="smoke").passed


def test_a_lazy_conjugate_is_refused(namespace):
    @ow.op(f"{namespace}::conjugates")
    def double(x: Annotated[Complex[Tensor, " n"], ow.mutated]) -> None:
        x.mul_(2)

    with pytest.raises(ow.errors.ArgumentError, match="got a view that conjugates"):
        double(torch.ones(2, dtype=torch.complex64).conj())


def test_the_functional_form_is_checked_with_its_operator(shifted):
    with pytest.raises(ow.errors.TargetError, match="its functional form is checked with it"):
        ow.check(shifted.functional)


def test_without_torchs_private_names_a_gradient_is_refused_and_never_lost(run_python):
    run_python(
        """
        from typing import Annotated
        import torch
        from jaxtyping import Float
        from torch import Tensor
        import opwright as ow

        @ow.op("without::double")
        def double(x: Annotated[Float[Tensor, "n"], ow.mutated]) -> None:
            x.mul_(2)

        x = torch.ones(3)
        double(x)
        assert x.tolist() == [2, 2, 2]
        leaf = torch.ones(3, requires_grad=True)
        try:
            double(leaf * 1)
            raise SystemExit("no error")
        except ow.errors.KernelRefusedError as error:
            assert "call double.functional" in str(error)
        double.functional(leaf).sum().backward()
        assert leaf.grad.tolist() == [2, 2, 2]
        with torch.no_grad():
            double(x)
        assert x.tolist() == [4, 4, 4]
        """,
        env={"OPWRIGHT_WITHOUT_INTERNALS": "below_autograd,after_autograd,guards"},
    )


@pytest.mark.parametrize("kernel", ["kernel", "reference"])
def test_what_a_reference_writes_under_no_grad_autograd_does_not_see(namespace, kernel):
    @ow.op(f"{namespace}::add_out")
    @torch.no_grad()
    def add_out(
        a: Float[Tensor, " n"], b: Float[Tensor, " n"], out: Annotated[Float[Tensor, " n"], ow.mutated]
    ) -> None:
        out.copy_(a + b)

    @add_out.python(name="kernel")
    def _(a, b, out):
        torch.add(a, b, out=out)

    a, b, out = (torch.ones(3, requires_grad=True) for _ in range(3))
    with add_out.only(kernel):
        for call in (add_out, add_out.overload, torch.compile(add_out.overload, backend="aot_eager", fullgraph=True)):
            with torch.no_grad():
                out.zero_()
            version = out._version
            call(a, b, out)
            torch.testing.assert_close(out.detach(), torch.full((3,), 2.0))
            assert out.is_leaf
            assert out._version > version
        torch.library.opcheck(add_out.overload, (a, b, out))


def test_what_a_reference_writes_with_gradients_is_refused_for_a_leaf_as_in_torch(namespace):
    @ow.op(f"{namespace}::add_out_with_gradients")
    def add_out(
        a: Float[Tensor, " n"], b: Float[Tensor, " n"], out: Annotated[Float[Tensor, " n"], ow.mutated]
    ) -> None:
        out.copy_(a + b)

    a, b, out = (torch.ones(3, requires_grad=True) for _ in range(3))
    with pytest.raises(RuntimeError, match="leaf Variable"):
        add_out(a, b, out)
    written = out.clone()
    add_out(a, b, written)
    written.sum().backward()
    assert torch.equal(a.grad, torch.ones(3))


@pytest.mark.parametrize("kind", ["tracked", "under no_grad"])
def test_a_reference_may_use_a_name_that_is_defined_later(namespace, kind):
    def double(x: Annotated[Float[Tensor, " n"], ow.mutated]) -> None:
        by_two(x)

    function = double if kind == "tracked" else torch.no_grad()(double)
    operator = ow.op(f"{namespace}::double_later")(function)

    def by_two(x):
        x.mul_(2)

    x = torch.ones(3, requires_grad=True)
    if kind == "tracked":
        with pytest.raises(RuntimeError, match="leaf Variable"):
            operator(x)
    else:
        operator(x)
        assert x.tolist() == [2, 2, 2]


def test_writes_are_seen_where_sizes_have_to_satisfy_conditions(namespace):
    """With dims of one size, this reference fails on fake tensors, and what it writes is not known."""

    def halves(x: Float32[Tensor, "n d"], cos: Float32[Tensor, "n r"]) -> Float32[Tensor, "n d"]:
        return torch.cat((x[:, : 2 * cos.shape[1]].mul_(torch.cat((cos, cos), 1)), x[:, 2 * cos.shape[1] :]), 1)

    with pytest.raises(ow.errors.ContractError, match=r"must leave its argument 'x' unchanged, got a write"):
        ow.op(f"{namespace}::halves", where="2*r <= d")(halves)


def test_a_reference_that_fails_on_fake_tensors_prints_no_traceback(namespace):
    failures = []

    class Handler(logging.Handler):
        def emit(self, record):
            failures.append(record.getMessage())

    logger, handler = logging.getLogger("torch._subclasses.fake_tensor"), Handler()
    logger.addHandler(handler)
    try:

        @ow.op(f"{namespace}::outer")
        def outer(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
            return x * torch.ones(3) if len(x) == 4 else x + 0

    finally:
        logger.removeHandler(handler)
    assert failures == []
