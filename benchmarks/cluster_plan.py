"""When a check on 2 to 8 GPUs would end, by the plan that a cluster gets, if kernels took what a record says.

``python benchmarks/cluster_plan.py FILE`` needs no GPU and no Ray. The lengths are those of recorded checks on GPUs.
The records do not say how they are divided among the checks, so each is divided as ``arrangement`` divides one that is
not known: the start of each item, and its checks. Workers are taken to be warm, and each to be as fast as one alone.
"""

from __future__ import annotations

import argparse
import heapq
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import records

from opwright.checks.scheduling.arrangement import START, USUAL, Finished, arranged, name_of
from opwright.checks.scheduling.check_item import CheckItem
from opwright.checks.scheduling.partial_items import PartialItem
from opwright.checks.scheduling.plan import Task
from opwright.checks.scheduling.verdict import Settings
from opwright.gallery.add import add

_RESULTS = Path(__file__).parent / "results"
_WORKERS = (2, 4, 8)


def main() -> None:
    """Print and write a row for each record and number of workers."""
    options = argparse.ArgumentParser()
    options.add_argument("file", type=Path)
    rows = []
    for name, lengths in (
        ("2026-11-26-h200-x4-cluster.json", _of_cluster(_RESULTS / "2026-11-26-h200-x4-cluster.json")),
        ("2026-11-23-h200-gallery-check.json", _of_check(_RESULTS / "2026-11-23-h200-gallery-check.json")),
    ):
        for workers in _WORKERS:
            rows.append({"from": name, "kernels": len(lengths), "seconds": sum(lengths), "workers": workers,
                         **_ends(lengths, workers)})  # fmt: skip
            print(rows[-1])
    records.write(options.parse_args().file, {"share of a slice": dict(USUAL), "rows": rows})


def _of_cluster(file: Path) -> list[float]:
    """Of the sweep on one GPU; its first unit waited for torch, and so counts as long as the next."""
    seconds = [s for s in json.loads(file.read_text())["rounds"][0]["1"]["seconds_of_units"].values() if s]
    return [seconds[1], *seconds[1:]]


def _of_check(file: Path) -> list[float]:
    return [v["seconds"] for v in json.loads(file.read_text())["verdicts"] if v["status"] != "refused"]


def _ends(lengths: Sequence[float], workers: int) -> dict[str, Any]:
    """Compared with one worker: in the order of the record, by the plan of a first sweep, and of a later one."""
    # All units are of one kernel; a setting of its own gives each a name by which its length is known.
    task = Task(add, next(iter(add.kernels)), "cuda")
    units = [CheckItem.of(task, Settings(ranks=n + 2)) for n in range(len(lengths))]
    parts = [_parts(s) for s in lengths]
    total = sum(lengths)
    found: dict[str, Any] = {"in the record's order": total / _end(lengths, workers)}
    for what, known in (("a first sweep", []), ("a later sweep", parts)):
        by_name = {name_of(unit): of for unit, of in zip(units, known, strict=False)}
        pieces = arranged(units, by_name, lambda unit: workers, lambda unit: Finished.NOTHING)
        found[what] = total / _end([_seconds(piece.item, parts[piece.kernel]) for piece in pieces], workers)
        found[f"slices of {what}"] = sum(isinstance(piece.item, PartialItem) for piece in pieces)
    return found


def _parts(seconds: float) -> dict[str, float]:
    start = min(USUAL[START], seconds / 3)
    checks = sum(USUAL.values()) - USUAL[START]
    return {part: start if part == START else (seconds - start) * of / checks for part, of in USUAL.items()}


def _seconds(unit: CheckItem | PartialItem, parts: Mapping[str, float]) -> float:
    if isinstance(unit, CheckItem):
        return sum(parts.values())
    return parts[START] + parts[unit.group] / (1 if unit.case_range is None else unit.case_range.count)


def _end(seconds: Sequence[float], workers: int) -> float:
    free = [0.0] * workers
    for one in seconds:
        heapq.heapreplace(free, free[0] + one)
    return max(free)


if __name__ == "__main__":
    main()
