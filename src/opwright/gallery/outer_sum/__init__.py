"""A sum of outer products: NumPy that would fill memory, compiled without the temporary, with a gradient."""

import numpy as np
import torch
from jaxtyping import Float

import opwright as ow

__all__ = ["outer_sum"]

FLOATS = (torch.float32, torch.float64)


@ow.op("gallery::outer_sum")
def outer_sum(X: Float[np.ndarray, "n i"], Y: Float[np.ndarray, "n j"]) -> Float[np.ndarray, "i j"]:
    """``sum over n of outer(X[n], Y[n])``, written as one would in NumPy: through an array of n × i × j.

    The second example of "Compiling NumPy code into C++ or CUDA via torch.compile"
    (https://pytorch.org/blog/compiling-numpy-code/).
    """
    return np.sum(X[:, :, None] * Y[:, None, :], axis=0)


@outer_sum.python(dtypes=FLOATS, devices=("cpu", "cuda"))
def matmul(X, Y):
    """The same as a product of matrices."""
    return X.T @ Y


@outer_sum.numpy(name="numpy_compiled", dtypes=FLOATS)
def _(X, Y):
    return np.sum(X[:, :, None] * Y[:, None, :], axis=0)


@outer_sum.register_flops
def flops(X, Y):
    """A multiplication and an addition for each of n × i × j terms."""
    return 2 * X.shape[0] * X.shape[1] * Y.shape[1]


outer_sum.sizes(n=(10_000, 1_000_000), i=(8,), j=(8,))
