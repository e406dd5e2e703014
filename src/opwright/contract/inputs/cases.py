"""The cases of a contract: sizes, dtypes and layouts, boundaries first.

A case is a short text that stands for one call's arguments, such as ``n=5 k=3 dtype=float32
layout=sliced``; the same text always gives the same values, so a failure can be repeated from it.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import torch

from opwright import tree
from opwright.contract.contract import Contract
from opwright.contract.dtypes import short
from opwright.contract.inputs.arguments import env_of, shape_of
from opwright.contract.inputs.case import MOST_LISTS, Case, Size
from opwright.contract.inputs.samples import sample_arguments, sample_cases
from opwright.contract.shapes.dims import NamedDim, VariadicDim
from opwright.contract.shapes.relations import nearest
from opwright.contract.signature import Kind
from opwright.errors import CheckError

__all__ = [
    "LAYOUTS", "admissible", "base_case", "cases", "dtypes_to_check", "elements", "in_step", "parse_case", "smaller",
]  # fmt: skip

LAYOUTS = ("contiguous", "transposed", "sliced", "offset", "expanded")
_QUICK = (0, 1, 2, 3, 7, 8, 9, 31, 32, 33, 127, 128, 129, 1023, 1024, 1025)
_FULL = (0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257,
         511, 512, 513, 1023, 1024, 1025, 2047, 2048, 2049, 4095, 4097, 65537)  # fmt: skip
# Different sizes for the dims that are not varied, so that swapped dims are found.
_BASE = (5, 7, 3, 6, 4, 11, 13)
# All dims larger than a tile at once: a bug in the corner tile needs two long dims.
_TILED = ((67, 71, 73, 79), (35, 37, 39, 41), (17, 19, 18, 21))
_TILED_ELEMENTS = 1 << 17
# The maximum number of elements in one argument of a case of ``op.sizes``.
_TYPICAL_ELEMENTS = 1 << 16
# The maximum number of elements in one argument of a derived case.
_MOST_ELEMENTS = {"smoke": 1 << 18, "quick": 1 << 18, "full": 1 << 22}
_CHECKED = (
    torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.bool,
    torch.complex64, torch.uint8, torch.int16, torch.int8, torch.complex128,
)  # fmt: skip


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
    if "sample" in values:
        return _parse_sample(contract, values, text)
    case = base_case(contract)
    given = [n for n, _ in case.sizes if n in values]
    sizes = tuple((n, _parse_size(values.pop(n), s, text) if n in values else s) for n, s in case.sizes)
    classes = [name for name, _ in case.dtypes]
    if "dtype" in values and len(classes) == 1:
        values[classes[0]] = values.pop("dtype")
    dtypes = tuple((n, _parse_dtype(values.pop(n), text) if n in values else d) for n, d in case.dtypes)
    layout, absent = values.pop("layout", "contiguous"), values.pop("optional", "") == "absent"
    lists = int(_parse_size(values.pop("lists", str(MOST_LISTS)), MOST_LISTS, text))  # type: ignore[arg-type]
    if values or layout not in _layouts(contract):
        known = [*(n for n, _ in case.sizes), "dtype" if len(classes) == 1 else " ".join(classes), "layout", "optional"]
        wrong = next(iter(values), layout)
        raise CheckError(
            f"the case {text!r} has {wrong!r}, which {contract.qualname} does not know",
            fix=f"it knows {', '.join(known)}; layouts are {', '.join(_layouts(contract))}",
        )
    _refuse_other_dtypes(contract, dtypes, text)
    fitted = admissible(contract, Case(sizes, dtypes, layout, absent, lists=lists), keep=given)
    if fitted is None:
        raise CheckError(
            f"no sizes of the case {text!r} satisfy {' and '.join(map(str, contract.where))}", fix="choose other sizes"
        )
    return fitted


def _parse_sample(contract: Contract, values: dict[str, str], text: str) -> Case:
    """A sample has its own sizes; those that are given must be the same."""
    number, layout = values.pop("sample"), values.pop("layout", "contiguous")
    known = sample_cases(contract)
    if not number.isdigit() or int(number) >= len(known) or layout not in _layouts(contract):
        raise CheckError(f"the case {text!r} is of no sample", fix=f"{contract.qualname} has {len(known)}, from 0")
    found = dataclasses.replace(known[int(number)], layout=layout)
    other = [f"{name}={value}" for name, value in values.items() if f"{name}={value}" not in str(found).split()]
    if other:
        raise CheckError(f"the case {text!r} has {other[0]}, but the sample is {found}", fix="leave it out")
    return found


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
    base = dataclasses.replace(base_case(contract), dtypes=combinations[0])
    if level == "smoke":
        return [c for case in _smoke(contract, base) if (c := admissible(contract, case)) is not None]
    boundaries = _QUICK if level == "quick" else _FULL
    varied = [(name, size) for name, _ in base.sizes for size in _sizes_of(name, base, boundaries)]
    found = [c for name, size in varied if (c := _varied(contract, base, name, size)) is not None]
    longer = (_varied(contract, base, name, _like(size, new)) for name, size in base.sizes for new in (128, 129))
    tiled = (admissible(contract, case) for case in _tiled(contract, base))
    large = [c for c in (*longer, *tiled) if c is not None] or [base]
    layouts = _layouts(contract)
    for layout in layouts[1:]:
        found += [dataclasses.replace(c, layout=layout) for c in (base, *large)]
    found += large
    if any(a.optional for a in contract.signature.arguments):
        found.append(dataclasses.replace(base, absent=True))
    for dtypes in combinations[1:]:
        empty = (_varied(contract, base, name, _like(size, 0)) for name, size in base.sizes)
        few = [base, *large, *(c for c in empty if c is not None)]
        if level == "full":
            few = list(found)
        few.append(dataclasses.replace(base, layout="sliced"))
        found += [dataclasses.replace(c, dtypes=dtypes) for c in few]
    if _has_lists(contract):
        found += [dataclasses.replace(base, lists=count) for count in (0, 1, 2, 5)]
    found += _typical(contract, base)
    found.append(base)
    small_enough = [c for c in dict.fromkeys(found) if elements(contract, c) <= _MOST_ELEMENTS[level]]
    derived = sorted(
        small_enough, key=lambda c: (combinations.index(c.dtypes), layouts.index(c.layout), elements(contract, c))
    )
    return [*derived, *_samples(contract, allowed)]


def _typical(contract: Contract, base: Case) -> list[Case]:
    """The sizes of ``op.sizes`` that are not too large for a check."""
    found = (admissible(contract, case) for case in in_step(base, contract.own_inputs.sizes))
    return [c for c in found if c is not None and elements(contract, c) <= _TYPICAL_ELEMENTS]


def _samples(contract: Contract, allowed: Sequence[torch.dtype] | None) -> list[Case]:
    """The author's samples in the dtypes of a kernel, as they are and with gaps between elements."""
    found = [c for c in sample_cases(contract) if allowed is None or c.dtype in allowed]
    return [*found, *(dataclasses.replace(c, layout="sliced") for c in found)]


def in_step(base: Case, sizes: Mapping[str, Sequence[int]]) -> list[Case]:
    """A case for each position of some lists of sizes by dim; a shorter list repeats its last."""
    found = []
    for i in range(max((len(listed) for listed in sizes.values()), default=0)):
        case = base
        for name, listed in sizes.items():
            size = listed[min(i, len(listed) - 1)]
            case = case.with_size(name, (size,) if isinstance(dict(base.sizes)[name], tuple) else size)
        found.append(case)
    return found


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
    if case.sample is not None:
        return max((t.numel() for t in tree.tensors(list(sample_arguments(contract, case.sample)))), default=0)
    try:
        shapes = [shape_of(a.tensor, env_of(contract, case)) for a in contract.signature.arguments if a.tensor]
    except CheckError:
        return 0
    return max((math.prod(s) for s in shapes), default=0)


def smaller(contract: Contract, case: Case) -> Iterator[Case]:
    """Simpler neighbours of a case, for shrinking a failure: plain layout first, then smaller sizes."""
    if case.layout != "contiguous":
        yield dataclasses.replace(case, layout="contiguous")
    if _has_lists(contract):
        yield from (dataclasses.replace(case, lists=count) for count in range(case.lists))
    if case.sample is not None:
        return  # its sizes are the author's
    for name, size in case.sizes:
        if isinstance(size, tuple):
            yield from (case.with_size(name, size[:i] + size[i + 1 :]) for i in range(len(size)))
            for i, part in enumerate(size):
                yield from (case.with_size(name, (*size[:i], s, *size[i + 1 :])) for s in _below(part))
        else:
            fitted = (admissible(contract, case.with_size(name, s), keep=[name]) for s in _below(size))
            yield from (c for c in fitted if c is not None and elements(contract, c) <= elements(contract, case))


def _has_lists(contract: Contract) -> bool:
    return any(a.kind is Kind.TENSOR_LIST for a in contract.signature.arguments)


def _below(size: int) -> list[int]:
    return sorted({s for s in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, size // 4, size // 2, size - 1) if 0 <= s < size})


def base_case(contract: Contract) -> Case:
    sizes: dict[str, Size] = {}
    for tensor in (a.tensor for a in contract.signature.arguments if a.tensor):
        for dim in tensor.dims:
            if isinstance(dim, VariadicDim):
                sizes.setdefault(dim.name or "...", (3, 5))
            elif isinstance(dim, NamedDim):
                sizes.setdefault(dim.name, _BASE[len(sizes) % len(_BASE)])
    dtypes = dtypes_to_check(contract, None)
    case = Case(tuple(sizes.items()), dtypes[0] if dtypes else ())
    return admissible(contract, case) or case


def _varied(contract: Contract, base: Case, name: str, size: Size) -> Case | None:
    """The base with another size of one dim, and of others if the contract's conditions need that, or if the case would
    be too large."""
    found = None
    for most in (None, 2, 1):
        case = base if most is None else _at_most(base, most)
        case = case.with_size(name, size)
        found = admissible(contract, case, keep=[name]) or admissible(contract, case)
        if found is None or elements(contract, found) <= _MOST_ELEMENTS["quick"]:
            break
    return found


def _at_most(case: Case, most: int) -> Case:
    sizes = (
        tuple(min(s, most) for s in size) if isinstance(size, tuple) else min(size, most) for _, size in case.sizes
    )
    return dataclasses.replace(case, sizes=tuple(zip((name for name, _ in case.sizes), sizes, strict=True)))


def admissible(contract: Contract, case: Case, keep: Collection[str] = ()) -> Case | None:
    """The case with the nearest sizes that satisfy the contract's conditions, except that those of ``keep`` stay; None
    if there are none."""
    if not contract.where:
        return case
    # Of an int argument, some value must satisfy them; which one, is drawn with the arguments.
    wanted = {a.name: 2 for a in contract.signature.arguments if a.scalar_type is int}
    wanted |= {name: size for name, size in case.sizes if isinstance(size, int)}
    found = nearest(contract.where, wanted, keep)
    if found is None:
        return None
    return dataclasses.replace(case, sizes=tuple((name, found.get(name, size)) for name, size in case.sizes))


def _sizes_of(name: str, base: Case, boundaries: Iterable[int]) -> list[Size]:
    if isinstance(dict(base.sizes)[name], tuple):
        return [(), *((b,) for b in boundaries), (3, 5), (2, 3, 4), (0, 3), (3, 33)]
    return list(boundaries)


def _like(size: Size, new: int) -> Size:
    return (3, new) if isinstance(size, tuple) else new
