"""Sizes of elements and of their errors, element by element."""

from __future__ import annotations

import functools

import torch

__all__ = ["are_finite", "around", "comparable", "count_far", "distance", "overflows_beside", "typical", "ulp"]

# The bits of the exponent of a float64.
_EXPONENT = 0x7FF0_0000_0000_0000


def are_finite(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor.isfinite()``, which torch does not have for floats of a byte."""
    return comparable(tensor).isfinite()


def comparable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or floats of a byte as float32, because torch compares those only with themselves."""
    is_byte = tensor.dtype.is_floating_point and tensor.dtype.itemsize == 1
    return tensor.float() if is_byte else tensor


def count_far(errors: torch.Tensor, allowed: torch.Tensor) -> int:
    return int(((errors > 4 * allowed) | ~errors.isfinite()).sum())


def distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The absolute difference of two tensors in float64; 0 for integers, which are compared exactly."""
    if not (b.is_floating_point() or b.is_complex()):
        return torch.zeros(b.shape, dtype=torch.float64)
    wide = torch.complex128 if b.is_complex() else torch.float64  # torch does not subtract floats of a byte
    return (a.to(wide) - b.to(wide)).abs()


def overflows_beside(exact: torch.Tensor, got: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Where a result is infinite and the exact one beside the largest number of a dtype with the exponents of float32
    or float64: a step before the last may overflow, as of exp(x) / 2. In float64, it may be the reference's."""
    largest = torch.finfo(dtype).max
    if largest < 1e30:
        return torch.zeros(exact.shape, dtype=torch.bool)
    a, b = exact.abs(), got.to(exact.dtype).abs()
    beside = (a > largest / 4) & b.isinf()
    return beside | (a.isinf() & (b > largest / 4)) if dtype.itemsize >= exact.dtype.itemsize else beside


def typical(values: torch.Tensor) -> torch.Tensor:
    """The size of the elements around each one: the least mean magnitude along an axis, so that a column of small ones
    beside a column of large ones keeps its own. Along a single axis, the median, which few large ones do not change."""
    size = values.abs().double()
    axes = [axis for axis, length in enumerate(size.shape) if length > 1]
    known = torch.where(torch.isfinite(size), size, torch.nan)
    if not known.numel() or not axes:
        return torch.zeros_like(size)
    if len(axes) == 1:
        return known.nanmedian().nan_to_num(0.0).expand(size.shape)
    least = torch.full_like(size, torch.inf)
    for axis in axes:
        least = torch.minimum(least, known.nanmean(axis, keepdim=True).nan_to_num(0.0))
    return least


def around(errors: torch.Tensor) -> torch.Tensor:
    """The largest error around each element: of the largest ones along each axis, the least."""
    axes = [axis for axis, length in enumerate(errors.shape) if length > 1]
    return functools.reduce(torch.minimum, (errors.amax(axis, keepdim=True) for axis in axes), errors.amax())


def ulp(magnitude: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The distance of neighbouring numbers of a dtype at some magnitudes, which are in float64.

    Below the smallest normal number of a dtype with the exponents of float32 or float64, results may be flushed to
    zero, as GPUs do in approximate functions.
    """
    limits = torch.finfo(dtype)
    flushes = limits.tiny < 1e-30
    power = (magnitude.view(torch.int64) & _EXPONENT).view(torch.float64)  # the next lower power of two
    return power.mul_(limits.eps).clamp_min_(limits.tiny if flushes else limits.tiny * limits.eps)


def terms_of_group_norm(x: torch.Tensor, weight: torch.Tensor | None, scale: torch.Tensor) -> torch.Tensor:
    """The size of the two terms of a group norm, x · a and b − mean · a, as torch computes it: they are rounded, and
    may cancel, as in groups of one element.

    Args:
        scale: of each group, 1 / its standard deviation.
    """
    size = (x.abs().reshape(*scale.shape, -1) * scale.unsqueeze(-1)).reshape(x.shape)
    return size if weight is None else size * weight.abs().reshape(-1, *[1] * (x.dim() - 2))
