"""The checks of operators that write their arguments: each planted fault is found, no right kernel is accused."""

from __future__ import annotations

from typing import Annotated

import pytest
import torch
from jaxtyping import Float, Float32
from torch import Tensor

import opwright as ow
from tests.sampled import quick


def shift_with(namespace, kernel, name="kernel"):
    @ow.op(f"{namespace}::shift")
    def shift(
        x: Annotated[Float32[Tensor, "n m"], ow.mutated], y: Float32[Tensor, "n m"], a: float
    ) -> Float32[Tensor, "n m"]:
        old = x.clone()
        x.add_(y, alpha=a)
        return old * y

    shift.python(kernel, name=name)
    return shift


def right(x, y, a):
    result = (x * y).contiguous()
    x += a * y
    return result


def right_by_another_way(x, y, a):
    result = x.mul(y).contiguous()
    x.copy_(torch.addcmul(x, y, torch.full_like(y, a)))
    return result


def right_in_pieces(x, y, a):
    result = torch.empty_like(x, memory_format=torch.contiguous_format)
    for i in range(x.shape[0]):
        result[i] = x[i] * y[i]
        x[i] += a * y[i]
    return result


def forgets_to_write(x, y, a):
    return x * y


def writes_half(x, y, a):
    result = x * y
    x[: x.shape[0] // 2] += (a * y)[: x.shape[0] // 2]
    return result


def uses_the_new_value(x, y, a):
    x += a * y
    return x * y


def writes_the_other_too(x, y, a):
    result = x * y
    x += a * y
    y += 1
    return result


def writes_around(x, y, a):
    result = x * y
    x += a * y
    if not x.is_contiguous() and x.dim() == 2 and x.stride(1) == 2:
        torch.as_strided(x, x.shape, x.stride(), x.storage_offset() + 1).zero_()
    return result


def writes_only_what_is_contiguous(x, y, a):
    result = x * y
    x.contiguous().add_(y, alpha=a)
    return result


def returns_the_argument(x, y, a):
    x.mul_(y)
    return x


@pytest.mark.parametrize(
    "kernel",
    [
        right,
        pytest.param(right_by_another_way, marks=pytest.mark.slow),
        pytest.param(right_in_pieces, marks=pytest.mark.exhaustive),
    ],
)
def test_a_right_kernel_passes_every_check(namespace, kernel):
    report = ow.check(shift_with(namespace, kernel))
    assert report.passed, report.verdicts[0].failures
    assert {f.check for f in report.verdicts[0].findings} >= {
        "values", "metadata", "inputs unchanged", "gradients", "opcheck", "torch.compile",
    }  # fmt: skip


# Each is a whole check.
@pytest.mark.parametrize(
    ("kernel", "check", "message"),
    quick(
        [
            (forgets_to_write, "values", "argument 'x' after the call: "),
            pytest.param(writes_half, "values", "argument 'x' after the call: ", marks=pytest.mark.slow),
            pytest.param(uses_the_new_value, "values", "output 0: ", marks=pytest.mark.slow),
            (writes_the_other_too, "inputs unchanged", "argument 'y' was written"),
            pytest.param(
                writes_around,
                "inputs unchanged",
                "memory around the elements of argument 'x' was written",
                marks=pytest.mark.slow,
            ),
            pytest.param(
                writes_only_what_is_contiguous, "values", "argument 'x' after the call: ", marks=pytest.mark.slow
            ),
            (returns_the_argument, "metadata", "shares memory with argument 'x'"),
        ],
        0,
        3,
    ),
)
def test_a_wrong_kernel_is_found(namespace, kernel, check, message):
    report = ow.check(shift_with(namespace, kernel), checks=[check], level="quick")
    failures = report.verdicts[0].failures
    assert {f.check for f in failures} == {check}
    assert message in failures[0].message
    assert "\nwith a=" in failures[0].message, "the number that was drawn is told"


def masked_with(namespace, kernel):
    @ow.op(f"{namespace}::masked")
    def masked(
        x: Float[Tensor, " n"], count: Annotated[Float[Tensor, " n"] | None, ow.mutated] = None
    ) -> Float[Tensor, " n"]:
        if count is not None:
            count += x > 0
        return x.clamp(min=0)

    masked.python(kernel, name="kernel")
    return masked


@pytest.mark.slow
def test_an_optional_argument_is_written_only_where_it_is_given(namespace):
    def kernel(x, count=None):
        if count is not None:
            count += x > 0
        return x.clamp(min=0).contiguous()

    masked = masked_with(namespace, kernel)
    x, count = torch.tensor([1.0, -1.0]), torch.zeros(2)
    assert masked(x).tolist() == [1, 0]
    assert masked(x, count).tolist() == [1, 0]
    assert count.tolist() == [1, 0]
    assert ow.check(masked, device="cpu").passed


@pytest.mark.slow
def test_an_optional_argument_that_is_not_written_is_found(namespace):
    report = ow.check(masked_with(namespace, lambda x, count=None: x.clamp(min=0).contiguous()), device="cpu")
    assert not report.passed


TRITON = """
from typing import Annotated
import torch, triton, triton.language as tl
from jaxtyping import Float, Float32
from torch import Tensor
import opwright as ow

@ow.op("{namespace}::axpy")
def axpy(x: Float[Tensor, "n"], y: Annotated[Float[Tensor, "n"], ow.mutated], a: float) -> None:
    y.add_(x, alpha=a)

@triton.jit
def axpy_kernel(x, y, a, n, x_stride, y_stride, BLOCK: tl.constexpr):
    i = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    old = tl.load(y + i * y_stride, mask=i < n, other=0.0)
    tl.store(y + i * y_stride, old + a * tl.load(x + i * x_stride, mask=i < n, other=0.0), mask={mask})

@axpy.triton(name="right", dtypes=[torch.float32, torch.float16])  # a scalar is a float32 to Triton
def launch(x, y, a):
    n = x.numel()
    if n:
        axpy_kernel[(triton.cdiv(n, 64),)](x, y, a, n, x.stride(0), y.stride(0), BLOCK=64)
"""


@pytest.mark.slow
@pytest.mark.triton
@pytest.mark.parametrize(
    ("mask", "passes"), [pytest.param("i < n", True, marks=pytest.mark.slow), ("i < n - 1", False)]
)
def test_a_triton_kernel_that_writes_is_checked_in_the_simulator(tmp_path, namespace, mask, passes):
    file = tmp_path / f"{namespace}.py"
    file.write_text(TRITON.format(namespace=namespace, mask=mask))
    report = ow.check(str(file), device="cpu", level="quick")
    assert [v.kernel for v in report.verdicts] == ["right"]
    assert report.passed == passes, report.verdicts[0].findings
    assert passes or "values" in {f.check for f in report.verdicts[0].failures}
