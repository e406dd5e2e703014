"""What a kernel is passed is what it declares, or an error that names the argument."""

from __future__ import annotations

import ctypes
import struct

import numpy as np
import pytest
import torch

from opwright.backends.gpu.arguments import Packer
from opwright.backends.gpu.device_code import Parameter
from opwright.errors import LaunchError

# CPU tensors say that they are on device -1, which stands for the GPU here.
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


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, 1e300, float("inf"), 0.1])
def test_the_usual_case_packs_what_one_by_one_would(value):
    packer = Packer("kernel", [VECTORS, FLOATS, INT, LONG, SIZE, FLOAT, DOUBLE])
    x = torch.ones(8)
    arguments = (x, x[1:], -5, -(2**40), 7, value, value)
    usual = packer.pack_usual(arguments, HERE)
    assert usual is not None or value == 1e300
    assert list(usual or packer.pack(arguments, HERE)) == packer.pack(arguments, HERE)


@pytest.mark.parametrize("wrong", [torch.ones(8).double(), torch.ones(9)[1:], None, 3, "x"])
def test_the_usual_case_says_nothing_of_what_is_not_usual(wrong):
    assert Packer("kernel", [VECTORS, INT]).pack_usual((wrong, 1), HERE) is None
    assert Packer("kernel", [VECTORS, INT]).pack_usual((torch.ones(8),), HERE) is None
    assert Packer("kernel", [VECTORS, INT]).pack_usual((torch.ones(8), 1), HERE) is not None
    assert Packer("kernel", [VECTORS, INT]).pack_usual((torch.ones(8), 1), 0) is None


def raise_it(error, device):
    raise error


@pytest.fixture
def launched():
    """A launch of `(vectors, int, float)` made for the CPU's device, and what it did."""
    done = []
    make = Packer("kernel", [VECTORS, INT, FLOAT]).make_launch
    assert make is not None
    launch = make(
        "configuration", HERE, "kernel", {7: "stream"}, lambda *a: done.append(a), lambda: current[0], lambda device: 7,
        lambda *a: done.append(("otherwise", *a)), raise_it,
    )  # fmt: skip
    current = [HERE]
    return launch, done, current


def test_a_usual_launch_packs_what_one_by_one_would(launched):
    launch, done, _ = launched
    x = torch.ones(8)
    launch(x, 3, 0.5)
    words = Packer("kernel", [VECTORS, INT, FLOAT]).pack((x, 3, 0.5), HERE)
    assert done == [("stream", "configuration", "kernel", *words)]


@pytest.mark.parametrize(
    "arguments",
    [
        (torch.ones(8).double(), 3, 0.5),
        (torch.ones(9)[1:], 3, 0.5),
        (None, 3, 0.5),
        (torch.ones(8), 3.0, 0.5),
        (torch.ones(8), True, 0.5),
        (torch.ones(8), 2**31, 0.5),
        (torch.ones(8), 3, 1),
        (torch.ones(8), 3, 1e300),
        (torch.ones(8), 3),
        (torch.ones(8), 3, 0.5, 4),
    ],
    ids=["dtype", "alignment", "none", "float", "bool", "range", "int", "overflow", "fewer", "more"],
)
def test_any_other_launch_goes_through_the_checks_one_by_one(launched, arguments):
    launch, done, _ = launched
    launch(*arguments)
    assert len(done) == 1
    assert done[0][0] == "otherwise"
    assert done[0][1:] == arguments


def test_a_launch_while_another_device_is_the_current_one_is_not_usual(launched):
    launch, done, current = launched
    current[0] = 1
    launch(torch.ones(8), 3, 0.5)
    assert done[0][0] == "otherwise"


def test_what_a_launch_itself_raises_is_not_taken_for_an_unusual_argument():
    make = Packer("kernel", [INT]).make_launch
    assert make is not None

    def fail(*words):
        raise ValueError("the driver")

    launch = make("c", HERE, "kernel", {0: "stream"}, fail, lambda: HERE, lambda device: 0, lambda *a: None, raise_it)
    with pytest.raises(ValueError, match="the driver"):
        launch(3)


def test_a_launch_is_tried_once_more_after_its_error_was_put_right():
    make = Packer("kernel", [INT]).make_launch
    assert make is not None
    done = []

    def fail_first(*words):
        done.append(words)
        if len(done) == 1:
            raise RuntimeError("no context")

    recovered = []
    launch = make(
        "c", HERE, "kernel", {0: "stream"}, fail_first, lambda: HERE, lambda device: 0, lambda *a: None,
        lambda error, device: recovered.append((str(error), device)),
    )  # fmt: skip
    launch(3)
    assert recovered == [("no context", HERE)]
    assert done == [("stream", "c", "kernel", 3)] * 2


def test_a_kernel_of_other_parameters_has_no_usual_launch():
    assert Packer("kernel", []).make_launch is None
    assert Packer("kernel", [PAIR]).make_launch is None


def test_a_struct_goes_by_value():
    class Pair(ctypes.Structure):
        _fields_ = (("a", ctypes.c_int), ("b", ctypes.c_double))

    assert word(PAIR, Pair(3, 0.5)) == bytes(Pair(3, 0.5))
    record = np.array([(3, 0.5)], dtype=np.dtype([("a", np.int32), ("b", np.float64)], align=True))[0]
    assert word(PAIR, record) == record.tobytes()
    assert "16 bytes, but 4 came" in refused(PAIR, b"abcd")


def test_a_tensor_goes_by_its_address_with_its_offset():
    x = torch.arange(8, dtype=torch.float32)
    assert word(FLOATS, x[3:]) == struct.pack("<Q", x.data_ptr() + 12)


@pytest.mark.parametrize(
    ("parameter", "value", "said"),
    [
        (FLOATS, torch.ones(3, dtype=torch.float64), "got float64 elements\n  → pass float32"),
        (FLOATS, 3, "wants a tensor, but int 3 came"),
        (FLOATS, np.ones(3), "pass torch.from_numpy(array).cuda()"),
        (INT, 2**31, "holds -2147483648 to 2147483647, and 2147483648 came\n  → declare it wider"),
        (SIZE, -1, "holds 0 to 18446744073709551615, and -1 came"),
        (INT, 1.0, "wants an int, but float 1.0 came"),
        (INT, torch.ones(3), "in another order"),
        (FLOAT, torch.ones(()), "value.item()"),
        (FLOAT, "1", "wants a float, but str '1' came"),
        (BOOL, 1, "wants a bool, but int 1 came"),
        (PAIR, 3, "wants a ctypes.Structure of 16 bytes"),
    ],
)
def test_a_wrong_kind_is_refused_before_the_launch(parameter, value, said):
    assert said in refused(parameter, value)


def test_a_misaligned_view_is_refused_for_a_vector_pointer_only():
    x = torch.ones(9)[1:]
    assert "multiple of 16 bytes, and this view starts 4 bytes past one" in refused(VECTORS, x)
    assert word(FLOATS, x)


def test_a_tensor_of_another_device_is_refused():
    with pytest.raises(LaunchError, match=r"got a tensor on cpu, but the kernel runs on cuda:0"):
        Packer("kernel", [FLOATS]).pack([torch.ones(3)], 0)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_wrong_number_of_arguments_is_refused_with_the_declaration(count):
    with pytest.raises(LaunchError, match=rf"takes 2 arguments, but {count} came\n.*kernel\(float const\*, int\)"):
        Packer("kernel", [FLOATS, INT]).pack([1] * count, HERE)


def test_ptx_that_does_not_tell_a_pointer_from_a_number_takes_both():
    either = Parameter("unsigned", 8, ".u64")
    x = torch.ones(2)
    assert word(either, x) == struct.pack("<Q", x.data_ptr())
    assert word(either, 5) == struct.pack("<Q", 5)
