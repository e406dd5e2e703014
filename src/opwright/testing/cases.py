"""One test for each check of each kernel on each device."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from opwright.checks.run import check as run_checks
from opwright.checks.run import refuse_unknown_checks
from opwright.checks.scheduling.plan import Task, plan
from opwright.checks.table import CHECKS
from opwright.errors import CheckFailedError
from opwright.machine import this_machine
from opwright.results import CheckReport, Status, Verdict
from opwright.runtime.op import Op
from opwright.runtime.targets import load_target

__all__ = ["CheckCase", "Selection", "cases", "cases_of", "group_of"]


@dataclass(frozen=True)
class Selection:
    """The checks of one kernel that the tests of a session ask for: they run together, once in a process.

    Attributes:
        device: as ``opwright check --device`` names it.
        strict: whether warnings and too little coverage fail.
        wanted: those of the checks that are among the selected tests; all, if nothing is known of these.
    """

    op: Op[..., Any]
    kernel: str
    device: str
    checks: tuple[str, ...]
    level: str
    strict: bool
    wanted: set[str] = field(default_factory=set, compare=False)

    @functools.cached_property
    def verdict(self) -> Verdict:
        """All findings."""
        checks = [name for name in self.checks if not self.wanted or name in self.wanted]
        report = run_checks(self.op, kernels=[self.kernel], device=self.device, level=self.level, checks=checks)
        return report.verdicts[0]


@dataclass(frozen=True)
class CheckCase:
    """One check of one kernel. Calling it runs the check, and raises an error if that failed."""

    selection: Selection
    check: str

    def __call__(self) -> None:
        """Run the check; skip the test if the kernel cannot run here, or if the check has nothing to check.

        Raises:
            CheckFailedError: an AssertionError with the smallest failing case and the command that repeats it.
        """
        __tracebackhide__ = True  # pytest shows the line of the test
        verdict = self.selection.verdict
        if verdict.status is Status.REFUSED:
            pytest.skip(verdict.reason)
        found = [f for f in verdict.findings if f.check in (self.check, "build", "load")]
        bad = {Status.FAIL, Status.INCONCLUSIVE} | ({Status.THIN, Status.WARNING} if self.selection.strict else set())
        if wrong := tuple(f for f in found if f.status in bad):
            title = f"{verdict.op} {verdict.kernel} on {verdict.device}: {self.check}"
            report = CheckReport({}, (verdict,))
            raise CheckFailedError("\n\n".join([title, *map(str, wrong)]), report=report)
        if not any(f.check == self.check for f in found):
            left_out = [n.why for n in verdict.not_checked if n.check == self.check]
            pytest.skip(left_out[0] if left_out else "it has nothing to check here")

    def __repr__(self) -> str:
        return f"<{self.selection.op.contract.qualname} {self.id}>"

    @property
    def id(self) -> str:
        """``cpp-cpu-values``: stable, and without spaces."""
        return "-".join([self.selection.kernel, self.selection.device, self.check.replace(" ", "_")])


def cases(
    *targets: Op[..., Any] | str,
    kernels: Sequence[str] | None = None,
    device: str | None = None,
    checks: Sequence[str] = (),
    level: str = "quick",
    strict: bool = False,
) -> pytest.MarkDecorator:
    """Parametrise a test with the checks of some operators; a decorator. The test calls its argument ``check``.

    Args:
        targets, kernels, device, checks, level: as for ``ow.check``.
        strict: also fail for warnings and too little coverage.

    Raises:
        TargetError, CheckError: as ``ow.check``.

    The ids are ``kernel-device-check``, such as ``cpp-cpu-values``. The checks of one kernel run together, by the first
    of its tests. With ``pytest -n``, add ``--dist loadgroup``, so that one process has all of them.
    """
    found = cases_of(*targets, kernels=kernels, device=device, checks=checks, level=level, strict=strict)
    several = len({case.selection.op for case in found}) > 1
    return pytest.mark.parametrize(
        "check",
        [
            pytest.param(
                case, id=f"{case.selection.op.contract.name}-{case.id}" if several else case.id, marks=group_of(case)
            )
            for case in found
        ],
    )


def cases_of(
    *targets: Op[..., Any] | str,
    kernels: Sequence[str] | None = None,
    device: str | None = None,
    checks: Sequence[str] = (),
    level: str = "quick",
    strict: bool = False,
) -> list[CheckCase]:
    """The cases of ``cases``."""
    refuse_unknown_checks(checks)
    chosen = tuple(checks) or tuple(name for name, check in CHECKS.items() if level in check.levels)
    operators = [op for target in targets for op in ([target] if isinstance(target, Op) else load_target(target))]
    return [
        CheckCase(selection, name)
        for op in operators
        for selection in _selections(op, kernels, device, chosen, level, strict)
        for name in chosen
    ]


def _selections(
    op: Op[..., Any],
    kernels: Sequence[str] | None,
    device: str | None,
    checks: tuple[str, ...],
    level: str,
    strict: bool,
) -> Iterator[Selection]:
    for task in plan(op, this_machine(), kernels, device):
        yield Selection(op, task.kernel, _device_of(task), checks, level, strict)


def _device_of(task: Task) -> str:
    return str(task.target)


def group_of(case: CheckCase) -> list[pytest.MarkDecorator]:
    """The mark with which the tests of one kernel stay in one process of pytest-xdist, if that is installed."""
    if importlib.util.find_spec("xdist") is None:
        return []
    return [pytest.mark.xdist_group(f"{case.selection.op.contract.qualname}-{case.selection.kernel}")]
