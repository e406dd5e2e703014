"""The parameters of a compiled kernel, read from its code."""

from __future__ import annotations

import pytest
import torch

from opwright.backends.gpu.device_code import EntryPoint, Parameter, demangle, entries_in_ptx, typed_parameters

PTX = """
.visible .entry scale(
\t.param .u64 .ptr .align 1 scale_param_0,
\t.param .f32 scale_param_1,
\t.param .align 2 .b8 scale_param_2[2],
\t.param .u32 scale_param_3,
\t.param .align 8 .b8 scale_param_4[16]
)
.maxntid 256, 1, 1
{ }
.weak .entry _Z5emptyv()
{ }
"""


def test_ptx_says_how_many_parameters_there_are_and_how_large():
    scale, empty = entries_in_ptx(PTX)
    assert [(p.kind, p.size) for p in scale.parameters] == [
        ("unsigned", 8), ("floating", 4), ("struct", 2), ("unsigned", 4), ("struct", 16),
    ]  # fmt: skip
    assert empty.parameters == ()


def test_a_symbol_is_read_as_cpp_and_a_c_name_stays():
    assert demangle("_Z3addIfLi4EEvPKT_PS0_m") == "void add<float, 4>(float const*, float*, unsigned long)"
    assert demangle("add") == "add"


@pytest.mark.parametrize(
    ("written", "dtypes", "alignment", "writes"),
    [
        ("float const*", (torch.float32,), 4, False),
        ("float3*", (torch.float32,), 4, True),
        ("float2*", (torch.float32, torch.complex64), 8, True),
        ("float4*", (torch.float32, torch.complex64), 16, True),
        ("double4*", (torch.float64, torch.complex128), 16, True),
        ("uint4 const*", (), 16, False),
        ("uchar4*", (), 4, True),
        ("int4 const*", (), 16, False),
        ("longlong2*", (), 16, True),
        ("short3*", (), 2, True),
        ("__half2 const*", (torch.float16,), 4, False),
        ("__nv_bfloat16*", (torch.bfloat16,), 2, True),
        ("unsigned char*", (torch.uint8, torch.bool), 1, True),
        ("void*", (), 1, True),
        ("Particle*", (), 1, True),
    ],
)
def test_a_pointer_says_what_it_takes(written, dtypes, alignment, writes):
    entry = EntryPoint("k", "k", (Parameter("unsigned", 8, ".u64"),))
    (found,) = typed_parameters(entry, [written])
    assert (found.kind, found.dtypes, found.alignment, found.writes) == ("pointer", dtypes, alignment, writes)


def test_scalars_keep_the_size_that_the_binary_has():
    entry = EntryPoint("k", "k", (Parameter("unsigned", 4, ".u32"), Parameter("struct", 2, ".b8[2]")))
    for name, dtype in {"__half": torch.float16, "c10::Half": torch.float16, "c10::BFloat16": torch.bfloat16}.items():
        integer, half = typed_parameters(entry, ["int", name])
        assert (integer.kind, integer.size) == ("integer", 4)
        assert (half.kind, half.size, half.dtypes) == ("floating", 2, (dtype,))


WITH_A_GRID = """
.func  (.param .b32 func_retval0) workspace(
)
{
	mov.u32 	%r1, %envreg2;
}
.visible .entry through_a_function(
	.param .u64 p
)
{
	call.uni (retval0), workspace, ();
}
.visible .entry plain(
	.param .u64 p
)
{
	ret;
}
.visible .entry direct(
	.param .u64 p
)
{
	mov.u32 	%r1, %envreg1;
}
"""


def test_a_kernel_that_waits_for_its_grid_is_known_by_its_registers() -> None:
    assert {e.symbol: e.cooperative for e in entries_in_ptx(WITH_A_GRID)} == {
        "through_a_function": True,
        "plain": False,
        "direct": True,
    }
