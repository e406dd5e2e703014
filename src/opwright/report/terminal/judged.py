"""The output of ``opwright judge``: a row for each candidate, the worst finding first."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.table import Table
from rich.text import Text

from opwright.report.candidates import brief, names_of
from opwright.report.statuses import LOOKS
from opwright.report.terminal.console import one_line
from opwright.results import Status
from opwright.results.judged import Judged, JudgeReport

__all__ = ["show_judged"]


def show_judged(console: Console, report: JudgeReport, *, verbose: bool = False) -> None:
    """Print the rows, then the paths that are no task, and the counts.

    Args:
        verbose: print each finding of each candidate as a check does, and what its contract takes as fixed.
    """
    if report.rows:
        console.print(_table(report))
    names = names_of(report.rows)
    for row in report.rows if verbose else ():
        console.print(Text(f"\n{names[row.candidate]}", "bold"))
        for sentence in row.fixed:
            console.print(Text(f"  fixed: {sentence}", "dim"))
        if row.verdict is not None:
            console.print(Text(str(row.verdict)))
    for path, why in report.unread:
        console.print(Text(f"not read: {path}: {why}", "yellow"))
    console.print(_counts(report))
    console.print(Text(report.sandbox, "dim"))
    if report.partial:
        console.print(Text(report.partial, "yellow"))


def _table(report: JudgeReport) -> Table:
    """The finding is below the candidate: both are long, and a terminal may have 80 columns."""
    has_claims = any(row.by_format for row in report.rows)
    table = Table(box=None, pad_edge=False)
    table.add_column("opwright", no_wrap=True)
    if has_claims:
        table.add_column(report.rows[0].format, no_wrap=True)
    table.add_column("candidate, worst finding", overflow="fold")
    names = names_of(report.rows)
    for row in report.rows:
        status = Text(f"{row.status.mark} {row.status.name}", LOOKS[row.status].style)
        lines = Text("\n").join(filter(None, (Text(names[row.candidate]), _finding(row), _times(row))))
        table.add_row(status, *([row.by_format or "–"] if has_claims else []), lines)
    return table


def _finding(row: Judged) -> Text:
    found = row.worst
    if found is None:
        return Text(one_line(row.reason), "dim")
    case = f"{found.case}: " if found.case else ""
    return Text(f"{found.check}: {case}{one_line(brief(found.message))}")


def _times(row: Judged) -> Text:
    """The candidate's time, and how many times as fast it is as others."""
    times = row.times
    if times is None or times.why_none:
        return Text(f"not timed: {one_line(times.why_none)}" if times is not None else "", "dim")
    parts = [f"{times.us:.4g} µs"]
    parts += [f"{times.speedup:.2f} × eager"] if times.speedup else []
    parts += [f"{times.compiled_us / times.us:.2f} × torch.compile"] if times.compiled_us else []
    parts += [f"{times.tuned_us / times.us:.2f} × max-autotune"] if times.tuned_us else []
    parts += [f"max-autotune was not timed: {one_line(brief(times.why_not_tuned))}"] if times.why_not_tuned else []
    parts += [f"{times.limit_us / times.us:.0%} of the machine's limit"] if times.limit_us else []
    parts += [f"SOL score {times.sol_score:.2f}"] if row.format == "sol-execbench" and times.sol_score else []
    return Text(", ".join(parts))


def _counts(report: JudgeReport) -> str:
    counts = Counter(row.status for row in report.rows)
    parts = [f"{counts[s]} {s.word}" for s in Status if counts[s]]
    count = len(report.rows)
    total = (
        f"{count} candidate{'s' * (count != 1)} in {report.seconds:.0f} s: {', '.join(parts) or 'nothing was judged'}"
    )
    if report.disagreements:
        total += f"\n{len(report.disagreements)} that {report.rows[0].format} calls correct fail here"
    if any(row.times is not None and not row.times.why_none for row in report.rows):
        shares = (f"fast_{p} {report.fast(p):.0%}" for p in (0, 1, 2))
        total += f"\nright, and faster than the reference: {', '.join(shares)}"
    return total
