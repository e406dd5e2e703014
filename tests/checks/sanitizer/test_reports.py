"""What the tools print is read: kinds, places, lines, and whose case it was."""

from __future__ import annotations

import json

from opwright.checks.sanitizer.gpu_reports import errors_on_gpu
from opwright.checks.sanitizer.reports import sections

MARK = "@m@"


def marked(*what):
    return f"{MARK} {json.dumps(what)}"


ADDRESS = """\
=================================================================
==7==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x1084 at pc 0x7f bp 0x7ffd sp 0x7ffd
READ of size 4 at 0x1084 thread T0
    #0 0x7f9e16dda533 in ns::twice(torch::stable::Tensor const&, long) /home/a/my kernels/twice.cpp:11
    #1 0x7f9e16ddca2b in std::apply /usr/include/c++/12/tuple:5
/home/a/twice.cpp:31:9: runtime error: signed integer overflow: 2147483000 * 3 cannot be represented in type 'int'
""".splitlines()


def test_address_sanitizer_and_undefined_behaviour():
    lines = [
        marked("case", "n=33"),
        marked("memory", "x", 0x1000, 0x84),
        *ADDRESS,
        marked("case", "n=64"),
        marked("end"),
    ]
    (first, second), ended = sections(lines, MARK)
    assert ended
    assert not second.errors
    access, overflow = first.errors
    assert access.what == "reads 4 bytes (heap-buffer-overflow)"
    assert (access.where, access.line) == ("ns::twice", 11)
    assert first.place(access.address) == "just after the end of 'x'"
    assert first.place(0x0FF8) == "8 bytes before 'x'"
    assert first.place(0x1010) == "within 'x'"
    assert first.place(0x900000) == ""
    assert overflow.what.startswith("signed integer overflow")
    assert (overflow.file, overflow.line) == ("/home/a/twice.cpp", 31)


def test_output_of_a_kernel_is_no_error():
    lines = [
        marked("case", "n=1"),
        "ERROR: something of the kernel's",
        "runtime error",
        marked("raised", "X: y"),
        marked("end"),
    ]
    ((section,), _) = sections(lines, MARK)
    assert section.errors == []
    assert section.raised == "X: y"


MEMCHECK = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 8 bytes
=========     at void ns::scale<(int)4>(double *, int)+0x90 in /home/a b/scale.cu:7
=========     by thread (32,0,0) in block (1,0,0)
=========     Access at 0x7f8 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7000 of size 2,040 bytes
=========         Device Frame: outer(double *)+0x30 in /home/a b/scale.cu:44
=========
========= Invalid __shared__ read of size 4 bytes
=========     at (anonymous namespace)::sums(float *):0x160
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x1001 is misaligned
=========
========= Malloc/Free error encountered : Double free
=========     at 0x79d8
=========     by thread (1,0,0) in block (0,0,0)
=========     Address 0x400aff920
=========
========= Program hit cudaErrorNotSupported (error 801) due to "not supported" on CUDA API call to cudaMalloc.
=========     Saved host backtrace up to driver entry point at error
=========
========= ERROR SUMMARY: 3 errors
"""


def test_compute_sanitizer():
    """In the words of NVIDIA's manual, of several versions."""
    written, misaligned, freed = errors_on_gpu(MEMCHECK.splitlines())
    assert written.what == "writes 8 bytes of global memory"
    assert (written.file, written.line, written.address) == ("/home/a b/scale.cu", 7, 0x7F8)
    assert written.where == "void ns::scale<(int)4>, block (1,0,0), thread (32,0,0)"
    assert misaligned.what == "reads 4 bytes of shared memory"
    assert misaligned.where == "(anonymous namespace)::sums, block (0,0,0), thread (0,0,0)"
    assert (misaligned.file, misaligned.line) == ("", 0)
    assert freed.what == "Malloc/Free error encountered : Double free"


RACECHECK = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at sumKernel(int *, int *)+0x90 in /a/block_error.cu:41
=========     and Read access at sumKernel(int *, int *)+0x100 in /a/block_error.cu:51 [508 hazards]
=========
========= Warning: Race reported between Write access at RAW()+0xf0 in /a/raceGroupBasic.cu:40
=========     and Read access at RAW()+0x280 in /a/raceGroupBasic:46 [4 hazards]
=========
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
"""
SYNCCHECK = """\
========= Barrier error detected. Divergent thread(s) in block.
=========     at [clone myKernel(int *, int *)] outlineSync()+0x11f0 in /a/test.cu:42
=========     by thread (32,0,0) in block (0,0,0)
=========         Device Frame: myKernel(int *, int *)+0xe40 in /a/test.cu:60
=========
"""


def test_races_and_barriers():
    (race,) = errors_on_gpu(RACECHECK.splitlines())
    assert race.what == "a race in shared memory: a write here, and a read in line 51"
    assert (race.where, race.file, race.line) == ("sumKernel", "/a/block_error.cu", 41)
    (barrier,) = errors_on_gpu(SYNCCHECK.splitlines())
    assert barrier.what == "Barrier error detected. Divergent thread(s) in block."
    assert (barrier.file, barrier.line) == ("/a/test.cu", 42)


def test_what_is_no_error_on_a_gpu():
    lines = [
        "========= COMPUTE-SANITIZER",
        "Invalid __global__ read of size 4 bytes",
        "========= ERROR SUMMARY: 0 errors",
    ]
    assert list(errors_on_gpu(lines)) == []


def test_memory_that_is_short_is_told_as_such():
    line = "==7==ERROR: AddressSanitizer: out-of-memory: allocator is trying to allocate 0x7000 bytes"
    ((section,), _) = sections([marked("case", "n=1"), line], MARK)
    assert section.errors[0].what == "out of memory"
