"""Dims of the tensors of a group: which sizes are the same, which are fixed, and what indices are bounded by.

Names are guessed from the samples and verified by calling the function with other sizes.
"""

from __future__ import annotations

import itertools
import string
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

from tests.opinfo.functions import as_tensors
from tests.opinfo.structures import Group, Sample

__all__ = ["ELEMENTWISE", "Layout", "find_layout", "fixed_layout"]

# The dims of all tensors of an elementwise function.
ELEMENTWISE = "*n"
_SIZES = (
    (5, 7, 3, 6, 4, 11, 13, 9, 8, 10, 12),
    (8, 4, 9, 7, 10, 6, 5, 12, 14, 11, 3),
    (6, 9, 5, 8, 3, 4, 7, 15, 10, 11, 2),
)
_VARIADIC = ((3, 5), (7,), (), (2, 3, 4))
_MOST_TRIES = 120
Dims = tuple[str, ...]
# The dims of outputs, and whether they are a list.
Call = Callable[..., Any]
# Gives a tensor for a slot, of a shape, with a largest integer.
Draw = Callable[..., torch.Tensor]
Ran = tuple[tuple[tuple[str, ...], ...], bool]
# For each tensor, the upper end of its integers: a dim's expression or a number.
Bounds = tuple[str | int | None, ...]


@dataclass(frozen=True)
class Layout:
    """The dims of arguments and outputs.

    Attributes:
        dims: of each tensor argument.
        bounds: the largest value of an integer tensor whose dtype is not the sample's.
        outputs: the dims of each output.
        verified: whether the function ran with other sizes than those of samples.
    """

    dims: tuple[Dims, ...]
    bounds: Bounds
    outputs: tuple[Dims, ...]
    is_list: bool
    verified: bool

    @property
    def free(self) -> tuple[bool, ...]:
        """How free its sizes are: none fixed, and no scalar, is best."""
        names = [d for tensor in self.dims for d in tensor]
        named = {d for d in names if not d.isdigit()}
        tensors = all(map(bool, self.dims))
        return self.verified and tensors, len(named) == len({*names}) and tensors, tensors, len(named) > 0


def find_layout(group: Group, call: Call, draw: Draw, *, elementwise: bool) -> Layout:
    """The dims with the most free sizes that the function takes.

    Args:
        draw: ``draw(slot, shape, high)`` gives a tensor for a slot.
    """
    tries = 0
    for dims in _namings(group, elementwise=elementwise):
        for bounds in _bounds(group, dims):
            tries += 1
            found = _run_all(dims, bounds, call, draw)
            if found is not None:
                dims, (outputs, is_list) = _split(dims, bounds, found, call, draw)
                if not is_list:
                    outputs = _loosened(dims, bounds, outputs, call, draw)
                if not is_list and _depends_on_data(group.example, call):
                    outputs = _named_by_data(outputs, group.example, call)
                return Layout(dims, bounds, outputs, is_list, verified=True)
            if tries > _MOST_TRIES:
                break
    return fixed_layout(group.example, call)


def fixed_layout(example: Sample, call: Call) -> Layout:
    """The sizes of a sample, and no others."""
    dims = tuple(tuple(map(str, shape)) for shape in example.shapes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = call(*(t.clone() for t in example.tensors))
    outputs = tuple(("_",) * t.dim() for t in as_tensors(result))
    bounds = tuple(
        None if dtype is None or dtype.is_floating_point or dtype is torch.bool or not t.numel() else int(t.max())
        for t, dtype in zip(example.tensors, example.dtypes, strict=True)
    )
    in_order = tuple(b if b is None or b >= 0 else None for b in bounds)
    return Layout(dims, in_order, outputs, isinstance(result, list), verified=False)


def _loosened(
    dims: tuple[Dims, ...], bounds: Bounds, outputs: tuple[Dims, ...], call: Call, draw: Draw
) -> tuple[Dims, ...]:
    """Output dims that hold for sizes of 0 and 1, too: some functions drop such dims."""
    names = list(dict.fromkeys(d for tensor in dims for d in tensor if d.isalpha()))
    usual = dict(zip(names, _SIZES[0], strict=False))
    tried = [{**usual, name: size} for name in names for size in (0, 1)]
    for sizes in [*tried, dict.fromkeys(names, 0), dict.fromkeys(names, 1)]:
        ran = _run_with(sizes, dims, bounds, call, draw)
        if ran is not None and len(ran[0]) == len(outputs):
            outputs = tuple(_fitting(d, shape, sizes) for d, shape in zip(outputs, ran[0], strict=True))
    return outputs


def _fitting(dims: Dims, shape: tuple[int, ...], sizes: dict[str, int]) -> Dims:
    """The dims of an output as far as they are those of a shape."""
    if "..." in dims or ELEMENTWISE in dims or len(dims) != len(shape):
        return dims if ELEMENTWISE in dims else ("...",)
    return tuple(d if d == "_" or sizes.get(d, d) in (n, str(n)) else "_" for d, n in zip(dims, shape, strict=True))


def _depends_on_data(example: Sample, call: Call) -> bool:
    """Whether the sizes of outputs do, so that fake tensors have none."""
    with FakeTensorMode() as mode:
        try:
            call(*(mode.from_tensor(t) for t in example.tensors))
        except (DynamicOutputShapeException, DataDependentOutputException):
            return True
        except Exception:  # opwright reports what else goes wrong on fake tensors
            return False
    return False


def _named_by_data(outputs: tuple[Dims, ...], example: Sample, call: Call) -> tuple[Dims, ...]:
    """The dims of outputs in which sizes that depend on data have a name: those that differ for some values."""
    others = [map(like, example.tensors) for like in (torch.zeros_like, torch.ones_like, _counted)]
    ran = [as_tensors(call(*tensors)) for tensors in (example.tensors, *others)]

    def name(i: int, axis: int, dim: str) -> str:
        sizes = {tensors[i].shape[axis] for tensors in ran}
        return dim if dim != "_" else str(*sizes) if len(sizes) == 1 else f"kept{i}x{axis}"

    return tuple(tuple(name(i, axis, dim) for axis, dim in enumerate(dims)) for i, dims in enumerate(outputs))


def _counted(t: torch.Tensor) -> torch.Tensor:
    return torch.arange(t.numel()).view(t.shape).to(t.dtype)


def _split(dims: tuple[Dims, ...], bounds: Bounds, found: Ran, call: Call, draw: Draw) -> tuple[tuple[Dims, ...], Ran]:
    """Give one or two axes of a name a name of their own, as long as the function takes other sizes there."""
    for count in (1, 2, 3):
        places = [(i, axis) for i, tensor in enumerate(dims) for axis, d in enumerate(tensor) if d.isalpha()]
        for chosen in itertools.combinations(places, count):
            names = [d for tensor in dims for d in tensor]
            old = {dims[i][axis] for i, axis in chosen}
            if len(old) > 1 or names.count(*old) <= count:
                continue
            new = next(letter for letter in string.ascii_lowercase if letter not in names)
            other = _renamed(dims, chosen, new)
            again = _run_all(other, bounds, call, draw)
            if again is not None:
                dims, found = other, again
    return dims, found


def _renamed(dims: tuple[Dims, ...], places: Sequence[tuple[int, int]], new: str) -> tuple[Dims, ...]:
    return tuple(
        tuple(new if (i, axis) in places else d for axis, d in enumerate(tensor)) for i, tensor in enumerate(dims)
    )


def _namings(group: Group, *, elementwise: bool) -> Iterator[tuple[Dims, ...]]:
    if elementwise:
        yield ((ELEMENTWISE,),) * len(group.example.ranks)
        return
    for samples in (group.wider, group.samples):
        yield _named(samples, ())
    constant = _constant_sizes(group.samples)
    for count in range(1, len(constant) + 1):
        if count > 2 and count < len(constant):
            continue
        for fixed in itertools.combinations(constant, count):
            yield _named(group.samples, fixed)


def _vectors(samples: Sequence[Sample]) -> list[list[tuple[int, ...]]]:
    """For each tensor and axis, its sizes in all samples."""
    ranks = samples[0].ranks
    return [[tuple(s.shapes[i][axis] for s in samples) for axis in range(rank)] for i, rank in enumerate(ranks)]


def _constant_sizes(samples: Sequence[Sample]) -> list[tuple[int, ...]]:
    """The sizes that are the same in every sample, 1 first: an axis that broadcasts."""
    found = dict.fromkeys(v for tensor in _vectors(samples) for v in tensor if len(set(v)) == 1)
    return sorted(found)


def _named(samples: Sequence[Sample], fixed: Sequence[tuple[int, ...]]) -> tuple[Dims, ...]:
    names: dict[tuple[int, ...], str] = {}
    letters = iter(string.ascii_lowercase)

    def name(sizes: tuple[int, ...]) -> str:
        if sizes in fixed:
            return str(sizes[0])
        if sizes not in names:
            names[sizes] = next(letters)
        return names[sizes]

    return tuple(tuple(map(name, tensor)) for tensor in _vectors(samples))


def _bounds(group: Group, dims: tuple[Dims, ...]) -> Iterator[Bounds]:
    """Upper ends of integer tensors: an index of each dim, or the largest value of the samples."""
    choices: list[list[str | int | None]] = []
    for i, dtype in enumerate(group.example.dtypes):
        if dtype is None or dtype.is_floating_point or dtype.is_complex or dtype is torch.bool:
            choices.append([None])
            continue
        others = [d for j, tensor in enumerate(dims) for d in tensor if group.example.dtypes[j] is None]
        largest = max((int(s.tensors[i].max()) for s in group.samples if s.tensors[i].numel()), default=0)
        indices = [f"{d}-1" for d in dict.fromkeys(others) if d.isalpha()]
        choices.append([*indices, max(largest, 0)])
    yield from itertools.islice(itertools.product(*choices), 40)


def _run_all(dims: tuple[Dims, ...], bounds: Bounds, call: Call, draw: Draw) -> Ran | None:
    """The dims of outputs, and whether they are a list; None if the function refuses some sizes."""
    if dims[0] == (ELEMENTWISE,):
        return _run_elementwise(len(dims), bounds, call, draw)
    names = list(dict.fromkeys(d for tensor in dims for d in tensor if d.isalpha()))
    assignments = [dict(zip(names, sizes, strict=False)) for sizes in _SIZES]
    if len(names) > len(_SIZES[0]):
        return None
    ran = []
    for sizes in assignments:
        ran.append(_run_with(sizes, dims, bounds, call, draw))
        if ran[-1] is None:
            return None
    return _output_dims([r for r in ran if r], assignments)


def _run_with(
    sizes: dict[str, int], dims: tuple[Dims, ...], bounds: Bounds, call: Call, draw: Draw
) -> tuple[list[tuple[int, ...]], bool] | None:
    shapes = [tuple(sizes[d] if d.isalpha() else int(d) for d in tensor) for tensor in dims]
    highs = tuple(sizes[b[:-2]] - 1 if isinstance(b, str) else b for b in bounds)
    if any(high is not None and high < 0 and 0 not in shape for high, shape in zip(highs, shapes, strict=True)):
        return None  # there is no such index
    return _run(shapes, highs, call, draw)


def _run_elementwise(count: int, bounds: Bounds, call: Call, draw: Draw) -> Ran | None:
    ran = [r for shape in _VARIADIC if (r := _run([shape] * count, bounds, call, draw)) is not None]
    if len(ran) < len(_VARIADIC) or len({len(shapes) for shapes, _ in ran}) != 1:
        return None
    by_output = zip(*(shapes for shapes, _ in ran), strict=True)
    return tuple((ELEMENTWISE,) if shapes == _VARIADIC else ("...",) for shapes in by_output), ran[0][1]


def _run(
    shapes: Sequence[tuple[int, ...]], highs: Sequence[Any], call: Call, draw: Draw
) -> tuple[list[tuple[int, ...]], bool] | None:
    tensors = [draw(i, shape, high) for i, (shape, high) in enumerate(zip(shapes, highs, strict=True))]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = call(*tensors)
    except TypeError as error:
        if "it returns" in str(error):
            raise
        return None
    except Exception:  # the function refuses sizes by any exception
        return None
    return [tuple(t.shape) for t in as_tensors(result)], isinstance(result, list)


def _output_dims(
    ran: Sequence[tuple[list[tuple[int, ...]], bool]], assignments: Sequence[dict[str, int]]
) -> Ran | None:
    shapes = [r[0] for r in ran]
    if len({len(s) for s in shapes}) != 1:
        return ((),), True  # a list whose length depends on sizes
    outputs: list[Dims] = []
    for each in zip(*shapes, strict=True):
        if len({len(shape) for shape in each}) != 1:
            outputs.append(("...",))
            continue
        outputs.append(tuple(_dim_of(sizes, assignments) for sizes in zip(*each, strict=True)))
    return tuple(outputs), ran[0][1]


def _dim_of(sizes: tuple[int, ...], assignments: Sequence[dict[str, int]]) -> str:
    same = [n for n in assignments[0] if all(a[n] == size for a, size in zip(assignments, sizes, strict=True))]
    return same[0] if same else "_"
