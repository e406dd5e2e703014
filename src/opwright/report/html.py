"""Records as one self-contained HTML page (no network, fonts or libraries), and tables for notebooks."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from opwright.report import format, reasons, verdicts
from opwright.report.candidates import candidates_of
from opwright.report.format import BenchRow
from opwright.report.matrix import make_matrix
from opwright.report.pictures import figures
from opwright.report.reasons import Reason
from opwright.report.records import Records, how_made, read
from opwright.report.statuses import LOOKS, ONE_BY_ONE, rank
from opwright.results import BenchReport, CheckReport, Measurement, RooflineLimit, Status

__all__ = ["notebook", "render"]

# A list of more kernels than this shows those that failed or did not end in time, and the others on request.
MOST_ROWS = 12


def render(records: Sequence[Mapping[str, Any]], title: str = "") -> str:
    """One self-contained page of any number of check, judge and bench records; records of one machine are merged.

    Sections without data are left out, and so are pictures if matplotlib is not installed (a line says so).

    Raises:
        OpwrightError: a record's schema is unknown, or it lacks what its schema promises.
    """
    found = read(records)
    content = {
        **candidates_of(found),
        **_checks_of(found),
        **_histograms_of(found),
        **_benches_of(found),
        **_pictures_of(found.benches),
    }
    script = _environment().get_template("page.js.jinja").render()
    return (
        _environment()
        .get_template("page.html.jinja")
        .render(
            title=title or ("Judged kernels" if found.judged and not found.checks else "Kernel report"),
            records=found,
            made=how_made(records),
            schemas=list(dict.fromkeys(str(r["schema"]) for r in records)),
            script=Markup(script),
            script_hash=_hash(script),
            contents=_contents(found, content),
            **content,
        )
    )


def notebook(report: CheckReport | BenchReport) -> str:
    """A table for ``_repr_html_``: a fragment without scripts and stylesheets."""
    content = _notebook_check(report) if isinstance(report, CheckReport) else _notebook_bench(report)
    return _environment().get_template("notebook.html.jinja").render(content)


# -- the contents of the page -----------------------------------------------------------------------------------


def _contents(found: Records, content: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The sections that the page has, as (anchor, name)."""
    sections = {
        ("candidates", "Candidates"): content["candidates"],
        ("unread", "Not read"): content["unread"],
        ("matrix", "Operators and languages"): content["verdicts"],
        ("verdicts", "Verdicts"): content["verdicts"],
        ("notes", "Warnings"): content["notes"],
        ("errors", "Errors of the benchmark"): content["errors"],
        ("times", "Times"): content["rows"],
        ("fastest", "Fastest by size"): content["crossovers"],
        ("pictures", "Pictures"): content["rooflines"] or content["time_panels"],
        ("histograms", "Sizes of errors"): found.histograms,
        ("parts", "Origin of each part"): content["parts_by_op"],
        ("not-checked", "What was not checked"): content["not_checked"] or content["refused"],
        ("machine", "Machine"): found.machines,
    }
    return [section for section, content in sections.items() if content]


def _checks_of(found: Records) -> dict[str, Any]:
    counts = verdicts.counts(found.verdicts)
    others = verdicts.counted(found.verdicts, *ONE_BY_ONE)
    parts = verdicts.parts_by_op(found.verdicts)
    return {
        "verdicts": verdicts.worst_first(found.verdicts),
        "matrix": make_matrix(found.verdicts),
        "folded": others if len(found.verdicts) > MOST_ROWS else "",
        "counts": counts,
        "status_chips": [(s.value, LOOKS[s].word, n) for s, n in counts.items()],
        "notes": reasons.notes(found.verdicts),
        "parts_by_op": parts,
        "part_names": list(dict.fromkeys(name for origins in parts.values() for name in origins)),
        "not_checked": reasons.not_checked(found.verdicts),
        "refused": reasons.refused(found.verdicts),
    }


def _histograms_of(found: Records) -> dict[str, Any]:
    """All histograms if there are few, else those with a wrong element; the others are folded."""
    few = len(found.histograms) <= MOST_ROWS
    shown = [h for h in found.histograms if few or h.has_wrong]
    return {"histograms": shown, "more_histograms": [h for h in found.histograms if h not in shown]}


def _benches_of(found: Records) -> dict[str, Any]:
    rows = format.bench_rows(found.benches)
    names = format.baselines(row.main for row in rows)
    row_outcomes = ["" if row.main.kernel in names else _outcomes(row) for row in rows]
    outcomes = " ".join(row_outcomes).split()
    labels = {id(b.machine): _where(b, found.benches) for b in found.benches}
    return {
        "rows": rows,
        "row_machines": [labels[id(row.machine)] for row in rows],
        "row_outcomes": row_outcomes,
        "baselines": names,
        "comparisons": format.versus_counts(rows),
        "outcome_chips": [(o, o.upper(), outcomes.count(o)) for o in _OUTCOME_ORDER if o in outcomes],
        "errors": [error for bench in found.benches for error in bench.errors],
        "crossovers": [(_where(b, found.benches), c) for b in found.benches for c in b.crossovers],
        "settings": [(_where(b, found.benches), b.settings) for b in found.benches if b.settings],
        "roofline": [(_where(b, found.benches), c) for b in found.benches for c in b.roofline],
    }


def _where(bench: BenchReport, benches: Sequence[BenchReport]) -> str:
    """The machine's name, if there are several."""
    return format.differing_facts(bench.machine, [b.machine for b in benches]) if len(benches) > 1 else ""


_OUTCOME_ORDER = ("slower", "unclear", "same", "faster")


def _outcomes(row: BenchRow) -> str:
    """The outcomes of a row's comparisons, for the page's filter."""
    return " ".join(sorted({c.verdict.lower() for c in row.main.comparisons.values()}))


@dataclass(frozen=True)
class _Roofline:
    wide: Markup
    narrow: Markup
    caption: str


def _pictures_of(benches: Sequence[BenchReport]) -> dict[str, Any]:
    drawable = [b for b in benches if b.measurements]
    content: dict[str, Any] = {"rooflines": [], "time_panels": [], "pictures_missing": ""}
    if not drawable:
        return content
    if not figures.available():
        return {**content, "pictures_missing": "install matplotlib for them (pip install matplotlib)."}
    machines = [b.machine for b in drawable]
    for b, bench in enumerate(drawable):
        where = format.differing_facts(bench.machine, machines)
        if figures.roofline_points(bench):
            svgs = [figures.roofline(bench, narrow=narrow) for narrow in (False, True)]
            label = f"Roofline of {where}"
            wide, narrow = (_inline(svg, f"roofline{b}{kind}", label) for svg, kind in zip(svgs, "wn", strict=True))
            content["rooflines"].append(_Roofline(wide, narrow, _roofline_caption(bench, where)))
        for p, panel in enumerate(figures.panels(bench)):
            label = f"Time over size: {panel.title} on {where}"
            svg = _inline(figures.time_panel(panel), f"time{b}-{p}", label)
            content["time_panels"].append((svg, _where(bench, drawable)))
    return content


def _roofline_caption(bench: BenchReport, where: str) -> str:
    shown = len(figures.roofline_points(bench))
    without = sum(m.flops == 0 for m in bench.measurements)
    caption = (
        f"Roofline of {where}: work done per second over work per byte, under the limits measured on this machine. "
        "Large: each operator’s fastest kernel at its largest size, with its share of the limit; "
        f"faint: all {shown} measurements of forwards."
    )
    return caption + (f" {without} measurements without floating-point operations are not shown." if without else "")


def _inline(svg: str, prefix: str, label: str) -> Markup:
    """An SVG file as a part of the page: with its own ids, the page's font and text colour, and without global styles.

    It is marked as safe because matplotlib escapes the text in it.
    """
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}-", svg)
    svg = re.sub(r"font: ((?:bold )?[\d.]+px) [^;\"]*", r"font: \1 system-ui, sans-serif", svg)
    svg = svg.replace(figures.NEUTRAL, "currentColor")
    name = Markup.escape(label)
    return Markup(re.sub(r' width="[^"]*" height="[^"]*"', f' role="img" aria-label="{name}"', svg, count=1))


# -- a notebook's tables ----------------------------------------------------------------------------------------


def _notebook_check(report: CheckReport) -> dict[str, Any]:
    return {
        "heading": verdicts.counted(report.verdicts) or "nothing to check",
        "columns": ("operator", "kernel", "language", "device", "verdict", "cases", "found"),
        "rows": [
            (v.op, v.kernel, v.backend, v.device, v.status.upper(), verdicts.values_cases(v), v.reason)
            for v in verdicts.worst_first(report.verdicts)
        ],
        "below": [
            *(
                f"{LOOKS[f.status].mark} {v.op} {v.kernel}: {f.check}\n{f.case}\n{f.message}\n{f.reproduce}".rstrip()
                for v, f in verdicts.problems(report.verdicts)
            ),
            *(_note_text(group.status, note) for group in reasons.notes(report.verdicts) for note in group.reasons),
        ],
    }


def _note_text(status: Status, note: Reason) -> str:
    remedy = f"→ {note.remedy}" if note.remedy else ""
    lines = (f"{LOOKS[status].mark} {LOOKS[status].word}: {note.who} ({', '.join(note.checks)})", note.why, remedy)
    return "\n".join(filter(None, (*lines, note.again)))


def _notebook_bench(report: BenchReport) -> dict[str, Any]:
    rows = format.bench_rows([report])
    names = format.baselines(row.main for row in rows)

    def cells(row: BenchRow) -> tuple[str, ...]:
        m = row.main
        comparisons = (
            f"{c.verdict} {format.ratio_text(c)}" if (c := m.comparisons.get(name)) else "" for name in names
        )
        time = f"{format.estimate_text(m.time_us)} [{format.estimate_interval(m.time_us)}]"
        share = format.percent(m.roofline_fraction)
        return (
            m.op,
            m.kernel,
            m.direction,
            format.case_text(m.case),
            m.cache,
            time,
            share,
            *comparisons,
            "; ".join(row.notes),
        )

    return {
        "heading": f"{len(report.measurements)} measurements on {format.machine_name(report.machine)}",
        "columns": ("operator", "kernel", "direction", "case", "cache", "time", "of the limit",
                    *(f"vs {name}" for name in names), "notes"),
        "rows": [cells(row) for row in rows],
        "below": report.errors,
    }  # fmt: skip


# -- templates --------------------------------------------------------------------------------------------------


def _hash(script: str) -> str:
    """The hash for the page's Content-Security-Policy, so that no other script runs."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("opwright.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(_FILTERS)
    environment.globals.update(
        looks=LOOKS,
        one_by_one=ONE_BY_ONE,
        impossible=format.IMPOSSIBLE,
    )
    return environment


def _giga(rate: Callable[[Measurement], float | None]) -> Callable[[Measurement], str]:
    def text(m: Measurement) -> str:
        value = rate(m)
        return "–" if value is None else format.significant(value / 1e9)

    return text


def _limit_text(limit: RooflineLimit) -> str:
    """``3,050 GB/s at 256 MiB`` … for sizes, ``float32 51.0 TFLOP/s`` … for dtypes."""
    formats: dict[str, Callable[[float], str]] = {
        "B/s": lambda rate: f"{format.significant(rate / 1e9)} GB/s",
        "FLOP/s": format.flops_text,
        "us": format.time_text,
    }
    texts = []
    for key, value in limit.by.items():
        at = f"at {format.bytes_text(int(key))}" if key.isdigit() and limit.unit == "B/s" else f"({key})"
        text = formats[limit.unit](value) if limit.unit in formats else f"{format.significant(value)} {limit.unit}"
        texts.append(f"{text} {at}")
    return ", ".join(texts)


def _breakable(name: str) -> Markup:
    """A name that a browser breaks after a folder or a word, if it does not fit."""
    return Markup(re.sub(r"([/_:.])(?=\w)", r"\1<wbr>", str(Markup.escape(name))))


_FILTERS: dict[str, Callable[..., Any]] = {
    "bandwidth": format.bandwidth,
    "bins": format.bins,
    "breakable": _breakable,
    "bytes_text": format.bytes_text,
    "case_text": format.case_text,
    "coverage": verdicts.values_coverage,
    "coverage_text": verdicts.coverage_text,
    "fails_values": verdicts.fails_values,
    "decisive_checks": verdicts.decisive_checks,
    "limit_text": _limit_text,
    "estimate_interval": format.estimate_interval,
    "estimate_text": format.estimate_text,
    "findings": verdicts.findings_of,
    "flop_rate": format.flop_rate,
    "gigabytes": _giga(format.bandwidth),
    "gigaflops": _giga(format.flop_rate),
    "is_number": format.is_number,
    "left_out": lambda verdict: reasons.not_checked([verdict]),
    "machine_facts": format.machine_facts,
    "machine_name": format.machine_name,
    "outcome": verdicts.outcome,
    "percent": format.percent,
    "rank": rank,
    "time_text": format.time_text,
    "remark": verdicts.remark,
    "ratio_text": format.ratio_text,
}
