"""The output of ``opwright check --mutate``: a table of kernels, survivors with what would kill them, and a summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from opwright.report.terminal.console import one_line, print_indented
from opwright.results import Fate, KernelMutation, Mutant, MutationReport

__all__ = ["show_mutation"]

_LOOKS = {
    Fate.KILLED: "green", Fate.TIMEOUT: "green", Fate.SURVIVED: "yellow", Fate.INVALID: "dim", Fate.EQUIVALENT: "dim",
    Fate.UNKNOWN: "red",
}  # fmt: skip


def show_mutation(console: Console, report: MutationReport, *, verbose: bool = False, strict: bool = False) -> None:
    """Print the table, the survivors with a diff and the inputs that would kill them, and what was left as it is.

    Args:
        verbose: list every mutant.
        strict: whether survivors count as failures.
    """
    ran = [k for k in report if not k.refused]
    if ran:
        console.print(_table(ran))
    for kernel in ran:
        shown = kernel.mutants if verbose else kernel.survivors
        for mutant in shown:
            _show_mutant(console, kernel, mutant)
    for mutant in report.unknown:
        print_indented(console, Text(f"unknown {mutant.file}:{mutant.line}: {one_line(mutant.message)}", "red"), 0)
    for kernel in report:
        if kernel.refused:
            console.print()
            print_indented(console, Text(f"{kernel.op} {kernel.kernel}: not mutated: {kernel.refused}", "dim"), 0)
    left = Counter(what for kernel in ran for what in kernel.not_mutated)
    if left:
        console.print()
        print_indented(console, Text(f"not mutated: {'; '.join(left)}", "dim"), 0)
    console.print()
    _show_summary(console, report, strict)


def _table(kernels: Iterable[KernelMutation]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("kernel", "device"):
        table.add_column(name)
    for name in ("mutants", "killed", "time-out", "survived", "invalid", "equal", "score"):
        table.add_column(name, justify="right")
    for k in kernels:
        counts = [str(k.count(fate) or "·") for fate in Fate]
        killed, timeout, survived, invalid, equivalent, _ = counts
        looks = "yellow" if k.survivors else "green"
        table.add_row(
            Text(one_line(f"{k.op} {k.kernel}")), k.device, f"{len(k.mutants)} of {k.possible}",
            killed, timeout, Text(survived, looks), invalid, equivalent, Text(_percent(k.score), looks),
        )  # fmt: skip
    return table


def _percent(score: float | None) -> str:
    return "·" if score is None else f"{100 * score:.0f} %"


def _show_mutant(console: Console, kernel: KernelMutation, mutant: Mutant) -> None:
    where = f"{mutant.file}:{mutant.line}" if mutant.line else mutant.file
    console.print()
    head = Text(f"{mutant.fate} ", _LOOKS[mutant.fate]).append(
        f"{kernel.op} {kernel.kernel}: {mutant.operator}", "bold"
    )
    console.print(head.append(f"  {where}", "dim"), soft_wrap=True)
    for line in mutant.diff.splitlines():
        console.print(Text(f"  {line}", "red" if line.startswith("-") else "green"), soft_wrap=True)
    if mutant.fate is not Fate.SURVIVED:
        print_indented(
            console, Text(f"by {mutant.check}, {one_line(mutant.case)}" if mutant.case else mutant.check, "dim"), 2
        )
    elif mutant.killer is None:
        print_indented(console, Text("no input was found that kills it; it may be equivalent to the kernel"), 2)
    else:
        print_indented(console, Text(f"killed by {mutant.killer.check} on {mutant.killer.case}"), 2)
        print_indented(console, Text(one_line(mutant.killer.message.splitlines()[0]), "dim"), 4)
        print_indented(console, Text(f"→ {mutant.killer.add}", "bold"), 2)


def _show_summary(console: Console, report: MutationReport, strict: bool) -> None:
    killed = sum(k.count(Fate.KILLED, Fate.TIMEOUT) for k in report)
    survivors = report.survivors
    if killed + len(survivors):
        score = f"{100 * killed / (killed + len(survivors)):.0f} %"
        text = Text(f"{killed} mutant{'s' * (killed != 1)} killed, {len(survivors)} survived: mutation score {score}")
        found = sum(m.killer is not None for m in survivors)
        if survivors:
            text.append(f"; inputs that kill were found for {found} of the survivors")
        print_indented(console, text, 0)
        print_indented(console, Text(f"a sample of each kernel's mutants, seed {report.seed}", "dim"), 0)
    else:
        console.print("no mutant was run")
    if survivors:
        counts = "survivors count as failures, because of --strict"
        counted = counts if strict else "--strict counts survivors as failures"
        print_indented(console, Text(counted), 0)
    if report.partial:
        console.print(Text(report.partial, "yellow"))
