"""The changes that alter the digest of a function, and those that do not."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from jaxtyping import Float
from torch.fx.experimental.proxy_tensor import make_fx

import opwright as ow
from opwright.contract.fingerprint import digest, fingerprint


def function_of(source: str, **names: Any) -> Callable[..., Any]:
    """``f`` as a module would define it."""
    scope: dict[str, Any] = {"__name__": "some_module", "torch": torch, **names}
    exec(source, scope)
    return scope["f"]


def test_texts_do_not_collide_by_gluing() -> None:
    assert digest("ab", "c") != digest("a", "bc")
    assert digest("a", "") != digest("a")


def test_the_same_source_has_the_same_fingerprint() -> None:
    source = "def g(x): return x * 2\ndef f(x, a=1): return g(x) + a"
    assert fingerprint(function_of(source)) == fingerprint(function_of(source))


def test_comments_and_places_do_not_count() -> None:
    assert fingerprint(function_of("def f(x): return x")) == fingerprint(function_of("\n\n# hi\ndef f(x): return x"))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("def f(x): return x + 1", "def f(x): return x + 2"),
        ("def f(x): return x + 1", "def f(x): return x - 1"),
        ("def f(x): return x.sin()", "def f(x): return x.cos()"),
        ("def f(x, a=1): return x", "def f(x, a=2): return x"),
        ("def f(x, *, a=1): return x", "def f(x, *, a=2): return x"),
        ("K = 2\ndef f(x): return x * K", "K = 3\ndef f(x): return x * K"),
        ("K = [1, 2]\ndef f(x): return x * K[0]", "K = [3, 2]\ndef f(x): return x * K[0]"),
        ("K = {'a': 2.0}\ndef f(x): return x * K['a']", "K = {'a': 3.0}\ndef f(x): return x * K['a']"),
        ("K = torch.sin\ndef f(x): return K(x)", "K = torch.cos\ndef f(x): return K(x)"),
        ("K = torch.Tensor.sin\ndef f(x): return K(x)", "K = torch.Tensor.cos\ndef f(x): return K(x)"),
        ("K = torch.ops.aten.sin\ndef f(x): return K(x)", "K = torch.ops.aten.cos\ndef f(x): return K(x)"),
        ("import numpy\nK = numpy.sin\ndef f(x): return K(x)", "import numpy\nK = numpy.cos\ndef f(x): return K(x)"),
        ("def f(x): return x in {1, 2}", "def f(x): return x in {1, 3}"),
        ("K = {1, 2}\ndef f(x): return x in K", "K = {1, 3}\ndef f(x): return x in K"),
        ("K = torch.float16\ndef f(x): return x.to(K)", "K = torch.float32\ndef f(x): return x.to(K)"),
        ("K = torch.tensor([1.0])\ndef f(x): return x * K", "K = torch.tensor([2.0])\ndef f(x): return x * K"),
        ("def g(x): return x\ndef f(x): return g(x)", "def g(x): return -x\ndef f(x): return g(x)"),
        (
            "def h(x): return x\ndef g(x): return h(x)\ndef f(x): return [g(v) for v in x]",
            "def h(x): return -x\ndef g(x): return h(x)\ndef f(x): return [g(v) for v in x]",
        ),
        (
            "class C:\n  @staticmethod\n  def g(x): return x\ndef f(x): return C.g(x)",
            "class C:\n  @staticmethod\n  def g(x): return -x\ndef f(x): return C.g(x)",
        ),
        (
            "def make(k):\n  def f(x): return x * k\n  return f\nf = make(1)",
            "def make(k):\n  def f(x): return x * k\n  return f\nf = make(2)",
        ),
        (
            "import functools\ndef g(x, k): return x * k\nf = functools.partial(g, k=1)",
            "import functools\ndef g(x, k): return x * k\nf = functools.partial(g, k=2)",
        ),
        (
            "class C:\n  def g(self, x): return x\nf = C().g",
            "class C:\n  def g(self, x): return -x\nf = C().g",
        ),
    ],
)
def test_an_edit_that_may_change_the_result_changes_the_fingerprint(before: str, after: str) -> None:
    assert fingerprint(function_of(before)) != fingerprint(function_of(after))


def test_recursion_ends() -> None:
    mutual = "def f(x): return g(x)\ndef g(x): return f(x) + 1"
    assert fingerprint(function_of(mutual)) != fingerprint(function_of(mutual.replace("1", "2")))
    loop: list[Any] = []
    loop.append(loop)
    assert fingerprint(loop) == fingerprint(loop)


def test_a_cache_that_fills_as_the_program_runs_does_not_count() -> None:
    f = function_of("cache = {}\ndef f(x):\n  cache.setdefault(x, object())\n  return x")
    f(0)
    before = fingerprint(f)
    f(1)
    assert fingerprint(f) == before


def test_the_state_of_an_object_does_not_count_but_that_of_a_dataclass_does() -> None:
    counter = "class C:\n  n = 0\n  def __call__(self, x): self.calls = 1; return x\nc = C()\ndef f(x): return c(x)"
    f = function_of(counter)
    before = fingerprint(f)
    f(1)
    assert fingerprint(f) == before

    @dataclasses.dataclass
    class Config:
        n: int

    source = "def f(x): return x * c.n"
    assert fingerprint(function_of(source, c=Config(1))) != fingerprint(function_of(source, c=Config(2)))


def test_an_operator_that_reaches_itself_or_another_one_ends(namespace: str) -> None:
    scope: dict[str, Any] = {
        "__name__": "some_module",
        "torch": torch,
        "ow": ow,
        "Float": Float,
        "Tensor": torch.Tensor,
    }
    source = """
@ow.op("{0}::sin")
def sin(x: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    return torch.sin(x)

@ow.op("{0}::cos")
def cos(x: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    return torch.cos(x)

sin.register_autograd(lambda ctx, g: g * cos(ctx.saved_tensors[0]))
cos.register_autograd(lambda ctx, g: -g * sin(ctx.saved_tensors[0]))
"""
    exec(source.format(namespace), scope)
    assert scope["sin"].fingerprint != scope["cos"].fingerprint


def test_partial_objects_are_walked() -> None:
    def g(x: int, k: int) -> int:
        return x * k

    assert fingerprint(functools.partial(g, k=1)) != fingerprint(functools.partial(g, k=2))


@pytest.mark.triton
def test_the_kernels_and_their_decorators_count() -> None:
    import triton
    from triton import language as tl

    def one(x, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        tl.store(x, 1)

    def two(x, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        tl.store(x, 2)

    def tuned(function: Any, warps: int) -> Any:
        return triton.autotune([triton.Config({"BLOCK": 32}, num_warps=warps)], key=[])(triton.jit(function))

    def block(size: int) -> Any:
        return triton.heuristics({"BLOCK": lambda args: size})(triton.jit(one))

    assert fingerprint(triton.jit(one)) == fingerprint(triton.jit(one))
    assert fingerprint(triton.jit(one)) != fingerprint(triton.jit(two))
    assert fingerprint(tuned(one, 2)) != fingerprint(tuned(one, 4))
    assert fingerprint(block(2)) != fingerprint(block(4))


def test_constants_have_values_while_torch_traces() -> None:
    function = function_of("def f(x): return x * K", K=torch.tensor([1.0, 2.0]))
    expected = fingerprint(function)

    def traced(x: torch.Tensor) -> torch.Tensor:
        found.append(fingerprint(function))
        return x + 1

    found: list[str] = []
    make_fx(traced, tracing_mode="symbolic")(torch.ones(2))
    torch.vmap(traced)(torch.ones(2))
    with torch.device("meta"), torch.inference_mode():
        traced(torch.ones(2))
    assert found == [expected] * 3


@pytest.mark.parametrize("constant", [torch.eye(2).to_sparse(), torch.zeros(2, dtype=torch.uint4)])
def test_constants_that_torch_does_not_list(constant: torch.Tensor) -> None:
    source = "def f(x): return x * K"
    assert fingerprint(function_of(source, K=constant)) == fingerprint(function_of(source, K=constant))
