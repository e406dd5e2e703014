"""Infers a contract: runs a reference with other sizes, and keeps what it accepts.

Tensors are fake, so that nothing is computed and no memory is taken, whatever the sizes are. A reference that reads
values runs for real, with small sizes; so does one that takes long.
"""

from __future__ import annotations

import dataclasses
import keyword
import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from opwright import tree
from opwright.contract.dtypes import short
from opwright.errors import TargetError
from opwright.judged.called import parameters_of
from opwright.judged.contract import Inferred, InferredTensor
from opwright.judged.inferring.reference_run import Axis, Reference, Run
from opwright.judged.inferring.relations import relations_of
from opwright.judged.inferring.sizes import divisors, fitted, multiples, sizes_of
from opwright.judged.inferring.small_runs import fits, is_slow, small_run, timed_run
from opwright.judged.inferring.value_ranges import Range, float_ranges, integer_range
from opwright.judged.shown import Place, Shown
from opwright.judged.sources import Source
from opwright.judged.task import Task

__all__ = ["infer", "infer_from_run"]

_TRIALS = 40
# Of the accepted values, so many are drawn with, if they have no more elements.
_DRAWN, _MOST_DRAWN = 4, 1 << 20
# Values for a constant, beside its own: small, odd, a power of two and its neighbours.
_POOL = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 24, 32, 33, 64)
# Arguments of an operator of torch.
_MOST_ARGUMENTS = 64


def infer(task: Task, seconds: float = math.inf) -> Inferred:
    """Infer the contract of a task.

    Args:
        seconds: after which no other value is tried.

    Raises:
        TargetError: the reference does not run on its own inputs, or has what no contract states.
    """
    source = Source(task.file)
    _refuse_missing(task, source)
    reference = Reference(task, source, seconds)
    own, found = _own_and_varied(task, reference, source)
    places: Mapping[str, Place] = {
        shown.name: shown.place(*_place_of(shown.dim, found.dims[: len(own.tensors)])) for shown in found.shown
    }
    drawn = _drawn_by_the_task(task, source, own)
    if not found.shown and not drawn and not reference.base and not found.untried:
        # A candidate makes its parameters as the reference does, of the sizes that the constructor's arguments say.
        found, places = _varied_axes(reference, own, len(own.tensors) - len(own.state)), {}
    return _stated(reference, own, found, places, drawn, tuple(_fixed(source, own, found, places)))


def _own_and_varied(task: Task, reference: Reference, source: Source) -> tuple[Run, _Varied]:
    """The run with the task's own constants, and what other values change; with smaller ones, where these do not run on
    fake tensors, or run for long. A constant that is then taken as fixed has its own value again."""
    cases = (source.constants, *task.cases)
    own, seconds = timed_run(reference)
    if own is not None:
        _refuse_unstated(task, own)
        if not is_slow(seconds):
            return own, _varied(reference, source.constants, own, cases)
    reference.is_real, error, held = own is None, reference.error, set[str]()
    while (small := small_run(reference, source.constants, held)) is not None:
        _refuse_unstated(task, small)
        base = reference.base
        found = _varied(reference, base, small, cases)
        names = {shown.name for shown in found.shown}
        if not (fixed := {n for n, v in base.items() if n not in names and v != source.constants[n]}):
            return small, dataclasses.replace(found, values=source.constants)
        held |= fixed
    if own is not None:  # it is slow, and smaller values do not do
        return own, _varied(reference, source.constants, own, cases)
    raise TargetError(
        f"{task.file}: {task.reference} must run on the inputs of {task.inputs}, got {error}",
        fix="correct the reference",
    )


def infer_from_run(reference: Reference, own: Run) -> Inferred:
    """Infer a contract from one run: the sizes of its arguments that the reference also takes otherwise."""
    fixed = tuple(f"the argument {value!r}: no other was given" for value in own.scalars.values())
    return _stated(reference, own, _varied_axes(reference, own, len(own.tensors)), {}, set(), fixed)


def _stated(
    reference: Reference,
    own: Run,
    found: _Varied,
    places: Mapping[str, Place],
    drawn: Collection[int],
    fixed: tuple[str, ...],
) -> Inferred:
    count, dims = len(own.tensors), found.dims
    ranges = _ranges(reference, own, found, is_by_constant=bool(places))
    made = _made_by_the_constructor(reference, own, found, is_by_constant=bool(places))
    names = _unique([*parameters_of(own.function, len(own.inputs)), *own.state])
    names = [name for name, t in zip(names, (*own.inputs, *own.state.values()), strict=True) if _is_tensor(t)]
    arguments = [
        InferredTensor(name, short(t.dtype), dim, drawn_as=i if i in drawn else -1)
        for i, (name, t, dim) in enumerate(zip(names, own.tensors, dims[:count], strict=True))
    ]
    for i, name in made.items():
        arguments[i] = dataclasses.replace(arguments[i], values=f"ow.inputs.drawn_by(task.drawn_state({name!r}))")
    for i, (low, high) in ranges.items():
        arguments[i] = arguments[i] if i in made else dataclasses.replace(arguments[i], low=low, high=high)
    outputs = (InferredTensor("", short(t.dtype), d) for t, d in zip(own.outputs, dims[count:], strict=True))
    return Inferred(
        arguments=tuple(arguments),
        outputs=tuple(outputs),
        state=tuple(own.state),
        fixed_state=own.fixed_state,
        own_elements=sum(tensor.numel() for tensor in own.tensors),
        constants=places,
        own={shown.dim: shown.size(found.values[shown.name]) for shown in found.shown},
        where=(*(f"{shown.dim} >= 1" for shown in found.shown), *found.where),
        fixed=fixed,
        is_random=bool(own.draws),
        returns_tuple=own.returns_tuple,
        scalars=own.scalars,
        layouts=own.layouts,
    )


def _drawn_by_the_task(task: Task, source: Source, own: Run) -> set[int]:
    """The tensors of a call whose values the task's own function draws: those that are more than random numbers."""
    plain = task.plain or source.plain_inputs(task.inputs)
    positions = [i for i, value in enumerate(own.inputs) if _is_tensor(value)]
    return {number for number, i in enumerate(positions) if i >= len(plain) or not plain[i]}


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _refuse_missing(task: Task, source: Source) -> None:
    for name in filter(None, (task.reference, task.inputs, task.constructor)):
        if name not in source.defined():
            raise TargetError(
                f"{task.file} must define {name!r}, got {sorted(source.defined())}", fix="name another file or format"
            )


def _refuse_unstated(task: Task, own: Run) -> None:
    nested = [value for value in own.inputs if not _is_tensor(value) and tree.tensors(value)]
    if nested:
        raise TargetError(
            f"{task.file}: {task.inputs} returns a {type(nested[0]).__name__} of tensors", fix="list them"
        )
    if not own.tensors or not own.outputs:
        raise TargetError(f"{task.file}: {task.reference} takes or returns no tensor", fix="name another task")
    if len(own.tensors) > _MOST_ARGUMENTS:
        raise TargetError(
            f"{task.file}: there must be at most {_MOST_ARGUMENTS} tensors among inputs, parameters and buffers, as an "
            f"operator of torch has no more arguments, got {len(own.tensors)}",
            fix="judge parts of the model",
        )


# --- which numbers may differ, and what they determine ---

_RunOf = Callable[[Mapping[str, int]], Run | None]
# Values of numbers that the task itself has.
_Cases = Sequence[Mapping[str, int]]


@dataclass(frozen=True)
class _Varied:
    """Which numbers (constants of the file, or sizes of axes) may differ.

    Attributes:
        shown: those whose values the sizes of the arguments show.
        values: the own values of all.
        changing: those that change a size; of these, some are no size of an argument.
        untried: those for which there was no time.
        dims: each size of each argument and output as an expression of what is shown.
        where: relations of what is shown.
        blocks: those relations that hold in all cases of the task, and that the reference does not need.
        accepted: values of those that are shown, which the reference accepts.
    """

    shown: Sequence[Shown]
    values: Mapping[str, int]
    changing: Sequence[str]
    untried: Sequence[str]
    dims: Sequence[tuple[str, ...]]
    where: Sequence[str]
    blocks: Sequence[str]
    accepted: Sequence[Mapping[str, int]]


def _varied(reference: Reference, values: Mapping[str, int], own: Run, cases: _Cases) -> _Varied:
    """Vary each number alone, and then all together."""
    return _varied_by(lambda chosen: reference.run(chosen), reference, values, own, cases)


def _varied_axes(reference: Reference, own: Run, count: int) -> _Varied:
    """The same of the sizes of the first arguments, of a task that has no constants: axes that have to agree have one
    name."""
    groups = _groups_of_axes(reference, own, count)
    values = {name: own.shapes[axes[0][0]][axes[0][1]] for name, axes in groups.items()}

    def run(chosen: Mapping[str, int]) -> Run | None:
        return reference.run({}, {axis: size for name, size in chosen.items() for axis in groups[name]})

    return _varied_by(run, reference, values, own, (values,))


def _varied_by(run: _RunOf, reference: Reference, values: Mapping[str, int], own: Run, cases: _Cases) -> _Varied:
    tried, untried = _vary(run, reference, values, own)
    shown, _ = fitted(own, values, tried)
    runs = _together(run, reference, {each.name: values[each.name] for each in shown}, own)
    shown, dims = fitted(own, values, {each.name: tried[each.name] for each in shown}, runs)
    names = {each.name for each in shown}
    accepted = [v for v, found in runs if found is not None and v.keys() == names]
    stated = [sizes_of(shown, case) for case in (values, *cases) if names <= case.keys()]
    outcomes = [(sizes_of(shown, v), found is not None) for v, found in runs if names <= v.keys()]
    where = relations_of(stated[0], [*((sizes, True) for sizes in stated[1:]), *outcomes])
    blocks = [f"{dim} % {divisor} == 0" for dim, divisor in divisors(shown, cases, reference.elements).items()]
    return _Varied(shown, values, list(tried), untried, dims, [*multiples(shown), *blocks, *where], blocks, accepted)


def _groups_of_axes(reference: Reference, own: Run, count: int) -> dict[str, list[Axis]]:
    """The axes of the first arguments that may have another size, those together that have to have the same."""
    left = [(i, axis) for i, shape in enumerate(own.shapes[:count]) for axis in range(len(shape)) if shape[axis] > 1]
    found = dict[str, list[Axis]]()

    def accepts(axes: Sequence[Axis], size: int) -> bool:
        return any(reference.run({}, dict.fromkeys(axes, other)) is not None for other in (2 * size, size + 1))

    while left:
        i, axis = left[0]
        size = own.shapes[i][axis]
        group = [other for other in left if own.shapes[other[0]][other[1]] == size]
        if not accepts(group, size):
            left.remove((i, axis))
            continue
        for other in group[1:]:
            if accepts([each for each in group if each != other], size):
                group = [each for each in group if each != other]
        found[f"n{len(found)}"] = group
        left = [other for other in left if other not in group]
    return found


def _vary(
    run: _RunOf, reference: Reference, values: Mapping[str, int], own: Run
) -> tuple[dict[str, list[tuple[Mapping[str, int], Run]]], list[str]]:
    """Runs with another value for one number each, for those numbers that change a size and that may differ; and the
    numbers of which none was tried."""
    found, untried = dict[str, list[tuple[Mapping[str, int], Run]]](), list[str]()
    for name, value in values.items():
        runs = list[tuple[Mapping[str, int], Run]]()
        if not reference.has_time:
            untried.append(name)
            continue
        for other in dict.fromkeys((2 * value, value + 1, max(1, value // 2), 3 * value)):
            if other != value and fits(reference, {name: other}) and (one := run({name: other})) is not None:
                runs.append(({**values, name: other}, one))
        runs = [(v, one) for v, one in runs if _is_alike(one, own) and one.scalars == own.scalars]
        if any(one.shapes != own.shapes for _, one in runs):
            found[name] = runs
    return found, untried


def _place_of(dim: str, dims: Sequence[tuple[str, ...]]) -> Axis:
    return next((i, each.index(dim)) for i, each in enumerate(dims) if dim in each)


def _together(
    run: _RunOf, reference: Reference, values: Mapping[str, int], own: Run
) -> list[tuple[Mapping[str, int], Run | None]]:
    """Runs with other values for all numbers; None for each that the reference refuses."""
    draw = random.Random(0)
    found = list[tuple[Mapping[str, int], Run | None]]()
    for _ in range(_TRIALS if values else 0):
        chosen = {name: draw.choice((*_POOL, value)) for name, value in values.items()}
        if not reference.has_time or not fits(reference, chosen):
            continue
        one = run(chosen)
        found.append((chosen, one if one is not None and _is_alike(one, own) else None))
    return found


def _is_alike(one: Run, own: Run) -> bool:
    return one.ranks == own.ranks and not one.broadcasts_more_than(own)


def _ranges(reference: Reference, own: Run, found: _Varied, *, is_by_constant: bool) -> dict[int, Range]:
    """The ranges of values of arguments, by position: of integers, and of floats for which normal values are not
    defined."""
    chosen = sorted(found.accepted, key=lambda v: math.prod(v.values()))[:_DRAWN] if is_by_constant else [{}]
    drawn = [(v, t) for v in chosen if _elements_at(reference, v) <= _MOST_DRAWN and (t := reference.real_tensors(v))]
    ranges = dict[int, Range]()
    for i, tensor in enumerate(own.tensors):
        if not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype != torch.bool:
            plain = {shown.name for shown in found.shown if shown.is_itself}
            range_ = integer_range([({n: v for n, v in c.items() if n in plain}, t[i]) for c, t in drawn])
            ranges |= {i: range_} if range_ is not None else {}
    if drawn and not own.draws:
        values, tensors = drawn[-1]
        ranges |= float_ranges(reference.caller(values), tensors)
    return ranges


def _made_by_the_constructor(reference: Reference, own: Run, found: _Varied, *, is_by_constant: bool) -> dict[int, str]:
    """The buffers, by position, that only the constructor makes, such as packed weights, tables and masks. One whose
    elements are all equal, such as the mean of a batch norm, has any values after training."""
    chosen = min(found.accepted, key=lambda v: math.prod(v.values()), default={}) if is_by_constant else {}
    if not own.buffers or _elements_at(reference, chosen) > _MOST_DRAWN:
        return {}
    tensors = reference.real_tensors(chosen)
    if tensors is None:
        return {}
    first = len(own.tensors) - len(own.state)
    values = {name: tensors[first + i] for i, name in enumerate(own.state)}
    return {first + i: name for i, name in enumerate(own.state) if name in own.buffers and _varies(values[name])}


def _varies(tensor: torch.Tensor) -> bool:
    return tensor.numel() > 1 and bool((tensor != tensor.flatten()[0]).any())


def _elements_at(reference: Reference, values: Mapping[str, int]) -> int:
    elements = reference.elements(values)
    return _MOST_DRAWN + 1 if elements is None else elements


def _fixed(source: Source, own: Run, found: _Varied, places: Mapping[str, Place]) -> Iterator[str]:
    dtypes = ", ".join(dict.fromkeys(short(t.dtype) for t in own.tensors))
    yield f"dtype {dtypes}: the task has no other"
    if own.layouts:
        yield "the layouts of the arguments: the task makes no others"
    else:
        yield "contiguous arguments: the task makes no others"
    for name, value in source.constants.items():
        if name in found.untried:
            yield f"{name} = {value}: no other value was tried, because the reference takes long"
        elif name in found.changing and name not in places:
            yield f"{name} = {value}: no size of an argument shows it"
        elif name not in found.changing:
            yield f"{name} = {value}: another value changes no size, or the reference refuses it"
    for relation in found.blocks:
        yield f"{relation}: it holds in all cases of the task"
    if own.state and not places:
        yield "the sizes of parameters and buffers: the constructor makes no others"
    for name in own.updated:
        yield f"{name}: the reference updates it, and only its results are compared"
    if own.fixed_state:
        yield f"{own.fixed_state} parameters and buffers are the constructor's: an operator has no more arguments"
    for value in own.scalars.values():
        yield f"the argument {value!r}: the task has no other"


def _unique(names: Sequence[str]) -> list[str]:
    """The names as Python identifiers that differ from each other."""
    found = list[str]()
    for name in names:
        plain = name.replace(".", "_")
        if not plain.isidentifier() or keyword.iskeyword(plain):  # such as 0.weight, of a Sequential
            plain = f"of_{plain}"
        while plain in found:
            plain += "_"
        found.append(plain)
    return found
