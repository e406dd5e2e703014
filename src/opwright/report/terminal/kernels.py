"""The list of kernels in the output of ``opwright check``: a row for each, and with ``-v`` a line for each check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from opwright.report import verdicts
from opwright.report.statuses import LOOKS, ONE_BY_ONE
from opwright.report.terminal.console import one_line, print_indented
from opwright.results import Finding, Status, Verdict

__all__ = ["show_kernels"]

# A list of more kernels than this shows those that failed or did not end in time, and counts the others.
MOST_ROWS = 12


def show_kernels(console: Console, found: Sequence[Verdict], *, verbose: bool) -> None:
    """Print a row for each kernel. Of a long list, only those with a problem and the number of the others.

    ``verbose`` prints all rows, and a line for each check.
    """
    folds = not verbose and len(found) > MOST_ROWS
    rows = [v for v in found if not folds or v.status in ONE_BY_ONE]
    widths = _Widths.of(rows)
    last = ""
    for verdict in rows:
        if verdict.op != last:
            console.print()
            console.print(Text(one_line(verdict.op), "bold"), soft_wrap=True)
            last = verdict.op
        for line in _row(verdict, widths, console.width):
            console.print(line, soft_wrap=True)
        if verbose:
            _show_checks(console, verdict)
    others = verdicts.counted(found, *ONE_BY_ONE)
    if folds and others:
        console.print()
        print_indented(console, Text(f"not listed: {others}; -v lists every kernel", "dim"), 0)


@dataclass(frozen=True)
class _Widths:
    """The widths of the columns, the same for all operators, so that their names need no column of their own."""

    kernel: int
    language: int
    device: int
    status: int
    seconds: int
    cases: int

    @classmethod
    def of(cls, rows: Sequence[Verdict]) -> _Widths:
        def widest(texts: list[str]) -> int:
            return max(map(cell_len, texts), default=0)

        return cls(
            widest([one_line(v.kernel) for v in rows]),
            widest([v.backend for v in rows]),
            widest([v.device for v in rows]),
            widest([v.status for v in rows]),
            widest([_seconds(v) for v in rows]),
            widest([_cases(v) for v in rows]),
        )


def _row(verdict: Verdict, widths: _Widths, available: int) -> Iterator[Text]:
    """One kernel, in two lines if its cases and checks are too long for one."""
    row = Text.assemble(
        f"  {one_line(verdict.kernel):<{widths.kernel}}  {verdict.backend:<{widths.language}}  ",
        f"{verdict.device:<{widths.device}}  ",
        (f"{verdict.status.upper():<{widths.status}}", LOOKS[verdict.status].style),
        f"  {_seconds(verdict):>{widths.seconds}}",
    )
    below: list[Text] = []
    for column, width in ((Text(_cases(verdict)), widths.cases), (_checks(verdict), 0)):
        if below or row.cell_len + 2 + column.cell_len > available:
            below.append(column)
        elif column or width:
            column.pad_right(width - column.cell_len)
            row.append("  ").append(column)
    remark = Text(one_line(verdicts.remark(verdict)), "dim")
    if any(below):
        row.rstrip()
        yield row
        yield Text("      ").append(Text("  ").join(filter(None, (*below, remark))))
        return
    # Most kernels on one machine have the same remark, which is not worth another line for each: all of it, or what is
    # before its reason.
    for text in (remark.plain, remark.plain.partition(": ")[0]):
        if row.cell_len + 2 + cell_len(text) <= available:
            row.append("  ").append(text, remark.style)
            break
    row.rstrip()
    yield row


def _seconds(verdict: Verdict) -> str:
    return f"{verdict.seconds:.1f} s" if verdict.status is not Status.REFUSED else ""


def _cases(verdict: Verdict) -> str:
    """The cases that "values" ran, or at which it failed; of a kernel that cannot run, where the reason is."""
    if verdict.status is Status.REFUSED:
        return "see below"
    return verdicts.values_cases(verdict)


def _checks(verdict: Verdict) -> Text:
    """The checks that gave the verdict its status."""
    return Text(", ".join(map(one_line, verdicts.decisive_checks(verdict))), LOOKS[verdict.status].style)


def _show_checks(console: Console, verdict: Verdict) -> None:
    """Print a line for each check, with its time. What a bad one found is above, so that its first line is enough."""
    found = verdicts.findings_of(verdict)
    width = max((cell_len(one_line(f.check)) for f in found), default=0)
    for finding in found:
        look = LOOKS[finding.status]
        name = one_line(finding.check)
        taken = verdict.step_seconds.get(finding.check)
        line = Text.assemble(
            "      ", (look.mark, look.style), f" {name:<{width}}  ",
            (f"{taken:5.1f} s  " if taken is not None else "", "dim"), (_first_line(finding), "dim"),
        )  # fmt: skip
        line.rstrip()
        line.truncate(max(console.width, 20), overflow="ellipsis")
        console.print(line, soft_wrap=True)


def _first_line(finding: Finding) -> str:
    return one_line(next(iter(verdicts.outcome(finding).splitlines()), ""))
