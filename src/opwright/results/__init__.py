"""Plain records of the results of checks and benchmarks, which reports show. They do not import torch.

Their JSON forms (``json_form``) are part of the public interface; a report's ``schema`` changes with them.
"""

from __future__ import annotations

from opwright.results.bench import (
    BenchReport,
    Comparison,
    ComparisonVerdict,
    Crossover,
    Estimate,
    Measurement,
    RooflineLimit,
    SizeRange,
)
from opwright.results.calls import CallsReport, CallTime, OperatorCalls
from opwright.results.check import (
    CheckReport,
    Coverage,
    ErrorHistogram,
    Finding,
    NotChecked,
    PeakMemory,
    Status,
    Verdict,
    worst,
)
from opwright.results.mutation import Fate, KernelMutation, Killer, Mutant, MutationReport
from opwright.results.outcomes import Accepted, Choice, Explanation, Origin, Part, Probe, Refused
from opwright.results.selftest import Planted, SelfTest
from opwright.results.shown import Shown

__all__ = [
    "Accepted",
    "BenchReport",
    "CallTime",
    "CallsReport",
    "CheckReport",
    "Choice",
    "Comparison",
    "ComparisonVerdict",
    "Coverage",
    "Crossover",
    "ErrorHistogram",
    "Estimate",
    "Explanation",
    "Fate",
    "Finding",
    "KernelMutation",
    "Killer",
    "Measurement",
    "Mutant",
    "MutationReport",
    "NotChecked",
    "OperatorCalls",
    "Origin",
    "Part",
    "PeakMemory",
    "Planted",
    "Probe",
    "Refused",
    "RooflineLimit",
    "SelfTest",
    "Shown",
    "SizeRange",
    "Status",
    "Verdict",
    "worst",
]  # fmt: skip
