"""Faults that only long dims, far rows, other layouts, numbers or values show, and right kernels."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import Float, Float32, Int64, UInt8
from torch import Tensor

import opwright as ow
from opwright.contract.inputs.cases import cases
from tests.sampled import quick, sampled


def scaled(kernel):
    @ow.op("reach::scaled")
    def scaled(x: Float[Tensor, "m n"], alpha: float = 1.0, shift: int = 0) -> Float[Tensor, "m n"]:
        return x * alpha + shift

    scaled.python(kernel, name="kernel", dtypes=[torch.float32, torch.float16])
    return scaled


def verdict_of(operator, *checks):
    (verdict,) = ow.check(operator, checks=checks, kernels=["kernel"]).verdicts
    return verdict


def right(x, alpha, shift):
    return (x * alpha + shift).contiguous()


def out_of(x, alpha, shift, wrong):
    out = right(x, alpha, shift)
    return out + 1 if wrong else out


def in_grid(rows):
    """As a grid whose y axis has at most 65,535 blocks, beyond which nothing is written."""

    def kernel(x, alpha, shift):
        out = right(x, alpha, shift)
        out[rows:] = 0
        return out

    return kernel


FAULTS = {
    "past 65,535 rows": in_grid(65_535),
    "past a first wave": lambda x, alpha, shift: out_of(x, alpha, shift, x.numel() > 262_144),
    "past 5,000 elements": lambda x, alpha, shift: out_of(x, alpha, shift, x.numel() > 5000),
    "a row past 2,048": lambda x, alpha, shift: out_of(x, alpha, shift, x.shape[1] > 2048),
    "both past a tile": lambda x, alpha, shift: out_of(x, alpha, shift, min(x.shape) > 128),
    "exactly 64 columns": lambda x, alpha, shift: out_of(x, alpha, shift, x.shape[1] == 64),
    "exactly 256 rows": lambda x, alpha, shift: out_of(x, alpha, shift, x.shape[0] == 256),
    "rows of a wider matrix": lambda x, alpha, shift: out_of(
        x, alpha, shift, x.stride(1) == 1 and x.stride(0) > x.shape[1] > 1
    ),
    "an offset": lambda x, alpha, shift: out_of(x, alpha, shift, x.storage_offset() > 0),
    "a negative number": lambda x, alpha, shift: out_of(x, abs(alpha), shift, False),
    "zero": lambda x, alpha, shift: right(x, alpha or 1.0, shift),
    "a large number": lambda x, alpha, shift: right(x, min(alpha, 2.0), shift),
    "a number past a hundred": lambda x, alpha, shift: right(x, min(alpha, 100.0), shift),
    "an int past a hundred": lambda x, alpha, shift: right(x, alpha, min(shift, 100)),
    "an int of 8 bits": lambda x, alpha, shift: right(x, alpha, (shift + 128) % 256 - 128),
    "an int that is not its default": lambda x, alpha, shift: right(x, alpha, 0),
    "large values": lambda x, alpha, shift: right(x.clamp(-50, 50), alpha, shift),
    "infinities": lambda x, alpha, shift: right(x.nan_to_num(posinf=1e4, neginf=-1e4), alpha, shift),
}


FAR = {
    "rows far apart": lambda x, alpha, shift: out_of(x, alpha, shift, x.numel() > 0 and x.stride(0) > 2**31),
    "a row times a stride": lambda x, alpha, shift: out_of(
        x, alpha, shift, x.numel() > 0 and x.stride(0) < 2**31 < x.stride(0) * (len(x) - 1)
    ),
    "columns far apart": lambda x, alpha, shift: out_of(x, alpha, shift, x.numel() > 0 and x.stride(1) > 2**31),
    "a column times a stride": lambda x, alpha, shift: out_of(
        x, alpha, shift, x.numel() > 0 and x.stride(1) < 2**31 < x.stride(1) * (x.shape[1] - 1)
    ),
}


@pytest.mark.parametrize("name", quick(list(FAR), 0))
def test_a_fault_in_far_rows_is_found_by_their_check_only(name):
    verdict = verdict_of(scaled(FAR[name]), "values", "metadata", "far rows")
    (failure,) = verdict.failures
    assert (failure.check, "int64" in failure.remedy) == ("far rows", True)
    assert "an offset of 32 bits overflows" in failure.message
    assert "layout=far" in failure.case


@pytest.mark.slow  # a whole check of each fault, with cases of up to 300,007 elements
@pytest.mark.parametrize("name", sampled([*FAULTS], 3))
def test_a_fault_is_found(name):
    verdict = verdict_of(scaled(FAULTS[name]), "values")
    assert verdict.status == "fail", verdict
    assert "elements differ" in verdict.failures[0].message


# Each is a whole check.
@pytest.mark.parametrize(
    "kernel",
    quick(
        [
            right,
            lambda x, alpha, shift: (x.float() * alpha + shift).to(x.dtype).contiguous(),
            lambda x, alpha, shift: torch.add(
                torch.full_like(x, shift, memory_format=torch.contiguous_format), x, alpha=alpha
            ),
        ],
        1,
    ),
)
def test_a_right_kernel_passes_without_a_warning(kernel):
    verdict = verdict_of(
        scaled(kernel), "contract", "values", "special values", "metadata", "inputs unchanged", "far rows"
    )
    assert verdict.status == "pass", verdict
    assert all(f.coverage.run == f.coverage.generated for f in verdict.findings if f.coverage)


def test_a_softmax_without_its_maximum_is_found():
    @ow.op("reach::softmax")
    def softmax(x: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
        return x.softmax(-1)

    @softmax.python(name="kernel")
    def _(x):
        powers = x.float().exp() if x.itemsize < 4 else x.exp()
        return (powers / powers.sum(-1, keepdim=True)).to(x.dtype).contiguous()

    (failure, *_) = verdict_of(softmax, "values").failures
    assert "values=" in failure.case


def relu_like(kernel):
    @ow.op("reach::relu")
    def relu(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return x.relu()

    relu.python(kernel, name="kernel")
    return relu


@pytest.mark.slow
def test_nan_that_is_hidden_is_a_warning_with_what_to_do():
    verdict = verdict_of(relu_like(lambda x: torch.where(x > 0, x, 0).contiguous()), "values", "special values")
    assert verdict.status == "warning"
    (warning,) = verdict.warnings
    assert "with NaN among the inputs" in warning.message
    assert "ow.values" in warning.remedy
    assert verdict_of(relu_like(lambda x: x.clamp(min=0).contiguous()), "values", "special values").status == "pass"


def test_a_reference_with_a_constant_of_its_own_dtype_is_compared_in_float64():
    table = torch.eye(5)

    @ow.op("reach::rotated")
    def rotated(x: Float32[Tensor, "n 5"]) -> Float32[Tensor, "n 5"]:
        return x @ table

    rotated.python(lambda x: x.clone(memory_format=torch.contiguous_format), name="kernel")
    assert verdict_of(rotated, "values").status == "pass"


@pytest.mark.parametrize(("mask", "passes"), [(255, True), (127, False)])
def test_a_byte_has_any_value_of_a_byte(mask, passes):
    @ow.op("reach::inverted")
    def inverted(x: UInt8[Tensor, " n"]) -> UInt8[Tensor, " n"]:
        return 255 - x

    inverted.python(lambda x: 255 - (x & mask), name="kernel")
    assert (verdict_of(inverted, "values").status == "pass") is passes


def sums_of_integers(kernel, name="sums"):
    @ow.op(f"reach::{name}")
    def total(x: Int64[Tensor, "m n"]) -> Int64[Tensor, " m"]:
        return x.sum(1)

    total.python(kernel, name="kernel")
    return total


# Each is a whole check.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "status"),
    quick(
        [
            (lambda x: x.sum(1), "pass"),
            (lambda x: sum(x.unbind(1), x.new_zeros(x.shape[0])), "pass"),
            (lambda x: x.sum(1, dtype=torch.int32).long(), "warning"),
            (lambda x: x.sum(1, dtype=torch.float32).long(), "fail"),
        ],
        0,
        2,
    ),
)
def test_integers_near_the_largest_are_special_values(kernel, status):
    verdict = verdict_of(sums_of_integers(kernel), "values", "special values")
    assert verdict.status == status, verdict.findings
    assert (status != "pass") == any("with integers near the largest" in f.message for f in verdict.findings)


def test_integers_that_are_places_are_not_large():
    @ow.op("reach::rows_of")
    def rows_of(table: Float[Tensor, "m n"], at: Int64[Tensor, " k"]) -> Float[Tensor, "k n"]:
        return table[at % table.shape[0]]

    assert not any(case.values == "wide" for case in cases(rows_of.contract, "full"))


def without_the_end(out, wrong):
    return out if not wrong else out.index_fill(-1, torch.tensor([out.shape[-1] - 1]), 0)


def as_if_flat(x, y):
    if _is_dense(x) and _is_dense(y):
        return (x.as_strided((x.numel(),), (1,)) + y.as_strided((y.numel(),), (1,))).view(x.shape)
    return (x + y).contiguous()


def _is_dense(t):
    return t.numel() > 0 and t.untyped_storage().nbytes() == t.numel() * t.element_size()


def with_the_first_of_a_row(x, y):
    return (x + (y[:1] if y.shape[-1] > 1 and y.stride(-1) == 0 else y)).contiguous()


# Each is a whole check.
@pytest.mark.parametrize(
    ("kernel", "is_wrong"),
    quick(
        [
            (lambda x, y: without_the_end(x + y, x.shape[1] > 8 and x.shape[1] % 8 == 5), True),
            (lambda x, y: without_the_end(x + y, x.shape[1] > 8 and x.shape[1] % 8 == 6), True),
            (lambda x, y: without_the_end(x + y, 12 <= x.shape[1] % 32 <= 30), True),
            (lambda x, y: without_the_end(x + y, x.shape[1] > 100 and x.shape[1] % 48 == 0), True),
            (lambda x, y: without_the_end(x + y, min(x.shape) > 32 and min(s % 32 for s in x.shape) > 16), True),
            (as_if_flat, True),
            (with_the_first_of_a_row, True),
            (lambda x, y: (x + y).contiguous(), False),
            (lambda x, y: x.contiguous() + y.contiguous(), False),
        ],
        5,
        7,
    ),
)
def test_remainders_corners_and_layouts_of_one_argument(kernel, is_wrong):
    @ow.op("reach::sum2")
    def sum2(x: Float32[Tensor, "m n"], y: Float32[Tensor, "m n"]) -> Float32[Tensor, "m n"]:
        return x + y

    sum2.python(lambda x, y: kernel(x, y).contiguous(), name="kernel")
    assert verdict_of(sum2, "values").status == ("fail" if is_wrong else "pass")


def of_any_size(kernel, **options):
    @ow.op("reach::of_any_size")
    def of_any_size(x: Float[Tensor, " _"], y: Float[Tensor, " _"]) -> Float[Tensor, ""]:
        return x.sum() + y.sum()

    of_any_size.python(kernel, name="kernel", **options)
    return of_any_size


@pytest.mark.parametrize(
    "kernel",
    quick(
        [
            lambda x, y: x[:3].sum() + y[:3].sum(),
            lambda x, y: x.sum() + y[: x.shape[0]].sum(),
            lambda x, y: x[:1024].sum() + y[:1024].sum(),
        ],
        0,
        1,
    ),
)
def test_faults_in_axes_of_any_size_are_found(kernel):
    assert verdict_of(of_any_size(kernel), "values").status == "fail"


@pytest.mark.slow
def test_right_kernels_of_axes_of_any_size_pass():
    assert verdict_of(of_any_size(lambda x, y: y.sum() + x.sum()), "values").status == "pass"

    @ow.op("reach::products")
    def products(x: Float[Tensor, "_ k"], y: Float[Tensor, "_ k"]) -> Float[Tensor, " k"]:
        return torch.linalg.vecdot(x, y, dim=0)  # which raises where they are not as long

    products.python(lambda x, y: (x * y).sum(0), name="kernel")
    verdict = verdict_of(products, "values")
    assert verdict.status == "pass", verdict


@pytest.mark.slow  # whole checks
@pytest.mark.parametrize(("most", "status"), [(1, "thin"), (2, "pass")])
def test_a_check_of_single_elements_only_is_thin(most, status):
    operator = of_any_size(lambda x, y: x[:2].sum() + y.sum(), when=lambda x, y: x.numel() <= most)
    (verdict,) = ow.check(operator).verdicts
    assert verdict.status in (status, "thin"), verdict
    assert any("inputs with one element in x" in f.message for f in verdict.findings) == (most == 1)
