"""Records as a comment for a pull request: counts, failures and how to reproduce them, times and baselines.

Text from kernels is in code spans, where it cannot format the comment, mention users, or end a table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from opwright.report import format, reasons, verdicts
from opwright.report.format import BenchRow
from opwright.report.matrix import Cell, make_matrix
from opwright.report.reasons import Notes, Reason
from opwright.report.records import Records, read
from opwright.report.statuses import LOOKS, ONE_BY_ONE
from opwright.results import ComparisonVerdict, Finding, Status, Verdict

__all__ = ["render"]

# A comment on GitHub has at most 65,536 characters; the page and the terminal show messages in full.
_MOST_FAILURES, _MOST_ROWS, _MOST_CHARACTERS = 40, 120, 240
_MOST_COMMAND = 4000  # a truncated command would be useless
_VERSUS_MARKS = {
    ComparisonVerdict.FASTER: "🟢",
    ComparisonVerdict.SLOWER: "🔴",
    ComparisonVerdict.SAME: "⚪",
    ComparisonVerdict.UNCLEAR: "🟡",
}


def render(records: Sequence[Mapping[str, Any]], title: str = "Kernel report") -> str:
    """GitHub-flavoured Markdown of any number of check, judge and bench records.

    Raises:
        OpwrightError: a record's schema is unknown, or it lacks what its schema promises.
    """
    found = read(records).with_judged_as_checks()
    blocks = [f"### {_plain(title)}", *_checks(found), *_benches(found), _machines(found)]
    return "\n\n".join(filter(None, blocks)) + "\n"


def _checks(found: Records) -> list[str]:
    if not found.checks:
        return []
    counts = verdicts.counts(found.verdicts)
    summary = " · ".join(f"{LOOKS[s].emoji} {n} {LOOKS[s].word}" for s, n in counts.items())
    return [
        *(f"⚠️ **{_plain(why)}**" for why in found.partial),
        f"**{summary or 'nothing to check'}**",
        _matrix(found),
        *(_problems(found, status) for status in ONE_BY_ONE),
        *map(_notes, reasons.notes(found.verdicts)),
        _cases(found),
        _folded("Cannot run here", map(_reason, reasons.refused(found.verdicts))),
        _folded("Not checked", map(_reason, reasons.not_checked(found.verdicts))),
    ]


def _problems(found: Records, status: Status) -> str:
    """A table of what failed, or of what did not end in time, which has a heading."""
    rows = [
        (
            _code(f"{v.op} {v.kernel}"),
            _plain(v.device),
            _plain(f.check),
            "<br>also ".join(filter(None, (_code(f.case), _code(f.ordinary_case)))),
            "<br>".join(filter(None, (_code(f.message), _remedy(f.remedy), _same_fault(v, f)))),
            _code(f.reproduce, _MOST_COMMAND),
        )
        for v, f in verdicts.problems(found.verdicts)
        if f.status is status
    ]
    case = "smallest case" if status is Status.FAIL else "case"
    table = _table(("kernel", "device", "check", case, "found", "reproduce"), rows, _MOST_FAILURES)
    return table if status is Status.FAIL or not table else f"{_heading(status, LOOKS[status].meaning)}\n\n{table}"


def _same_fault(verdict: Verdict, finding: Finding) -> str:
    others = verdict.same_fault_as(finding)
    return f"the same fault: {_plain(', '.join(others))}" if others else ""


def _heading(status: Status, meaning: str) -> str:
    return f"{LOOKS[status].emoji} **{LOOKS[status].word}**: {meaning}"


def _notes(group: Notes) -> str:
    """Warnings, or thin coverage: each text once."""
    notes = group.reasons
    items = "\n".join(f"- {_note(note)}" for note in notes[:_MOST_FAILURES])
    more = f"\n\n… and {len(notes) - _MOST_FAILURES} more" if len(notes) > _MOST_FAILURES else ""
    return f"{_heading(group.status, group.meaning)}\n\n{items}{more}"


def _note(note: Reason) -> str:
    return "<br>".join(filter(None, (_reason(note), _remedy(note.remedy), _code(note.again, _MOST_COMMAND))))


def _remedy(text: str) -> str:
    return f"→ {_plain(text)}" if text else ""


def _cases(found: Records) -> str:
    """How many of the generated cases each kernel ran."""
    rows = [
        (_code(f"{v.op} {v.kernel}"), _plain(v.device), LOOKS[v.status].emoji, cases)
        for v in verdicts.worst_first(found.verdicts)
        if (cases := verdicts.values_cases(v))
    ]
    return _details(
        "Cases that ran in the check values", _table(("kernel", "device", "verdict", "cases"), rows, _MOST_ROWS)
    )


def _matrix(found: Records) -> str:
    matrix = make_matrix(found.verdicts)
    columns = [f"{c.language} {c.device}" if matrix.several_devices else c.language for c in matrix.columns]
    rows = [(_code(name), *map(_cell, cells)) for name, cells in matrix.rows]
    return _table([_plain(matrix.corner), *map(_plain, columns)], rows, _MOST_ROWS)


def _cell(cell: Cell) -> str:
    return " ".join(f"{LOOKS[status].emoji} {n}" for status, n in cell.counts)


def _reason(reason: Reason) -> str:
    who = reason.who if reason.who not in reason.names else _code(reason.who)
    more = [", ".join(map(_plain, reason.checks)), _code(reason.case), _code(reason.skipped), _code(reason.listed())]
    details = "; ".join(filter(None, more))
    return f"{who}: {_code(reason.why)}" + (f" ({details})" if details else "")


def _benches(found: Records) -> list[str]:
    rows = format.bench_rows(found.benches)
    errors = [error for bench in found.benches for error in bench.errors]
    if not rows and not errors:
        return []
    summaries = [
        f"**against {_code(name)}:** " + " · ".join(f"{_VERSUS_MARKS[v]} {n} {v}" for v, n in verdicts.items())
        for name, verdicts in format.versus_counts(rows).items()
    ]
    names = format.baselines(row.main for row in rows)
    several = [b.machine for b in found.benches] if len(found.benches) > 1 else []
    columns = ("kernel", *(["machine"] if several else []), "direction", "case", "time", "GB/s", "of the limit",
               *(f"vs {name}" for name in names))  # fmt: skip
    table = _table([_plain(c) for c in columns], [_bench_cells(row, names, several) for row in rows], _MOST_ROWS)
    notes = dict.fromkeys(f"{_code(f'{r.main.op} {r.main.kernel}')}: {_code(note)}" for r in rows for note in r.notes)
    alarms = "\n".join(f"- ⚠️ {_code(error)}" for error in errors)
    return [alarms, "\n".join(summaries), table, _crossovers(found), _folded("Notes", notes), _settings(found)]


def _crossovers(found: Records) -> str:
    rows = [
        (_code(c.op), _plain(c.device_name), _plain(c.dtype), _plain(str(i)), _code(i.kernel))
        for bench in found.benches
        for c in bench.crossovers
        for i in c.ranges
    ]
    return _table(("operator", "device", "dtype", "elements", "fastest kernel"), rows, _MOST_ROWS)


def _settings(found: Records) -> str:
    lines = {f"{_plain(name)}: {_plain(value)}" for bench in found.benches for name, value in bench.settings.items()}
    return _folded("The same for all measurements", sorted(lines))


def _bench_cells(row: BenchRow, names: Sequence[str], machines: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    m = row.main
    time = f"{format.estimate_text(m.time_us)} [{format.estimate_interval(m.time_us)}] {m.cache}"
    rate = format.bandwidth(m)
    where = [_code(format.differing_facts(row.machine, machines))] if machines else []
    return (
        _code(f"{m.op} {m.kernel}") + (" ⚠️" if row.notes else ""),
        *where,
        _plain(m.direction),
        _code(format.case_text(m.case)),
        time,
        "" if rate is None else format.significant(rate / 1e9),
        format.percent(m.roofline_fraction),
        *(
            f"{_VERSUS_MARKS[c.verdict]} {c.verdict} {format.ratio_text(c)}" if (c := m.comparisons.get(name)) else ""
            for name in names
        ),
    )


def _machines(found: Records) -> str:
    texts = [
        ", ".join([format.machine_name(m), *(f"{k} {m[k]}" for k in ("torch", "triton", "python") if m.get(k))])
        for m in found.machines
    ]
    return "\n".join(f"<sub>{_plain(text)}</sub>" for text in texts)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], most: int) -> str:
    """A Markdown table without empty columns; rows after the first ``most`` are only counted."""
    if not rows:
        return ""
    kept = [i for i in range(len(columns)) if any(row[i] for row in rows)]
    lines = [[columns[i] for i in kept], ["---"] * len(kept), *([row[i] for i in kept] for row in rows[:most])]
    # A bar ends a cell, even inside a code span.
    text = "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
    return text + (f"\n\n… and {len(rows) - most} more" if len(rows) > most else "")


def _folded(name: str, lines: Iterable[str]) -> str:
    items = "\n".join(f"- {line}" for line in lines)
    return _details(name, items)


def _details(name: str, content: str) -> str:
    return f"<details><summary>{name}</summary>\n\n{content}\n\n</details>" if content else ""


def _code(text: str, most: int = _MOST_CHARACTERS) -> str:
    """One line as a code span, with a fence that does not occur in it."""
    line = " ".join(text.split())
    if not line:
        return ""
    if len(line) > most:
        line = line[: most - 1] + "…"
    fence = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def _plain(text: str) -> str:
    """Text outside code spans (titles, machines), with Markdown's special characters escaped."""
    escaped = re.sub(r"([\\`*_{}\[\]<>#&~])", r"\\\1", " ".join(text.split()))
    return escaped.replace("@", "@\u200b")  # a backslash would not prevent GitHub's mentions
