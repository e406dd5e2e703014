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


NO_OVERLOAD = """k.cpp: In function 'int f()':
k.cpp:7:35: error: no matching function for call to 'g(int)'
    7 |   g(1);
      |   ~^~~
In file included from k.cpp:1:
g.h:36:25: note: candidate: 'int g(int, int)'
   36 | int g(int, int);
      |     ^
g.h:36:25: note:   candidate expects 2 arguments, 1 provided
h.h: In function 'int h()':
h.h:1:1: warning: no return statement
h.h:2:2: note: of the warning
k.cpp:9:1: error: another
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


def test_an_error_has_its_notes_and_no_others() -> None:
    expected = NO_OVERLOAD.splitlines()
    assert first_errors(NO_OVERLOAD).splitlines() == [*expected[1:4], *expected[5:9], expected[-1]]
    many = NO_OVERLOAD.splitlines()[1] + "\n" + "".join(f"g.h:{n}:1: note: candidate {n}\n" for n in range(1, 9))
    assert first_errors(many).endswith("candidate 6\n… and 2 more notes")


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
