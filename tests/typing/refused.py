"""Code that a type checker must refuse: each line that ends in ``# refused``, and no other."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow


@ow.op("typing::scaled")
def scaled(x: Float[Tensor, "*n"], a: float) -> Float[Tensor, "*n"]:
    return a * x


x = torch.ones(4)
scaled(x)  # refused
scaled(x, 2.0, 3.0)  # refused
scaled(x, "2")  # refused
scaled(x, b=2.0)  # refused
scaled([1.0, 2.0], 2.0)  # refused
number: int = scaled(x, 2.0)  # refused
scaled.explain(x)  # refused
scaled.tritn("scaled.py")  # refused
scaled.triton("scaled.py", entyr="scaled")  # refused
scaled.triton("scaled.py", block=128)  # refused
scaled.cuda("scaled.cu", optoins=["-DTILE=32"])  # refused
scaled.cuda("scaled.cu", options=["-DTILE=32"], dtypes=["float32"])  # refused
scaled.mojo("scaled.mojo", parms={"tile": 128})  # refused
scaled.python(name="other", when=True)  # refused
scaled.register_fkae(lambda x, a: x)  # refused
scaled.sizes(n=1024)  # refused
scaled.kernels = 3  # refused
ow.check(3)  # refused
ow.chek(scaled)  # refused
ow.op(qualname=3)  # refused
ow.op("typing::other", autocast="upper")  # refused
ow.cuda_graphed(scaled)(x)  # refused
ow.results.Status.PASSED  # refused  # noqa: B018
