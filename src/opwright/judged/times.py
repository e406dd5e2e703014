"""Times of candidates beside the reference, torch.compile and the machine's limits, at the task's own sizes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from opwright.checks.conduct.replaced import Functions
from opwright.errors import CheckError
from opwright.judged.contract_text import EAGER
from opwright.results.bench import Measurement
from opwright.results.judged import Times
from opwright.runtime.targets import load_target
from opwright.timing.run import bench

__all__ = ["times_of"]

_COMPILED, _TUNED = "torch.compile", "max-autotune"


def times_of(file: Path, kernels: Sequence[str], device: str | None, *, max_autotune: bool = False) -> dict[str, Times]:
    """The times of some kernels of a contract file, by name. Those that no timer takes here are left out.

    Args:
        max_autotune: also time the reference under torch.compile with that mode.

    Raises:
        CheckError: a candidate has replaced what measures it, so that no time of this process counts.
    """
    functions = Functions()
    (operator,) = load_target(str(file))
    if max_autotune:
        operator.baseline(_tuned(operator), name=_TUNED)
    sizes = {name: values[:1] for name, values in operator.contract.own_inputs.sizes.items()}
    report = bench(
        operator, kernels=kernels, device=device, sizes=sizes, directions=("forward",),
        baselines=(EAGER, _COMPILED, *([_TUNED] if max_autotune else [])), quick=True,
    )  # fmt: skip
    if replaced := next(functions.replaced(), ""):
        raise CheckError(f"timers must be as they were, got a candidate that replaces {replaced}", fix="leave it out")
    cold = [m for m in report.measurements if m.cache == "cold"] or list(report.measurements)
    error = next((error for error in report.errors if f" {_TUNED} (" in error), "no time was taken")
    why = "" if not max_autotune or any(m.kernel == _TUNED for m in cold) else error
    found = {name: _times(cold, name, why) for name in kernels}
    return {name: times for name, times in found.items() if times is not None}


def _tuned(operator: Any) -> Any:
    """The reference, compiled without CUDA graphs: candidates are called without them."""
    contract = operator.contract

    def reference(*arguments: Any) -> Any:
        return contract.function(*arguments)

    return torch.compile(reference, dynamic=False, mode="max-autotune-no-cudagraphs")


def _times(measurements: Iterable[Measurement], kernel: str, why_not_tuned: str) -> Times | None:
    by_name = {m.kernel: m for m in measurements}
    if (own := by_name.get(kernel)) is None:
        return None
    eager, compiled, tuned = (by_name[n].time_us.median if n in by_name else 0.0 for n in (EAGER, _COMPILED, _TUNED))
    time = own.time_us
    limit = time.median * own.roofline_fraction if own.roofline_fraction else 0.0
    return Times(
        time.median, time.lo, time.hi, time.n, eager, compiled, limit, own.device_name, tuned_us=tuned,
        why_not_tuned=why_not_tuned,
    )  # fmt: skip
