"""What the tools print is read: kinds, places, lines, and whose case it was."""

from __future__ import annotations

import json

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
