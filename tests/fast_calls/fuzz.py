"""Draws programs and compares their forms: ``python -m tests.fast_calls.fuzz --programs 1000 --seed 0``.

Exits with 1 if a program has a difference, and with 2 if nothing was fast.
"""

from __future__ import annotations

import argparse
import collections
import json
import math
import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from tests.fast_calls.forms import prepare
from tests.fast_calls.programs import Program, draw_program
from tests.fast_calls.shrink import script, shrink
from tests.fast_calls.workers import Outcome, Settings, run_program, run_seeds

__all__ = ["Summary", "main", "run"]

# What a run must have had, so that it says something about fast calls.
_MUST_HAPPEN = ("recorded gradients", "recorded launchers", "numbers passed on")


@dataclass
class Summary:
    """What a run has found."""

    programs: int = 0
    steps: int = 0
    calls: int = 0
    seconds: float = 0.0
    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    differences: list[dict[str, Any]] = field(default_factory=list)

    @property
    def never_happened(self) -> list[str]:
        """Kinds of fast calls that the run did not have."""
        return [kind for kind in _MUST_HAPPEN if not self.counts[kind]]

    def add(self, outcome: Outcome) -> None:
        self.programs += 1
        self.steps += outcome.steps
        self.calls += outcome.calls

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(self.counts.items()))
        return (
            f"{self.programs} programs, {self.steps} steps, {self.calls} calls in {self.seconds:.1f} s "
            f"({1000 * self.seconds / max(self.programs, 1):.1f} ms a program); {counts or 'nothing was fast'}; "
            f"{len(self.differences)} differences"
        )


def run(
    seeds: Sequence[int], settings: Settings, shrinks: int = 0, stop: int = 0, seconds: float = math.inf
) -> Summary:
    """Run the programs of seeds, and print progress and differences.

    Args:
        shrinks: how many differences are made smaller.
        stop: end after so many differences; 0 for never.
        seconds: end after so long.
    """
    summary, start, shown = Summary(), time.monotonic(), time.monotonic()
    for outcome in run_seeds(seeds, settings):
        summary.add(outcome)
        summary.counts.update(outcome.counts)
        summary.seconds = time.monotonic() - start
        if outcome.difference is not None:
            summary.differences.append(_found(outcome, settings, shrinks > len(summary.differences)))
            if len(summary.differences) == stop:
                break
        if summary.seconds > seconds:
            break
        if time.monotonic() - shown > 10:
            shown = time.monotonic()
            print(f"… {summary}", flush=True)
    summary.seconds = time.monotonic() - start
    return summary


def _found(outcome: Outcome, settings: Settings, shrinks: bool) -> dict[str, Any]:
    difference = outcome.difference
    assert difference is not None
    program = draw_program(outcome.seed, settings.without)
    if shrinks:
        program, difference = _smaller(program, difference.kind, settings) or (program, difference)
    text = script(program, str(difference))
    print(f"--- seed {outcome.seed}: {difference.kind}", *([text] if shrinks else []), sep="\n", flush=True)
    return {"seed": outcome.seed, "kind": difference.kind, "difference": asdict(difference), "script": text}


def _smaller(program: Program, kind: str, settings: Settings) -> tuple[Program, Any] | None:
    def differs(candidate: Program) -> bool:
        found = run_program(candidate, settings)
        return found is not None and found.kind == kind and "NameError" not in str(found)

    if not differs(program):
        return None
    smaller = shrink(program, differs)
    return smaller, run_program(smaller, settings)


def record(summary: Summary, arguments: argparse.Namespace) -> dict[str, Any]:
    """A run as JSON."""
    return {
        "programs": summary.programs, "seed": arguments.seed, "steps": summary.steps, "calls": summary.calls,
        "seconds": round(summary.seconds, 1), "counts": dict(summary.counts), "differences": summary.differences,
        "device": torch.cuda.get_device_name() if arguments.gpu else platform.processor() or platform.machine(),
        "torch": torch.__version__, "python": platform.python_version(),
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fast_calls.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=100, help="how many programs (default: 100)")
    parser.add_argument("--seed", type=int, default=0, help="that of the first program; later ones follow")
    parser.add_argument("--gpu", action="store_true", help="tensors on a GPU, without the imitated driver")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--no-custom-op", action="store_true", help="compare fast and slow only")
    parser.add_argument("--shrink", type=int, default=3, metavar="N", help="make the first N differences smaller")
    parser.add_argument("--stop", type=int, default=0, metavar="N", help="stop after N differences")
    parser.add_argument("--seconds", type=float, default=math.inf, help="end after so long (default: never)")
    parser.add_argument("--without", action="append", default=[], metavar="TEXT", help="leave out steps with it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write a record")
    given = parser.parse_args(arguments)
    settings = Settings("cuda" if given.gpu else "cpu", not given.no_custom_op, given.jobs, tuple(given.without))
    if not given.gpu:  # a process that has used a GPU cannot fork others that use it
        prepare(False)
    summary = run(range(given.seed, given.seed + given.programs), settings, given.shrink, given.stop, given.seconds)
    print(summary)
    for kind, count in collections.Counter(d["kind"] for d in summary.differences).most_common():
        print(f"{count:6} {kind}")
    if given.json is not None:
        given.json.write_text(json.dumps(record(summary, given), indent=1))
    if summary.never_happened and not summary.differences:
        print(f"the run says nothing: it had no {', '.join(summary.never_happened)}")
        return 2
    return 1 if summary.differences else 0


if __name__ == "__main__":
    sys.exit(main())
