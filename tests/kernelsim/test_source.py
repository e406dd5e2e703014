"""CUDA C++ and its options, read without a compiler."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from kernelsim.errors import KernelError
from kernelsim.text.options import parse_options
from kernelsim.text.parsed_source import parsed
from kernelsim.text.source import CudaSource


def test_kernels_are_found_however_they_are_declared():
    text = """
    // __global__ void in_a_comment() {}
    __global__ void plain(float* x) {}
    extern "C" __global__ void c_name(int n) {}
    template <class T, int N>
    __global__ void __launch_bounds__(256, 2) bounded(T* x) {}
    __global__ __launch_bounds__(128) void other_order(int) {}
    static __global__
    void on_two_lines(int n);
    template <class Layout> __global__ static __launch_bounds__(decltype(size(Layout{}))::value) alignas(16)
    void with_bounds_of_a_type(Layout) {}
    __device__ float not_a_kernel(float x) { return x; }
    """
    names = ("plain", "c_name", "bounded", "other_order", "on_two_lines", "with_bounds_of_a_type")
    assert parsed(text).kernels == names
    assert [parsed(text).is_template(name) for name in names] == [False, False, True, False, False, True]
    assert [parsed(text).qualified_names(name) for name in names[-2:]] == [(), ("with_bounds_of_a_type",)]


@pytest.mark.parametrize(
    "options_text",
    [
        ["-I", "inc", "-D", "TILE=32", "-std=c++20", "-arch=sm_90a", "--use_fast_math"],
        ["-Iinc", "-DTILE=32", "--std", "c++20", "--gpu-architecture=sm_90a", "-use_fast_math"],
        ["--include-path=inc", "--define-macro=TILE=32", "-std", "c++20", "-arch", "sm_90a", "--use_fast_math"],
    ],
)
def test_every_way_to_write_an_option_has_the_same_effect(options_text):
    options = parse_options(options_text)
    assert options.include_folders == (Path("inc"),)
    assert options.macros == ("-DTILE=32",)
    assert options.arch == "sm_90a"
    assert options.code == ("--std=c++20", "--use_fast_math")


def test_options_for_a_host_compiler_are_dropped_and_remembered():
    options = parse_options(["-O3", "-Xcompiler", "-fPIC", "--expt-relaxed-constexpr", "-gencode", "arch=compute_80"])
    assert options.code == ()
    assert options.dropped == ("-O3", "-Xcompiler -fPIC", "--expt-relaxed-constexpr", "-gencode arch=compute_80")


def test_options_of_published_half_kernels_are_understood():
    names = ["-U__CUDA_NO_HALF_OPERATORS__", "-U__CUDA_NO_HALF_CONVERSIONS__", "-U__CUDA_NO_HALF2_OPERATORS__"]
    assert parse_options([*names, "--expt-extended-lambda"]).macros == tuple(names)
    assert parse_options(["--expt-extended-lambda"]).code == ("--extended-lambda",)


def test_what_off_the_gpu_means_something_is_known():
    options = parse_options(
        shlex.split("-include a.h --gpu-architecture=compute_86 --fmad=false --use_fast_math -std=c++20 -g -std=c++14")
    )
    assert options.preincluded == ("a.h",)
    assert (options.standard, options.capability, options.fuses) == (14, 86, False)
    assert (parse_options([]).standard, parse_options([]).capability, parse_options([]).fuses) == (17, 90, True)
    with pytest.raises(KernelError, match="'pascal' is not an architecture"):
        _ = parse_options(["-arch=pascal"]).capability


def test_an_unknown_option_is_refused_rather_than_dropped():
    with pytest.raises(KernelError, match=r"'--make-it-fast' is not known"):
        parse_options(["--make-it-fast"])


def test_an_option_without_its_value_is_refused():
    with pytest.raises(KernelError, match=r"'-I' needs a value"):
        parse_options(["-I"])


def test_own_headers_are_found_beside_the_source_and_through_options(tmp_path: Path):
    (tmp_path / "inc").mkdir()
    (tmp_path / "a.cuh").write_text("")
    (tmp_path / "inc" / "b.cuh").write_text("")
    source = CudaSource('#include "a.cuh"\n#include <b.cuh>\n', tmp_path / "k.cu", (f"-I{tmp_path / 'inc'}",))
    assert [h.name for h in source.headers()] == ["a.cuh", "b.cuh"]
