"""The verdicts in the result files of formats, so that tools made for these read them.

KernelBench's ``eval_results.json`` and the traces of flashinfer-bench and SOL-ExecBench have results that are right or
wrong, and times. What a verdict says besides is in their free fields.
"""

from __future__ import annotations

import datetime
import json
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from opwright.errors import CheckError
from opwright.report.files import write_text
from opwright.results import Status
from opwright.results.judged import Judged, JudgeReport

__all__ = ["write_results"]

_UNTIMED = -1.0  # KernelBench's word for no time
_UNKNOWN = "NaN"  # errors of flashinfer-bench's rule, which are not measured


def write_results(report: JudgeReport, file: Path) -> list[tuple[str, str]]:
    """Write the file of the report's format.

    Returns:
        The candidates that are not in it, each with the reason.

    Raises:
        CheckError: the format has no such file.
    """
    formats = {row.format for row in report.rows}
    if unknown := formats - _WRITERS.keys():
        raise CheckError(
            f"results can be written for {', '.join(_WRITERS)}, got {unknown.pop()}",
            fix="use --json, which takes all formats",
        )
    left_out = {row.candidate: why for row in report.rows if (why := _why_left_out(row))}
    rows = [row for row in report.rows if row.candidate not in left_out]
    write_text("".join(_WRITERS[name](rows) for name in formats), file)
    return list(left_out.items())


def _why_left_out(row: Judged) -> str:
    """Why the format's file cannot have a candidate; "" if it can."""
    if row.status in (Status.INCONCLUSIVE, Status.REFUSED):
        return f"whether it is right is not known: {row.worst.message if row.worst is not None else row.reason}"
    if not row.published or row.published.get("workload") == {}:
        return "its name has no problem and sample" if row.format == "kernelbench" else "no workload is given"
    is_trace = _WRITERS[row.format] is _traces
    if is_trace and row.status.is_right and (row.times is None or row.times.why_none):
        return "a trace of a right solution needs times: pass --times, on a device where it runs"
    return ""


def _eval_results(rows: Sequence[Judged]) -> str:
    """KernelBench's: by problem, a list of samples."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(str(row.published["problem"]), []).append(_sample(row))
    for samples in found.values():
        samples.sort(key=lambda sample: sample["sample_id"])
    return json.dumps(found, indent=2) + "\n"


def _sample(row: Judged) -> dict[str, Any]:
    times = row.times if row.times is not None and not row.times.why_none else None
    stats = {} if times is None else {"median": times.us / 1e3, "num_trials": times.samples, "device": _device(row)}
    return {
        "sample_id": row.published["sample"],
        "compiled": _is_built(row),
        "correctness": row.status.is_right,
        "metadata": {"hardware": _device(row), **_opwright(row)},
        "runtime": _UNTIMED if times is None else times.us / 1e3,
        "runtime_stats": stats,
        "ref_runtime": _UNTIMED if times is None or not times.eager_us else times.eager_us / 1e3,
    }


def _traces(rows: Sequence[Judged]) -> str:
    """flashinfer-bench's: a line for each solution, with the workload that was timed."""
    return "".join(json.dumps(_trace(row)) + "\n" for row in rows)


def _trace(row: Judged) -> dict[str, Any]:
    status, times = _status(row), row.times
    evaluation: dict[str, Any] = {
        "status": status,
        "environment": {
            "hardware": _device(row) or platform.processor() or platform.machine(),
            "libs": {"torch": torch.__version__},
        },
        "timestamp": datetime.datetime.now(datetime.UTC).isoformat(),
        "log": "" if row.worst is None else f"{row.worst.check}: {row.worst}",
        "correctness": None,
        "performance": None,
    }
    if status in ("PASSED", "INCORRECT_NUMERICAL"):
        unknown = {"max_relative_error": _UNKNOWN, "max_absolute_error": _UNKNOWN}
        evaluation["correctness"] = {**unknown, "extra": _opwright(row)}
    if status == "PASSED" and times is not None:
        evaluation["performance"] = {
            "latency_ms": times.us / 1e3, "reference_latency_ms": times.eager_us / 1e3,
            "speedup_factor": times.speedup,
        }  # fmt: skip
    return {**{key: row.published[key] for key in ("definition", "workload", "solution")}, "evaluation": evaluation}


def _status(row: Judged) -> str:
    """The format's word for a verdict."""
    if row.status.is_right:
        return "PASSED"
    if not _is_built(row):
        return "COMPILE_ERROR"
    message = row.worst.message if row.worst is not None else ""
    words = {"the kernel raised": "RUNTIME_ERROR", "crashed": "RUNTIME_ERROR", "shape [": "INCORRECT_SHAPE"}
    words |= {"has dtype": "INCORRECT_DTYPE"}
    return next((word for text, word in words.items() if text in message), "INCORRECT_NUMERICAL")


def _is_built(row: Judged) -> bool:
    findings = row.verdict.findings if row.verdict is not None else ()
    return row.verdict is not None and not any(f.check in ("build", "load") for f in findings)


def _opwright(row: Judged) -> dict[str, Any]:
    """What the verdict says."""
    finding = f"{row.worst.check}: {row.worst.message}" if row.worst is not None else row.reason
    return {"opwright": str(row.status), "finding": finding, "by_rule": row.by_rule}


def _device(row: Judged) -> str:
    return row.times.device_name if row.times is not None else ""


_WRITERS: dict[str, Callable[[Sequence[Judged]], str]] = {
    "kernelbench": _eval_results, "flashinfer-bench": _traces, "sol-execbench": _traces,
}  # fmt: skip
