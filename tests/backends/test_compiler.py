"""Running compilers: the first errors of each compiler, and other failures."""

from __future__ import annotations

import errno
import sys
from pathlib import Path

import pytest

from opwright.backends.compiler import first_errors, run_compiler
from opwright.errors import CompileError

GCC = """a.cpp: In function 'int f()':
a.cpp:3:5: error: 'x' was not declared in this scope
    3 |     x = 1;
      |     ^
a.cpp:4:1: warning: no return statement
a.cpp:9:2: fatal error: too many
"""
NVCC = """k.cu(12): error: identifier "y" is undefined
      y = 1;
      ^

k.cu(13): warning #177-D: variable "z" was declared but never referenced
"""


def script(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_what_it_prints_is_returned() -> None:
    assert run_compiler(script("print('fine')"), "a.cpp") == "fine\n"


@pytest.mark.parametrize(
    ("log", "shown", "left_out"),
    [
        (GCC, ["a.cpp:3:5: error: 'x' was", "3 |     x = 1;", "a.cpp:9:2: fatal error"], ["warning", "In function"]),
        (NVCC, ["k.cu(12): error: identifier", "      ^"], ["warning"]),
        ("ld: cannot find -lfoo", ["cannot find -lfoo"], []),
        ("", ["the compiler printed nothing"], []),
    ],
    ids=["g++", "nvcc", "a linker", "nothing"],
)
def test_errors_come_with_their_lines_and_without_the_rest(log: str, shown: list[str], left_out: list[str]) -> None:
    found = first_errors(log)
    assert all(text in found for text in shown), found
    assert not any(text in found for text in left_out), found


def test_of_many_errors_the_first_are_shown_and_the_rest_counted() -> None:
    log = "".join(f"a.cpp:{n}:1: error: number {n}\n" for n in range(1, 9))
    assert first_errors(log).endswith("number 3\n… and 5 more")


def test_a_failure_names_what_and_for_what_and_keeps_the_whole_output(tmp_path: Path) -> None:
    text = f"import sys; sys.stderr.write({f'{tmp_path}/a.cpp:1:1: error: no'!r} + chr(10) + 'more'); sys.exit(1)"
    with pytest.raises(CompileError, match=r"demo::f: a\.cpp does not compile for sm_90") as error:
        run_compiler(script(text), "demo::f: a.cpp", target="sm_90", folder=tmp_path)
    assert "\na.cpp:1:1: error: no" in error.value.message, "without the build's folder"
    assert error.value.log.endswith("more")


def test_a_full_disk_is_the_caches_to_explain() -> None:
    with pytest.raises(OSError, match="No space left") as error:
        run_compiler(script("raise SystemExit('as: No space left on device')"), "a.cpp")
    assert error.value.errno == errno.ENOSPC


def test_a_compiler_that_does_not_end_is_stopped() -> None:
    with pytest.raises(CompileError, match=r"did not end within 0\.5 s and was stopped"):
        run_compiler(script("import time; time.sleep(60)"), "a.cpp", time_limit_s=0.5)
