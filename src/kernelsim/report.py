"""The report of a launch."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kernelsim.errors import FindingError
from kernelsim.findings import Finding
from kernelsim.settings import current_options

__all__ = ["Report", "report_of"]


@dataclass(frozen=True)
class Report:
    """What a launch did.

    Attributes:
        kernel: its name.
        checked: whether its accesses were checked.
        seconds: the time of the launch; compiling counts where it was the first.
        note: what the launch did not do, which a GPU refuses; empty if it ran.
        findings: its errors. If there are any, a launch raises a FindingError with them, unless ``raises=False``.
    """

    kernel: str
    checked: bool
    seconds: float
    findings: tuple[Finding, ...] = ()
    note: str = ""

    def __bool__(self) -> bool:
        """Whether there are no findings."""
        return not self.findings

    def __str__(self) -> str:
        count = "1 finding" if len(self.findings) == 1 else f"{len(self.findings) or 'no'} findings"
        how = "every access checked" if self.checked else "nothing checked"
        last = f"{self.kernel}: {self.note or f'{count}, {how}, {self.seconds:.2f} s'}"
        return "\n".join([*map(str, self.findings), last])

    def to_json(self) -> dict[str, Any]:
        """The report as JSON has it."""
        return dataclasses.asdict(self)


def report_of(kernel: str, launch: Callable[[], Any], *, note: str = "") -> Report:
    """Make a launch and report it.

    Raises:
        FindingError: it has findings, and the options of this block do not say ``raises=False``.
    """
    chosen, began = current_options(), time.perf_counter()
    findings: tuple[Finding, ...] = ()
    try:
        launch()
    except FindingError as error:
        if chosen.raises:
            raise
        findings = error.findings
    return Report(kernel, chosen.checked, time.perf_counter() - began, findings, note)
