"""An operator with every kind of axis and argument, to compare the checks in C++ with those in Python."""

from jaxtyping import Float, Int, Int32
from torch import Tensor, float32, float64

import opwright as ow

__all__ = ["shapes"]


@ow.op("shapes::shapes", where=["k in (1, 2, 4, 5)", "not (n > 4 and n % max(k, 1) == 0)", "n <= 4 or n // 0 == k"])
def shapes(
    x: Float[Tensor, "*batch n"],
    y: Float[Tensor, "#n"],
    parts: list[Float[Tensor, "_ n"]],
    index: Int[Tensor, "(n+k)//2 3"] | None = None,
    pair: Int32[Tensor, "... min(n,k) k**2%7"] | None = None,
    k: int = 1,
) -> Float[Tensor, "*batch n"]:
    return x.clone()


shapes.cpp("shapes.cpp", entry="first", name="single", dtypes=[float32])
shapes.cpp("shapes.cpp", entry="second", name="double", dtypes=[float64])
