"""Test inputs derived from the contract: sizes, dtypes and layouts, boundaries first.

A case is a short text that stands for one call's arguments, such as ``n=5 k=3 dtype=float32
layout=sliced``; the same text always gives the same values, so a failure can be repeated from it.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from opwright.contract.contract import Contract
from opwright.contract.dims import AnyDim, Dim, ExprDim, FixedDim, NamedDim, VariadicDim, evaluate
from opwright.contract.dtypes import short
from opwright.contract.signature import Argument, Kind, TensorType
from opwright.contract.values import Values, draw, draw_range
from opwright.errors import CheckError

__all__ = ["LAYOUTS", "Case", "always_its_default", "arguments_of", "cases", "dtypes_to_check", "parse_case"]

LAYOUTS = ("contiguous", "transposed", "sliced", "offset", "expanded")
_QUICK = (0, 1, 2, 3, 7, 8, 9, 31, 32, 33, 127, 128, 129, 1023, 1024, 1025)
_FULL = (0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257,
         511, 512, 513, 1023, 1024, 1025, 2047, 2048, 2049, 4095, 4097, 65537)  # fmt: skip
# Different sizes for the dims that are not varied, so that swapped dims are found.
_BASE = (5, 7, 3, 6, 4, 11, 13)
# All dims larger than a tile at once: a bug in the corner tile needs two long dims.
_TILED = ((67, 71, 73, 79), (35, 37, 39, 41), (17, 19, 18, 21))
_TILED_ELEMENTS = 1 << 17
# The maximum number of elements in one argument of a derived case.
_MOST_ELEMENTS = {"smoke": 1 << 18, "quick": 1 << 18, "full": 1 << 22}
_CHECKED = (
    torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.bool,
    torch.complex64, torch.uint8, torch.int16, torch.int8, torch.complex128,
)  # fmt: skip

Size = int | tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """One call's inputs. ``sizes`` gives each dim (a tuple for ``*name``), ``dtypes`` each dtype class."""

    sizes: tuple[tuple[str, Size], ...]
    dtypes: tuple[tuple[str, torch.dtype], ...]
    layout: str = "contiguous"
    absent: bool = False

    def __str__(self) -> str:
        parts = [f"{name}={_show_size(size)}" for name, size in self.sizes]
        if len(self.dtypes) == 1:
            parts.append(f"dtype={short(self.dtypes[0][1])}")
        else:
            parts += [f"{name}={short(dtype)}" for name, dtype in self.dtypes]
        parts.append(f"layout={self.layout}")
        return " ".join(parts + ["optional=absent"] * self.absent)

    @property
    def dtype(self) -> torch.dtype | None:
        """The floating dtype if there is one, else the first."""
        found = [d for _, d in self.dtypes]
        return next((d for d in found if d.is_floating_point or d.is_complex), found[0] if found else None)

    def with_size(self, name: str, size: Size) -> Case:
        """The same case with another size of one dim."""
        return dataclasses.replace(self, sizes=tuple((n, size if n == name else s) for n, s in self.sizes))


def parse_case(contract: Contract, text: str) -> Case:
    """The reverse of ``str(case)``; missing parts are filled in from the contract. Raises CheckError."""
    values: dict[str, str] = {}
    for part in text.replace(",", " ").split():
        name, equals, value = part.partition("=")
        if not equals:
            raise CheckError(
                f"{part!r} in the case {text!r} is not name=value", fix='write it like "n=5 dtype=float32"'
            )
        values[name] = value
    case = _base_case(contract)
    sizes = tuple((n, _parse_size(values.pop(n), s, text) if n in values else s) for n, s in case.sizes)
    classes = [name for name, _ in case.dtypes]
    if "dtype" in values and len(classes) == 1:
        values[classes[0]] = values.pop("dtype")
    dtypes = tuple((n, _parse_dtype(values.pop(n), text) if n in values else d) for n, d in case.dtypes)
    layout, absent = values.pop("layout", "contiguous"), values.pop("optional", "") == "absent"
    if values or layout not in _layouts(contract):
        known = [*(n for n, _ in case.sizes), "dtype" if len(classes) == 1 else " ".join(classes), "layout", "optional"]
        wrong = next(iter(values), layout)
        raise CheckError(
            f"the case {text!r} has {wrong!r}, which {contract.qualname} does not know",
            fix=f"it knows {', '.join(known)}; layouts are {', '.join(_layouts(contract))}",
        )
    _refuse_other_dtypes(contract, dtypes, text)
    return Case(sizes, dtypes, layout, absent)


def _parse_size(text: str, like: Size, case: str) -> Size:
    try:
        if isinstance(like, tuple):
            return () if text == "-" else tuple(int(part) for part in text.split("x"))
        return int(text)
    except ValueError:
        raise CheckError(
            f"{text!r} in the case {case!r} is not a size", fix='use 5, or 2x3 for "*n" ("-": none)'
        ) from None


def _parse_dtype(text: str, case: str) -> torch.dtype:
    dtype = getattr(torch, text, None)
    if not isinstance(dtype, torch.dtype):
        raise CheckError(f"{text!r} in the case {case!r} is not a dtype", fix="use one such as float32")
    return dtype


def _refuse_other_dtypes(contract: Contract, dtypes: Iterable[tuple[str, torch.dtype]], text: str) -> None:
    admitted = {a.tensor.dtype_class: a.tensor.dtypes for a in contract.signature.arguments if a.tensor}
    for name, dtype in dtypes:
        if dtype not in admitted[name]:
            raise CheckError(
                f"the case {text!r} has {short(dtype)}, but {contract.qualname} takes {name}",
                fix=f"use one of {', '.join(map(short, admitted[name]))}",
            )


def _layouts(contract: Contract) -> tuple[str, ...]:
    """The layouts that a contract's cases can have, beyond LAYOUTS.

    ``sliced:x`` slices only the argument ``x``, which finds a kernel that uses one argument's strides for
    another; ``broadcast`` gives every axis that may broadcast (``#n``) the size 1.
    """
    tensors = [a for a in contract.signature.arguments if a.tensor is not None]
    alone = [f"sliced:{a.name}" for a in tensors] if len(tensors) > 1 else []
    broadcasts = any(isinstance(d, NamedDim) and d.broadcast for a in tensors if a.tensor for d in a.tensor.dims)
    return (*LAYOUTS, *alone, *["broadcast"] * broadcasts)


def _show_size(size: Size) -> str:
    return ("x".join(map(str, size)) or "-") if isinstance(size, tuple) else str(size)


# -- which cases ------------------------------------------------------------------------------------


def dtypes_to_check(
    contract: Contract, allowed: Sequence[torch.dtype] | None
) -> list[tuple[tuple[str, torch.dtype], ...]]:
    """The combinations of dtypes that checks use, most common first.

    ``allowed`` restricts floating dtypes (all, if the contract has no floating argument): a kernel's ``dtypes``.
    """
    classes: dict[str, list[torch.dtype]] = {}
    for tensor in (a.tensor for a in contract.signature.arguments if a.tensor):
        known = [d for d in _CHECKED if d in tensor.dtypes]
        if len(tensor.dtypes) > 1:
            classes.setdefault(tensor.dtype_class, known)
    has_float = any(d.is_floating_point or d.is_complex for known in classes.values() for d in known)
    for name, known in classes.items():
        floating = [d for d in known if d.is_floating_point or d.is_complex]
        if allowed is not None and (floating or not has_float):
            classes[name] = [d for d in known if d in allowed]
    names = list(classes)
    return [tuple(zip(names, chosen, strict=True)) for chosen in itertools.product(*classes.values())]


def cases(contract: Contract, level: str, allowed: Sequence[torch.dtype] | None = None) -> list[Case]:
    """The derived cases, smallest first within a dtype and layout.

    Args:
        level: ``smoke`` (a few sizes in one dtype), ``quick`` or ``full`` (more sizes, every layout in every dtype).
        allowed: the kernel's dtypes, or None for all of the contract's.
    """
    combinations = dtypes_to_check(contract, allowed)
    if not combinations:
        return []
    base = dataclasses.replace(_base_case(contract), dtypes=combinations[0])
    if level == "smoke":
        return _smoke(contract, base)
    boundaries = _QUICK if level == "quick" else _FULL
    found = [base.with_size(name, size) for name, _ in base.sizes for size in _sizes_of(name, base, boundaries)]
    large = [base.with_size(name, _like(size, new)) for name, size in base.sizes for new in (128, 129)] or [base]
    large += _tiled(contract, base)
    layouts = _layouts(contract)
    for layout in layouts[1:]:
        found += [dataclasses.replace(c, layout=layout) for c in (base, *large)]
    found += large
    if any(a.optional for a in contract.signature.arguments):
        found.append(dataclasses.replace(base, absent=True))
    for dtypes in combinations[1:]:
        few = [base, *large, *(base.with_size(name, _like(size, 0)) for name, size in base.sizes)]
        if level == "full":
            few = list(found)
        few.append(dataclasses.replace(base, layout="sliced"))
        found += [dataclasses.replace(c, dtypes=dtypes) for c in few]
    found.append(base)
    small_enough = [c for c in dict.fromkeys(found) if elements(contract, c) <= _MOST_ELEMENTS[level]]
    return sorted(
        small_enough, key=lambda c: (combinations.index(c.dtypes), layouts.index(c.layout), elements(contract, c))
    )


def _smoke(contract: Contract, base: Case) -> list[Case]:
    """Small sizes, contiguous and strided, and sizes past a tile: a first test, not a complete check."""
    past_a_tile = _tiled(contract, base) or [base.with_size(name, _like(size, 129)) for name, size in base.sizes]
    return [base, *past_a_tile[:1], *[dataclasses.replace(base, layout="sliced")] * bool(base.sizes)]


def _tiled(contract: Contract, base: Case) -> list[Case]:
    """The largest case of moderate size in which every dim is past a tile; none for a single dim."""
    if not base.sizes or (len(base.sizes) == 1 and not isinstance(base.sizes[0][1], tuple)):
        return []
    for each in _TILED:
        sizes = [
            (name, (each[:2] if len(base.sizes) == 1 else (2, new)) if isinstance(size, tuple) else new)
            for (name, size), new in zip(base.sizes, itertools.cycle(each), strict=False)
        ]
        case = dataclasses.replace(base, sizes=tuple(sizes))
        if elements(contract, case) <= _TILED_ELEMENTS:
            return [case]
    return []


def elements(contract: Contract, case: Case) -> int:
    """The number of elements in the largest tensor of a case (0 if its sizes contradict each other)."""
    try:
        shapes = [_shape(a.tensor, _env(contract, case)) for a in contract.signature.arguments if a.tensor]
    except CheckError:
        return 0
    return max((math.prod(s) for s in shapes), default=0)


def smaller(contract: Contract, case: Case) -> Iterator[Case]:
    """Simpler neighbours of a case, for shrinking a failure: plain layout first, then smaller sizes."""
    if case.layout != "contiguous":
        yield dataclasses.replace(case, layout="contiguous")
    for name, size in case.sizes:
        if isinstance(size, tuple):
            yield from (case.with_size(name, size[:i] + size[i + 1 :]) for i in range(len(size)))
            for i, part in enumerate(size):
                yield from (case.with_size(name, (*size[:i], s, *size[i + 1 :])) for s in _below(part))
        else:
            yield from (case.with_size(name, s) for s in _below(size))


def _below(size: int) -> list[int]:
    return sorted({s for s in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, size // 4, size // 2, size - 1) if 0 <= s < size})


def _base_case(contract: Contract) -> Case:
    sizes: dict[str, Size] = {}
    for tensor in (a.tensor for a in contract.signature.arguments if a.tensor):
        for dim in tensor.dims:
            if isinstance(dim, VariadicDim):
                sizes.setdefault(dim.name or "...", (3, 5))
            elif isinstance(dim, NamedDim):
                sizes.setdefault(dim.name, _BASE[len(sizes) % len(_BASE)])
    dtypes = dtypes_to_check(contract, None)
    return Case(tuple(sizes.items()), dtypes[0] if dtypes else ())


def _sizes_of(name: str, base: Case, boundaries: Iterable[int]) -> list[Size]:
    if isinstance(dict(base.sizes)[name], tuple):
        return [(), *((b,) for b in boundaries), (3, 5), (2, 3, 4), (0, 3), (3, 33)]
    return list(boundaries)


def _like(size: Size, new: int) -> Size:
    return (3, new) if isinstance(size, tuple) else new


# -- from a case to arguments -----------------------------------------------------------------------------


def arguments_of(contract: Contract, case: Case, device: str) -> tuple[Any, ...]:
    """The arguments of a case, in signature order, on a device.

    Values are drawn on the CPU, so that a case has the same values on every device. Memory around sliced and
    offset tensors is poisoned (NaN, or the largest integer), so that a kernel that reads it gives wrong results.

    Raises:
        CheckError: the case's sizes contradict the contract.
    """
    generator = torch.Generator().manual_seed(zlib.crc32(str(case).encode()))
    env = _env(contract, case)
    return tuple(_argument(a, case, env, generator, device) for a in contract.signature.arguments)


def _argument(argument: Argument, case: Case, env: dict[str, Any], generator: torch.Generator, device: str) -> Any:
    if argument.optional and case.absent:
        return None
    if argument.kind is Kind.SCALAR:
        return env[argument.name] if argument.schema_type is int else _scalar(argument, env, generator)
    assert argument.tensor is not None  # every non-scalar argument has one
    count = 3 if argument.kind is Kind.TENSOR_LIST else 1
    dtype = dict(case.dtypes).get(argument.tensor.dtype_class, argument.tensor.dtypes[0])
    shape = _shape(argument.tensor, env, broadcast=case.layout == "broadcast")
    kind, _, only = case.layout.partition(":")
    arranged = argument.values is not None and argument.values.arrangement
    if kind == "expanded" and (argument.mutated or arranged):
        kind = ""  # elements that share an address cannot be written, and are neither unique nor offsets
    tensors = [
        arrange(
            draw(shape, dtype, argument.values, env, generator), kind if only in ("", argument.name) else "", device
        )
        for _ in range(count)
    ]
    return tensors if argument.kind is Kind.TENSOR_LIST else tensors[0]


def _env(contract: Contract, case: Case) -> dict[str, Any]:
    """Sizes by name, with a value for each int argument (which dims may depend on)."""
    env: dict[str, Any] = dict(case.sizes)
    generator = torch.Generator().manual_seed(zlib.crc32(repr(case.sizes).encode()))
    for argument in contract.signature.arguments:
        if argument.schema_type is int:
            env[argument.name] = _scalar(argument, env, generator)
    return env


def _shape(tensor: TensorType, env: dict[str, Any], *, broadcast: bool = False) -> tuple[int, ...]:
    shape: list[int] = []
    for dim in tensor.dims:
        shape += (1,) if broadcast and isinstance(dim, NamedDim) and dim.broadcast else _extent(dim, env)
    if any(size < 0 for size in shape):
        raise CheckError(f"these sizes give {tensor} the shape {shape}", fix="choose larger ones")
    return tuple(shape)


def _extent(dim: Dim, env: dict[str, Any]) -> tuple[int, ...]:
    match dim:
        case VariadicDim(name=name):
            return tuple(env[name or "..."])
        case NamedDim(name=name):
            return (env[name],)
        case FixedDim(size=size):
            return (size,)
        case ExprDim(text=text):
            return (int(evaluate(text, env)),)
        case AnyDim():
            return (3,)


def _scalar(argument: Argument, env: Mapping[str, Any], generator: torch.Generator) -> Any:
    def pick(options: Sequence[Any]) -> Any:
        return options[int(torch.randint(len(options), (), generator=generator))]

    drawn, plain = (argument.values or Values()).at(env), argument.scalar_type
    if drawn.one_of:
        return pick(drawn.one_of)
    if plain is bool:
        return pick((False, True))
    if plain is float and argument.values is None and _is_number(argument.default) and pick((False, True)):
        return argument.default
    if plain is float:
        low, high = draw_range(drawn, *_around(argument))
        number = low + (high - low) * float(torch.rand((), generator=generator))
        return float(f"{number:.4g}")
    if always_its_default(argument):
        return argument.default if argument.has_default else None
    if plain is int:
        low, high = draw_range(drawn, 1, 3)
        if low > high:
            raise CheckError(f"no value of {argument.name!r} is from {low} to {high}", fix="choose other sizes")
        return int(torch.randint(int(low), int(high) + 1, (), generator=generator))
    raise CheckError(
        f"there are no test values for the argument {argument.name!r}",
        fix=f"annotate it with test values: {argument.name}: Annotated[..., ow.values(one_of=(...))]",
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _around(argument: Argument) -> tuple[float, float]:
    """The range of a float for which none is stated: of a small positive default, such as an epsilon, its own size."""
    if argument.values is None and _is_number(argument.default) and 0 < argument.default < 0.01:
        return argument.default / 2, argument.default * 2
    return -2.0, 2.0


def always_its_default(argument: Argument) -> bool:
    """Whether cases use only the default (or None) of a scalar, because no other values are stated."""
    stated = argument.values is not None or argument.scalar_type in (bool, float)
    return not argument.is_tensor and not stated and (argument.has_default or argument.optional)


def arrange(values: torch.Tensor, layout: str, device: str) -> torch.Tensor:
    """The same values in another memory layout, on a device; contiguous if the rank does not allow the layout."""
    if layout == "transposed" and values.dim() >= 2:
        return values.to(device).mT.contiguous().mT
    if layout == "expanded" and any(size > 1 for size in values.shape):
        axis = next(i for i, size in enumerate(values.shape) if size > 1)
        return values.to(device).narrow(axis, 0, 1).clone().expand(values.shape)
    if layout in ("sliced", "transposed") and values.dim() >= 1:
        memory = _poisoned((*values.shape[:-1], 2 * values.shape[-1]), values.dtype, device)
        view = memory[..., ::2]
        return view.copy_(values)
    if layout == "offset":
        memory = _poisoned((values.numel() + 2,), values.dtype, device)
        view = memory[1 : 1 + values.numel()].view(values.shape)
        return view.copy_(values)
    return values.to(device, copy=True)


def _poisoned(shape: Sequence[int], dtype: torch.dtype, device: str) -> torch.Tensor:
    if dtype.is_floating_point or dtype.is_complex:
        return torch.full(shape, math.nan, dtype=dtype, device=device)
    largest = True if dtype is torch.bool else torch.iinfo(dtype).max
    return torch.full(shape, largest, dtype=dtype, device=device)
