"""The output of ``opwright check``: the matrix, the failures, then the rest, grouped and counted."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from opwright.report import reasons, verdicts
from opwright.report.explanations import explained_kind
from opwright.report.matrix import Cell, Matrix, make_matrix
from opwright.report.reasons import Reason
from opwright.report.statuses import GROUPED, LOOKS
from opwright.report.terminal.console import one_line, print_indented
from opwright.report.terminal.kernels import show_kernels
from opwright.results import CheckReport, Finding, Status, Verdict

__all__ = ["counts_text", "show_check", "show_matrix", "show_notes", "show_problems", "show_reasons"]

# The maximum share of the terminal's width for the operators' names in the matrix.
_MOST_OF_WIDTH = 0.45


def show_check(console: Console, report: CheckReport, *, verbose: bool = False, strict: bool | None = None) -> None:
    """Print the matrix, what failed or did not end in time, warnings, the kernels, and what was not checked.

    Args:
        verbose: list all kernels and their checks, however many there are.
        strict: whether warnings and thin coverage count as failures; None if the command has no such option.
    """
    found = report.verdicts
    if not found:
        console.print(report.partial or "nothing to check")
        return
    is_one = len(found) == 1  # which the line of its kernel names
    if not is_one:
        show_matrix(console, make_matrix(found))
    show_problems(console, found)
    show_notes(console, found)
    show_kernels(console, found, verbose=verbose)
    show_reasons(console, "not checked", reasons.not_checked(found), named=not is_one)
    show_reasons(console, "cannot run here", reasons.refused(found))
    console.print()
    checks = list(dict.fromkeys(f.check for v in found for f in v.findings))
    if checks:
        print_indented(console, Text(f"checks: {', '.join(checks)}", "dim"), 0)
    explained = (explained_kind(finding.check, finding.message) for _, finding in verdicts.problems(found))
    if (kind := next(filter(None, explained), None)) is not None:
        console.print(Text.assemble(("usual causes: ", "dim"), f"opwright explain {shlex.quote(kind)}"))
    console.print(counts_text(found))
    if report.partial:
        console.print(Text(report.partial, "yellow"))
    if strict is not None:
        _show_strictness(console, found, strict)


def counts_text(found: Iterable[Verdict]) -> Text:
    """``1 failed, 58 passed, 7 cannot run here``."""
    texts = [Text(f"{n} {LOOKS[s].word}", LOOKS[s].style) for s, n in verdicts.counts(found).items()]
    return Text(", ").join(texts)


def _show_strictness(console: Console, found: Sequence[Verdict], strict: bool) -> None:
    """Say what ``--strict`` does, or would do, to the exit code."""
    counts = verdicts.counts(found)
    concerned = ", ".join(f"{counts[s]} {LOOKS[s].word}" for s in GROUPED if s in counts)
    if not concerned:
        return
    one = sum(counts.get(s, 0) for s in GROUPED) == 1
    if strict:
        text = f"{concerned}: {'it counts as a failure' if one else 'they count as failures'}, because of --strict"
    else:
        text = f"{concerned}: --strict counts {'it as a failure' if one else 'them as failures'}"
    print_indented(console, Text(text), 0)


# -- the matrix -------------------------------------------------------------------------------------------------


def show_matrix(console: Console, matrix: Matrix) -> None:
    """Print operators × languages. Columns that do not fit beside the others are printed below them."""
    names = [matrix.corner, *(name for name, _ in matrix.rows)]
    width = min(max(map(cell_len, names)), max(8, int(console.width * _MOST_OF_WIDTH)))
    widths = [_width(matrix, i) for i in range(len(matrix.columns))]
    gap = 2 if width + sum(w + 2 for w in widths) <= console.width else 1
    for number, block in enumerate(_blocks(widths, console.width - width, gap)):
        if number:
            console.print()
        for line in _lines(matrix, block, width, [widths[i] for i in block], " " * gap):
            console.print(line, soft_wrap=True)
    present = {status for _, cells in matrix.rows for cell in cells for status, _ in cell.counts}
    for line in _legend(present, console.width):
        console.print(line, soft_wrap=True)


def _legend(present: Collection[Status], width: int) -> Iterator[Text]:
    """``✗ failed   ✓ passed``, in several lines if they are too long for one."""
    line = Text()
    for status in (s for s in Status if s in present):
        entry = Text.assemble((LOOKS[status].mark, LOOKS[status].style), f" {LOOKS[status].word}")
        if line and line.cell_len + 3 + entry.cell_len > width:
            yield line
            line = Text()
        line = Text("   ").join(filter(None, (line, entry)))
    yield line


def _blocks(widths: Sequence[int], available: int, gap: int) -> Iterator[list[int]]:
    """The indices of the columns that fit beside each other in the available width."""
    block: list[int] = []
    used = 0
    for i, width in enumerate(widths):
        if block and used + gap + width > available:
            yield block
            block, used = [], 0
        block.append(i)
        used += gap + width
    yield block


def _lines(matrix: Matrix, block: Sequence[int], name: int, widths: Sequence[int], gap: str) -> Iterator[Text]:
    """The lines of some columns, without operators that have no kernels in them."""

    def line(first: Text, cells: Iterable[Text]) -> Text:
        first.truncate(name, overflow="ellipsis", pad=True)
        for cell, width in zip(cells, widths, strict=True):
            cell.align("center", width)
            first.append(gap).append(cell)
        first.rstrip()
        return first

    columns = [matrix.columns[i] for i in block]
    if matrix.several_devices:
        yield line(Text(), [Text(c.language, "bold") for c in columns])
        yield line(Text(matrix.corner, "dim"), [Text(c.device, "dim") for c in columns])
    else:
        yield line(Text(matrix.corner, "dim"), [Text(c.language, "bold") for c in columns])
    for name_of_row, cells in matrix.rows:
        if any(cells[i].counts for i in block):
            yield line(Text(one_line(name_of_row)), [_cell_text(cells[i]) for i in block])


def _width(matrix: Matrix, i: int) -> int:
    column = matrix.columns[i]
    device = column.device if matrix.several_devices else ""
    return max(map(cell_len, (column.language, device, *(str(cells[i]) for _, cells in matrix.rows))))


def _cell_text(cell: Cell) -> Text:
    return Text(" ").join(Text(mark, LOOKS[status].style) for status, mark in cell.marks)


# -- failures, and what did not end in time ---------------------------------------------------------------------


def show_problems(console: Console, found: Iterable[Verdict]) -> None:
    """Print every failure and every step that did not end in time, with its case and the command that repeats it."""
    for verdict, finding in verdicts.problems(found):
        console.print()
        _show_problem(console, verdict, finding)


def _show_problem(console: Console, verdict: Verdict, finding: Finding) -> None:
    look = LOOKS[finding.status]
    console.print(
        f"[{look.style}]{look.mark}[/] [bold]{escape(verdict.op)}[/] {escape(verdict.kernel)} "
        f"on {escape(verdict.device)}: {escape(finding.check)}",
        highlight=False,
    )
    for line in (*finding.case_lines, *finding.message.splitlines()):
        console.print(f"  {escape(line)}", soft_wrap=True, highlight=False)
    if finding.remedy:
        print_indented(console, Text(f"→ {finding.remedy}"), 2)
    if others := verdict.same_fault_as(finding):
        print_indented(console, Text(f"the same fault: {', '.join(others)}"), 2)
    if finding.reproduce:
        console.print(f"  [dim]again:[/] {escape(finding.reproduce)}", soft_wrap=True, highlight=False)


# -- warnings and thin coverage ---------------------------------------------------------------------------------


def show_notes(console: Console, found: Sequence[Verdict]) -> None:
    """Print each text of thin coverage, and then of warnings, once: what, why, what to do, and which kernels."""
    for group in reasons.notes(found):
        look = LOOKS[group.status]
        console.print()
        mark = f"{look.mark} ", look.style
        print_indented(console, Text.assemble(mark, (look.word, "bold"), (f": {group.meaning}", "dim")), 0)
        for note in group.reasons:
            _show_reason(console, note)


# -- reasons ----------------------------------------------------------------------------------------------------


def show_reasons(console: Console, title: str, found: Sequence[Reason], *, named: bool = True) -> None:
    """Print each reason once: the number of kernels, the skipped checks, and a few of the kernels' names. Reasons of
    the same kernels as the one before have no names.

    Args:
        named: say which kernels each concerns; else the checks come first.
    """
    if not found:
        return
    console.print(f"\n[bold]{title}[/]")
    before: tuple[str, ...] = ()
    for reason in found:
        again = bool(reason.listed()) and reason.names == before
        _show_reason(console, reason, named=named, again=again)
        before = reason.names


def _show_reason(console: Console, reason: Reason, *, named: bool = True, again: bool = False) -> None:
    checks = ", ".join(reason.checks)
    if named or not checks:
        aside = f" ({checks})" if checks else ""
        who = f"the same {reason.kernels} kernels" if again else reason.who
        text = Text.assemble((f"{who}: ", "bold"), reason.why, (aside, "dim"))
    else:
        text = Text.assemble((f"{checks}: ", "bold"), reason.why)
    print_indented(console, text, 2)
    if reason.remedy:
        print_indented(console, Text(f"→ {reason.remedy}"), 6)
    case = f"case: {reason.case}" if reason.case else ""
    for more in filter(None, (case, reason.skipped, "" if again else reason.listed())):
        print_indented(console, Text(more, "dim"), 6)
    if reason.again:
        console.print(Text.assemble("      ", ("again: ", "dim"), reason.again), soft_wrap=True)
