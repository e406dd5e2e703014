"""The output of ``opwright check``: the matrix, the failures, then the rest, grouped and counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from opwright.report import format, reasons
from opwright.report.matrix import MARKS, Cell, Matrix, make_matrix
from opwright.report.reasons import Reason
from opwright.results import CheckReport, Finding, Status, Verdict

__all__ = ["counts_text", "print_indented", "show_check", "show_failures", "show_matrix", "show_reasons"]

STYLES = {Status.PASS: "bold green", Status.FAIL: "bold red", Status.REFUSED: "yellow"}
# A list of more kernels than this shows the failures, and counts the others.
MOST_ROWS = 12
# The maximum share of the terminal's width for the operators' names in the matrix.
_MOST_OF_WIDTH = 0.45


def show_check(console: Console, report: CheckReport, *, verbose: bool = False) -> None:
    """Print the matrix, each failure with its smallest case, the kernels, and what was not checked or cannot run.

    ``verbose`` lists all kernels, however many there are.
    """
    if not report.verdicts:
        console.print("nothing to check")
        return
    show_matrix(console, make_matrix(report.verdicts))
    show_failures(console, report.verdicts)
    _show_kernels(console, report.verdicts, MOST_ROWS if not verbose else None)
    show_reasons(console, "not checked", reasons.not_checked(report.verdicts))
    show_reasons(console, "cannot run here", reasons.refused(report.verdicts))
    console.print()
    checks = list(dict.fromkeys(f.check for v in report.verdicts for f in v.findings))
    if checks:
        console.print(f"[dim]checks: {escape(', '.join(checks))}[/]", highlight=False)
    console.print(counts_text(report.verdicts))


def counts_text(verdicts: Iterable[Verdict]) -> Text:
    """``1 failed, 58 passed, 7 cannot run here``."""
    texts = [(f"{n} {format.STATUS_WORDS[s]}", STYLES[s]) for s, n in format.counts(verdicts).items()]
    return Text(", ").join(Text(*text) for text in texts)


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
    legend = [Text.assemble((MARKS[s], STYLES[s]), f" {format.STATUS_WORDS[s]}") for s in MARKS if s in present]
    console.print(Text("   ").join(legend))


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
            yield line(Text(_one_line(name_of_row)), [_cell_text(cells[i]) for i in block])


def _width(matrix: Matrix, i: int) -> int:
    column = matrix.columns[i]
    device = column.device if matrix.several_devices else ""
    return max(map(cell_len, (column.language, device, *(str(cells[i]) for _, cells in matrix.rows))))


def _cell_text(cell: Cell) -> Text:
    return Text(" ").join(Text(mark, STYLES[status]) for status, mark in cell.marks)


def _one_line(name: str) -> str:
    """A name for a table, without line breaks and control characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in name).split())


# -- failures ---------------------------------------------------------------------------------------------------


def show_failures(console: Console, verdicts: Iterable[Verdict]) -> None:
    """Print every failure, with its smallest case and the command that repeats it."""
    for verdict, finding in format.failures(verdicts):
        console.print()
        _show_failure(console, verdict, finding)


def _show_failure(console: Console, verdict: Verdict, finding: Finding) -> None:
    console.print(
        f"[bold red]✗[/] [bold]{escape(verdict.op)}[/] {escape(verdict.kernel)} on {escape(verdict.device)}: "
        f"{escape(finding.check)}",
        highlight=False,
    )
    if finding.case:
        console.print(f"  smallest failing case: {escape(finding.case)}", soft_wrap=True, highlight=False)
    for line in finding.message.splitlines():
        console.print(f"  {escape(line)}", soft_wrap=True, highlight=False)
    if finding.reproduce:
        console.print(f"  [dim]again:[/] {escape(finding.reproduce)}", soft_wrap=True, highlight=False)


# -- kernels ----------------------------------------------------------------------------------------------------


def _show_kernels(console: Console, verdicts: Sequence[Verdict], most: int | None) -> None:
    """Print a row for each kernel; if there are more than ``most``, only the failures and the number of the others."""
    folds = most is not None and len(verdicts) > most
    rows = [v for v in verdicts if not folds or v.status is Status.FAIL]
    kernel_width = max((cell_len(v.kernel) for v in rows), default=0)
    language_width = max((cell_len(v.backend) for v in rows), default=0)
    last = ""
    for verdict in rows:
        if verdict.op != last:
            console.print()
            console.print(Text(_one_line(verdict.op), "bold"), soft_wrap=True)
            last = verdict.op
        console.print(_row(verdict, kernel_width, language_width), soft_wrap=True)
    if folds:
        others = ", ".join(f"{n} {format.STATUS_WORDS[s]}" for s, n in format.counts(verdicts).items() if s != "fail")
        if others:
            console.print(f"\n[dim]not listed: {others}; -v lists every kernel[/]", highlight=False)


def _row(verdict: Verdict, kernel: int, language: int) -> Text:
    """One kernel. Columns have the same width in each row, so that operators' names need no column of their own."""
    seconds = f"{verdict.seconds:.1f} s" if verdict.status is not Status.REFUSED else ""
    row = Text.assemble(
        f"  {_one_line(verdict.kernel):<{kernel}}  {verdict.backend:<{language}}  {verdict.device:<7}  ",
        (f"{verdict.status.upper():<7}", STYLES[verdict.status]),
        f"  {seconds:>7}  ",
        _summary(verdict),
    )
    row.rstrip()
    return row


def _summary(verdict: Verdict) -> Text:
    if verdict.failures:
        return Text(", ".join(dict.fromkeys(f.check for f in verdict.failures)), "red")
    return Text("see below" if verdict.status is Status.REFUSED else verdict.reason, "dim")


# -- reasons ----------------------------------------------------------------------------------------------------


def show_reasons(console: Console, title: str, found: Sequence[Reason]) -> None:
    """Print each reason once: the number of kernels, the skipped checks, and a few of the kernels' names."""
    if not found:
        return
    console.print(f"\n[bold]{title}[/]")
    for reason in found:
        aside = f" ({', '.join(reason.checks)})" if reason.checks else ""
        print_indented(console, Text.assemble((f"{reason.who}: ", "bold"), reason.why, (aside, "dim")), 2)
        for more in filter(None, (reason.skipped, reason.listed())):
            print_indented(console, Text(more, "dim"), 6)


def print_indented(console: Console, text: Text, indent: int) -> None:
    """Print a paragraph with an indent, wrapped to the width of the terminal."""
    for line in text.wrap(console, max(20, console.width - indent)):
        line.rstrip()
        console.print(Text(" " * indent).append(line), soft_wrap=True)
