"""The check "peak memory": does a call take far more memory than its arguments, its results and the reference?

Each dim grows alone, then all of them together. The bytes that a call takes at a time are compared, from size to size,
with those of its arguments, its results, and what the reference takes: what is the same at each size (a workspace, an
autotuner's buffers) does not count. Results are right, so this is a warning.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from opwright import tree
from opwright.checks.check import Check, Process
from opwright.checks.context import Context
from opwright.checks.kernel_calls import same_layout
from opwright.checks.memory.allocation import (
    OtherThreads,
    given_out,
    peak_of,
    room_for_small_blocks,
    why_no_peaks,
    without_collections,
)
from opwright.checks.observation import Prepared, SkippedCase
from opwright.contract import derive
from opwright.contract.inputs.case import Case
from opwright.contract.inputs.sizes import admissible, base_case, elements, varied
from opwright.results import Coverage, Finding, NotChecked, PeakMemory, Status
from opwright.workers.copies import on_cpu

__all__ = ["CHECK", "NAME", "check"]

NAME = "peak memory"
# What may take more than this many times the memory of arguments, results and reference together is no copy in a wider
# dtype, and no partial results that are added up later.
_TIMES = 8
# In bytes, what may come in steps, such as a pool that is rounded up.
_STEP = 4 << 20
# The factors by which one dim grows, and all of them; the largest cases; where the next size would take too much.
_OF_ONE, _OF_ALL = 4, 2
_MOST_ELEMENTS, _MOST_FLOPS, _MOST_BYTES = 1 << 18, 1 << 27, 3 << 26
# Of fewer bytes, some come from memory that the process has, so that their growth is not known: that of a square then.
_LEAST_BYTES, _SQUARE = 1 << 18, 16
# Compilers, tuners and tables by size work in a first call, other threads at any time: the least of some calls counts,
# of more where they differ.
_CALLS, _MOST_CALLS, _SAME = 2, 10, 1 << 18
# How many sizes show whether memory grows faster than what it is compared with; by which factor it then does.
_LEAST_SIZES, _FASTER = 3, 1.4


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """Measure a call at growing sizes."""
    if context.kernel not in context.op.kernels:
        return
    why = "a simulator's own memory would be counted" if context.runs_slowly else why_no_peaks(context.device)
    if why:
        yield NotChecked(NAME, why)
        return
    known: dict[Case, PeakMemory | None] = {}
    threads = OtherThreads()
    all_series = _series(context)
    with without_collections(), room_for_small_blocks():
        measured = [_measured(context, known, cases, threads) for cases in all_series]
    judged = [points for points in measured if len(points) >= _LEAST_SIZES]
    if not judged:
        yield NotChecked(NAME, f"fewer than {_LEAST_SIZES} sizes of any dim could be run")
        return
    excessive = [points for points in judged if _is_excessive(points)]
    if excessive:
        yield _warning(max(excessive, key=lambda points: points[-1].kernel))
        return
    largest = max((points[-1] for points in judged), key=lambda p: p.kernel)
    yield Finding(
        NAME, Status.PASS, message=f"{_times(largest)}: {_compared(largest)}",
        coverage=Coverage(len(judged), len(all_series)), peak_memory=(largest,),
    )  # fmt: skip


# -- sizes ------------------------------------------------------------------------------------------------------------


def _series(context: Context) -> list[list[Case]]:
    """Cases of growing size: for each dim, those in which it grows, and those in which all do."""
    contract = context.op.contract
    base = dataclasses.replace(base_case(contract), dtypes=context.cases[0].dtypes if context.cases else ())
    names = [name for name, _ in base.sizes]
    alone = [[varied(contract, base, [name], _like(base, name, size)) for size in _sizes(_OF_ONE)] for name in names]
    together = [_all_at(base, size) for size in _sizes(_OF_ALL)]
    fitted = [admissible(contract, case, keep=names) or admissible(contract, case) for case in together]
    series = [*alone, fitted] if len(names) > 1 or _is_variadic(base) else alone
    kept = [[case for case in dict.fromkeys(cases) if case is not None] for cases in series]
    return [[case for case in cases if elements(contract, case) <= _MOST_ELEMENTS] for cases in kept]


def _sizes(factor: int) -> Iterator[int]:
    size = 4
    while size <= _MOST_ELEMENTS:
        yield size
        size *= factor


def _like(case: Case, name: str, size: int) -> int | tuple[int, ...]:
    """A size of the kind that a dim has: dims such as ``*n`` are one here, so that only one of them grows."""
    return (size,) if isinstance(dict(case.sizes)[name], tuple) else size


def _all_at(base: Case, size: int) -> Case:
    case = base
    for name, known in base.sizes:
        case = case.with_size(name, (size, size) if isinstance(known, tuple) else size)
    return case


def _is_variadic(base: Case) -> bool:
    return any(isinstance(size, tuple) for _, size in base.sizes)


# -- measuring --------------------------------------------------------------------------------------------------------


def _measured(
    context: Context, known: dict[Case, PeakMemory | None], cases: Sequence[Case], threads: OtherThreads
) -> list[PeakMemory]:
    """What calls of growing size take, up to one after which the next would take too much."""
    points: list[PeakMemory] = []
    for case in cases:
        if _next(points) > _MOST_BYTES:
            break
        if case not in known:
            known[case] = _measure(context, case, threads)
        if (point := known[case]) is not None:
            points.append(point)
    return points


def _next(points: Sequence[PeakMemory]) -> float:
    """What the kernel or the reference takes at the next size, if that goes on growing as it did. The first size is
    small: what a call takes there, such as a library's workspace, it takes at any size."""
    if len(points) < 2:
        return 0
    before, last = (max(p.kernel, p.contract) for p in points[-2:])
    return last * (last / before if before >= _LEAST_BYTES else _SQUARE)


def _measure(context: Context, case: Case, threads: OtherThreads) -> PeakMemory | None:
    """None, if the case cannot be run: the checks of values say so."""
    context.progress(NAME, str(case))
    prepared = context.prepare(case)
    if isinstance(prepared, SkippedCase) or _flops(context, prepared) > _MOST_FLOPS:
        return None
    try:
        of_kernel = _most_of_kernel(context, prepared, threads)
    except Exception:  # the kernel may raise anything
        return None
    about = [*tree.tensors(list(prepared.arguments)), *prepared.expected]
    of_contract = sum(t.nbytes for t in about) + _most_of_reference(context, prepared, threads)
    return PeakMemory(str(case), of_kernel, of_contract * _widening(case))


def _flops(context: Context, prepared: Prepared) -> int:
    try:
        return derive.flops(context.op.contract, prepared.arguments)
    except Exception:  # the reference may raise anything on meta tensors
        return 0


def _most_of_kernel(context: Context, prepared: Prepared, threads: OtherThreads) -> int:
    """The peak of a later call, and what the first one of this size has left behind for later ones."""

    def call(arguments: Any) -> None:
        context.results(arguments)
        context.synchronize()

    arguments = same_layout(list(prepared.arguments))
    before = dict(given_out(context.device))
    call(arguments)
    kept = {name: now - before[name] for name, now in given_out(context.device)}
    name = "GPU memory" if context.device == "cuda" else "memory"
    return max(0, kept.get(name, 0)) + _least_peak(context, lambda: call(arguments), context.device, threads)


def _most_of_reference(context: Context, prepared: Prepared, threads: OtherThreads) -> int:
    """The peak of the reference on the CPU; nothing, where it does not compute in these dtypes or is not measured."""
    if why_no_peaks("cpu"):
        return 0
    arguments = tree.map_tensors(on_cpu, list(prepared.arguments))
    run = context.as_reference(context.op.contract.reference)
    try:
        return _least_peak(context, lambda: run(arguments), "cpu", threads)
    except Exception:  # torch lacks some operations in narrow dtypes on a CPU
        return 0


def _least_peak(context: Context, call: Callable[[], Any], device: str, threads: OtherThreads) -> int:
    peaks: list[int] = []
    while len(peaks) < _CALLS or (max(peaks) - min(peaks) > _SAME and len(peaks) < _MOST_CALLS):
        context.progress(NAME, "")
        threads.wait_for_the_end()
        peaks.append(peak_of(call, device))
    return min(peaks)


def _widening(case: Case) -> int:
    """A right kernel may hold narrow numbers as float32."""
    return max(1, 4 // case.dtype.itemsize) if case.dtype is not None else 1


# -- judging ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Growth:
    """From one size to a larger one."""

    kernel: int
    contract: int

    @property
    def times(self) -> float:
        return self.kernel / max(1, self.contract)


def _growths(points: Sequence[PeakMemory]) -> tuple[_Growth, _Growth]:
    """The last two steps of growing sizes."""
    pairs = zip(points[-3:], points[-2:], strict=False)
    first, second = (_Growth(b.kernel - a.kernel, b.contract - a.contract) for a, b in pairs)
    return first, second


def _is_excessive(points: Sequence[PeakMemory]) -> bool:
    """Whether memory grows too fast in both of the last steps: what comes once, such as threads from some size on, is
    in one of them."""
    first, second = _growths(points)
    by = first.kernel + second.kernel - _TIMES * (first.contract + second.contract)
    return first.times > _TIMES and second.times > _TIMES and by > _STEP


def _warning(points: Sequence[PeakMemory]) -> Finding:
    first, second = _growths(points)
    shown = tuple(points[-_LEAST_SIZES:])
    faster = ", and grows faster than they do" if second.times > _FASTER * first.times else ""
    message = f"a call takes {_times(shown[-1])}{faster}: {'; '.join(map(_compared, reversed(shown)))}"
    remedy = "compute in tiles, and use scratch memory again within a call"
    return Finding(NAME, Status.WARNING, shown[-1].case, message, remedy=remedy, peak_memory=shown)


def _times(point: PeakMemory) -> str:
    times = point.kernel / max(1, point.contract)
    return f"{times:,.{0 if times > 10 else 1}f} times the memory of its arguments, its results and the reference"


def _compared(point: PeakMemory) -> str:
    return f"{_bytes(point.kernel)} against {_bytes(point.contract)} at {point.case}"


def _bytes(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB" if count >= 1 << 20 else f"{count / 2**10:,.1f} KiB"


CHECK = Check(
    NAME,
    "Does a call take far more memory than its arguments, its results and the reference?",
    cases="each dim growing alone, all growing together",
    run=check,
    process=Process.KERNEL,
    worst=Status.WARNING,
    group="memory",
)
