"""``a[index]`` and ``a[index] = value`` on tensors, as in NumPy: scalars are copies, steps may be negative."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch

from opwright.contract.numpy.facts import NotLikeNumpyError, facts_of, is_scalar, mark, mark_detached, note_write

__all__ = ["get_item", "is_basic", "refuse_float_number", "set_item"]

# Where NumPy stores a float number as Python's ``int`` of it, which raises an error for infinities, NaN and what does
# not fit; to others it casts.
_BY_PYTHONS_INT = (torch.int8, torch.int16, torch.int32, torch.int64)


def get_item(layer: Any, tensor: torch.Tensor, index: Any) -> torch.Tensor:
    """``tensor[index]``. ``layer`` is torch's array type, which implements NumPy's combined indexing."""
    plain, flips = _without_negative_steps(index, tensor)
    source = tensor.flip(flips) if flips else tensor
    source, plain, is_computed = _with_computed_selected(source, plain)
    out = layer(source)[_as_layer(plain, layer)].tensor
    entries = plain if isinstance(plain, tuple) else (plain,)
    if out.dim() == 0 and not any(e is None or e is Ellipsis for e in entries):
        return mark(out.clone(), scalar=True)
    if not is_basic(entries):
        return mark(out)
    if flips:
        return mark_detached(out, tensor, "a slice with a negative step")
    if is_computed:
        return mark_detached(out.clone(), tensor, "a row at an index that is computed")
    return mark(out, of=tensor)


def set_item(layer: Any, tensor: torch.Tensor, index: Any, value: Any) -> None:
    """``tensor[index] = value``, with NumPy's order of reads before writes."""
    note_write(tensor)
    plain, flips = _without_negative_steps(index, tensor)
    if isinstance(value, list | tuple):
        value = layer_array(layer, value)
    if isinstance(value, np.generic | np.ndarray):
        value = torch.as_tensor(value, device=tensor.device)
    if isinstance(value, torch.Tensor):
        if value.dtype.is_complex and not tensor.dtype.is_complex and value.dim() == 0:
            raise TypeError("float() argument must be a string or a real number, not 'complex'")
        if is_basic(plain if isinstance(plain, tuple) else (plain,)):
            refuse_float_number(tensor, value)
        if facts_of(value).memory is facts_of(tensor).memory:
            value = value.clone()
    elif type(value) is int or isinstance(value, torch.SymInt):
        check_python_int(value, tensor.dtype)
    if flips:
        target, reversed_dims = _forward_view(tensor, index)
        if isinstance(value, torch.Tensor):
            value = _leading_dims_dropped(value, target.dim()).broadcast_to(target.shape).flip(reversed_dims)
        _copy_into(target, value)
        return
    entries = plain if isinstance(plain, tuple) else (plain,)
    computed = [e for e in entries if _is_computed(e)]
    if is_basic(entries) and len(computed) == 1:
        _write_at(tensor, entries, value)
    elif is_basic(entries) and not computed:
        _copy_into(tensor[plain], value)
    else:
        layer(tensor)[_as_layer(plain, layer)] = layer(value) if isinstance(value, torch.Tensor) else value


def refuse_float_number(tensor: torch.Tensor, value: Any) -> None:
    """Refuse to store a float number, which an operation has made, in an array of integers."""
    if tensor.dtype in _BY_PYTHONS_INT and is_scalar(value) and value.dtype.is_floating_point:
        raise NotLikeNumpyError(
            "a float is stored in an array of integers, for which NumPy raises an error if it does not fit",
            "store value.astype(np.int64)",
        )


def _copy_into(target: torch.Tensor, value: Any) -> None:
    if not isinstance(value, torch.Tensor):
        target.fill_(value)
        return
    target.copy_(_leading_dims_dropped(value, target.dim()))


def _is_computed(entry: Any) -> bool:
    """Whether this is an integer that is a value of an array, such as ``np.argmax(a)``."""
    return isinstance(entry, torch.Tensor) and entry.dim() == 0 and entry.dtype is not torch.bool


def _counted_from_0(index: torch.Tensor, size: Any) -> torch.Tensor:
    return torch.where(index < 0, index + size, index).to(torch.int64).reshape(1)


def _with_computed_selected(tensor: torch.Tensor, index: Any) -> tuple[torch.Tensor, Any, bool]:
    """The tensor with the elements at computed integers selected, and the index with 0 in place of these."""
    entries = index if isinstance(index, tuple) else (index,)
    if not any(map(_is_computed, entries)):
        return tensor, index, False
    taken = sum(_consumes(e) for e in entries if e is not Ellipsis)
    dim, plain = 0, []
    for entry in entries:
        if _is_computed(entry):
            tensor = tensor.index_select(dim, _counted_from_0(entry, tensor.shape[dim]))
        plain.append(0 if _is_computed(entry) else entry)
        dim += tensor.dim() - taken if entry is Ellipsis else _consumes(entry)
    return tensor, tuple(plain), True


def _write_at(tensor: torch.Tensor, entries: Any, value: Any) -> None:
    """Write where one entry of a basic index is a computed integer."""
    place = next(i for i, e in enumerate(entries) if _is_computed(e))
    view = tensor[tuple(slice(None) if i == place else e for i, e in enumerate(entries))]
    taken = sum(_consumes(e) for e in entries if e is not Ellipsis)
    spans = [tensor.dim() - taken if e is Ellipsis else isinstance(e, slice) or e is None for e in entries[:place]]
    dim = int(sum(spans))
    at = _counted_from_0(entries[place], view.shape[dim])
    if isinstance(value, torch.Tensor):
        shape = [size for i, size in enumerate(view.shape) if i != dim]
        value = _leading_dims_dropped(value, len(shape)).to(tensor.dtype).broadcast_to(shape).unsqueeze(dim)
        view.index_copy_(dim, at, value.contiguous())
    else:
        view.index_fill_(dim, at, value)


def _leading_dims_dropped(value: torch.Tensor, dims: int) -> torch.Tensor:
    """NumPy ignores leading dims of size 1 that a value has more than what it is written to."""
    while value.dim() > dims and value.shape[0] == 1:
        value = value[0]
    return value


def layer_array(layer: Any, value: Any) -> torch.Tensor:
    """A nested list as a tensor; it may hold tensors."""
    flat = [v for v in value if isinstance(v, torch.Tensor)]
    if flat and len(flat) == len(value):
        return torch.stack(flat)
    if flat:
        like = flat[0]
        return torch.stack([torch.as_tensor(v, dtype=like.dtype, device=like.device) for v in value])
    # From the list itself: a mode that places new arrays on a device sees those made from lists.
    return torch.as_tensor(list(value), dtype=getattr(torch, np.asarray(value).dtype.name))


def check_python_int(value: int | torch.SymInt, dtype: torch.dtype) -> None:
    """Raise NumPy's OverflowError for a Python integer that a dtype cannot hold. What is compiled for one that
    torch.compile keeps open holds for those within the dtype's range."""
    if dtype.is_floating_point or dtype.is_complex or dtype is torch.bool:
        return
    limits = torch.iinfo(dtype)
    if not limits.min <= value <= limits.max:
        raise OverflowError(f"Python integer {value} out of bounds for {str(dtype).removeprefix('torch.')}")


def is_basic(entries: Any) -> bool:
    """Whether NumPy returns a view for this index: integers, slices, None and ``...`` only."""
    return all(
        e is None
        or e is Ellipsis
        or isinstance(e, slice | torch.SymInt | np.integer)
        or (isinstance(e, int) and not isinstance(e, bool))
        or (isinstance(e, torch.Tensor) and e.dim() == 0 and e.dtype is not torch.bool and is_scalar(e))
        for e in entries
    )


def _consumes(entry: Any) -> int:
    """How many dims of the array an entry of an index stands for."""
    if entry is None or isinstance(entry, bool):
        return 0
    if isinstance(entry, torch.Tensor) and entry.dtype is torch.bool:
        return int(entry.dim())
    if isinstance(entry, list | np.ndarray) and np.asarray(entry).dtype == bool:
        return int(np.asarray(entry).ndim)
    return 1


def _without_negative_steps(index: Any, tensor: torch.Tensor) -> tuple[Any, list[int]]:
    """The index with positive steps, and the dims of the tensor that must be reversed before it is used.

    ``a[8:2:-2]`` is ``a.flip(0)[from:to:2]``, counted from the other end.
    """
    entries = index if isinstance(index, tuple) else (index,)
    if not any(isinstance(e, slice) and _is_negative(e.step) for e in entries):
        return index, []
    taken = sum(_consumes(e) for e in entries if e is not Ellipsis)
    dim, flips, plain = 0, [], []
    for entry in entries:
        if isinstance(entry, slice) and _is_negative(entry.step):
            plain.append(_mirrored(entry, tensor.shape[dim]))
            flips.append(dim)
        else:
            plain.append(entry)
        dim += tensor.dim() - taken if entry is Ellipsis else _consumes(entry)
    return (tuple(plain) if isinstance(index, tuple) else plain[0]), flips


def _is_negative(step: Any) -> bool:
    return step is not None and not isinstance(step, torch.Tensor) and operator.index(step) < 0


def _mirrored(entry: slice, size: Any) -> slice:
    """The same elements counted from the end of a dim, with a positive step."""
    if entry.start is None and entry.stop is None:
        return slice(None, None, -entry.step)
    start, stop, step = entry.indices(int(size))
    return slice(int(size) - 1 - start, int(size) - 1 - stop, -step)


def _forward_view(tensor: torch.Tensor, index: Any) -> tuple[torch.Tensor, list[int]]:
    """The elements of a basic index with negative steps as a view in the other order, and which dims are reversed."""
    entries = index if isinstance(index, tuple) else (index,)
    if not is_basic(entries) or any(isinstance(e, torch.Tensor) for e in entries):
        raise NotLikeNumpyError(
            "a write through a slice with a negative step and an array of indices at once",
            "use a positive step, and reverse the value",
        )
    taken = sum(_consumes(e) for e in entries if e is not Ellipsis)
    dim, of_result, forward, reversed_dims = 0, 0, [], []
    for entry in entries:
        if isinstance(entry, slice) and _is_negative(entry.step):
            run = range(*entry.indices(int(tensor.shape[dim])))
            forward.append(slice(run[-1], run[0] + 1, -run.step) if run else slice(0, 0))
            reversed_dims.append(of_result)
        else:
            forward.append(entry)
        spans = tensor.dim() - taken if entry is Ellipsis else _consumes(entry)
        dim += spans
        of_result += spans if isinstance(entry, slice) or entry is Ellipsis else entry is None
    return tensor[tuple(forward)], reversed_dims


def _as_layer(index: Any, layer: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(_as_layer(e, layer) for e in index)
    return layer(index) if isinstance(index, torch.Tensor) else int(index) if isinstance(index, np.integer) else index
