"""Records of what can run here and how, of the origin of an operator's parts, and of the choice of a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

__all__ = [
    "Accepted", "Choice", "Explanation", "Instrumented", "LaunchGrid", "Origin", "Part", "Probe", "Refused",
    "RunOnMeta", "Tool",
]  # fmt: skip


@dataclass(frozen=True)
class Accepted:
    """A backend or kernel can run here; ``note`` may say how."""

    note: str = ""


@dataclass(frozen=True)
class Refused:
    """A backend or kernel cannot run here: the reason, and what to do about it."""

    reason: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.reason} ({self.remedy})" if self.remedy else self.reason


Probe = Accepted | Refused


class Tool(StrEnum):
    """A program that watches what a kernel accesses."""

    ADDRESS_SANITIZER = "AddressSanitizer"
    COMPUTE_SANITIZER = "compute-sanitizer"


@dataclass(frozen=True)
class Instrumented:
    """How a kernel is built and run so that a tool watches it.

    Attributes:
        flags: for the kernel's compiler.
        commands: what the command of the process in which the kernel runs begins with, by the name of what looks at it;
            one for each of its runs.
        environment: variables of that process.
    """

    tool: Tool
    flags: tuple[str, ...] = ()
    commands: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {"": ()})
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LaunchGrid:
    """The grid of a launch, which may be too large.

    Attributes:
        most: what CUDA allows in each dim.
        options: compile-time numbers of the launch, such as ``BLOCK=64``.
    """

    kernel: str
    grid: tuple[int, int, int]
    most: tuple[int, int, int]
    options: str = ""

    @property
    def axis(self) -> int | None:
        """The first dim that is too large; None if there is none."""
        pairs = enumerate(zip(self.grid, self.most, strict=True))
        return next((axis for axis, (size, most) in pairs if size > most), None)


@dataclass(frozen=True)
class RunOnMeta:
    """One run of a launcher on meta tensors, whose launches are recorded and not made.

    Attributes:
        launches: how many launches were recorded.
        allocated: the bytes of the tensors that it made, as if it gave none back.
        too_large: the launch with which it ended, because CUDA refuses its grid; None if there is none.
    """

    launches: int
    allocated: int
    too_large: LaunchGrid | None


class Origin(StrEnum):
    """The origin of a part of an operator."""

    DERIVED = "derived"
    CUSTOM = "custom"
    MISSING = "missing"


@dataclass(frozen=True)
class Part:
    """One part of an operator (its fake, gradient, vmap rule …) and its origin."""

    name: str
    origin: Origin
    how: str


@dataclass(frozen=True)
class Choice:
    """The result of ``ow.explain`` for one kernel: it runs, or why it does not."""

    kernel: str
    backend: str
    outcome: Probe
    chosen: bool = False


@dataclass(frozen=True)
class Explanation:
    """The kernel that an operator would run for some arguments, and why it would not run the others."""

    op: str
    choices: tuple[Choice, ...]
    note: str = ""

    @property
    def chosen(self) -> Choice:
        """The kernel that would run. There always is one: the reference is the fallback."""
        return next(c for c in self.choices if c.chosen)

    def __str__(self) -> str:
        lines = [f"{self.op} would run {self.chosen.kernel!r} ({self.chosen.backend})"]
        for choice in self.choices:
            mark = "→" if choice.chosen else " "
            match choice.outcome:
                case Accepted(note=note):
                    text = note or ("runs" if choice.chosen else "could run; an earlier one was chosen")
                case Refused() as refused:
                    text = f"no: {refused}"
            lines.append(f" {mark} {choice.kernel:<16} {choice.backend:<10} {text}")
        return "\n".join([*lines, *([f"   {self.note}"] if self.note else [])])
