"""A kernel is passed the types that it declares, or there is an error that names the argument."""

from __future__ import annotations

import ctypes
import struct

import numpy as np
import pytest
import torch

from opwright.backends.gpu.arguments import Packer
from opwright.backends.gpu.device_code import Parameter
from opwright.errors import LaunchError

# CPU tensors report device -1, which is the GPU here.
HERE = -1
FLOATS = Parameter("pointer", 8, "float const*", (torch.float32,), 4, writes=False)
VECTORS = Parameter("pointer", 8, "float4*", (torch.float32,), 16)
INT = Parameter("integer", 4, "int")
LONG = Parameter("integer", 8, "long long")
SIZE = Parameter("unsigned", 8, "unsigned long")
FLOAT = Parameter("floating", 4, "float", (torch.float32,))
DOUBLE = Parameter("floating", 8, "double", (torch.float64,))
HALF = Parameter("floating", 2, "__half", (torch.float16,))
BFLOAT16 = Parameter("floating", 2, "__nv_bfloat16", (torch.bfloat16,))
BOOL = Parameter("bool", 1, "bool")
PAIR = Parameter("struct", 16, "Pair")


def word(parameter: Parameter, value: object) -> bytes:
    """The bytes that the driver would copy."""
    (packed,) = Packer("kernel", [parameter]).pack([value], HERE)
    return packed[: parameter.size] if isinstance(packed, bytes) else struct.pack("<q", packed)[: parameter.size]


def refused(parameter: Parameter, value: object) -> str:
    with pytest.raises(LaunchError) as caught:
        Packer("kernel", [parameter]).pack([value], HERE)
    assert "kernel: argument 1" in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("parameter", "value", "expected"),
    [
        (INT, -3, struct.pack("<i", -3)),
        (INT, np.int64(7), struct.pack("<i", 7)),
        (INT, True, struct.pack("<i", 1)),
        (LONG, -(2**63), struct.pack("<q", -(2**63))),
        (SIZE, 2**64 - 1, struct.pack("<Q", 2**64 - 1)),
        (FLOAT, 1.5, struct.pack("<f", 1.5)),
        (FLOAT, 2, struct.pack("<f", 2.0)),
        (FLOAT, -0.0, struct.pack("<f", -0.0)),
        (FLOAT, 1e300, struct.pack("<f", float("inf"))),
        (FLOAT, np.float32(0.1), struct.pack("<f", np.float32(0.1))),
        (DOUBLE, 0.1, struct.pack("<d", 0.1)),
        (HALF, 1.5, struct.pack("<e", 1.5)),
        (HALF, -1e6, struct.pack("<e", float("-inf"))),
        (BFLOAT16, -1.5, struct.pack("<H", 0xBFC0)),
        (BOOL, True, b"\1"),
        (BOOL, np.bool_(False), b"\0"),
        (FLOATS, None, bytes(8)),
        (PAIR, struct.pack("<qd", 3, 0.5), struct.pack("<qd", 3, 0.5)),
    ],
)
def test_values_become_what_the_kernel_declares(parameter, value, expected):
    assert word(parameter, value) == expected


def test_a_kernel_of_other_parameters_has_no_native_launch():
    assert Packer("kernel", [VECTORS, INT]).native_arguments is not None
    assert Packer("kernel", []).native_arguments is None
    assert Packer("kernel", [VECTORS, PAIR]).native_arguments is None
    assert Packer("kernel", [BFLOAT16]).native_arguments is None


def test_a_struct_goes_by_value():
    class Pair(ctypes.Structure):
        _fields_ = (("a", ctypes.c_int), ("b", ctypes.c_double))

    assert word(PAIR, Pair(3, 0.5)) == bytes(Pair(3, 0.5))
    record = np.array([(3, 0.5)], dtype=np.dtype([("a", np.int32), ("b", np.float64)], align=True))[0]
    assert word(PAIR, record) == record.tobytes()
    assert "16 bytes, got 4" in refused(PAIR, b"abcd")


def test_a_tensor_goes_by_its_address_with_its_offset():
    x = torch.arange(8, dtype=torch.float32)
    assert word(FLOATS, x[3:]) == struct.pack("<Q", x.data_ptr() + 12)


@pytest.mark.parametrize(
    ("parameter", "value", "output"),
    [
        (FLOATS, torch.ones(3, dtype=torch.float64), "must have float32 elements, got float64\n  → pass float32"),
        (FLOATS, 3, "must be a tensor, got int 3"),
        (FLOATS, np.ones(3), "pass torch.from_numpy(array).cuda()"),
        (INT, 2**31, "must be between -2147483648 and 2147483647, got 2147483648\n  → declare it wider"),
        (SIZE, -1, "must be between 0 and 18446744073709551615, got -1"),
        (INT, 1.0, "must be an int, got float 1.0"),
        (INT, torch.ones(3), "in another order"),
        (FLOAT, torch.ones(()), "value.item()"),
        (FLOAT, "1", "must be a float, got str '1'"),
        (BOOL, 1, "must be a bool, got int 1"),
        (PAIR, 3, "must be a ctypes.Structure of 16 bytes, got int 3"),
    ],
)
def test_a_wrong_kind_is_refused_before_the_launch(parameter, value, output):
    assert output in refused(parameter, value)


def test_a_misaligned_view_is_refused_for_a_vector_pointer_only():
    x = torch.ones(9)[1:]
    assert "multiple of 16 bytes, got a view that starts 4 bytes past one" in refused(VECTORS, x)
    assert word(FLOATS, x)


def test_a_tensor_of_another_device_is_refused():
    with pytest.raises(LaunchError, match=r"must be on cuda:0, as the kernel is, got a tensor on cpu"):
        Packer("kernel", [FLOATS]).pack([torch.ones(3)], 0)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_wrong_number_of_arguments_is_refused_with_the_declaration(count):
    with pytest.raises(LaunchError, match=rf"must be given 2 arguments, got {count}\n.*kernel\(float const\*, int\)"):
        Packer("kernel", [FLOATS, INT]).pack([1] * count, HERE)


def test_ptx_that_does_not_tell_a_pointer_from_a_number_takes_both():
    either = Parameter("unsigned", 8, ".u64")
    x = torch.ones(2)
    assert word(either, x) == struct.pack("<Q", x.data_ptr())
    assert word(either, 5) == struct.pack("<Q", 5)
