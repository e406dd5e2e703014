"""Code that a type checker must accept, with the types that it must infer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_type

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow


@ow.op("typing::saxpy", autocast="promote")
def saxpy(x: Float[Tensor, "*n"], y: Float[Tensor, "*n"], a: float = 1.0) -> Float[Tensor, "*n"]:
    return a * x + y


@ow.op("typing::halves")
def halves(x: Float[Tensor, " n"]) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
    first, second = x.chunk(2)
    return first, second


@ow.op("typing::total")
def total(x: Float[np.ndarray, " n"]) -> Float[np.ndarray, ""]:
    return np.asarray(x.sum())


x = torch.ones(4)
assert_type(saxpy(x, x, 2.0), Tensor)
assert_type(saxpy(x, y=x), Tensor)
assert_type(halves(x), tuple[Tensor, Tensor])
assert_type(saxpy.explain(x, x), ow.results.Explanation)
assert_type(saxpy.flops(x, x, a=2.0), int)
assert_type(saxpy.restricted_to("reference")(x, x), Tensor)
total(x)  # tensors or arrays
total(np.ones(4))


@saxpy.python
def by_addition(x: Tensor, y: Tensor, a: float) -> Tensor:
    return x * a + y


@saxpy.python(name="other", devices=["cpu"], dtypes=[torch.float32], when=lambda x, y, a: a == 1.0)
def other(x: Tensor, y: Tensor, a: float) -> Tensor:
    return x + y


@saxpy.baseline
def blas(x: Tensor, y: Tensor, a: float) -> Tensor:
    return torch.add(y, x, alpha=a)


assert_type(by_addition(x, x, 1.0), Tensor)
saxpy.triton("saxpy.py", entry="saxpy", name="triton")
saxpy.cuda("saxpy.cu", entry="saxpy", options=["-DTILE=32"])
saxpy.cpp("saxpy.cpp")
saxpy.mojo("saxpy.mojo", entry="saxpy", params={"tile": 128}, grid=lambda x, y, a: (1,), block=(128,))


@saxpy.register_fake
def fake(x: Tensor, y: Tensor, a: float) -> Tensor:
    return torch.empty_like(x)


saxpy.register_autograd(lambda ctx, grad: (grad, grad, None))
saxpy.sizes(n=(1024, 2048))
kernel: ow.Kernel = saxpy.kernels["by_addition"]
with saxpy.only("other"):
    pass

report = ow.check(saxpy)
assert_type(report, ow.results.CheckReport)
assert_type(ow.bench(saxpy), ow.results.BenchReport)
statuses: list[ow.results.Status] = [verdict.status for verdict in report.verdicts]

graphed = ow.cuda_graphed(saxpy)
assert_type(ow.cuda_graphed(saxpy, max_pairs=8)(x, x, 2.0), Tensor)
assert_type(graphed(x, x, 2.0), Tensor)
assert_type(ow.cdiv(5, 2), int)

# Any operator, without its parameters.
anybody: ow.Op = saxpy
operators: list[ow.Op[..., Any]] = [saxpy, halves, total]
as_function: Callable[[Tensor, Tensor, float], Tensor] = saxpy

try:
    saxpy(x, x)
except (ow.errors.ArgumentError, ow.errors.SimulatorError) as error:
    findings = error.findings if isinstance(error, ow.errors.SimulatorError) else ()
