"""Memory layouts of test inputs: the same values, arranged in another way."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from opwright.contract.contract import Contract
from opwright.contract.shapes.dims import Dim, NamedDim, VariadicDim
from opwright.contract.signature import Argument

__all__ = [
    "BROADCAST",
    "FAR",
    "FARS",
    "FAR_INNER",
    "FAR_STRIDES",
    "LAYOUTS",
    "SHARED",
    "arrange",
    "far_axis",
    "layouts_of",
    "strided_like",
]

LAYOUTS = ("contiguous", "transposed", "sliced", "padded", "permuted", "offset", "expanded", "repeated")
# Those in which elements share an address.
SHARED = ("expanded", "repeated")
# Axes that may broadcast have size 1.
BROADCAST = "broadcast"
# Rows lie so far apart that a 32-bit offset overflows: of two, the stride itself does; of three, only its product with
# the number of a row. Only what is used of the memory is real.
FAR = "far"
# The same of an inner axis: of a matrix the columns, else the last axis but one, as the steps of a scan.
FAR_INNER = "far_inner"
FARS = (FAR, FAR_INNER)
FAR_STRIDES = {2: 2**31 + 64, 3: 2**30 + 64}
# Elements before the first one, by the place of the argument: aligned for vectors of some sizes, and not of others.
_OFFSETS = (1, 2, 4, 3, 8, 5)


def layouts_of(contract: Contract) -> tuple[str, ...]:
    """The layouts that a contract's cases can have.

    ``sliced:x``, ``transposed:x`` and so on arrange only the argument ``x``, which finds a kernel that uses one
    argument's strides or alignment for another, or takes two dense tensors for alike; ``broadcast`` gives every axis
    that may broadcast (``#n``) the size 1, ``broadcast:x`` those of one argument, ``broadcast:#n`` those of one dim.
    """
    tensors = [a for a in contract.signature.arguments if a.tensor is not None]
    several = len(tensors) > 1
    alone = [f"{layout}:{a.name}" for layout in ("sliced", "offset", "expanded") for a in tensors if several]
    alone += [
        f"{layout}:{a.name}" for layout in ("transposed", "repeated") for a in tensors if several and _has_rows(a)
    ]
    far = any(a.tensor is not None and len(a.tensor.dims) > 1 for a in tensors)
    flat = all(len(a.tensor.dims) < 3 and not _is_variadic(a.tensor.dims) for a in tensors if a.tensor)
    usual = [layout for layout in LAYOUTS if layout != "permuted" or not flat]  # of a matrix, it is "transposed"
    if not any(map(_has_rows, tensors)):
        usual.remove("repeated")  # of a vector, it is "expanded"
    return (*usual, *FARS[: 2 * far], *alone, *_broadcast(tensors))


def _broadcast(tensors: Sequence[Argument]) -> list[str]:
    """All axes that may broadcast, those of each argument, and those of each dim."""
    found = {
        a.name: [d.name for d in a.tensor.dims if isinstance(d, NamedDim) and d.broadcast] for a in tensors if a.tensor
    }
    names = [name for name, dims in found.items() if dims]
    dims = list(dict.fromkeys(f"#{dim}" for of_one in found.values() for dim in of_one))
    of_each = [f"{BROADCAST}:{part}" for parts in (names, dims) if len(parts) > 1 for part in parts]
    return [BROADCAST] * bool(dims) + of_each


def _has_rows(argument: Argument) -> bool:
    """Whether it may have more than one axis."""
    assert argument.tensor is not None  # only tensors have a layout
    return len(argument.tensor.dims) > 1 or _is_variadic(argument.tensor.dims)


def _is_variadic(dims: Sequence[Dim]) -> bool:
    return any(isinstance(dim, VariadicDim) for dim in dims)


def arrange(values: torch.Tensor, layout: str, device: str, place: int = 0) -> torch.Tensor:
    """The same values in another memory layout, on a device; contiguous if the rank does not allow the layout.

    Memory between and around the elements is poisoned (NaN, or the largest integer), so that a kernel that reads it
    gives wrong results.

    Args:
        place: the number of the argument, by which offsets and steps differ.

    Raises:
        RuntimeError: there is not enough memory.
    """
    rank = values.dim()
    if layout == "transposed" and rank >= 2:
        return values.to(device).mT.contiguous().mT
    if layout == "permuted" and rank >= 2:  # channels_last, or all axes reversed
        order = (0, *range(2, rank), 1) if rank > 3 else tuple(reversed(range(rank)))
        return values.to(device).permute(order).contiguous().permute([order.index(i) for i in range(rank)])
    if layout == "expanded" and any(size > 1 for size in values.shape):
        axis = next(i for i, size in enumerate(values.shape) if size > 1)
        return values.to(device).narrow(axis, 0, 1).clone().expand(values.shape)
    if layout == "repeated" and rank >= 2 and values.shape[-1] > 1:  # one number for each row
        return values.to(device)[..., :1].clone().expand(values.shape)
    if layout in ("sliced", "transposed", "permuted") and rank >= 1:
        step = 2 + place % 2
        memory = _poisoned((*values.shape[:-1], step * values.shape[-1]), values.dtype, device)
        return memory[..., ::step].copy_(values)
    if layout == "padded" and rank >= 1:  # rows of a wider matrix
        memory = _poisoned((*values.shape[:-1], values.shape[-1] + 3 + place), values.dtype, device)
        return memory[..., : values.shape[-1]].copy_(values)
    if layout in ("offset", "padded"):
        before = _OFFSETS[place % len(_OFFSETS)]
        memory = _poisoned((before + values.numel() + 1,), values.dtype, device)
        return memory[before : before + values.numel()].view(values.shape).copy_(values)
    if layout in FARS and rank >= 2 and values.numel():
        axis = far_axis(layout, rank)
        size = values.shape[axis]
        if size in FAR_STRIDES:
            _refuse_without_memory(size * FAR_STRIDES[size] * values.element_size(), device)
            strides = [*values.select(axis, 0).contiguous().stride()]
            strides.insert(axis, FAR_STRIDES[size])
            with _memory_as_it_is():
                far = torch.empty_strided(values.shape, strides, dtype=values.dtype, device=device)
            return far.copy_(values)
    return values.to(device, copy=True)


def strided_like(values: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """The same values with certain strides. Along an axis of stride 0, they are those of its first element; contiguous,
    if elements would overlap otherwise."""
    shape = [1 if stride == 0 else size for size, stride in zip(values.shape, strides, strict=True)]
    once = values
    for axis, size in enumerate(shape):
        once = once.narrow(axis, 0, min(size, once.shape[axis]))
    memory = torch.empty_strided(shape, tuple(strides), dtype=values.dtype)
    try:
        return memory.copy_(once).expand(values.shape)
    except RuntimeError:  # more than one element refers to a place
        return values.contiguous()


def far_axis(layout: str, rank: int) -> int:
    """The axis whose elements lie far apart."""
    return 0 if layout == FAR else max(1, rank - 2)


def _refuse_without_memory(size: int, device: str) -> None:
    """Several such tensors and their copies are needed at a time, and on a GPU each takes all of its memory."""
    if torch.device(device).type == "cuda" and torch.cuda.mem_get_info()[0] < 8 * size:
        raise MemoryError(f"{size} bytes")


@contextlib.contextmanager
def _memory_as_it_is() -> Iterator[None]:
    """A block in which new memory is not filled: untouched pages of a large allocation take no memory on a CPU."""
    settings: Any = torch.utils.deterministic
    before = settings.fill_uninitialized_memory
    settings.fill_uninitialized_memory = False
    try:
        yield
    finally:
        settings.fill_uninitialized_memory = before


def _poisoned(shape: Sequence[int], dtype: torch.dtype, device: str) -> torch.Tensor:
    if dtype.is_floating_point or dtype.is_complex:
        return torch.full(shape, math.nan, dtype=dtype, device=device)
    largest = True if dtype is torch.bool else torch.iinfo(dtype).max
    return torch.full(shape, largest, dtype=dtype, device=device)
