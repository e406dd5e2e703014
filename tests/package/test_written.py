"""Packages with operators that write their arguments: installed from a wheel, and in the library without Python."""

from __future__ import annotations

import pytest

from tests.package.shipping import python_with
from tests.package.test_library import outcomes

# Three kernels and the library are compiled, and a wheel is made and installed.
pytestmark = [pytest.mark.compiler, pytest.mark.slow]


def library(written):
    return f"torch.ops.load_library({str(written / 'written_ops' / 'native' / 'libwritten_ops.so')!r})"


VALUES = """
ops = torch.ops.written
a, b, out = torch.ones(3), torch.full((3,), 2.0), torch.zeros(3)
assert ops.add_out(a, b, out) is None
assert out.tolist() == [3, 3, 3] and a.tolist() == [1, 1, 1]
assert "Tensor(a2!) out) -> ()" in str(ops.add_out.default._schema)
parts = [torch.ones(2), torch.ones(3)]
ops.add_all(parts, [torch.ones(2), torch.ones(3)])
assert [p.tolist() for p in parts] == [[2, 2], [2, 2, 2]]
x = torch.ones(2)
before = ops.shift(x, 2.0)
assert before.tolist() == [1, 1] and x.tolist() == [3, 3]
"""

# Calls of add_out with tensors that share memory, or do not.
CALLS = """
base, wide = torch.ones(8), torch.ones(300000, 4)
one = torch.ones(1).expand(4)
calls = {
    "apart": (base[:2], base[2:4], base[4:6]),
    "every other": (base[::2], base[::2], base[1::2]),
    "columns": (wide[:, :2], wide[:, :2], wide[:, 2:]),
    "empty": (base[:0], base[:0], base[:0]),
    "read twice": (base[:4], base[:4], base[4:]),
    "expanded input": (one, base[:4], base[4:]),
    "steps": (base[0:6:3], base[0:6:3], base[1::4]),
    "transposed": (wide[:4], wide[:4], wide[4:8].t()),
    "same": (base, base, base),
    "shifted": (base[:4], torch.ones(4), base[1:5]),
    "meets": (base[::4], base[::4], base[1:6:3]),
    "columns meet": (wide[:, :2], wide[:, :2], wide[:, 1:3]),
    "itself": (base[:4], base[:4], one),
    "windows": (base.view(2, 4), base.view(2, 4), torch.ones(8).as_strided((2, 4), (2, 1))),
    "size": (base, base, base[:2]),
}
for name, call in calls.items():
    try:
        torch.ops.written.add_out(*call)
        print(name, "|", "fine")
    except Exception as error:
        print(name, "| error |", str(error).splitlines()[0])
"""


def test_an_installed_wheel_writes_through_torch_ops(written):
    python_with(written)("import torch, written_ops\n" + VALUES + "assert [*written_ops.add_out.kernels] == ['cpp']\n")


def test_the_library_alone_writes_too(written):
    printed = python_with()(f"import torch\n{library(written)}\n" + VALUES + "print('all values are right')\n")
    assert "all values are right" in printed


def test_what_overlaps_is_refused_in_cpp_as_in_python(written):
    python = outcomes(python_with(written)("import torch, written_ops\n" + CALLS))
    cpp = outcomes(python_with()(f"import torch\n{library(written)}\n" + CALLS))
    fine = ["apart", "every other", "columns", "empty", "read twice", "expanded input", "steps", "transposed"]
    refused = ["same", "shifted", "meets", "columns meet", "itself", "windows", "size"]
    assert cpp == dict.fromkeys(fine, "fine") | dict.fromkeys(refused, ("error", "out"))
    assert python.keys() == cpp.keys()
    for name, outcome in python.items():
        assert (outcome == "fine") == (name in fine), name


def test_the_readme_says_that_programs_have_them(written):
    readme = (written.parent / "project" / "README.md").read_text()
    assert readme.count("| cpp | cpp | cpu | float32 | yes |") == 3


def test_sizes_of_a_list_are_compared_at_their_own_places(written):
    python_with()(f"""
        import torch
        {library(written)}
        one, two = [torch.ones(2), torch.ones(3)], [torch.ones(2), torch.ones(3)]
        torch.ops.written.add_all(one, two)
        assert [x.tolist() for x in one] == [[2, 2], [2, 2, 2]]
        try:
            torch.ops.written.add_all(one, two[::-1])
        except RuntimeError as error:
            assert "argument 'others[0]' must be 2, got 3" in str(error), error
        else:
            raise AssertionError("sizes that differ were accepted")
    """)
