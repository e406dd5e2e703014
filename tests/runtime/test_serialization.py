"""What an operator may contain that is sent to another process by value."""

import functools
import threading
import types

import pytest
import torch
from jaxtyping import AbstractDtype, Float
from torch import Tensor

import opwright as ow
from opwright.runtime import serialization
from opwright.runtime.targets import find_import_path

X = torch.linspace(-1, 1, 6)


def sent(op):
    return serialization.load(serialization.dump(op))


def doubling(namespace, held):
    """An operator whose reference has an object in its closure."""

    @ow.op(f"{namespace}::doubling")
    def doubling(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return x * (2 if held is not None else 3)

    return doubling


def failing(op):
    assert find_import_path(op) is None  # so it travels by value
    (verdict,) = ow.check(op, checks=["values", "gradients"], device="cpu").verdicts
    return {f.check: f.message for f in verdict.findings if f.status is ow.results.Status.FAIL}


@pytest.mark.slow
def test_a_reference_that_says_torch_ops(namespace):
    @ow.op(f"{namespace}::relu")
    def relu(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return torch.ops.aten.relu(x)

    assert torch.equal(sent(relu)(X), X.relu())
    relu.python(lambda x: torch.ops.aten.relu.default(x).contiguous(), name="right")
    assert failing(relu) == {}
    relu.python(lambda x: torch.ops.aten.abs.default(x).contiguous(), name="right")
    assert "values" in failing(relu)


def test_functions_keep_the_names_of_their_files(namespace):
    def inner(x):
        return (lambda y: y * 2)(x)

    @ow.op(f"{namespace}::doubled")
    def doubled(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return inner(x)

    reference = sent(doubled).contract.function
    (called,) = (c.cell_contents for c in reference.__closure__)
    (within,) = (c for c in called.__code__.co_consts if isinstance(c, types.CodeType))
    assert {reference.__code__.co_filename, called.__code__.co_filename, within.co_filename} == {__file__}


@pytest.mark.parametrize(
    "held",
    [torch.ops, torch.ops.aten, torch.ops.aten.add, torch.ops.aten.add.Tensor, torch.relu, torch._C._nn.gelu],
    ids=["torch.ops", "namespace", "packet", "overload", "torch", "torch._C._nn"],
)
def test_operators_of_torch_in_closures(namespace, held):
    op = doubling(namespace, held)
    copy = sent(op)
    assert copy.contract.function.__closure__[0].cell_contents is held
    assert torch.equal(copy(X), 2 * X)


def test_an_overload_of_another_local_operator(namespace):
    other = doubling(namespace, 1)
    overload = other.overload

    @ow.op(f"{namespace}::four_times")
    def four_times(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return 2 * overload(x)

    four_times.python(lambda x: (4 * x).contiguous(), name="right")
    assert failing(four_times) == {}


@pytest.mark.slow  # new processes
def test_an_own_class_of_dtypes(namespace):
    class Half(AbstractDtype):
        dtypes = ("float16", "bfloat16")

    @ow.op(f"{namespace}::twice")
    def twice(x: Half[Tensor, "*n"]) -> Half[Tensor, "*n"]:
        return 2 * x

    @twice.python(name="kernel")
    def kernel(x: Half[Tensor, "*n"]) -> Half[Tensor, "*n"]:
        return (2 * x).contiguous()

    annotation = sent(twice).contract.function.__annotations__["x"]
    assert annotation.dtypes == ("float16", "bfloat16")
    assert failing(twice) == {}
    twice.python(lambda x: (2.5 * x).contiguous(), name="kernel")
    assert "values" in failing(twice)


DTYPES = (torch.uint16, torch.uint32, torch.uint64, torch.complex32, torch.float8_e4m3fn, torch.float32, torch.bool)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0, 2), (3, 4)])
def test_tensors_of_any_dtype(namespace, dtype, shape):
    table = torch.arange(12.0).to(dtype)[: torch.Size(shape).numel()].reshape(shape)
    strided = table[..., ::2] if table.dim() else table
    copy = sent(doubling(namespace, [table, strided])).contract.function.__closure__[0].cell_contents
    for found, expected in zip(copy, [table, strided], strict=True):
        assert found.dtype is dtype
        assert found.stride() == expected.stride()
        assert found.tolist() == expected.tolist()


def test_what_requires_a_gradient_still_does(namespace):
    table = torch.ones(2, dtype=torch.complex32).requires_grad_()
    copy = sent(doubling(namespace, table)).contract.function.__closure__[0].cell_contents
    assert copy.requires_grad
    assert copy.is_leaf


def test_samples_of_any_dtype(namespace):
    indices = torch.tensor([2, 0, 65_535]).to(torch.uint16)

    class UInt(AbstractDtype):
        dtypes = ("uint16",)

    @ow.op(f"{namespace}::widened")
    def widened(x: UInt[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x.to(torch.float32)

    widened.python(lambda x: (x.view(torch.int16).to(torch.int32) & 0xFFFF).float(), name="right")
    widened.samples(lambda: [(indices,)])
    assert failing(widened) == {}
    widened.python(lambda x: x.view(torch.int16).float(), name="right")
    assert "values" in failing(widened)


@pytest.mark.slow  # every check of two operators
def test_operators_that_a_reference_calls_by_name(namespace):
    @ow.op("by_name::inner")
    def inner(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return 2 * x

    def helper(x):
        return next(torch.ops.by_name.inner(y) for y in [x])

    @ow.op(f"{namespace}::outer")
    def outer(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return helper(x).sin()

    outer.python(lambda x: (2 * x).sin().contiguous(), name="kernel")
    assert failing(outer) == {}
    outer.python(lambda x: (3 * x).sin().contiguous(), name="kernel")
    assert "values" in failing(outer)


def test_functions_with_a_cache(namespace):
    @functools.lru_cache(maxsize=3)
    def table(size):
        return torch.arange(size, dtype=torch.float64)

    @ow.op(f"{namespace}::ranked")
    def ranked(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x * table(x.numel()).to(x.dtype)

    assert ranked(X).tolist() == (X * torch.arange(6)).tolist()
    copy = sent(ranked)
    assert copy(X).tolist() == (X * torch.arange(6)).tolist()
    held = copy.contract.function.__closure__[0].cell_contents
    assert held is not table
    assert held.cache_parameters() == {"maxsize": 3, "typed": False}


def test_what_cannot_be_sent_is_to_be_defined_in_a_file(namespace):
    op = doubling(namespace, threading.Lock())
    op.python(lambda x: (2 * x).contiguous(), name="kernel")
    message = failing(op)["load"]
    assert "cannot pickle '_thread.lock' object" in message
    assert "define it at the top of a file or module" in message
