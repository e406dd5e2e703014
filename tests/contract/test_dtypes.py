"""Elements as bytes, whatever their dtype and strides."""

import pytest
import torch

from opwright.contract.dtypes import element_bytes, equal_bytes

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.int64, torch.complex64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_elements_in_order_whatever_the_strides(dtype):
    x = torch.arange(24).reshape(4, 6).to(dtype)
    expected = x.flatten().view(torch.uint8)
    for strided in (x, x.t().contiguous().t(), x.repeat(1, 2)[:, :6]):
        assert element_bytes(strided).equal(expected)


@pytest.mark.parametrize("shape", [(1,), (1, 1), (0,), ()])
def test_a_dim_of_one_element_may_have_any_stride(shape):
    """Torch calls such memory contiguous, and does not view it as bytes."""
    x = torch.arange(9.0).as_strided(shape, [3] * len(shape), 2)
    expected = torch.tensor([2.0]).view(torch.uint8) if x.numel() else torch.empty(0, dtype=torch.uint8)
    assert element_bytes(x).equal(expected)


def test_conjugates_and_negations_that_are_pending_are_done():
    x = torch.tensor([1 + 2j, 3 - 4j])
    assert element_bytes(x.conj()).equal(x.conj().resolve_conj().view(torch.uint8))
    assert element_bytes(x.conj().imag).equal(torch.tensor([-2.0, 4.0]).view(torch.uint8))


def test_changes_of_the_result_leave_the_tensor_alone():
    x = torch.ones(3)
    element_bytes(x).zero_()
    assert x.tolist() == [1, 1, 1]


def test_nan_is_equal_to_itself_and_zeros_of_two_signs_differ():
    assert element_bytes(torch.tensor([float("nan")])).equal(element_bytes(torch.tensor([float("nan")])))
    assert not element_bytes(torch.tensor([0.0])).equal(element_bytes(torch.tensor([-0.0])))


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 65])
@pytest.mark.parametrize("offset", [0, 3])
def test_rows_of_bytes_are_equal_if_each_byte_is(size: int, offset: int) -> None:
    row = torch.arange(offset + size, dtype=torch.uint8)[offset:]
    assert equal_bytes(row, row.clone())
    for i in range(size):
        other = row.clone()
        other[i] ^= 1
        assert not equal_bytes(row, other)
