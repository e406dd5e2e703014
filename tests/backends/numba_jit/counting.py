"""Counts the verdicts of programs that Hypothesis draws."""

from __future__ import annotations

import argparse
import collections
import json
import warnings
from collections.abc import Callable
from typing import Any

import hypothesis
import numpy as np

__all__ = ["count", "main"]

_KNOWN = ("same", "raises as NumPy", "refused")


def count(drawn: Any, verdict_of: Callable[[Any], str], number: int, seed: int) -> dict[str, Any]:
    """The verdicts of so many programs, and the programs that are silently different."""
    verdicts: collections.Counter[str] = collections.Counter()
    different: list[dict[str, str]] = []

    @hypothesis.settings(
        max_examples=number, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
    )
    @hypothesis.seed(seed)
    @hypothesis.given(drawn)
    def run(program: Any) -> None:
        found = verdict_of(program)
        verdicts[found.partition(":")[0]] += 1
        if found not in _KNOWN:
            different.append({"program": str(program), "how": found})

    run()
    return {"programs": sum(verdicts.values()), "verdicts": dict(verdicts), "silently_different": different}


def main(description: str | None, drawn: Any, verdict_of: Callable[[Any], str]) -> None:
    """The command of a module that draws programs: print their counts."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("number", type=int)
    parser.add_argument("--seed", type=int, default=21)
    parser.add_argument("-o", "--output", help="write the counts to this file")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    text = json.dumps(count(drawn, verdict_of, options.number, options.seed) | {"numpy": np.__version__}, indent=2)
    print(text)
    if options.output:
        with open(options.output, "w") as file:
            file.write(text + "\n")
