"""A reference that uses tensors and arrays of its module, or of a function around it."""

import numpy as np
import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.contract.derive import least_bytes
from tests.sampled import quick

TABLE = torch.tensor([[1.0, 2.0, 3.0]])
WEIGHT = torch.nn.Parameter(torch.tensor([3.0, 2.0, 1.0]))
ARRAY = np.array([1.0, 2.0, 3.0], dtype=np.float32)
X = torch.linspace(-1, 1, 12).reshape(4, 3)


def with_table(namespace):
    @ow.op(f"{namespace}::with_table")
    def op(x: Float[Tensor, "n 3"]) -> Float[Tensor, "n 3"]:
        return (x * TABLE.to(x.dtype)).sin()

    return op, TABLE


def with_incomplete_annotation(namespace):
    """Its fake runs the reference."""
    own = TABLE.clone()

    @ow.op(f"{namespace}::incomplete")
    def op(x: Float[Tensor, "n 3"]) -> Float[Tensor, "n ..."]:
        return (x * own.to(x.dtype)).sin()

    return op, own


def with_parameter(namespace):
    @ow.op(f"{namespace}::with_parameter")
    def op(x: Float[Tensor, "n 3"]) -> Float[Tensor, "n ..."]:
        return (x * WEIGHT.to(x.dtype)).sin()

    return op, WEIGHT.detach()


def with_array(namespace):
    @ow.op(f"{namespace}::with_array")
    def op(x: Float[Tensor, "n 3"]) -> Float[Tensor, "n ..."]:
        return (x * torch.from_numpy(ARRAY).to(x.dtype)).sin()

    return op, torch.from_numpy(ARRAY)


def in_numpy(namespace):
    @ow.op(f"{namespace}::in_numpy")
    def op(x: Float[np.ndarray, "n 3"]) -> Float[np.ndarray, "n ..."]:
        return np.sin(x * ARRAY)

    return op, torch.from_numpy(ARRAY)


def gradient(function):
    def of(x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(function(x).sum(), x)[0]

    return of


@pytest.fixture(params=[with_table, with_incomplete_annotation, with_parameter, with_array, in_numpy])
def made(request, namespace):
    """The operator, and the tensor that its reference multiplies by."""
    return request.param(namespace)


def test_calls_and_gradients(made):
    op, own = made
    torch.testing.assert_close(op(X), (X * own).sin())
    torch.testing.assert_close(gradient(op)(X), (X * own).cos() * own)
    torch.testing.assert_close(torch.func.grad(lambda x: op(x).sum())(X), (X * own).cos() * own)
    torch.testing.assert_close(torch.vmap(op)(X.expand(2, 4, 3)), (X * own).sin().expand(2, 4, 3))


@pytest.mark.parametrize("dynamic", quick([False, True], 0, 3, 6))
def test_torch_compile(made, dynamic):
    op, own = made
    torch.compiler.reset()
    compiled = torch.compile(lambda x: op(x + 0), fullgraph=True, backend="aot_eager", dynamic=dynamic)
    torch.testing.assert_close(compiled(X), (X * own).sin())
    torch.testing.assert_close(gradient(compiled)(X), (X * own).cos() * own)


@pytest.mark.slow
def test_torch_compile_of_transforms(made):
    op, own = made
    for function, expected in (
        (torch.func.grad(lambda x: op(x).sum()), (X * own).cos() * own),
        (lambda x: torch.vmap(op)(x.expand(2, 4, 3)), (X * own).sin().expand(2, 4, 3)),
    ):
        torch.compiler.reset()
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(X), expected)


def test_export(made):
    op, own = made

    class Module(torch.nn.Module):
        def forward(self, x):
            return op(x) * 2

    exported = torch.export.export(Module(), (X,))
    torch.testing.assert_close(exported.module()(X), (X * own).sin() * 2)


def test_meta_tensors_and_bytes(made):
    op, _ = made
    assert op(X.to("meta")).shape == (4, 3)
    assert op(X.to("meta")).device.type == "meta"
    assert least_bytes(op.contract, (X,)) == 2 * 4 * 12


def test_real_tensors_are_refused_again_after_the_reference(namespace):
    op, _ = with_incomplete_annotation(namespace)
    with torch._subclasses.fake_tensor.FakeTensorMode() as mode:
        fake = op(mode.from_tensor(X))
        with pytest.raises(Exception, match="convert all Tensors to FakeTensors"):
            fake * TABLE


def test_a_reference_that_refuses_meta_tensors_for_another_reason(namespace):
    @ow.op(f"{namespace}::reads_values")
    def op(x: Float[Tensor, " n"]) -> Float[Tensor, "..."]:
        return x * float(x.sum())

    with pytest.raises(RuntimeError):
        op(torch.ones(3, device="meta"))
