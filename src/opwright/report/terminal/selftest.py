"""The output of ``opwright selftest``: what was caught by which check, then what was missed, and false alarms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from opwright.report.terminal.console import one_line
from opwright.results import Planted, SelfTest

__all__ = ["show_selftest"]


def show_selftest(console: Console, found: SelfTest, *, verbose: bool = False) -> None:
    """Print a table of languages, how many faults each check found, and each row that is not as it should be.

    Args:
        verbose: list every row.
    """
    record = found.to_json()
    console.print(_by_language(found.results))
    counts = Counter(check for r in found.results if r.planted for check in r.caught_by)
    console.print(Text("found by " + ", ".join(f"{name} {n}" for name, n in counts.most_common()), "dim"))
    for result in found.results if verbose else ():
        console.print(_line(result))
    for result in found.missed:
        console.print(Text(f"✗ missed: {result.defect} ({result.backend}, {result.device})", "red"))
    for result in found.false_alarms:
        by = ", ".join(result.caught_by)
        console.print(Text(f"✗ false alarm: {result.defect} ({result.backend}, {result.device}), by {by}", "red"))
        console.print(Text(f"    {one_line(result.message)}"))
    for reason, number in Counter(r.refused for r in found.refused).items():
        console.print(Text(f"{number} cannot run here: {reason}", "dim"))
    console.print(
        f"{record['caught']} of {record['planted']} planted faults caught, {record['false_alarms']} false alarms in "
        f"{record['correct']} right kernels, {found.seconds:.0f} s"
    )
    if found.partial:
        console.print(Text(found.partial, "yellow"))


def _by_language(results: Sequence[Planted]) -> Table:
    table = Table("language", "device", "planted", "caught", "right", "false alarms", box=None, pad_edge=False)
    for place in dict.fromkeys((r.backend, r.device) for r in results if not r.refused):
        here = [r for r in results if (r.backend, r.device) == place and not r.refused]
        planted, right = [r for r in here if r.planted], [r for r in here if not r.planted]
        caught, alarms = (sum(bool(r.caught_by) for r in rows) for rows in (planted, right))
        table.add_row(*place, str(len(planted)), str(caught), str(len(right)), str(alarms))
    return table


def _line(result: Planted) -> Text:
    how = result.refused or ", ".join(result.caught_by) or "nothing found"
    kind = "planted" if result.planted else "right"
    return Text(f"  {kind:<8} {result.defect} ({result.backend}): {how}, {result.time_s:.1f} s", "dim")
