"""Checks torch's own functions as kernels, and records every verdict.

``python -m tests.opinfo.table cpu OUT.json`` checks all of them, or those of ``--only``, or the first of ``--limit``;
``--resume`` continues a run that ended early, and ``--shard 2/8`` takes the second of eight parts.
"""

from __future__ import annotations

import argparse
import collections
import json
import platform
import random
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

import opwright as ow
from opwright.machine import this_machine
from tests.opinfo.contracts import LeftOut, infos, make
from tests.opinfo.known import known_bug

__all__ = ["check_function", "main"]

Row = dict[str, Any]


def check_function(name: str, device: str, level: str = "quick", jobs: int = 1, timeout: float = 60.0) -> list[Row]:
    """The verdicts of one function's kernels, or one row with the reason why it is left out."""
    started = time.monotonic()
    try:
        made = make(infos()[name], device)
    except LeftOut as error:
        return [_row(name, "", "left out", time.monotonic() - started, reason=str(error))]
    except Exception as error:  # a fault of the maker is a row, too
        return [_row(name, "", "error", time.monotonic() - started, reason=f"{type(error).__name__}: {error}"[:400])]
    report = ow.check(made.operator, device=device, level=level, jobs=jobs, timeout=timeout)
    return [_row_of(name, verdict, made.operator.contract.call_form) for verdict in report.verdicts]


def _row(name: str, variant: str, status: str, seconds: float, **more: Any) -> Row:
    return {"function": name, "variant": variant, "status": status, "seconds": round(seconds, 2), **more}


def _row_of(name: str, verdict: ow.results.Verdict, contract: str) -> Row:
    found = [f for f in verdict.findings if f.status.value != "pass"]
    row = _row(
        name,
        verdict.kernel,
        verdict.status.value,
        verdict.seconds,
        contract=contract,
        findings=[_finding(f) for f in found],
        passed={f.check: f.message for f in verdict.findings if f.status.value == "pass"},
        not_checked=len(verdict.not_checked),
        why_not=sorted({f"{n.check}: {n.reason[:150]}" for n in verdict.not_checked}),
    )
    bad = [f.check for f in found if f.status.value in ("fail", "inconclusive")]
    if bad and (bug := known_bug(name, verdict.device, bad)):
        row["known"] = bug
    return row


def _finding(finding: ow.results.Finding) -> dict[str, str]:
    # The end of a traceback says more than its start.
    text = finding.message[-400:] if finding.check in ("load", "build") else finding.message[:400]
    return {"check": finding.check, "status": finding.status.value, "case": finding.case, "message": text}


def _line(row: Row) -> str:
    findings = row.get("findings", [])
    first = f"{findings[0]['check']}: {findings[0]['message'].splitlines()[0]}" if findings else row.get("reason", "")
    known = " (known)" if row.get("known") else ""
    return f"{row['function']} {row['variant']} {row['status']}{known} {row['seconds']} {first[:150]}"


def _write(out: Path, device: str, rows: Sequence[Row]) -> None:
    versions = {"torch": torch.__version__, "python": platform.python_version(), "device": device}
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    head = f'{{\n "machine": {json.dumps(this_machine().to_json())},\n "versions": {json.dumps(versions)},\n'
    part = out.with_suffix(".part")
    part.write_text(f'{head} "rows": [\n{lines}\n ]\n}}\n')
    part.replace(out)


def _totals(rows: Iterable[Row]) -> str:
    listed = list(rows)
    functions = {r["function"] for r in listed if r["variant"]}
    statuses = collections.Counter(f"{r['variant'] or '-'} {r['status']}" for r in listed)
    checks = collections.Counter(f["check"] for r in listed for f in r.get("findings", []))
    return f"{len(functions)} functions; {dict(sorted(statuses.items()))}; findings {dict(checks.most_common())}"


def _chosen(options: argparse.Namespace) -> list[str]:
    """In a mixed order that is the same each time, so that a part of a run is a sample of all."""
    names = list(options.only or infos())
    if not options.only:
        random.Random(0).shuffle(names)
    if options.shard:
        part, parts = map(int, options.shard.split("/"))
        names = names[part - 1 :: parts]
    return names[: options.limit] if options.limit else names


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, print a line for each kernel, and write the record; returns the number of verdicts that are not right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("device", choices=["cpu", "cuda"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--shard", default="", help="2/8: the second of eight parts, for processes beside each other")
    parser.add_argument("--level", default="quick")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=60.0)
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args(arguments)
    rows: list[Row] = json.loads(options.out.read_text())["rows"] if options.resume and options.out.exists() else []
    done = {row["function"] for row in rows}
    for name in _chosen(options):
        if name in done:
            continue
        for row in check_function(name, options.device, options.level, options.jobs, options.timeout):
            rows.append(row)
            print(_line(row), flush=True)
        _write(options.out, options.device, rows)
    print(_totals(rows))
    return sum(row["status"] in ("fail", "inconclusive", "error") and not row.get("known") for row in rows)


if __name__ == "__main__":
    sys.exit(min(1, main()))
