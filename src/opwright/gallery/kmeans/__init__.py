"""K-means: its assignment step and its sums in NumPy, compiled unchanged, and written in C++ and Triton."""

from typing import Annotated

import numpy as np
import torch
from jaxtyping import Float, Int64

import opwright as ow

__all__ = ["kmeans_assign", "kmeans_sums"]

FLOATS = (torch.float32, torch.float64)
# Exactly as NumPy: if the compiler fused a multiplication and an addition, last bits would differ.
AS_NUMPY = ["-ffp-contract=off", "-fno-math-errno"]


def is_flat(X, means):
    """Whether NumPy sums from left to right, as the Triton kernels do. From eight dims on, its order is another."""
    return 0 < X.shape[1] < 8 and len(means) > 0


def is_small(X, means):
    """Whether the Triton kernel can keep a sum for each mean in registers."""
    return is_flat(X, means) and len(means) <= 64


@ow.op("gallery::kmeans_assign")
def kmeans_assign(X: Float[np.ndarray, "n d"], means: Float[np.ndarray, "k d"]) -> Int64[np.ndarray, " n"]:
    """For each of n points in d dimensions, the index of the nearest of k means; of several, the first.

    As with ``np.argmin``, a NaN is nearer than any number, and at least one mean is needed. The
    example of "Compiling NumPy code into C++ or CUDA via torch.compile"
    (https://pytorch.org/blog/compiling-numpy-code/).
    """
    return np.argmin(np.linalg.norm(X - means[:, None], axis=2), axis=0)


kmeans_assign.cpp("kmeans.cpp", dtypes=FLOATS, options=AS_NUMPY)
kmeans_assign.triton("kmeans_triton.py", entry="assign", dtypes=FLOATS, when=is_flat)


@kmeans_assign.numpy(name="numpy_compiled", dtypes=FLOATS)
def _(X, means):
    return np.argmin(np.linalg.norm(X - means[:, None], axis=2), axis=0)


@kmeans_assign.register_flops
def flops(X, means):
    """For each pair: d differences, d squares, d - 1 sums, a root and a comparison."""
    (n, d), k = X.shape, len(means)
    return n * k * (3 * d + 1)


kmeans_assign.sizes(n=(10_000, 1_000_000), d=(2,), k=(8,))


@ow.op("gallery::kmeans_sums")
def kmeans_sums(
    X: Annotated[Float[np.ndarray, "n d"], ow.values(finite=True)],
    means: Annotated[Float[np.ndarray, "k d"], ow.values(finite=True)],
) -> tuple[Float[np.ndarray, "k d"], Int64[np.ndarray, " k"]]:
    """The sum, and the number, of the points that are nearest to each of k means: one iteration of K-means, in one
    pass over the points. (The new means are sums / counts.)"""
    labels = np.argmin(np.linalg.norm(X - means[:, None], axis=2), axis=0)
    own = labels == np.arange(len(means))[:, None]
    return np.sum(np.where(own[:, :, None], X, X * 0), axis=1), np.sum(own, axis=1)


kmeans_sums.cpp("kmeans.cpp", dtypes=FLOATS, options=AS_NUMPY)
kmeans_sums.triton("kmeans_triton.py", entry="sums", dtypes=FLOATS, when=is_small)


@kmeans_sums.numpy(name="numpy_compiled", dtypes=FLOATS)
def _(X, means):
    labels = np.argmin(np.linalg.norm(X - means[:, None], axis=2), axis=0)
    own = labels == np.arange(len(means))[:, None]
    return np.sum(np.where(own[:, :, None], X, X * 0), axis=1), np.sum(own, axis=1)


@kmeans_sums.register_flops
def sums_flops(X, means):
    """The assignment, and d additions for each point."""
    return flops(X, means) + X.numel()


kmeans_sums.sizes(n=(10_000, 1_000_000), d=(2,), k=(8,))
