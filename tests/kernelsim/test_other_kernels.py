"""A source without the bodies of other kernels."""

from __future__ import annotations

import textwrap

import pytest

from kernelsim.text.other_kernels import with_one_kernel
from kernelsim.text.parsed_source import parsed

WANTED = "__global__ void wanted(float* x) { x[0] = 1; }"


def one_kernel(texts: list[str], expression: str) -> list[str]:
    return [source.text for source in with_one_kernel([parsed(text) for text in texts], expression)]


def left(other: str, expression: str = "wanted", wanted: str = WANTED) -> str:
    """What is left of the other code beside a kernel that is wanted."""
    text = f"{textwrap.dedent(other)}\n{wanted}\n"
    (cut,) = one_kernel([text], expression)
    assert cut.count("\n") == text.count("\n")
    assert cut.endswith(f"\n{wanted}\n")
    return cut.removesuffix(f"\n{wanted}\n")


@pytest.mark.parametrize(
    "head",
    [
        "__global__ void other(float* x)",
        "template <int N> __global__ void __launch_bounds__(32 * N, (1 + 1)) other(float* x)",
        "extern \"C\" __global__ __cluster_dims__(2, 1, 1) void\nother(float (&x)[4], int n = (3))",
        "__global__ void other(float* x) __launch_bounds__(128)",
    ],
)  # fmt: skip
def test_another_kernel_is_a_declaration(head: str) -> None:
    assert left(f"{head} {{\n  if (x) {{ x[0] = 2; }}\n}}").split() == f"{head} ;".split()


def test_a_declaration_of_it_names_it_too() -> None:
    other = "__global__ void other(float*);\n__global__ void other(float* x) { x[0] = 2; }"
    assert "2" not in left(other)


@pytest.mark.parametrize(
    "other",
    [
        "__global__ void other(float* x) { x[0] = 2; }\nauto address = &other;",
        "__global__ void other(float* x) {\n#ifdef A\n  if (x) {\n#else\n  {\n#endif\n  }\n}",
        "#define MADE(T) \\\n  __global__ void other(T* x) { x[0] = 2; }",
        "__device__ void other(float* x) { x[0] = 2; }",
        "__global__ void other(float*);",
        "// __global__ void other(float* x) { x[0] = 2; }",
        "__global__ void wanted(double* x) { x[0] = 1; }",
    ],
)
def test_other_code_stays(other: str) -> None:
    assert left(other) == other


def test_an_argument_of_the_instance_stays() -> None:
    other = "__global__ void other(float* x) { x[0] = 2; }"
    wanted = "template <void (*K)(float*)> __global__ void wanted(float* x) { x[0] = 1; }"
    assert left(other, "wanted<other>", wanted) == other


def test_a_header_names_it() -> None:
    other = "__global__ void other(float* x) { x[0] = 2; }"
    header = "template <class T> __device__ auto run(T x) { return other; }"
    assert one_kernel([f"{WANTED}\n{other}", header], "wanted") == [f"{WANTED}\n{other}", header]
    assert "2" not in one_kernel([WANTED, other], "wanted")[1]
