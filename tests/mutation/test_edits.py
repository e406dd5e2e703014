"""The edits of Python, CUDA and C++: what is changed, what is left as it is, and that the text stays the same else."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from opwright.mutation import c_edits, python_edits
from opwright.mutation.sources import sources_of
from opwright.mutation.words import number_edits
from tests.mutation import operators


def _python(text):
    nodes = [n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)]
    return [(e.operator, e.apply(text)) for e in python_edits.edits_of(nodes, text)]


def _line(statement):
    """The mutants of one statement in Python."""
    text = f"def f(x, i, n):\n    {statement}\n"
    return {(operator, mutant.splitlines()[1].strip()) for operator, mutant in _python(text)}


@pytest.mark.parametrize(
    ("statement", "operator", "mutant"),
    [
        ("return i < n", "bound", "return i <= n"),
        ("return i < n", "bound", "return i >= n"),
        ("return i == n", "bound", "return i != n"),
        ("return i + n", "arithmetic", "return i - n"),
        ("return (i) // (n)", "arithmetic", "return (i) + (n)"),
        ("return x & n", "mask or bits", "return x | n"),
        ("return i and n", "logic", "return i or n"),
        ("return not i", "sign or negation", "return i"),
        ("return -i", "sign or negation", "return i"),
        ("return x[i]", "index", "return x[(i) + 1]"),
        ("x[i] = n", "index", "x[(i) + 1] = n"),
        ("x += n", "arithmetic", "x -= n"),
        ("x += n", "statement removed", "pass"),
        ("store(x, n)", "statement removed", "pass"),
        ("return i + 7", "constant", "return i + 8"),
        ("return i + 7", "constant", "return i + 6"),
        ("return i if n else x", "condition negated", "return i if (not (n)) else x"),
        ("return tl.load(x, mask=i < n)", "mask removed", "return tl.load(x, mask=(i < n) | True)"),
        ("return torch.zeros(n, dtype=torch.float64)", "dtype", "return torch.zeros(n, dtype=torch.float32)"),
        ("return tl.max(x, axis=n)", "function", "return tl.min(x, axis=n)"),
        ("return x.contiguous()", "call left out", "return x"),
        ("return triton.cdiv(i, n)", "rounded down", "return ((i) // (n))"),
        ("return 'ü' + x[i]", "index", "return 'ü' + x[(i) + 1]"),
    ],
)
def test_a_statement_in_python_has_the_mutant(statement, operator, mutant):
    assert (operator, mutant) in _line(statement)


@pytest.mark.parametrize(
    "statement",
    [
        '"""i < n"""',
        "assert i < n, i + n",
        "raise ValueError(i + n)",
        "tl.static_assert(i < n)",
        "return f'{i + n}'",
        "return kernel[n](x, BLOCK=1024, num_warps=4)",
        "return x  # i < n",
        "return x.new_empty(n, memory_format=1 + 2)",
    ],
)
def test_what_is_no_code_or_only_tunes_is_left_as_it_is(statement):
    assert not _line(statement)


def test_a_condition_that_only_refuses_arguments_is_left_as_it_is():
    assert not _python("def f(i):\n    if i < 3:\n        raise ValueError(i)\n    return i\n")
    assert _python("def f(i):\n    if i < 3:\n        return 0\n    return i\n")


def test_decorators_defaults_and_annotations_are_left_as_they_are():
    assert not _python("@d(1 + 2)\ndef f(i: 1 + 2 = 3) -> 1 + 2:\n    j: 1 + 2 = i\n    return j\n")


def test_the_lines_after_a_change_keep_their_numbers():
    text = "def f(x):\n    store(\n        x,\n        1,\n    )\n    y = (x +\n         2)\n    return y\n"
    found = _python(text)
    assert len(found) > 3
    for _, mutant in found:
        assert mutant.splitlines().index("    return y") == text.splitlines().index("    return y")
        compile(mutant, "", "exec")


def test_numbers_have_neighbours_and_keep_their_suffixes():
    assert number_edits("7u") == ["8u", "6u"]
    assert number_edits("0") == ["1"]
    assert number_edits("0xff") == ["256", "254"]
    assert number_edits("1.5f") == ["0.0f", "(1.5f * 2)"]
    assert number_edits("0.0") == ["1.0"]
    assert number_edits("1j") == []


KERNEL = """
// i < n in a comment
#define BLOCK 32
template <int N = 3>
__global__ void add(const float* x, float* out, int64_t n) {
  __shared__ float tile[BLOCK];
  static_assert(N + 1 > 0, "i < n");
  int64_t i = threadIdx.x;
  STD_TORCH_CHECK(n > 0, "i < n");
  if (i < n && !done(i)) tile[i] = fmaxf(x[i], -1.0f);
  __syncthreads();
  out[i] += tile[i] * 2;
}
__device__ bool done(int i) { return i % 2 == 1; }
__global__ void other(float* out) { out[0] = 7; }
"""


def _cuda(*names):
    defined = c_edits.functions_of(KERNEL)
    edits = c_edits.edits_of([span for name in names for span in defined[name]], KERNEL)
    return {(e.operator, e.apply(KERNEL).splitlines()[e.line(KERNEL) - 1].strip()) for e in edits}


@pytest.mark.parametrize(
    ("operator", "mutant"),
    [
        ("bound", "if (i <= n && !done(i)) tile[i] = fmaxf(x[i], -1.0f);"),
        ("logic", "if (i < n || !done(i)) tile[i] = fmaxf(x[i], -1.0f);"),
        ("condition negated", "if (!(i < n && !done(i))) tile[i] = fmaxf(x[i], -1.0f);"),
        ("sign or negation", "if (i < n && done(i)) tile[i] = fmaxf(x[i], -1.0f);"),
        ("index", "if (i < n && !done(i)) tile[(i) + 1] = fmaxf(x[i], -1.0f);"),
        ("function", "if (i < n && !done(i)) tile[i] = fminf(x[i], -1.0f);"),
        ("statement removed", "if (i < n && !done(i)) ;"),
        ("barrier removed", ";"),
        ("arithmetic", "out[i] -= tile[i] * 2;"),
        ("arithmetic", "out[i] += tile[i] + 2;"),
        ("constant", "out[i] += tile[i] * 3;"),
        ("dtype", "int32_t i = threadIdx.x;"),
    ],
)
def test_a_kernel_in_cuda_has_the_mutant(operator, mutant):
    assert (operator, mutant) in _cuda("add")


def test_comments_text_assertions_and_templates_of_cuda_are_left_as_they_are():
    changed = {mutant for _, mutant in _cuda("add")}
    for part in ("comment", "static_assert", "STD_TORCH_CHECK", "#define", "template"):
        assert not [line for line in changed if part in line]


def test_only_what_a_kernel_reaches_is_changed():
    sources, left = sources_of(operators.plain, "cuda")
    changed = {s.kind: {s.text.splitlines()[e.line(s.text) - 1] for e in s.edits} for s in sources}
    assert any("out[i] = -x[i]" in line for line in changed["cuda module"])
    assert not any("unused" in line for line in changed["cuda module"])
    assert any("cdiv" in line for line in changed["functions"])
    assert not any("torch.neg" in line for line in changed["functions"])
    assert left == []


def test_what_the_reference_calls_too_is_named_and_left_as_it_is():
    sources, left = sources_of(operators.shares, "python")
    assert left == ["doubled: the reference calls it, too"]
    assert {e.operator for s in sources for e in s.edits} == {"arithmetic", "function", "constant"}
    assert not [e for s in sources for e in s.edits if "x * 2" in e.diff(s.text)]


def test_of_a_file_only_what_the_entry_reaches_is_changed():
    folder = Path(operators.__file__).parents[2] / "src/opwright/gallery"
    from opwright.gallery.trig import sin

    (source,), _ = sources_of(sin, "cpp")
    assert source.path == folder / "trig/trig.cpp"
    assert not [e for e in source.edits if "cosine" in source.text.splitlines()[e.line(source.text) - 1]]


def test_a_diff_has_the_changed_lines_only():
    text = "def f(i, n):\n    j = i\n    return j < n\n"
    nodes = [n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)]
    first = python_edits.edits_of(nodes, text)[0]
    assert first.diff(text) == "- return j < n\n+ return j <= n"
    assert first.line(text) == 3
