"""Keeps what a run has written as a record that pages can cite.

``python benchmarks/keep_record.py FILE --subject "CUDA graphs" --machine h100 --shows "…" --made-by "…"`` condenses the
record (single rows become counts, quantiles and what is not as it should be), adds what it is about, and writes
``results/DATE-MACHINE-SUBJECT.json``. A record of the same subject and machine is replaced. Then run
``list_records.py``.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import records

_CALM = ("pass", "left out")  # verdicts on a function of torch that need no row


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("file", type=Path)
    for name in ("subject", "machine", "shows", "made-by"):
        options.add_argument(f"--{name}", required=True)
    options.add_argument("--details", default="")
    options.add_argument("--date", default=datetime.date.today().isoformat())
    chosen = options.parse_args()
    record = json.loads(chosen.file.read_text())
    torch = str(record.get("torch") or record["machine"]["torch"]).partition("+")[0]
    said = (chosen.shows, chosen.made_by, chosen.details)
    found = records.About(chosen.subject, chosen.date, chosen.machine, torch, *said)
    for older in records.all_records():
        if (kept := records.about(older)).subject == found.subject and kept.machine == found.machine:
            older.unlink()
    name = "-".join([found.date, found.machine, *found.subject.lower().replace(",", "").split()])
    records.write(records.RESULTS / f"{name}.json", {"about": asdict(found), **condensed(record)})
    print(f"benchmarks/results/{name}.json")


def condensed(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record with summaries in place of single rows, if it is of a kind that has many."""
    schema = str(record.get("schema"))
    if schema.startswith("opwright.selftest/"):
        return {**record, "rows": _of_selftest(record["rows"])}
    if schema.startswith("opwright.judge/"):
        return {**record, "rows": [_of_judged(row) for row in record["rows"]]}
    if schema.startswith("opwright.check/"):
        return {**record, "verdicts": [_of_verdict(v) for v in record["verdicts"]]}
    rows = record.get("rows")
    if isinstance(rows, list) and rows and isinstance(rows[0], dict) and "function" in rows[0]:
        return {**record, "rows": _of_functions(rows)}
    return dict(record)


def _of_judged(row: Mapping[str, Any]) -> dict[str, Any]:
    """A candidate by the name of its file, and its worst finding."""
    findings = (row["verdict"] or {"findings": []})["findings"]
    worst = next((f for f in findings if f["status"] == row["status"] != "pass"), None)
    found = {} if worst is None else {"check": worst["check"], "case": worst["case"], "finding": worst["message"][:200]}
    kept = {key: row[key] for key in ("status", "claimed", "by_rule")}
    return {"candidate": "/".join(Path(row["candidate"]).parts[-2:]), **kept, **found}


def _of_selftest(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    ran = [r for r in rows if not r["refused"]]
    wrong = [r for r in ran if bool(r["planted"]) is not bool(r["caught_by"])]
    return {
        "by backend": _counts(r["backend"] for r in ran),
        "planted faults caught by": _counts(c for r in ran if r["planted"] for c in r["caught_by"]),
        "missed or accused": [{key: r[key] for key in ("defect", "backend", "planted", "message")} for r in wrong],
        "refused": _counts(r["refused"] for r in rows if r["refused"]),
        "seconds of a row": _quantiles([r["time_s"] for r in ran]),
    }


def _of_verdict(verdict: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: verdict[key] for key in ("op", "kernel", "backend", "device", "status", "reason", "seconds")}
    others = [f for f in verdict["findings"] if f["status"] != "pass"]
    found = {"findings": [{key: f[key] for key in ("check", "status", "message")} for f in others]} if others else {}
    ran = [f for f in verdict["findings"] if f["check"] == "values" and f.get("coverage")]
    cases = {"cases of values": ran[0]["coverage"]} if ran else {}
    return {**kept, "checks that passed": len(verdict["findings"]) - len(others), **cases, **found}


def _of_functions(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    others = [r for r in rows if r["status"] not in (*_CALM, "warning")]
    return {
        "functions": len({r["function"] for r in rows if r["status"] != "left out"}),
        "without an operator": len({r["function"] for r in rows if r["status"] == "left out"}),
        "verdicts": _counts(r["status"] for r in rows if r["status"] != "left out"),
        "known faults of torch": sum(bool(r.get("known")) for r in others),
        "neither pass nor warning": [
            {key: str(r[key])[:200] for key in ("function", "variant", "status", "known") if r.get(key)} for r in others
        ],
    }


def _counts(values: Any) -> dict[str, int]:
    return dict(Counter(values).most_common())


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    tenths = statistics.quantiles(values, n=10)
    return {"least": min(values), "10 %": tenths[0], "median": tenths[4], "90 %": tenths[8], "most": max(values)}


if __name__ == "__main__":
    main()
