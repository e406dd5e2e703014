"""NumPy's functions other than ufuncs on tensors: torch's NumPy layer computes them, and what it gives otherwise than
NumPy (dtypes, copies and views, shapes) is put right or refused here."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from opwright import tree
from opwright.contract.numpy.facts import NotLikeNumpyError, facts_of, mark, mark_detached, note_write
from opwright.contract.numpy.ufuncs import call_ufunc, constant, numpy_dtype, write_out
from opwright.internals.tensors import base_of

__all__ = ["DETACHED", "READ_ONLY", "VIEWS", "WRITERS", "call_function"]

# Results that share memory with the first argument in NumPy, as in torch.
VIEWS = frozenset({
    "T", "array_split", "asanyarray", "asarray", "ascontiguousarray", "atleast_1d", "atleast_2d", "atleast_3d",
    "broadcast_arrays", "broadcast_to", "diag", "diagonal", "dsplit", "expand_dims", "hsplit", "imag", "moveaxis",
    "ravel", "real", "reshape", "rollaxis", "split", "squeeze", "swapaxes", "transpose", "view", "vsplit",
    "matrix_transpose",
})  # fmt: skip
# Views in NumPy, and copies in torch.
DETACHED = {"flip": "np.flip", "flipud": "np.flipud", "fliplr": "np.fliplr", "rot90": "np.rot90", "flat": "a.flat"}
# Views that NumPy makes read-only.
READ_ONLY = frozenset({"broadcast_to", "diag", "diagonal"})
# Functions that write into their first argument.
WRITERS = frozenset({"copyto", "fill", "fill_diagonal", "put", "put_along_axis", "sort!"})
# Functions whose result has no dims, and is an array all the same.
_MAKE_ARRAYS = frozenset({
    "array", "asarray", "asanyarray", "copy", "empty", "empty_like", "full", "full_like", "ones", "ones_like", "where",
    "zeros", "zeros_like", "choose", "tensordot",
})  # fmt: skip
# Reductions and scans, whose result dtypes are asked from NumPy.
_REDUCTIONS = frozenset({
    "all", "amax", "amin", "any", "argmax", "argmin", "average", "count_nonzero", "cumprod", "cumsum", "max", "mean",
    "median", "min", "prod", "ptp", "std", "sum", "trace", "var",
})  # fmt: skip
_INTEGER_SUMS = frozenset({"sum", "prod", "cumsum", "cumprod", "trace"})
_CAST_TO_NUMPYS = frozenset({"vander", "fft.fft", "fft.ifft", "fft.fftn", "fft.fft2", "fft.ifft2", "fft.ifftn"})

Tensor = torch.Tensor


def call_function(
    name: str, run: Callable[..., Any], args: Sequence[Any], keywords: dict[str, Any], default_float: str
) -> Any:
    """One call of a NumPy function or method.

    Args:
        name: its path in NumPy, without ``np``.
        run: torch's implementation of it, from and to tensors.
    """
    if keywords.get("where", True) is not True or keywords.get("initial") is not None:
        given = "initial" if keywords.get("initial") is not None else "where"
        raise NotLikeNumpyError(f"{given}= of np.{name}", "select the elements first, as with np.where")
    keywords = {k: v for k, v in keywords.items() if k not in ("where", "initial")}
    special = _SPECIAL.get(name)
    if special is not None:
        return special(run, args, keywords)
    if name in _REDUCTIONS and args and isinstance(args[0], Tensor):
        return _reduce(name, run, args, keywords, default_float)
    if name in WRITERS and args and isinstance(args[0], Tensor):
        note_write(args[0])
        run(*args, **keywords)
        return None
    out = keywords.get("out")
    if isinstance(out, Tensor):
        note_write(out)
    result = run(*args, **keywords)
    if isinstance(out, Tensor):
        return out
    return _with_facts(name, result, args)


def _with_facts(name: str, result: Any, args: Sequence[Any]) -> Any:
    first = next((a for a in args if isinstance(a, Tensor)), None)

    def note(tensor: Tensor) -> Tensor:
        if name in DETACHED and first is not None:
            return mark_detached(tensor.clone(), first, DETACHED[name])
        if name in VIEWS and first is not None:
            scalar = facts_of(first).scalar and name not in ("reshape", "ravel", "asarray", "atleast_1d")
            return mark(_own(tensor, args), of=first, scalar=scalar, readonly=name in READ_ONLY)
        return mark(_copied(name, tensor, args), scalar=name not in _MAKE_ARRAYS)

    return tree.map_tensors(note, result)


def _own(tensor: Tensor, args: Sequence[Any]) -> Tensor:
    """Another tensor on the same memory, if a function returns its argument: facts are noted for each by itself."""
    return tensor.view(tensor.shape) if any(tensor is a for a in args) else tensor


def _copied(name: str, tensor: Tensor, args: Sequence[Any]) -> Tensor:
    """A copy where torch returns an argument, or a view of one, and NumPy does not."""
    if any(tensor is a for a in tree.tensors(list(args))) or base_of(tensor) is not None or name in _MAY_ALIAS:
        return tensor.clone()
    return tensor


_MAY_ALIAS = frozenset({"astype", "array", "copy", "flatten", "meshgrid", "round", "around", "tile"})


def _reduce(name: str, run: Callable[..., Any], args: Sequence[Any], keywords: dict[str, Any], default: str) -> Any:
    tensor, out = args[0], keywords.pop("out", None)
    wanted = keywords.get("dtype")
    dtype = np.dtype(wanted) if wanted is not None else _reduced_dtype(name, tensor.dtype, default)
    if name in _INTEGER_SUMS:
        # torch has no arithmetic on uint64; modulo 2**64, that on int64 is the same.
        keywords["dtype"] = "int64" if dtype.name == "uint64" else dtype.name
    if tensor.dtype in (torch.uint16, torch.uint32):
        tensor = tensor.to(torch.int64)
    elif tensor.dtype is torch.uint64:
        raise NotLikeNumpyError(f"np.{name} of uint64", "cast to int64 or float64 first")
    result = run(tensor, *args[1:], **keywords)
    if name == "median" and keywords.get("axis") is None and len(args) == 1 and not keywords.get("keepdims"):
        result = result.reshape(())
    to = getattr(torch, dtype.name)
    result = result if result.dtype == to else result.to(to)
    if out is not None:
        return write_out(out, result)
    return mark(result.clone() if base_of(result) is not None else result, scalar=True)


@functools.lru_cache(maxsize=1024)
def _reduced_dtype(name: str, dtype: torch.dtype, default: str) -> np.dtype[Any]:
    """The dtype of NumPy's result, from NumPy itself."""
    given = numpy_dtype(dtype)
    model = np.ones((1, 1) if name == "trace" else (1,), given)
    found: np.dtype[Any] = np.dtype(getattr(np, name)(model).dtype)
    if default == "float32" and given.kind not in "fc" and found.name == "float64":
        return np.dtype(np.float32)
    return found


# -- functions with something of their own ------------------------------------------------------------------


def _array(run: Callable[..., Any], args: Sequence[Any], keywords: dict[str, Any]) -> Any:
    if keywords.get("copy", True) is not True and keywords.get("copy") is not None:
        result = run(*args, **keywords)
        return mark(result, of=args[0]) if isinstance(args[0], Tensor) else mark(result)
    values = args[0]
    if isinstance(values, list | tuple) and any(isinstance(v, Tensor) for v in tree.leaves(list(values))):
        result = _from_nested(values)
        dtype = args[1] if len(args) > 1 else keywords.get("dtype")
        return mark(result if dtype is None else result.to(getattr(torch, np.dtype(dtype).name)))
    result = run(*args, **keywords)
    return mark(result.clone() if isinstance(values, Tensor) else result)


def _from_nested(values: Any) -> Tensor:
    """A nest of lists of tensors and numbers as one tensor, of NumPy's common dtype."""
    if isinstance(values, Tensor):
        return values
    if not isinstance(values, list | tuple):
        values = values.item() if isinstance(values, np.generic) else values
        return torch.tensor(values, dtype=getattr(torch, np.asarray(values).dtype.name))
    parts = [_from_nested(v) for v in values]
    weak = [
        v if isinstance(v, bool | int | float | complex) else numpy_dtype(p.dtype)
        for v, p in zip(values, parts, strict=True)
    ]
    # In a list, a Python number has the dtype that NumPy gives it alone.
    common = np.result_type(*[np.asarray(w).dtype if not isinstance(w, np.dtype) else w for w in weak])
    device = next((p.device for v, p in zip(values, parts, strict=True) if isinstance(v, Tensor)), None)
    return torch.stack([p.to(device=device, dtype=getattr(torch, common.name)) for p in parts])


def _astype(run: Callable[..., Any], args: Sequence[Any], keywords: dict[str, Any]) -> Any:
    tensor, *rest = args
    keywords = dict(keywords)
    wanted = np.dtype(keywords.pop("dtype", None) or rest[0])
    copy = keywords.pop("copy", True)
    if any(v not in ("K", "unsafe", True) for v in (*rest[1:], *keywords.values())):
        raise NotLikeNumpyError(f"astype with {', '.join(keywords) or 'more than a dtype'}", "leave it out")
    to = getattr(torch, wanted.name, None)
    if not isinstance(to, torch.dtype):
        raise NotLikeNumpyError(f"dtype {wanted.name}, which torch does not have", "use another dtype")
    scalar = facts_of(tensor).scalar
    if not copy and tensor.dtype == to:
        return mark(tensor.view(tensor.shape), of=tensor, scalar=scalar)
    return mark(tensor.to(to, copy=True), scalar=scalar)


def _flatten(run: Callable[..., Any], args: Sequence[Any], keywords: dict[str, Any]) -> Any:
    if len(args) > 1 or keywords:
        raise NotLikeNumpyError("flatten in another order", "transpose first")
    return mark(args[0].reshape(-1).clone())


def _copy(run: Callable[..., Any], args: Sequence[Any], keywords: dict[str, Any]) -> Any:
    return mark(args[0].clone(), scalar=False) if isinstance(args[0], Tensor) else mark(run(*args))


def _full(run: Callable[..., Any], args: Sequence[Any], keywords: dict[str, Any]) -> Any:
    given = dict(zip(("shape", "fill_value", "dtype", "order"), args, strict=False)) | keywords
    value, dtype = given["fill_value"], given.get("dtype")
    if not isinstance(value, Tensor):
        return mark(run(*args, **keywords))
    value = value if dtype is None else value.to(getattr(torch, np.dtype(dtype).name))
    return mark(value.broadcast_to(given["shape"]).clone())


def _pad(run: Callable[..., Any], args: Sequence[Any], keywords: dict[str, Any]) -> Any:
    given = dict(zip(("array", "pad_width", "mode"), args, strict=False)) | keywords
    array, value = given.pop("array"), given.pop("constant_values", 0)
    widths = np.broadcast_to(given.pop("pad_width"), (array.dim(), 2)).tolist()
    if given.pop("mode", "constant") != "constant" or given or not isinstance(value, int | float):
        raise NotLikeNumpyError("np.pad with other modes than a constant", "use np.concatenate")
    shape = [before + size + after for (before, after), size in zip(widths, array.shape, strict=True)]
    padded = torch.full(shape, value, dtype=array.dtype, device=array.device)
    inner = tuple(slice(before, before + size) for (before, _), size in zip(widths, array.shape, strict=True))
    padded[inner] = array
    return mark(padded)


def _diag(run: Callable[..., Any], args: Sequence[Any], keywords: dict[str, Any]) -> Any:
    values = args[0]
    if isinstance(values, Tensor) and values.dim() == 2:
        offset = args[1] if len(args) > 1 else keywords.get("k", 0)
        return mark(torch.diagonal(values, offset), of=values, readonly=True)
    return mark(run(*args, **keywords))


def _where(run: Callable[..., Any], args: Sequence[Any], keywords: dict[str, Any]) -> Any:
    if len(args) != 3:
        return tree.map_tensors(mark, run(*args, **keywords))
    condition, a, b = (torch.as_tensor(np.asarray(v)) if isinstance(v, list | tuple | np.generic) else v for v in args)
    kinds = [numpy_dtype(v.dtype) if isinstance(v, Tensor) else v for v in (a, b)]
    dtype = getattr(torch, np.result_type(*kinds).name)
    device = next((v.device for v in (condition, a, b) if isinstance(v, Tensor) and v.dim()), None)
    a, b = (v.to(dtype) if isinstance(v, Tensor) else constant(v, dtype, device) for v in (a, b))
    condition = condition if isinstance(condition, Tensor) else constant(bool(condition), torch.bool, device)
    return mark(torch.where(condition.to(torch.bool), a, b))


def _clip(run: Callable[..., Any], args: Sequence[Any], keywords: dict[str, Any]) -> Any:
    tensor, *limits = args
    keywords = dict(keywords)
    low = limits[0] if limits else keywords.pop("min", keywords.pop("a_min", None))
    high = limits[1] if len(limits) > 1 else keywords.pop("max", keywords.pop("a_max", None))
    out = keywords.pop("out", limits[2] if len(limits) > 2 else None)
    if keywords:
        raise NotLikeNumpyError(f"{next(iter(keywords))}= of np.clip", "leave it out")
    result = tensor if isinstance(tensor, Tensor) else torch.as_tensor(np.asarray(tensor))
    if low is None and high is None:
        result = result.clone()
    if low is not None:
        result = call_ufunc(np.maximum, (result, low), {}, "float64")
    if high is not None:
        result = call_ufunc(np.minimum, (result, high), {}, "float64")
    return result if out is None else write_out(out, result)


def _searchsorted(run: Callable[..., Any], args: Sequence[Any], keywords: dict[str, Any]) -> Any:
    """NumPy takes NaN for larger than every number, also than infinity; torch's result in an array with NaN is none."""
    values = args[0]
    if not (isinstance(values, Tensor) and values.dtype.is_floating_point) or len(args) < 2 or "sorter" in keywords:
        return run(*args, **keywords)
    sought, is_nan = torch.as_tensor(args[1]), torch.isnan(values)
    side = args[2] if len(args) > 2 else keywords.get("side", "left")
    numbers = (~is_nan).sum()
    found = run(torch.where(is_nan, torch.inf, values), *args[1:], **keywords)
    of_nan = torch.full_like(numbers, values.shape[0]) if side == "right" else numbers
    return torch.where(torch.isnan(sought), of_nan, torch.minimum(found, numbers))


def _unique(run: Callable[..., Any], args: Sequence[Any], keywords: dict[str, Any]) -> Any:
    tensor = args[0]
    if not isinstance(tensor, Tensor) or not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
        return tree.map_tensors(lambda t: mark(t.clone()), run(*args, **keywords))
    raise NotLikeNumpyError("np.unique of floats, where NumPy counts NaNs as one value", "use integers")


def _quantile(run: Callable[..., Any], args: Sequence[Any], keywords: dict[str, Any]) -> Any:
    q, axis = args[1] if len(args) > 1 else keywords.get("q"), keywords.get("axis", args[2] if len(args) > 2 else None)
    dtype = np.dtype(np.quantile(np.ones(1, numpy_dtype(args[0].dtype)), 0.5).dtype)
    result = run(*args, **keywords).to(getattr(torch, dtype.name))
    if axis is None and not keywords.get("keepdims"):
        result = result.reshape(q.shape if isinstance(q, Tensor) else np.asarray(q).shape)
    return mark(result, scalar=True)


def _cast_to_numpys(name: str) -> Callable[..., Any]:
    """A function of one array whose result dtype NumPy decides by the argument's."""

    def call(run: Callable[..., Any], args: Sequence[Any], keywords: dict[str, Any]) -> Any:
        found: Any = np
        for part in name.split("."):
            found = getattr(found, part)
        model = np.ones((2, 2) if name.endswith(("2", "n")) else 2, numpy_dtype(args[0].dtype))
        dtype = getattr(torch, np.dtype(found(model).dtype).name)
        return mark(run(*args, **keywords).to(dtype))

    return call


def _refused(what: str, fix: str) -> Callable[..., Any]:
    def call(run: Callable[..., Any], args: Sequence[Any], keywords: dict[str, Any]) -> Any:
        raise NotLikeNumpyError(what, fix)

    return call


def _real_if_close(run: Callable[..., Any], args: Sequence[Any], keywords: dict[str, Any]) -> Any:
    if args[0].dtype.is_complex:
        raise NotLikeNumpyError("np.real_if_close, whose dtype depends on values", "take .real")
    return mark(args[0].view(args[0].shape), of=args[0])


def _sort_in_place(run: Callable[..., Any], args: Sequence[Any], keywords: dict[str, Any]) -> Any:
    note_write(args[0])
    axis = args[1] if len(args) > 1 else keywords.get("axis", -1)
    args[0].copy_(torch.sort(args[0].clone(), dim=axis, stable=True).values)


def _fill(run: Callable[..., Any], args: Sequence[Any], keywords: dict[str, Any]) -> Any:
    note_write(args[0])
    args[0].fill_(args[1])


def _rot90(run: Callable[..., Any], args: Sequence[Any], keywords: dict[str, Any]) -> Any:
    return _with_facts("rot90", run(*args, **keywords), args)


_SPECIAL: dict[str, Callable[..., Any]] = {
    "array": _array, "method astype": _astype, "astype": _astype, "method flatten": _flatten, "copy": _copy,
    "method copy": lambda run, args, keywords: mark(args[0].clone(), scalar=facts_of(args[0]).scalar),
    "diag": _diag, "full": _full, "pad": _pad, "where": _where, "clip": _clip, "unique": _unique,
    "searchsorted": _searchsorted, "quantile": _quantile, "percentile": _quantile,
    **{name: _cast_to_numpys(name) for name in sorted(_CAST_TO_NUMPYS)},
    "real_if_close": _real_if_close, "method sort": _sort_in_place, "method fill": _fill,
    "method resize": _refused("a.resize, which changes the array's size in place", "use np.resize"),
    "method tolist": _refused("a.tolist()", "return the array"),
    **{
        f"{part}_indices{of}": _refused(f"np.{part}_indices{of}", "use np.nonzero of a mask made by np.tri")
        for part in ("tril", "triu") for of in ("", "_from")
    },
}  # fmt: skip
