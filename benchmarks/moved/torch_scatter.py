"""In place of ``torch_scatter/__init__.py``, which loads the libraries that ``setup.py`` builds: the gathers, whose
operators take one dim of batches, one of rows and one of what each row has."""

from __future__ import annotations

import math

import torch_scatter_kernels as kernels
from torch import Tensor

__all__ = ["gather_coo", "gather_csr"]


def _gathered(gather, gather_out, src: Tensor, index: Tensor, places: int, number: int, out: Tensor | None) -> Tensor:
    axis = index.dim() - 1
    before, after = src.shape[:axis], src.shape[axis + 1 :]
    if src.numel() == 0:
        return src.new_zeros(*before, 0, *after) if out is None else out
    index = index.expand(*before, places).reshape(-1, places)
    flat = src.reshape(index.shape[0], src.shape[axis], math.prod(after))
    if out is None:
        return gather(flat, index).reshape(*before, number, *after)
    gather_out(flat, index, out.view(index.shape[0], number, math.prod(after)))
    return out


def gather_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor:
    number = int(indptr.flatten()[-1]) if indptr.numel() else 0
    return _gathered(kernels.gather_csr, kernels.gather_csr_out, src, indptr, indptr.shape[-1], number, out)


def gather_coo(src: Tensor, index: Tensor, out: Tensor | None = None) -> Tensor:
    number = index.shape[-1]
    return _gathered(kernels.gather_coo, kernels.gather_coo_out, src, index, number, number, out)
