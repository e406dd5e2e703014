"""Records of ``opwright port``: what was rewritten, what is left to do, and what the checks of the result gave."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from opwright.results.check import CheckReport

__all__ = ["Compared", "Mapped", "PortReport", "PortedFile", "Remaining"]


@dataclass(frozen=True)
class Mapped:
    """A name that was replaced, on these lines of the original."""

    before: str
    after: str
    lines: tuple[int, ...]


@dataclass(frozen=True)
class Remaining:
    """What has to be done by hand: the line of the original, or of the new file where ``in_result``."""

    file: str
    line: int
    what: str
    in_result: bool = False


@dataclass(frozen=True)
class PortedFile:
    """A file with what was written beside it.

    Attributes:
        lines: of the original, and of the result.
        wrapped: host functions with a form that torch's stable ABI can call, by the name of that form.
    """

    source: str
    result: str
    lines: tuple[int, int]
    mapped: tuple[Mapped, ...] = ()
    left_out: tuple[Remaining, ...] = ()
    wrapped: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Compared:
    """The results of the original and the new kernel on the same arguments.

    Attributes:
        cases: that both ran; ``identical`` of them gave the same bits.
        different: the first case in which results differ by more than rounding, with what differs; "" if none does.
        refused: cases that the original refuses, and the new kernel too.
        original_wrong: cases in which the two differ, and the original from the reference: there, the original reads
            or computes something wrong, and is no measure.
        not_run: why nothing was compared on this machine; "" if it was.
    """

    operator: str
    original: str
    ported: str
    cases: int
    identical: int
    refused: int = 0
    original_wrong: int = 0
    largest: float = 0.0
    different: str = ""
    not_run: str = ""


@dataclass(frozen=True)
class PortReport:
    """The result of ``opwright port``.

    Attributes:
        wrappers: the names of ATen's operators that are called through torch's dispatcher.
        compiled: None where that was not tried, as without a compiler (``not_compiled`` says why).
    """

    schema: ClassVar[str] = "opwright.port/1"

    files: tuple[PortedFile, ...]
    wrappers: tuple[str, ...]
    remaining: tuple[Remaining, ...]
    compiled: bool | None = None
    not_compiled: str = ""
    compile_seconds: float = 0.0
    compared: tuple[Compared, ...] = ()
    checked: CheckReport | None = None

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to do by hand, of what this machine can tell (see ``was_compared``)."""
        different = any(c.different or not (c.cases or c.not_run) for c in self.compared)
        failed = self.checked is not None and self.checked.ran_anything and not self.checked.passed
        return not self.remaining and self.compiled is not False and not different and not failed

    @property
    def was_compared(self) -> bool:
        """Whether all that was asked for ran on this machine."""
        return not any(c.not_run for c in self.compared) and (self.checked is None or self.checked.ran_anything)

    def to_json(self) -> dict[str, Any]:
        """The report as plain lists, dictionaries, strings and numbers."""
        from opwright.results.json_form import to_json

        return {"schema": self.schema, **to_json(self)}
