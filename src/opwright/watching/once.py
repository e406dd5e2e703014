"""One pass over some targets: what changed is checked, the likeliest and cheapest failure first, and then timed.

Each step is a record, which becomes a line of JSON:

    start     the kernels, and which of them changed
    verdict   of a kernel: ``stage`` is "first" (three cases), "full", or "unchanged" from an earlier pass
    finding   of a kernel that did not pass, with its rule, file and line
    time      of a kernel that passed, with the time of its last version
    error     why nothing could be checked
    end       the exit code
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opwright.backends import get_backend
from opwright.checks.run import check
from opwright.contract.fingerprint import digest
from opwright.errors import OpwrightError
from opwright.report.on_lines.located import Located, located
from opwright.results import CheckReport, Status, Verdict, worst
from opwright.runtime.languages import REFERENCE
from opwright.runtime.op import Op
from opwright.runtime.targets import load_target
from opwright.watching.places import places_of
from opwright.watching.state import Known, read_state, state_file, write_state
from opwright.watching.times import times_of

__all__ = ["Options", "check_once"]

Emit = Callable[[dict[str, Any]], None]
# The checks of the first stage, of three cases each.
_FIRST = ("memory", "values")
_CODES = {Status.FAIL: 1, Status.INCONCLUSIVE: 4}
_WRONG_CALL, _NOTHING_RAN = 2, 3


@dataclass(frozen=True)
class Options:
    """How kernels are checked.

    Attributes:
        everything: also what did not change.
        times: whether to time what passed.
    """

    device: str | None = None
    level: str = "quick"
    timeout: float = 60.0
    everything: bool = False
    times: bool = True


@dataclass(frozen=True)
class _Kernel:
    op: Op
    name: str
    version: str

    @property
    def full_name(self) -> str:
        return f"{self.op.contract.qualname}:{self.name}"


def check_once(targets: Sequence[str], options: Options, emit: Emit) -> int:
    """Check and time what changed since the last pass.

    Returns:
        The exit code, as of ``opwright check``: of all kernels, those that did not change included.
    """
    began = time.monotonic()
    file = state_file([*targets, options.device or "", options.level])

    def say(event: str, **record: Any) -> None:
        emit({"event": event, **record, "seconds": round(time.monotonic() - began, 3)})

    try:
        operators = [operator for target in targets for operator in load_target(target)]
        code = _Pass(operators, options, read_state(file), say, targets).run(file)
    except OpwrightError as error:
        say("error", message=str(error))
        code = _WRONG_CALL
    say("end", exit=code)
    return code


class _Pass:
    def __init__(
        self, operators: Sequence[Op], options: Options, known: Mapping[str, Known], say: Callable[..., None],
        targets: Sequence[str],
    ) -> None:  # fmt: skip
        self._options, self._known, self._say, self._targets = options, known, say, targets
        self._places = places_of(operators)
        self._kernels = [
            _Kernel(operator, name, _version(operator, name))
            for operator in operators
            for name in operator.kernels or (REFERENCE,)
        ]
        self._found: dict[str, Known] = {}

    def run(self, file: Path) -> int:
        changed = sorted(filter(self._is_changed, self._kernels), key=self._urgency)
        names = [kernel.full_name for kernel in self._kernels]
        self._say("start", kernels=names, changed=[kernel.full_name for kernel in changed])
        for kernel in self._kernels:
            if kernel not in changed:
                self._take_over(kernel)
        passed = [kernel for kernel in changed if self._passes_first(kernel)]
        write_state(file, self._found)
        if passed:
            self._check_fully(passed)
            write_state(file, self._found)
        if self._options.times:
            self._time([kernel for kernel in changed if self._is_timed(kernel)])
            write_state(file, self._found)
        statuses = [Status(known.status) for known in self._found.values()]
        if all(status is Status.REFUSED for status in statuses):
            return _NOTHING_RAN
        return _CODES.get(worst(statuses), 0)

    def _is_changed(self, kernel: _Kernel) -> bool:
        known = self._known.get(kernel.full_name)
        return self._options.everything or known is None or known.version != kernel.version

    def _urgency(self, kernel: _Kernel) -> tuple[bool, float]:
        """What failed last may fail again, and what is cheap is known soon."""
        known = self._known.get(kernel.full_name)
        return (known is None or known.status != Status.FAIL, known.seconds if known else 0.0)

    def _take_over(self, kernel: _Kernel) -> None:
        known = self._found[kernel.full_name] = self._known[kernel.full_name]
        self._say("verdict", kernel=kernel.full_name, device=known.device, stage="unchanged", status=known.status)
        for finding in known.findings:
            self._say("finding", **finding)

    def _passes_first(self, kernel: _Kernel) -> bool:
        report = self._check([kernel], level="smoke", checks=_FIRST)
        self._keep(report, [kernel], "first")
        return self._found[kernel.full_name].status in (Status.PASS, Status.THIN, Status.WARNING)

    def _check_fully(self, kernels: Sequence[_Kernel]) -> None:
        self._keep(self._check(kernels, level=self._options.level, checks=()), kernels, "full")

    def _check(self, kernels: Sequence[_Kernel], *, level: str, checks: Sequence[str]) -> CheckReport:
        operators = list(dict.fromkeys(kernel.op for kernel in kernels))
        return check(
            *operators, kernels=[kernel.full_name for kernel in kernels], level=level, checks=checks,
            device=self._options.device, timeout=self._options.timeout,
        )  # fmt: skip

    def _keep(self, report: CheckReport, kernels: Sequence[_Kernel], stage: str) -> None:
        """Report the verdicts of a stage, and remember them. A kernel may have one for each device."""
        for kernel in kernels:
            own = [v for v in report.verdicts if (v.op, v.kernel) == (kernel.op.contract.qualname, kernel.name)]
            found = located(CheckReport(report.machine, tuple(own)), self._places)
            records = tuple(map(_record, found))
            first = self._found.get(kernel.full_name)
            seconds = first.seconds if first else sum(verdict.seconds for verdict in own)
            status, device = worst(v.status for v in own), ",".join(dict.fromkeys(v.device for v in own))
            old = self._known.get(kernel.full_name)
            times = old.times if old else {}
            # What passes a few cases is not known yet: the next pass checks it again if this one ends here.
            version = "" if stage == "first" and status is not Status.FAIL else kernel.version
            self._found[kernel.full_name] = Known(version, status, round(seconds, 3), device, records, times)
            self._say(
                "verdict", kernel=kernel.full_name, device=device, stage=stage, status=status, reason=_reason(own)
            )
            for record in records:
                self._say("finding", **record)

    def _is_timed(self, kernel: _Kernel) -> bool:
        known = self._found[kernel.full_name]
        return known.status in (Status.PASS, Status.WARNING, Status.THIN) and known.device in ("cpu", "cuda")

    def _time(self, kernels: Sequence[_Kernel]) -> None:
        if not kernels:
            return
        for name, times in times_of(
            self._targets, [kernel.full_name for kernel in kernels], self._options.device
        ).items():
            known = self._found[name]
            for case, us in times.items():
                before = known.times.get(case)
                change = None if before is None else round(us / before - 1, 4)
                self._say("time", kernel=name, case=case, us=us, before_us=before, change=change)
            self._found[name] = dataclasses.replace(known, times=dict(times))


def _version(operator: Op, name: str) -> str:
    """A digest of a kernel, of the files that it is built from, and of its reference."""
    if name == REFERENCE:
        return digest(operator.contract.fingerprint)
    kernel = operator.kernels[name]
    files = get_backend(kernel.backend).files(kernel.spec)
    texts = [file.read_bytes().hex() for file in files if file.is_file()]
    return digest(operator.contract.fingerprint, kernel.fingerprint, *texts)


def _record(one: Located) -> dict[str, Any]:
    return {
        "id": one.identifier,
        "rule": one.rule,
        "level": "error" if one.is_error else "warning",
        "title": one.title,
        "file": os.path.relpath(one.place.file),
        "line": one.place.line,
        "message": one.message,
    }


def _reason(verdicts: Iterable[Verdict]) -> str:
    return "; ".join(verdict.reason for verdict in verdicts if verdict.reason)
