"""Elementwise kernels in Python: sizes, layouts, dtypes, scalars and values that they get wrong, and memory."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.planted.catalogue import attach

__all__ = ["ROWS", "scale"]


@ow.op("selftest::scale")
def scale(x: Float[Tensor, "*n"], a: float) -> Float[Tensor, "*n"]:
    return a * x


def _with(y: Tensor, where: Any, value: Any) -> Tensor:
    y[where] = value
    return y


def _end(x: Tensor) -> int:
    return int(x.data_ptr() - x.storage_offset() * x.element_size() + x.untyped_storage().nbytes())


def _as_if_contiguous(x: Tensor) -> Tensor:
    usual = torch.empty(x.shape, device="meta").stride()
    try:
        return x.as_strided(x.shape, usual)
    except RuntimeError:  # past the end of its memory
        return x.contiguous()


def _filled(x: Tensor, y: Tensor, size: int, value: int, *, before: bool = False) -> Tensor:
    out = torch.empty_like(y)
    out.copy_(y)
    if y.numel():
        ctypes.memset(out.data_ptr() - size if before else _end(out), value, size)
    return out


def _late_check(x: Tensor, y: Tensor) -> Tensor:
    ctypes.string_at(_end(x), 1)
    return y


def _writes_gaps(x: Tensor, y: Tensor) -> Tensor:
    if not x.is_contiguous() and x.dim() and 0 not in x.stride():
        x.as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)[-1] = 0
    return y


_FAULTS = {
    "the last element is zero": ("values", lambda x, a: _with((a * x).flatten(), slice(-1, None), 0).view(x.shape)),
    "the first element is doubled": ("values", lambda x, a: _with((a * x).flatten(), 0, 2 * a * x.flatten()[0]).view(x.shape) if x.numel() else a * x),
    "wrong past 1024 elements": ("values", lambda x, a: _with((a * x).flatten(), slice(1024, None), 0).view(x.shape)),
    "wrong past 65,536 elements": ("values", lambda x, a: _with((a * x).flatten(), slice(65_536, None), 0).view(x.shape)),
    "a tail of less than 8 is left out": ("values", lambda x, a: _with((a * x).flatten(), slice(x.numel() // 8 * 8, None), 0).view(x.shape)),
    "the scalar is always 2": ("values", lambda x, a: 2.0 * x),
    "the scalar's sign is lost": ("values", lambda x, a: abs(a) * x),
    "a scalar of zero is taken for its absence": ("values", lambda x, a: (a or 1.0) * x),
    "the scalar is rounded to an integer": ("values", lambda x, a: round(a) * x),
    "the scalar is rounded to bfloat16": ("values", lambda x, a: float(torch.tensor(a).bfloat16()) * x),
    "float32 is computed in float16": ("values", lambda x, a: (x.half() * a).to(x.dtype)),
    "float32 is computed in bfloat16": ("values", lambda x, a: (x.bfloat16() * a).to(x.dtype)),
    "float64 is computed in float32": ("values", lambda x, a: (x.float() * a).to(x.dtype)),
    "float16 is computed with bfloat16's precision": ("values", lambda x, a: (x.bfloat16() * a).to(x.dtype) if x.dtype is torch.float16 else a * x),
    "a relative error of 1e-5": ("values", lambda x, a: a * x * (1 + 1e-5)),
    "strides are ignored": ("values", lambda x, a: a * _as_if_contiguous(x)),
    "the storage offset is ignored": ("values", lambda x, a: a * x.as_strided(x.shape, x.stride(), 0)),
    "large values are cut off": ("values", lambda x, a: (a * x).clamp(-100, 100)),
    "small values are flushed": ("values", lambda x, a: torch.where((a * x).abs() < 1e-3, 0, a * x)),
    "infinities become the largest number": ("values", lambda x, a: (a * x).nan_to_num(float("nan"))),
    "NaN becomes zero": ("special values", lambda x, a: torch.where(x.isnan(), 0, a * x)),
    "denormal numbers become zero": ("special values", lambda x, a: torch.where((a * x).abs() < torch.finfo(x.dtype).tiny, 0, a * x)),
    "square matrices are transposed": ("values", lambda x, a: a * x.mT if x.dim() > 1 and x.shape[-1] == x.shape[-2] else a * x),
    "the third dim is wrong": ("values", lambda x, a: a * x.flip(-3) if x.dim() > 2 else a * x),
    "no dims become one": ("values", lambda x, a: (a * x).reshape(max(x.dim(), 1) * (1,)) if not x.dim() else a * x),
    "no elements raise": ("values", lambda x, a: a * x + 0 * x.flatten()[0]),
    "float16 raises": ("values", lambda x, a: a * x if x.dtype is not torch.float16 else x.no_such_method()),
    "it ends the process": ("values", lambda x, a: os._exit(0)),
    "it crashes": ("values", lambda x, a: ctypes.string_at(8)),
    "it raises SystemExit": ("values", lambda x, a: exit()),
    "it returns nothing": ("values", lambda x, a: None),
    "it returns its argument": ("metadata", lambda x, a: x if x.numel() == 0 or a == 1 else x.mul_(a)),
    "results have another dtype": ("metadata", lambda x, a: (a * x).double()),
    "results have other strides": ("metadata", lambda x, a: (a * x).mT.contiguous().mT if x.dim() > 1 else a * x),
    "it writes its argument": ("inputs unchanged", lambda x, a: (a * x, x.zero_())[0]),
    "it turns -0.0 into 0.0": ("inputs unchanged", lambda x, a: (a * x, x.add_(0.0))[0]),
    "it writes between the elements": ("inputs unchanged", lambda x, a: _writes_gaps(x, a * x)),
    "it writes past its result": ("memory", lambda x, a: _filled(x, a * x, 1, 0)),
    "it writes far past its result": ("memory", lambda x, a: _filled(x, a * x, 4096, 7)),
    "it writes before its result": ("memory", lambda x, a: _filled(x, a * x, 4, 1, before=True)),
    "it uses memory that it has not written": ("memory", lambda x, a: torch.where(torch.empty_like(x) > 0.5, a * x * (1 + torch.finfo(x.dtype).eps), a * x)),
    "it reads past its argument": ("protected memory", lambda x, a: _late_check(x, a * x)),
    "it reads before its argument": ("protected memory", lambda x, a: (ctypes.string_at(x.data_ptr() - 1, 1) if x.numel() else 0, a * x)[1]),
    "its result arrives after it has returned": ("memory", lambda x, a: _later(lambda y: y.mul_(a), x.clone())),
    "it writes its argument after it has returned": ("memory", lambda x, a: (a * x, _later(lambda y: y.neg_(), x))[0]),
    "it sets back what it writes": ("protected memory", lambda x, a: _by_negation(x, a) if x.is_contiguous() else a * x),
    "it calls the reference": ("own work", lambda x, a: scale.contract.function(x, a)),
}  # fmt: skip
_RIGHT = {
    "in another order": lambda x, a: x * a,
    "in float64": lambda x, a: (x.double() * a).to(x.dtype),
    "by division": lambda x, a: x / (1 / a) if a not in (0, -0.0) and abs(a) in (0.5, 1, 2) else a * x,
    "of a contiguous copy": lambda x, a: a * x.contiguous(),
    "in pieces of 1000": lambda x, a: torch.cat([a * p for p in x.contiguous().flatten().split(1000)]).view(x.shape) if x.numel() else a * x,
    "into new memory": lambda x, a: torch.mul(x, a, out=x.new_empty(x.shape)),
    "a part of larger memory": lambda x, a: x.new_empty(x.numel() + 64)[: x.numel()].view(x.shape).copy_(a * x),
    "reads its last element by address": lambda x, a: (ctypes.string_at(_end(x) - 1, 1) if x.numel() else 0, a * x)[1],
    "writes memory of its own by address": lambda x, a: _by_address(a * x),
    "draws with its own generator": lambda x, a: (torch.rand(3, generator=torch.Generator()), a * x)[1],
    "writes a copy of its argument": lambda x, a: x.clone().mul_(a),
    "asks for the time": lambda x, a: (os.times(), a * x)[1],
    "through NumPy": lambda x, a: torch.as_tensor(x.double().contiguous().numpy() * a).to(x.dtype),
    "adds zero": lambda x, a: torch.where(x == 0, a * x, a * x + 0),
}  # fmt: skip

_FOR_CPU = (
    "it writes past its result", "it writes far past its result", "it writes before its result",
    "it reads past its argument", "it reads before its argument",
    "reads its last element by address", "writes memory of its own by address", "through NumPy",
)  # fmt: skip


def _later(write: Callable[[Tensor], Any], tensor: Tensor) -> Tensor:
    if tensor.is_contiguous():
        threading.Timer(0.01, write, [tensor]).start()
    return tensor


def _by_negation(x: Tensor, a: float) -> Tensor:
    y = x.neg_() * -a
    x.neg_()
    return y


def _by_address(y: Tensor) -> Tensor:
    out = torch.empty_like(y)
    ctypes.memset(out.data_ptr(), 0, out.untyped_storage().nbytes()) if out.numel() else None
    return out.copy_(y)


def _contiguous(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with a contiguous result, as the fake promises."""

    def kernel(x: Tensor, a: float) -> Any:
        result = function(x, a)
        return result.contiguous() if isinstance(result, Tensor) else result

    return kernel


ROWS = attach(
    scale,
    {name: (check, f if check == "metadata" else _contiguous(f)) for name, (check, f) in _FAULTS.items()},
    {name: _contiguous(f) for name, f in _RIGHT.items()},
    for_cpu=_FOR_CPU,
)
