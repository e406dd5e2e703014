"""The check "grid limits": launches that CUDA refuses, because a dim of their grid is too large for long tensors.

A grid has at most 65,535 blocks in y and z. Blocks of 1,024 elements are more only for tensors that no other check has.
So the launcher runs on meta tensors, which have sizes and no memory, and its launches are recorded. It runs in a
fork of this process: what it keeps of these calls, such as a workspace, is of no use to later ones.

A refused launch is a failure if the tensors take little memory: the operator takes such sizes, and each call of one
ends with an error. It is a warning if they take more, as few calls are so large. Right are a kernel whose ``when``
refuses the sizes, a launcher that raises an error of its own or launches something else, and sizes beyond a GPU's
memory. A launcher that reads values cannot be asked.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from opwright import tree
from opwright.checks.calls.large_cases import MOST_BYTES, Branch, Series, branches, meta_arguments, series_of
from opwright.checks.check import Check, Process
from opwright.checks.context import Context
from opwright.checks.exceptions import in_words
from opwright.checks.limits.shortage import data_bytes
from opwright.checks.limits.time_limit import time_of
from opwright.contract.inputs.case import Case, Size
from opwright.contract.inputs.sizes import dtypes_to_check
from opwright.results import Coverage, Finding, NotChecked, Refused, Status
from opwright.results.outcomes import LaunchGrid, RunOnMeta
from opwright.workers.forking import ForkFailedError, in_fork

__all__ = ["CHECK", "NAME", "check"]

NAME = "grid limits"
# With more bytes of tensors, a refused launch is a warning.
_MOST_OF_FAILURE = 16 << 30
# A launcher that loops in Python takes long for many rows. In seconds of the processor, as other work may slow it down:
# when a run is stopped, and when no further one begins. By the clock, when the fork is ended.
_SECONDS_OF_A_RUN, _SECONDS, _MOST_SECONDS = 0.2, 0.5, 20.0
# What the launcher may take of real memory, as in a list of numbers.
_MOST_REAL_BYTES = 2 << 30
_REMEDY = (
    "let the first dim of the grid be the one that may be long, or loop over the rest in the kernel; or state the "
    "largest size: where= of the operator, when= of the kernel"
)


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """Run the launcher on large meta tensors, in a fork."""
    if not context.is_due(CHECK) or context.op.contract.signature.groups:
        return
    run = context.hooks.on_meta()
    if run is None:
        return
    if isinstance(run, Refused):
        yield NotChecked(NAME, run.reason)
        return
    context.progress(NAME, "")
    try:
        found = in_fork(_Examination(context, run).result, _MOST_SECONDS)
    except TimeoutError:
        yield NotChecked(NAME, "the launcher does not return on meta tensors")
    except ForkFailedError as error:
        yield NotChecked(NAME, f"the launcher cannot run on meta tensors: {str(error).strip().splitlines()[-1]}")
    else:
        yield from _results(context, found)


def _results(context: Context, found: dict[str, Any]) -> Iterator[Finding | NotChecked]:
    for refusal in found["refusals"]:
        yield _finding(context, **refusal)
    if found["refusals"]:
        return
    if not found["sizes"]:
        yield NotChecked(NAME, found["why"] or "the kernel takes no case of this check")
    elif found["launches"]:
        message = f"{found['sizes']} sizes{', as many as there was time for' * found['is_cut_short']}"
        yield Finding(NAME, Status.PASS, message=message, coverage=Coverage(found["sizes"], found["sizes"]))


def _finding(context: Context, case: str, text: str, bytes_needed: int) -> Finding:
    # A task is about sizes of its own, which a kernel that was written for it takes.
    is_meant = not context.op.contract.own_inputs.may_refuse
    status = Status.FAIL if is_meant and bytes_needed <= _MOST_OF_FAILURE else Status.WARNING
    return dataclasses.replace(context.failed(NAME, case, text), status=status, remedy=_REMEDY)


# -- in the fork ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Refusal:
    """A launch that CUDA refuses.

    Attributes:
        bytes_needed: those of the arguments, and of what the launcher has made.
        length: the dim that grows, and its size.
    """

    branch: Branch
    case: Case
    launch: LaunchGrid
    bytes_needed: int
    length: str

    @property
    def axis(self) -> int:
        axis = self.launch.axis
        assert axis is not None  # CUDA refuses it
        return axis

    def as_json(self) -> dict[str, Any]:
        """What ``_finding`` takes."""
        launch, options = self.launch, f" ({self.launch.options})" if self.launch.options else ""
        text = (
            f"{launch.kernel}{options}: the grid's {'xyz'[self.axis]} is {launch.grid[self.axis]:,} at {self.length}; "
            f"CUDA allows {launch.most[self.axis]:,}. All tensors of such a call take {_in_words(self.bytes_needed)}"
        )
        return {"case": str(self.case), "text": text, "bytes_needed": self.bytes_needed}


def _in_words(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


@dataclass
class _Examination:
    """The runs of one launcher.

    Attributes:
        runs: by case; or why there is none.
        refusals: that of the smallest tensors, by kernel and axis.
    """

    context: Context
    run: Callable[[Sequence[Any]], RunOnMeta]
    runs: dict[Case, RunOnMeta | str] = field(default_factory=dict)
    refusals: dict[tuple[str, int], _Refusal] = field(default_factory=dict)

    def result(self) -> dict[str, Any]:
        """What was found, as JSON has it."""
        torch.set_num_threads(1)  # a fork has none of the threads that torch would wait for
        _limit_resources()
        until, is_cut_short = time.process_time() + _SECONDS, False
        for branch in self._branches():
            for series in series_of(self.context.op.contract, branch):
                if is_cut_short := time.process_time() > until:
                    break
                self._follow(series, branch)
        made = [run for run in self.runs.values() if isinstance(run, RunOnMeta)]
        return {
            "refusals": [each.as_json() for each in self.refusals.values() if not self._reference_refuses(each)],
            "sizes": len(made),
            "launches": sum(run.launches for run in made),
            "why": next((why for why in self.runs.values() if isinstance(why, str)), ""),
            "is_cut_short": is_cut_short,
        }

    def _branches(self) -> Iterator[Branch]:
        contract, spec = self.context.op.contract, self.context.op.kernels[self.context.kernel].spec
        dtypes = dtypes_to_check(contract, spec.taken_dtypes)
        if not dtypes:
            return iter(())
        narrowest = min(dtypes, key=lambda each: sum(dtype.itemsize for _, dtype in each))

        def takes(case: Case, arguments: Sequence[Any]) -> bool:
            return isinstance(self._run(case, arguments), RunOnMeta)

        return branches(contract, self.context.cases, narrowest, takes)

    def _follow(self, series: Series, branch: Branch) -> None:
        """Try growing lengths until a launch is refused, and find the smallest length of that."""
        before = 1
        for length in series.lengths:
            if self._refusal(series, branch, length) is not None:
                self._keep(self._smallest(series, branch, before, length))
                return
            if (case := series.case(length)) is not None and self.runs.get(case) == _TOO_LONG:
                return  # longer ones take longer
            before = length

    def _smallest(self, series: Series, branch: Branch, low: int, high: int) -> _Refusal | None:
        """The refusal at the smallest length between one that is launched and one that is not."""
        while high - low > 1:
            middle = (low + high) // 2
            if self._refusal(series, branch, middle) is None:
                low = middle
            else:
                high = middle
        return self._refusal(series, branch, high)

    def _keep(self, refusal: _Refusal | None) -> None:
        if refusal is not None:
            key = refusal.launch.kernel, refusal.axis
            self.refusals[key] = min(self.refusals.get(key, refusal), refusal, key=lambda each: each.bytes_needed)

    def _refusal(self, series: Series, branch: Branch, length: int) -> _Refusal | None:
        """The launch that CUDA refuses at a length, if all tensors fit into a GPU."""
        case = series.case(length)
        arguments = None if case is None else meta_arguments(self.context.op.contract, case, branch.like)
        if case is None or arguments is None:
            return None
        run = self._run(case, arguments)
        if isinstance(run, str) or run.too_large is None:
            return None
        needed = run.allocated + sum(t.nbytes for t in tree.tensors(arguments))
        if needed > MOST_BYTES or _has_more_blocks_than_bytes(run.too_large, needed):
            return None
        return _Refusal(branch, case, run.too_large, needed, f"{series.name} = {_shown(dict(case.sizes)[series.name])}")

    def _run(self, case: Case, arguments: Sequence[Any]) -> RunOnMeta | str:
        """Run the launcher on the arguments of a case; or why that says nothing."""
        if case not in self.runs:
            found: list[RunOnMeta | str] = []
            try:
                returns = _returns_in_time(lambda: found.append(self._run_if_applicable(arguments)))
                self.runs[case] = found[0] if returns else _TOO_LONG
            except Exception as error:  # the launcher and ``when`` may raise anything
                first = (in_words(error).splitlines() or [""])[0]
                self.runs[case] = f"the launcher raises on meta tensors: {first}"
        return self.runs[case]

    def _run_if_applicable(self, arguments: Sequence[Any]) -> RunOnMeta | str:
        when = self.context.op.kernels[self.context.kernel].when
        is_applicable = when is None or when(*arguments)
        return self.run(arguments) if is_applicable else "the kernel is not applicable (when)"

    def _reference_refuses(self, refusal: _Refusal) -> bool:
        """Whether the reference raises for such sizes, and not for small ones: then the operator does not take them."""
        contract, branch = self.context.op.contract, refusal.branch
        large, small = (meta_arguments(contract, case, branch.like) for case in (refusal.case, branch.short))
        return not _raises(contract.traceable, small) and _raises(contract.traceable, large)


_TOO_LONG = "the launcher takes long on meta tensors"


def _has_more_blocks_than_bytes(launch: LaunchGrid, needed: int) -> bool:
    """Whether a grid is too large in x, which holds 2³¹ - 1 blocks, for tensors of fewer bytes. Nobody makes such a
    call: one of many sequences of many heads, say, nearly all of which are empty."""
    return launch.axis == 0 and launch.grid[0] > needed


def _shown(size: Size) -> str:
    return f"{size:,}" if isinstance(size, int) else " x ".join(f"{each:,}" for each in size)


def _returns_in_time(run: Callable[[], object]) -> bool:
    return time_of(run, _SECONDS_OF_A_RUN, _SECONDS_OF_A_RUN) < math.inf


def _raises(run: Callable[[Sequence[Any]], Any], arguments: Sequence[Any] | None) -> bool:
    """Whether a reference raises; not if it takes long, as one that loops in Python does."""
    if arguments is None:
        return False
    try:
        with torch.no_grad():
            _returns_in_time(lambda: run(arguments))
    except Exception:  # whatever a reference raises
        return True
    return False


def _limit_resources() -> None:
    """Let a launcher that asks for much memory, or never ends, end this fork and nothing else."""
    seconds = int(2 * _MOST_SECONDS)  # if this process outlives its parent
    for kind, most in ((resource.RLIMIT_DATA, data_bytes() + _MOST_REAL_BYTES), (resource.RLIMIT_CPU, seconds)):
        with contextlib.suppress(ValueError, OSError):  # a lower limit holds already
            resource.setrlimit(kind, (most, most))


CHECK = Check(
    NAME,
    "Does each grid keep to CUDA's limits, for all tensors that a large GPU holds?",
    cases="each dim up to 2³¹ elements, on meta tensors",
    run=check,
    process=Process.KERNEL,
    group="memory",
)
