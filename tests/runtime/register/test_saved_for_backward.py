"""Outputs that are saved for the backward, and backwards that are operators."""

from typing import Annotated

import numpy as np
import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor

import opwright as ow
from opwright.errors import ContractError, KernelError, SignatureMismatchError
from opwright.timing import run as engine

calls = []


def make_scaled_exp(name="testsaved::scaled_exp"):
    @ow.op(name)
    def scaled_exp(
        x: Float[Tensor, " n"], scale: float
    ) -> tuple[Float[Tensor, " n"], Annotated[Float[Tensor, " n"], ow.saved_for_backward]]:
        e = torch.exp(x)
        return e * scale, e

    return scaled_exp


@pytest.fixture
def scaled_exp():
    op = make_scaled_exp()

    @op.python(name="kernel")
    def _(x, scale):
        e = x.exp()
        return e * scale, e

    return op


X = torch.linspace(-1, 1, 7)


def test_the_caller_does_not_get_what_is_saved(scaled_exp):
    for kernel in ("kernel", "reference"):
        with scaled_exp.only(kernel):
            for _ in range(3):  # also behind a guard
                out = scaled_exp(X, 2.0)
                assert isinstance(out, Tensor)
                torch.testing.assert_close(out, 2 * X.exp())
    assert isinstance(scaled_exp.kernels["kernel"](X, 2.0), Tensor)
    assert [tuple(t.shape) for t in torch.ops.testsaved.scaled_exp(X, 2.0)] == [(7,), (7,)]
    out, saved = scaled_exp.with_saved(X, 2.0)
    torch.testing.assert_close(saved, X.exp())


def test_two_outputs_and_one_saved():
    @ow.op("testsaved::two")
    def two(
        x: Float[Tensor, " n"],
    ) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"], Annotated[Float[Tensor, " n"], ow.saved_for_backward]]:
        return x + 1, x + 2, x + 3

    assert [t[0].item() for t in two(torch.zeros(1))] == [1, 2]


def test_derived_gradient_ignores_what_is_saved(scaled_exp):
    x = X.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: scaled_exp(x, 3.0), x)
    out, saved = torch.ops.testsaved.scaled_exp(x, 3.0)
    assert out.requires_grad
    assert not saved.requires_grad


def test_hand_written_backward_gets_what_is_saved_and_the_callers_gradients_only(scaled_exp):
    seen = []

    def setup(ctx, inputs, output):
        seen.append(len(output))
        ctx.scale = inputs[1]
        ctx.save_for_backward(output[1])

    def backward(ctx, *grads):
        seen.append(len(grads))
        return grads[0] * ctx.saved_tensors[0] * ctx.scale, None

    scaled_exp.register_autograd(backward, setup_context=setup)
    x = X.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: scaled_exp(x, 3.0), x)
    assert set(seen) == {2, 1}


def test_second_derivatives_do_not_miss_what_flows_through_saved_outputs(scaled_exp):
    def setup(ctx, inputs, output):
        ctx.scale = inputs[1]
        ctx.save_for_backward(output[1])

    def backward(ctx, grad):
        (e,) = ctx.saved_tensors
        return grad * e * ctx.scale, None

    scaled_exp.register_autograd(backward, setup_context=setup)
    x = X.double().requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x: scaled_exp(x, 3.0), x)
    hessian = torch.func.hessian(lambda x: scaled_exp(x, 3.0).sum())(x.detach())
    torch.testing.assert_close(hessian, torch.diag(3 * x.detach().exp()))


@pytest.mark.compiler
def test_under_torch_compile(scaled_exp):
    compiled = torch.compile(lambda x: scaled_exp(x, 2.0) + 1, fullgraph=True, backend="aot_eager")
    x = X.clone().requires_grad_()
    out = compiled(x)
    torch.testing.assert_close(out, 2 * X.exp() + 1)
    out.sum().backward()
    torch.testing.assert_close(x.grad, 2 * X.exp())


def test_vmap_and_transforms(scaled_exp):
    batch = torch.randn(3, 5, dtype=torch.float64)
    torch.testing.assert_close(torch.vmap(lambda x: scaled_exp(x, 2.0))(batch), 2 * batch.exp())
    torch.testing.assert_close(torch.func.grad(lambda x: scaled_exp(x, 2.0).sum())(batch[0]), 2 * batch[0].exp())


@pytest.mark.slow  # checks two kernels whole
def test_check_passes_and_sees_a_wrong_saved_output(scaled_exp):
    assert ow.check(scaled_exp).passed

    @scaled_exp.python(name="wrong")
    def _(x, scale):
        e = x.exp()
        return e * scale, e + 1

    report = ow.check(scaled_exp, kernels=["wrong"])
    assert not report.passed
    assert "output 1" in str(report)


@pytest.mark.slow  # a benchmark of several compiled candidates
def test_bench_compares_what_the_caller_gets(scaled_exp, monkeypatch):
    monkeypatch.setattr(engine, "Roofline", lambda *_: None)  # takes some 15 s
    report = ow.bench(scaled_exp, sizes={"n": [64]}, iters=3)
    assert not report.errors
    assert {m.direction for m in report.measurements} == {"forward", "backward"}


def test_arrays_too():
    @ow.op("testsaved::of_arrays")
    def of_arrays(
        x: Float[np.ndarray, " n"],
    ) -> tuple[Float[np.ndarray, " n"], Annotated[Float[np.ndarray, " n"], ow.saved_for_backward]]:
        return x * 2, x * 3

    assert isinstance(of_arrays(np.ones(3)), np.ndarray)


def test_saved_comes_last():
    with pytest.raises(ContractError, match=r"outputs with ow.saved_for_backward last"):

        @ow.op("testsaved::first")
        def first(
            x: Float[Tensor, " n"],
        ) -> tuple[Annotated[Float[Tensor, " n"], ow.saved_for_backward], Float[Tensor, " n"]]:
            return x + 1, x + 2

    with pytest.raises(ContractError, match="at least one tensor"):

        @ow.op("testsaved::only")
        def only(x: Float[Tensor, " n"]) -> Annotated[Float[Tensor, " n"], ow.saved_for_backward]:
            return x + 1


# -- a backward operator -------------------------------------------------------------------------------------------


@pytest.fixture
def paired():
    forward = make_scaled_exp("testsaved::paired")

    @ow.op("testsaved::paired_backward")
    def backward(grad: Float[Tensor, " n"], result1: Float[Tensor, " n"], scale: float) -> Float[Tensor, " n"]:
        return grad * result1 * scale

    @backward.python(name="kernel")
    def _(grad, result1, scale):
        calls.append("backward kernel")
        return grad * result1 * scale

    forward.register_autograd(backward)
    return forward, backward


@pytest.mark.slow
def test_a_backward_operator_takes_what_its_parameters_name(paired):
    forward, _ = paired
    calls.clear()
    x = X.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: forward(x, 3.0), x)
    assert torch.autograd.gradgradcheck(lambda x: forward(x, 3.0), x)
    assert calls
    assert forward.parts["autograd"].how == "register_autograd (testsaved::paired_backward)"
    assert ow.check(forward).passed  # in a worker process, so it can be sent there


@pytest.mark.compiler
def test_a_backward_operator_is_one_node_of_a_compiled_graph(paired):
    forward, _ = paired
    nodes = []

    def look(module, inputs):
        nodes.extend(str(n.target) for n in module.graph.nodes if n.op == "call_function")
        return module

    from torch._dynamo.backends.common import aot_autograd

    compiled = torch.compile(lambda x: forward(x, 2.0), fullgraph=True, backend=aot_autograd(fw_compiler=look))
    x = X.clone().requires_grad_()
    compiled(x).sum().backward()
    torch.testing.assert_close(x.grad, 2 * X.exp())
    assert "testsaved.paired.default" in nodes
    assert "testsaved.paired_backward.default" in nodes


def test_needs_says_which_gradients_are_wanted():
    @ow.op("testsaved::product")
    def product(x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x * y

    @ow.op("testsaved::product_backward")
    def product_backward(
        grad: Float[Tensor, " n"], x: Float[Tensor, " n"], y: Float[Tensor, " n"], needs: list[bool]
    ) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        calls.append(list(needs))
        zero = torch.zeros_like(grad)
        return grad * y if needs[0] else zero, grad * x if needs[1] else zero

    product.register_autograd(product_backward)
    calls.clear()
    x, y = torch.randn(4, requires_grad=True), torch.randn(4)
    (grad,) = torch.autograd.grad(product(x, y).sum(), x)
    torch.testing.assert_close(grad, y)
    assert [True, False] in calls


@pytest.mark.parametrize(
    ("parameters", "returned", "message"),
    [
        ("grad: F, z: F", "F", r"must be arguments or outputs of testsaved::sum2, got 'z'.*'x', 'y', 'k', 'result'"),
        ("k: int, grad: F", "tuple[F, F]", "first 1 parameter.*gradients"),
        ("grad: F", "F", "must return a gradient for each of .x, y., got 1 tensor"),
    ],
)
def test_a_backward_that_does_not_fit_is_refused(parameters, returned, message):
    scope = {"ow": ow, "F": Float[Tensor, "n"], "Tensor": Tensor, "I": Int[Tensor, "n"]}
    exec(
        """
@ow.op("testsaved::sum2")
def sum2(x: F, y: F, k: int) -> F:
    return x + y * k
""",
        scope,
    )
    if "z" in parameters:
        returned = "tuple[F, F]"
    exec(
        f"""
@ow.op("testsaved::sum2_backward")
def sum2_backward({parameters}) -> {returned}:
    return {"grad + 1, grad + 2" if "tuple" in returned else "grad + 1"}
""",
        scope,
    )
    with pytest.raises(SignatureMismatchError, match=f"(?s)sum2_backward cannot be the backward.*{message}"):
        scope["sum2"].register_autograd(scope["sum2_backward"])


def test_a_backward_operator_and_setup_context_are_too_much(paired):
    forward, backward = paired
    with pytest.raises(KernelError, match="drop setup_context"):
        forward.register_autograd(backward, setup_context=lambda ctx, inputs, output: None)


@pytest.mark.slow
def test_a_wrong_backward_operator_is_found():
    forward = make_scaled_exp("testsaved::wrongly_paired")

    @ow.op("testsaved::wrongly_paired_backward")
    def backward(grad: Float[Tensor, " n"], result0: Float[Tensor, " n"], scale: float) -> Float[Tensor, " n"]:
        return grad * result0 * scale  # result0 is scaled already

    forward.register_autograd(backward)

    @forward.python(name="kernel")
    def _(x, scale):
        e = x.exp()
        return e * scale, e

    report = ow.check(forward)
    assert not report.passed
    assert "the gradient of 'x'" in str(report)


def test_a_compiled_call_gives_what_is_saved_as_arrays_too():
    @ow.op("testsaved::arrays_that_are_saved")
    def both(
        x: Float[np.ndarray, " n"],
    ) -> tuple[Float[np.ndarray, " n"], Annotated[Float[np.ndarray, " n"], ow.saved_for_backward]]:
        return x * 2, x * 3

    compiled = torch.compile(lambda x: both.with_saved(x)[1] + 1, backend="eager", fullgraph=True)
    for function in (compiled, lambda x: both.with_saved(x)[1] + 1):
        found = function(np.ones(3))
        assert isinstance(found, np.ndarray)
        assert found.tolist() == [4, 4, 4]


@pytest.mark.parametrize("saves", [False, True])
def test_an_author_is_told_of_each_argument_whether_it_needs_a_gradient(namespace, saves):
    if saves:

        @ow.op(f"{namespace}::scaled")
        def scaled(
            x: Float[Tensor, " n"], y: Float[Tensor, " n"], a: float = 2.0
        ) -> tuple[Float[Tensor, " n"], Annotated[Float[Tensor, " n"], ow.saved_for_backward]]:
            return x * y * a, x * y
    else:

        @ow.op(f"{namespace}::scaled")
        def scaled(x: Float[Tensor, " n"], y: Float[Tensor, " n"], a: float = 2.0) -> Float[Tensor, " n"]:
            return x * y * a

    messages = []

    def setup_context(ctx, inputs, output):
        messages.append(ctx.needs_input_grad)
        ctx.save_for_backward(inputs[1])
        ctx.a = inputs[2]

    def backward(ctx, grad):
        messages.append(ctx.needs_input_grad)
        return grad * ctx.saved_tensors[0] * ctx.a, None, None

    scaled.register_autograd(backward, setup_context=setup_context)
    x, y = torch.ones(3, requires_grad=True), torch.ones(3)
    for _ in range(2):  # through the dispatcher, then past it
        assert torch.autograd.grad(scaled(x, y, 3.0).sum(), x)[0].tolist() == [3, 3, 3]
    assert messages == [(True, False, False)] * 4
    torch.func.grad(lambda x: scaled(x, y, 3.0).sum())(x.detach())
    assert messages[-1] == (True, False, False)
    assert {len(each) for each in messages} == {3}
