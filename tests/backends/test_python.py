"""Kernels that are any Python callable."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.backends import get_backend
from opwright.machine import this_machine
from opwright.results import Accepted


def test_it_runs_everywhere_and_is_its_own_artifact(namespace: str) -> None:
    @ow.op(f"{namespace}::f")
    def f(x: Float[Tensor, " n"], *, a: float = 1.0) -> Float[Tensor, " n"]:
        return x * a

    @f.python
    def doubled(x: Tensor, *, a: float) -> Tensor:
        return x * a * 2

    backend = get_backend("python")
    assert isinstance(backend.available(this_machine()), Accepted)
    assert "def doubled" in backend.generate(f.kernels["doubled"].spec, f.contract)
    assert f(torch.ones(1), a=3.0).item() == 6


def test_a_kernel_is_one_opaque_operator_to_torch_compile(namespace: str) -> None:
    @ow.op(f"{namespace}::f")
    def f(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x * 1

    @f.python
    def looks_at_values(x: Tensor) -> Tensor:
        return x * 2 if x.sum().item() > 0 else x * 3

    compiled = torch.compile(lambda x: f(x), fullgraph=True, backend="aot_eager")
    assert compiled(torch.ones(2))[0] == 2
    assert compiled(-torch.ones(2))[0] == -3


def test_the_source_of_something_in_c_is_said_to_be_missing(namespace: str) -> None:
    @ow.op(f"{namespace}::f")
    def f(x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x + y

    f.python(torch.add, name="c")
    assert "is not available" in get_backend("python").generate(f.kernels["c"].spec, f.contract)
