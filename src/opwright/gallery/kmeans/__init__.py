"""The assignment step of k-means: a meaning in NumPy, compiled unchanged and written in C++."""

import numpy as np
import torch
from jaxtyping import Float, Int64

import opwright as ow

__all__ = ["kmeans_assign"]

FLOATS = (torch.float32, torch.float64)


@ow.op("gallery::kmeans_assign")
def kmeans_assign(X: Float[np.ndarray, "n d"], means: Float[np.ndarray, "k d"]) -> Int64[np.ndarray, "n"]:
    """For each of n points in d dimensions, the index of the nearest of k means; of several, the first.

    As with ``np.argmin``, a NaN is nearer than any number, and there has to be at least one mean. The
    example of "Compiling NumPy code into C++ or CUDA via torch.compile"
    (https://pytorch.org/blog/compiling-numpy-code/).
    """
    return np.argmin(np.linalg.norm(X - means[:, None], axis=2), axis=0)


# Exactly as NumPy: were the compiler free to fuse a multiplication and an addition, last bits would differ.
kmeans_assign.cpp("kmeans.cpp", dtypes=FLOATS, options=["-ffp-contract=off", "-fno-math-errno"])


@kmeans_assign.numpy(name="numpy_compiled", dtypes=FLOATS)
def _(X, means):
    return np.argmin(np.linalg.norm(X - means[:, None], axis=2), axis=0)


@kmeans_assign.register_flops
def flops(X, means):
    """For each pair: d differences, d squares, d - 1 sums, a root and a comparison."""
    (n, d), k = X.shape, len(means)
    return n * k * (3 * d + 1)


kmeans_assign.bench_sizes(n=(10_000, 1_000_000), d=(2,), k=(8,))
