"""The check "large offsets": tensors of more than 2³¹ elements, where a machine has the memory for them.

An offset of 32 bits becomes negative there: the kernel writes or reads elsewhere, or leaves elements out. Values repeat
along the long dim after a prime number of them, so that elements whose offsets differ by a power of two differ, and the
reference runs on the same device. What is looked for is grossly wrong, so a loose comparison of samples finds it, and
rounding in sums of that length is no finding.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import math
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from opwright import tree
from opwright.checks.check import Check, Process
from opwright.checks.context import Context
from opwright.checks.exceptions import in_words
from opwright.checks.limits.shortage import data_bytes, free_bytes, is_shortage
from opwright.contract import derive
from opwright.contract.inputs.arguments import arguments_of, env_of, shape_of
from opwright.contract.inputs.case import Case, Size
from opwright.contract.inputs.sizes import base_case, dtypes_to_check
from opwright.contract.shapes.relations import broken
from opwright.errors import CheckError
from opwright.machine import this_machine
from opwright.results import Coverage, Finding, NotChecked, Status

__all__ = ["CHECK", "NAME", "check"]

NAME = "large offsets"
_MOST_OF_32_BITS = 1 << 31
# How far the longest tensor goes past it.
_PAST = 1 << 22
# Values repeat after so many along the long dim: a prime, to which no power of two is congruent.
_PERIOD = 65_521
# The other dims, so that neither the number of rows nor their length is extreme.
_OTHERS = 96
# Arguments, results and the reference's are held at a time. What more a reference takes, a limit stops.
_TIMES_NEEDED, _MOST_OF_FREE = 2.5, 0.85
# Each piece of a result is compared by a sample: wrong, if so much of it is farther off than a part of its size.
_PIECE, _STEP, _MOST_WRONG, _MOST_OFF = 1 << 24, 13, 0.1, 0.1
# What takes longer, by the time of the short case and of one some times as long, is left out.
_MOST_SECONDS = 30.0
_LONGER = 64
_SECONDS_BETWEEN_TRIES = 0.5
# A sum of more terms rounds too much to be told from a wrong one.
_LONGEST_SUM = 1 << 20
# A result with fewer elements has no long dim.
_LEAST_RESULT = 1 << 20


@dataclass(frozen=True)
class _Long:
    """A case with one long dim, and the short one of which it repeats the values."""

    short: Case
    long: Case


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """Each dim long in turn, in the dtype that takes the least memory; at level full, or if it is asked for."""
    if not context.is_due(CHECK):
        return
    if context.runs_slowly:
        yield NotChecked(NAME, "a simulator would take hours; it names offsets that overflow in smaller cases")
        return
    pairs = _pairs(context)
    skipped: list[str] = []
    ran = 0
    for pair in pairs:
        with _alone(context, pair), _within_free_memory(context.device):
            wrong = _find_error(context, pair)
        if isinstance(wrong, NotChecked):
            skipped.append(f"{pair.long}: {wrong.why}")
            continue
        ran += 1
        if wrong:
            yield dataclasses.replace(context.failed(NAME, str(pair.long), wrong), coverage=Coverage(ran, len(pairs)))
            return
    yield from (NotChecked(NAME, why) for why in skipped)
    if ran:
        yield Finding(NAME, Status.PASS, message=f"{ran} cases", coverage=Coverage(ran, len(pairs)))


def _pairs(context: Context) -> list[_Long]:
    """For each dim, the smallest sizes with which a tensor has more than 2³¹ elements."""
    contract = context.op.contract
    arguments = contract.signature.arguments
    if any(a.goes_together for a in arguments):
        return []  # offsets and indices that differ do not repeat
    combinations = dtypes_to_check(contract, context.op.kernels[context.kernel].spec.taken_dtypes)
    if not combinations:
        return []
    narrowest = min(combinations, key=lambda dtypes: sum(dtype.itemsize for _, dtype in dtypes))
    base = dataclasses.replace(base_case(contract), dtypes=narrowest)
    usual = {name: (_OTHERS,) if isinstance(size, tuple) else _OTHERS for name, size in base.sizes}
    base = dataclasses.replace(base, sizes=tuple((name, usual[name]) for name, _ in base.sizes))
    found = []
    for name, size in base.sizes:
        period = _sized(base, name, size, _PERIOD)
        with contextlib.suppress(CheckError):  # the sizes contradict each other
            most = _largest(context, period)
            if most > _largest(context, base):
                length = -(-(_MOST_OF_32_BITS + _PAST) * _PERIOD // most)
                found.append(_Long(period, _sized(base, name, size, length)))
    return found


def _sized(case: Case, name: str, size: Size, length: int) -> Case:
    return case.with_size(name, (length,) if isinstance(size, tuple) else length)


def _largest(context: Context, case: Case) -> int:
    """The number of elements of the largest argument of a case."""
    env = env_of(context.op.contract, case)
    tensors = [a for a in context.op.contract.signature.arguments if a.tensor]
    return max((math.prod(shape_of(argument, env)) for argument in tensors), default=0)


def _find_error(context: Context, pair: _Long) -> str | NotChecked | None:
    """What is wrong with one case; or why it could not be run."""
    context.progress(NAME, str(pair.long))
    contract, reference = context.op.contract, context.as_reference(context.op.contract.reference)
    try:
        short = arguments_of(contract, pair.short, context.device)
        why = _why_not(context, pair, short)
        if why is not None:
            return NotChecked(NAME, why)
        arguments = _long_arguments(context, pair, short)
        if context.calls.chosen(arguments) != context.kernel:
            return NotChecked(NAME, "the kernel is not applicable (dtypes, when)")
        expected = reference(arguments)
    except Exception as error:  # no memory, or whatever a reference raises
        return NotChecked(NAME, _reason(error))
    context.progress(NAME, str(pair.long))
    try:
        got = context.run_kernel(arguments)
        context.synchronize()
    except Exception as error:
        if _is_refusal(error):
            return NotChecked(NAME, f"the kernel refuses it: {_reason(error)}")
        return f"the kernel raised {context.described(error)}"
    names = contract.result_names(arguments, expected)
    for name, result, right in zip(names, got, expected, strict=False):
        wrong = _difference(result, right) if right.numel() >= _LEAST_RESULT else None
        if wrong is not None:
            return (f"{name}: " if name else "") + wrong
    return None


def _why_not(context: Context, pair: _Long, short: Sequence[Any]) -> str | None:
    """Why a case is not run, by what its short one says; or None."""
    contract = context.op.contract
    sizes = _sizes(context, pair)
    if (unmet := broken(contract.where, sizes)) is not None:
        return f"such sizes do not satisfy {unmet}"
    needed = _TIMES_NEEDED * _bytes_needed(context, pair, short)
    if needed > free_bytes(context.device):
        return f"it needs about {needed / 1e9:.0f} GB of memory"
    _, longest = derive.work(contract, short)
    if longest > _LONGEST_SUM // (_MOST_OF_32_BITS // _elements_of(short)):
        return "rounding in sums of so many terms hides what is looked for"
    larger = _long_arguments(context, _Long(pair.short, _between(pair)), short)
    for run in (contract.reference, context.run_kernel):
        # What a call takes of itself is most of a short one's time.
        for arguments in (short, larger):
            seconds = _MOST_OF_32_BITS / _elements_of(arguments) * _seconds(context, run, arguments)
            if seconds <= _MOST_SECONDS:
                break
        else:
            return f"it takes about {seconds:.0f} s"
    return None


def _between(pair: _Long) -> Case:
    """A case some times as long as the short one, in which the work of its elements is most of the time."""
    case = pair.short
    for (name, size), (_, most) in zip(pair.short.sizes, pair.long.sizes, strict=True):
        if size != most:
            period, length = (s[0] if isinstance(s, tuple) else s for s in (size, most))
            case = _sized(case, name, size, min(_LONGER * period, length))
    return case


def _elements_of(arguments: Sequence[Any]) -> int:
    return max(t.numel() for t in tree.tensors(list(arguments)))


def _seconds(context: Context, run: Callable[[Sequence[Any]], Any], arguments: Sequence[Any]) -> float:
    """The time of a second call, on copies, as a kernel may write its arguments."""
    seconds = 0.0
    for _ in range(2):
        copies = tree.map_tensors(torch.clone, list(arguments))
        start = time.perf_counter()
        run(copies)
        context.synchronize()
        seconds = time.perf_counter() - start
    return seconds


def _sizes(context: Context, pair: _Long) -> dict[str, Any]:
    """The long case's sizes; int arguments are those of the short one."""
    return {**env_of(context.op.contract, pair.short), **dict(pair.long.sizes)}


def _reason(error: Exception) -> str:
    text = in_words(error)
    return "there is not enough memory" if is_shortage(text) else text.splitlines()[0]


def _is_refusal(error: Exception) -> bool:
    """Whether a kernel says that it does not take such sizes, or a GPU that a grid is too large: nothing is wrong."""
    text = in_words(error)
    return "CUDA error" not in text or "invalid configuration" in text or "invalid argument" in text


def _long_arguments(context: Context, pair: _Long, short: Sequence[Any]) -> list[Any]:
    """The arguments of the short case, again and again."""
    shapes = iter(_long_shapes(context, pair, short))
    return [tree.map_tensors(lambda t: _repeated(t, next(shapes)), value) for value in short]


def _long_shapes(context: Context, pair: _Long, short: Sequence[Any]) -> list[tuple[int, ...]]:
    """The shape of each tensor of the long case."""
    sizes = _sizes(context, pair)
    return [
        shape_of(argument, sizes, index=i)
        for argument, value in zip(context.op.contract.signature.arguments, short, strict=True)
        if argument.tensor is not None
        for i in range(len(tree.tensors([value])))
    ]


def _bytes_needed(context: Context, pair: _Long, short: Sequence[Any]) -> int:
    """Those of the arguments, and of the results twice: the kernel's and the reference's."""
    shapes = iter(_long_shapes(context, pair, short))
    meta = [tree.map_tensors(lambda t: t.new_empty(next(shapes), device="meta"), value) for value in short]
    given, made = tree.tensors(meta), derive.fake_outputs(context.op.contract, meta)
    mutated = context.op.contract.signature.written(meta)
    return sum(t.numel() * t.element_size() for t in (*given, *made, *made, *mutated, *mutated))


def _repeated(values: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor of another shape that repeats some values along each longer axis."""
    for axis, size in enumerate(shape):
        if values.shape[axis] != size:
            longer = values.new_empty((*shape[: axis + 1], *values.shape[axis + 1 :]))
            for start in range(0, size, max(1, values.shape[axis])):
                count = min(values.shape[axis], size - start)
                longer.narrow(axis, start, count).copy_(values.narrow(axis, 0, count))
            values = longer
    return values


def _difference(got: Any, expected: torch.Tensor) -> str | None:
    """Where a result differs grossly, or None; a check of its own says so of one that has another shape."""
    if not isinstance(got, torch.Tensor) or got.shape != expected.shape or got.dtype != expected.dtype:
        return None
    axis = max(range(expected.dim()), key=lambda i: expected.shape[i])
    rows = max(1, _PIECE * expected.shape[axis] // max(1, expected.numel()))
    for start in range(0, expected.shape[axis], rows):
        count = min(rows, expected.shape[axis] - start)
        piece = [t.narrow(axis, start, count)[_sample(axis, count)] for t in (got, expected)]
        wrong = _part_wrong(*piece)
        if wrong > _MOST_WRONG:
            along = f"from {start} to {start + count - 1} along dim {axis}"
            return (
                f"{wrong:.0%} of the elements {along} of a result of {list(expected.shape)} are wrong: an offset of "
                "more than 2³¹ elements does not fit into 32 bits"
            )
    return None


def _sample(axis: int, count: int) -> tuple[slice, ...]:
    return (slice(None),) * axis + (slice(0, None, _STEP if count > 64 * _STEP else 1),)


def _part_wrong(got: torch.Tensor, expected: torch.Tensor) -> float:
    if not (expected.is_floating_point() or expected.is_complex()):
        return float((got != expected).double().mean())
    got, expected = (t.to(torch.complex64 if t.is_complex() else torch.float32) for t in (got, expected))
    size = expected.abs().nan_to_num(0, 0, 0)
    off = (got - expected).abs() > _MOST_OFF * (size + size.mean())
    same = (got == expected) | (got.isnan() & expected.isnan())
    return float(((off | got.isnan() | expected.isnan()) & ~same).double().mean())


@contextlib.contextmanager
def _alone(context: Context, pair: _Long) -> Iterator[None]:
    """Wait until no other kernel's check of this user fills the memory. While it waits, no step takes long."""
    folder = this_machine().cache_dir
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "large_offsets.lock").open("a") as file:
        while True:
            context.progress(NAME, str(pair.long))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_SECONDS_BETWEEN_TRIES)
            else:
                break
        yield


@contextlib.contextmanager
def _within_free_memory(device: str) -> Iterator[None]:
    """On a CPU, allocations past most of what is free are refused, before the system ends some process."""
    free = free_bytes(device)
    if torch.device(device).type != "cpu" or not free:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_DATA)
    most = data_bytes() + int(_MOST_OF_FREE * free)
    resource.setrlimit(resource.RLIMIT_DATA, (most if before[1] < 0 else min(most, before[1]), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


CHECK = Check(
    NAME,
    "Are results of more than 2³¹ elements right, if the memory is there and no simulator runs?",
    cases="each dim long, in the narrowest dtype",
    run=check,
    process=Process.KERNEL,
    levels=("full",),
    group="derivatives",
)
