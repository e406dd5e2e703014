"""What can run here and why not the rest; where the parts of an operator come from; which kernel a call would run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Accepted", "Choice", "Explanation", "Origin", "Part", "Probe", "Refused"]


@dataclass(frozen=True)
class Accepted:
    """A backend or kernel can run here; ``note`` says how, where that is not obvious."""

    note: str = ""


@dataclass(frozen=True)
class Refused:
    """A backend or kernel cannot run here: why, and what a user can do about it."""

    reason: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.reason} ({self.remedy})" if self.remedy else self.reason


Probe = Accepted | Refused


class Origin(StrEnum):
    """Where a part of an operator comes from."""

    DERIVED = "derived"
    CUSTOM = "custom"
    MISSING = "missing"


@dataclass(frozen=True)
class Part:
    """One part of an operator (its fake, gradient, vmap rule …) and where it comes from."""

    name: str
    origin: Origin
    how: str


@dataclass(frozen=True)
class Choice:
    """What ``ow.explain`` says of one kernel: it runs, or why it does not."""

    kernel: str
    backend: str
    outcome: Probe
    chosen: bool = False


@dataclass(frozen=True)
class Explanation:
    """Which kernel an operator would run for some arguments, and why not each other one."""

    op: str
    choices: tuple[Choice, ...]
    note: str = ""

    @property
    def chosen(self) -> Choice:
        """The one that would run. There always is one: the reference is the last resort."""
        return next(c for c in self.choices if c.chosen)

    def __str__(self) -> str:
        lines = [f"{self.op} would run {self.chosen.kernel!r} ({self.chosen.backend})"]
        for choice in self.choices:
            mark = "→" if choice.chosen else " "
            match choice.outcome:
                case Accepted(note=note):
                    said = note or ("runs" if choice.chosen else "could run; an earlier one was taken")
                case Refused() as refused:
                    said = f"no: {refused}"
            lines.append(f" {mark} {choice.kernel:<16} {choice.backend:<10} {said}")
        return "\n".join([*lines, *([f"   {self.note}"] if self.note else [])])
