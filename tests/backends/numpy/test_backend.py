"""Kernels in NumPy, compiled by torch.compile."""

from __future__ import annotations

import dataclasses
import itertools
import re
from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor

import opwright as ow
from opwright.backends import get_backend
from opwright.backends.build_tools import build_tools
from opwright.errors import CompileError, ContractError
from opwright.machine import this_machine
from opwright.results import Refused

pytestmark = pytest.mark.compiler


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    output: list[str] = []
    tools = dataclasses.replace(build_tools(), notify=output.append)
    monkeypatch.setattr("opwright.runtime.kernel.build_tools", lambda: tools)
    return output


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile without the C++ compiler, for tests of tracing."""
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **options: compile_(f, **{**options, "backend": "eager"}))


def softplus(namespace: str) -> ow.Op:
    @ow.op(f"{namespace}::softplus")
    def softplus(x: Float[np.ndarray, "*n"], y: Float[np.ndarray, "*n"], a: float = 1.0) -> Float[np.ndarray, "*n"]:
        return np.log1p(np.exp(x * a)) + y

    @softplus.numpy(name="compiled")
    def _(x: np.ndarray, y: np.ndarray, a: float) -> np.ndarray:
        return np.log1p(np.exp(x * a)) + y

    return softplus


@pytest.mark.slow
def test_it_agrees_with_numpy_and_says_what_it_compiles(namespace: str, messages: list[str]) -> None:
    op = softplus(namespace)
    for shape in ((5,), (7,), (3, 4)):
        x, y = torch.randn(shape), torch.randn(shape)
        expected = np.log1p(np.exp(x.numpy() * np.float32(2.0))) + y.numpy()
        torch.testing.assert_close(op.kernels["compiled"](x, y, 2.0), torch.from_numpy(expected))
        torch.testing.assert_close(op(x, y, 2.0), torch.from_numpy(expected))
    kernel = f"NumPy kernel {namespace}::softplus:compiled"
    assert messages[::2] == [
        f"compiling {kernel} for float32[1-d], float32[1-d] (torch.compile)",
        f"compiling {kernel} for float32[2-d], float32[2-d] (torch.compile)",
    ]
    assert all(re.fullmatch(rf"compiled {kernel} in \d+\.\d s", line) for line in messages[1::2])


@pytest.mark.slow  # compiles again and again
def test_no_number_of_shapes_layouts_or_values_ends_in_the_recompile_limit(namespace: str, quick: None) -> None:
    op = softplus(namespace)
    kernel = op.kernels["compiled"]
    for n, m, k in itertools.product((1, 2, 3, 5), (1, 3, 4), (1, 2, 5)):
        for order in itertools.permutations(range(3)):
            shape = [(n, m, k)[i] for i in order]
            x = torch.randn(n, m, k).permute(order)
            y = torch.randn(1).expand(shape) if n % 2 else torch.randn([s + 1 for s in shape])[1:, 1:, 1:]
            torch.testing.assert_close(kernel(x, y, float(n)), torch.log1p(torch.exp(x * n)) + y)
    for n in range(12):
        for dtype in (torch.float32, torch.float64):
            x = torch.randn(n, dtype=dtype)
            kernel(x, x, n / 3)
            with torch.inference_mode():
                kernel(x, x, 1.0)


@pytest.mark.slow
def test_many_values_of_scalars_are_no_trouble(namespace: str, quick: None) -> None:
    @ow.op(f"{namespace}::f")
    def f(
        x: Float[np.ndarray, " n"], i: int, b: bool, s: str, sizes: list[int], *, k: int = 0
    ) -> Float[np.ndarray, " n"]:
        return x * i + k + len(s) + sizes[0] if b else x - i

    @f.numpy(name="compiled")
    def _(x, i, b, s, sizes, *, k):  # type: ignore[no-untyped-def]
        return x * i + k + len(s) + sizes[0] if b else x - i

    x = torch.randn(3)
    for i in range(-3, 15):
        args = (x, i, i % 2 == 0, "a" * abs(i), [i] * (abs(i) + 1))
        torch.testing.assert_close(f.kernels["compiled"](*args, k=i), f.contract.reference([*args, i])[0])


def test_zeros_of_both_signs_are_other_numbers(namespace: str, quick: None) -> None:
    @ow.op(f"{namespace}::times")
    def times(x: Float[np.ndarray, " n"], a: float) -> Float[np.ndarray, " n"]:
        return x * a

    times.numpy(lambda x, a: x * a, name="compiled")
    for a in (0.0, 0.0, -0.0, 0.0, -0.0):
        assert torch.signbit(times(torch.ones(3), a)).all().item() is (str(a) == "-0.0")


@pytest.mark.slow  # compiles each form
def test_lists_optionals_and_several_outputs(namespace: str, quick: None) -> None:
    @ow.op(f"{namespace}::f")
    def f(
        xs: list[Float[np.ndarray, " n"]], i: Int[np.ndarray, " n"], o: Float[np.ndarray, " n"] | None = None
    ) -> tuple[Float[np.ndarray, " n"], Int[np.ndarray, " n"]]:
        total = xs[0] + xs[-1]
        return (total if o is None else total + o), i * 2

    @f.numpy(name="compiled")
    def _(xs, i, o):  # type: ignore[no-untyped-def]
        total = xs[0] + xs[-1]
        return (total if o is None else total + o), i * 2

    x, i = torch.randn(3), torch.arange(3)
    for count in range(1, 12):
        for o in (None, x):
            args = [[x] * count, i, o]
            torch.testing.assert_close(f.kernels["compiled"](*args), f.contract.reference(args))


def test_without_a_compiler_it_is_refused_with_the_reason() -> None:
    outcome = get_backend("numpy").available(dataclasses.replace(this_machine(), cxx=None))
    assert isinstance(outcome, Refused)
    assert "torch.compile turns NumPy into C++" in outcome.reason
    assert "g++" in outcome.remedy


def test_it_works_inside_torch_compile_as_one_opaque_operator(namespace: str, quick: None) -> None:
    op: Any = softplus(namespace)
    x = torch.randn(4)
    compiled = torch.compile(lambda x: op(x, x) * 2, fullgraph=True)
    torch.testing.assert_close(compiled(x), 2 * (torch.log1p(torch.exp(x)) + x))


def test_a_torch_reference_may_have_a_numpy_kernel(namespace: str, quick: None) -> None:
    @ow.op(f"{namespace}::f")
    def f(x: Float[Tensor, "n k"]) -> Float[Tensor, "k n"]:
        return x.T

    @f.numpy(name="compiled")
    def _(x: np.ndarray) -> np.ndarray:
        return x.T

    out = f.kernels["compiled"](torch.randn(2, 3))
    assert out.shape == (3, 2)
    assert out.is_contiguous()


@pytest.mark.slow
def test_integers_become_the_float_that_numpy_makes_of_them(namespace: str) -> None:
    """torch's own NumPy layer gives float32 here, which ``metadata`` would report."""

    @ow.op(f"{namespace}::f")
    def f(x: Int[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        return np.sqrt(x) + x / 3 + np.zeros(1)

    f.numpy(f.contract.function, name="compiled")
    f.numpy(f.contract.function, name="single", default_float_dtype="float32")
    x = torch.arange(5)
    expected = f.contract.reference([x])[0]
    assert expected.dtype is torch.float64
    assert f.contract.traceable([x])[0].dtype is torch.float64
    torch.testing.assert_close(f.kernels["compiled"](x), expected)
    torch.testing.assert_close(f.kernels["single"](x), expected.float())


def test_a_default_float_dtype_that_does_not_exist_is_refused(namespace: str) -> None:
    op = softplus(namespace)
    with pytest.raises(ContractError, match=r"default_float_dtype must be .*, got 'float16'"):
        op.numpy(op.contract.function, name="half", default_float_dtype="float16")


def test_a_function_that_compiled_code_cannot_have_is_named_when_the_kernel_is_attached(namespace: str) -> None:
    op = softplus(namespace)

    def kernel(x, y, a):  # type: ignore[no-untyped-def]
        return np.interp(x, x, y)

    with pytest.raises(CompileError, match=r"np\.interp, used in kernel at .*test_backend\.py:\d+, is not in torch"):
        op.numpy(kernel)
    assert list(op.kernels) == ["compiled"]


def test_what_stops_the_tracer_is_named_with_its_line_and_what_to_write(namespace: str) -> None:
    op = softplus(namespace)

    def kernel(x, y, a):  # type: ignore[no-untyped-def]
        if x.sum() > 0:
            return x
        return y

    op.numpy(kernel, name="branches")
    line = kernel.__code__.co_firstlineno + 1
    with pytest.raises(CompileError) as refused:
        op.kernels["branches"](torch.ones(2), torch.ones(2), 1.0)
    assert f"(in kernel at {__file__}:{line})" in str(refused.value)
    assert "np.where" in str(refused.value)
