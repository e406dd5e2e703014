"""One operator, any kernel: write its reference once, attach kernels in any language.

>>> import opwright as ow
"""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0.dev0"

if TYPE_CHECKING:
    from opwright.backends.cuda.module import CudaModule, cdiv, cuda_module
    from opwright.backends.cuda.simulator.simulate import simulator_options
    from opwright.backends.cuda.tensor_map import TensorMap, tensor_map
    from opwright.backends.numpy.compile_numpy import CompiledNumpy, compile_numpy
    from opwright.backends.triton.simulator.simulate import simulate
    from opwright.checks.run import check
    from opwright.contract.process_group import ProcessGroup
    from opwright.contract.signature import by_property, mutated, replicated, saved_for_backward
    from opwright.contract.values import (
        drawn_by,
        offsets,
        positive_definite,
        probabilities,
        values,
        well_conditioned,
    )
    from opwright.errors import (
        ArgumentError,
        CacheError,
        CheckError,
        CompileError,
        ContractError,
        CudaGraphError,
        KernelError,
        KernelRefusedError,
        LaunchError,
        NameClashError,
        NotSimulatedError,
        OpwrightError,
        SignatureMismatchError,
        SimulatorError,
        TargetError,
    )
    from opwright.mutation.run import mutate
    from opwright.planted.run import selftest
    from opwright.results import (
        Accepted,
        BenchReport,
        CallSite,
        CallsReport,
        CallTime,
        CheckReport,
        Choice,
        Comparison,
        ComparisonVerdict,
        Coverage,
        Crossover,
        ErrorHistogram,
        Estimate,
        Explanation,
        Fate,
        Finding,
        KernelFinding,
        KernelMutation,
        Killer,
        Measurement,
        Mutant,
        MutationReport,
        NotChecked,
        OperatorCalls,
        Origin,
        OtherThread,
        Part,
        PeakMemory,
        Planted,
        Refused,
        RooflineLimit,
        SelfTest,
        Shown,
        SizeRange,
        Status,
        Verdict,
    )
    from opwright.runtime.cuda_graphs.native_replay import CudaGraphed, cuda_graphed
    from opwright.runtime.kernel import Kernel
    from opwright.runtime.op import Op, explain, op
    from opwright.timing.calls import bench_calls
    from opwright.timing.run import bench
    from opwright.timing.tune import tune

# The public names, by the module that defines them. They are imported when first used, so that `import opwright` and
# `opwright --help` do not wait for torch.
_NAMES_OF = {
    "opwright.backends.cuda.module": ["CudaModule", "cdiv", "cuda_module"],
    "opwright.backends.cuda.tensor_map": ["TensorMap", "tensor_map"],
    "opwright.backends.cuda.simulator.simulate": ["simulator_options"],
    "opwright.backends.triton.simulator.simulate": ["simulate"],
    "opwright.backends.numpy.compile_numpy": ["CompiledNumpy", "compile_numpy"],
    "opwright.checks.run": ["check"],
    "opwright.contract.process_group": ["ProcessGroup"],
    "opwright.contract.signature": ["by_property", "mutated", "replicated", "saved_for_backward"],
    "opwright.contract.values": [
        "drawn_by", "offsets", "positive_definite", "probabilities", "values", "well_conditioned",
    ],
    "opwright.errors": [
        "ArgumentError", "CacheError", "CheckError", "CompileError", "ContractError", "CudaGraphError", "KernelError",
        "KernelRefusedError", "LaunchError", "NameClashError", "NotSimulatedError", "OpwrightError",
        "SignatureMismatchError", "SimulatorError", "TargetError",
    ],
    "opwright.mutation.run": ["mutate"],
    "opwright.results": [
        "Accepted", "BenchReport", "CallSite", "CallTime", "CallsReport", "CheckReport", "Choice", "Comparison",
        "ComparisonVerdict", "Coverage",
        "Crossover", "ErrorHistogram", "Estimate", "Explanation", "Fate", "Finding", "KernelFinding",
        "KernelMutation", "Killer", "Measurement", "Mutant", "MutationReport", "NotChecked", "OperatorCalls", "Origin",
        "OtherThread", "Part", "PeakMemory", "Planted", "Refused", "RooflineLimit", "SelfTest", "Shown", "SizeRange",
        "Status", "Verdict",
    ],
    "opwright.runtime.cuda_graphs.native_replay": ["CudaGraphed", "cuda_graphed"],
    "opwright.runtime.kernel": ["Kernel"],
    "opwright.runtime.op": ["Op", "explain", "op"],
    "opwright.planted.run": ["selftest"],
    "opwright.timing.calls": ["bench_calls"],
    "opwright.timing.run": ["bench"],
    "opwright.timing.tune": ["tune"],
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _NAMES_OF.items() for name in names}

__all__ = [
    "Accepted", "ArgumentError", "BenchReport", "CacheError", "CallSite", "CallTime", "CallsReport", "CheckError",
    "CheckReport",
    "Choice", "Comparison", "ComparisonVerdict", "CompileError", "CompiledNumpy", "ContractError", "Coverage",
    "Crossover", "CudaGraphError", "CudaGraphed", "CudaModule", "ErrorHistogram", "Estimate", "Explanation", "Fate",
    "Finding", "Kernel", "KernelError", "KernelFinding", "KernelMutation", "KernelRefusedError", "Killer",
    "LaunchError", "Measurement", "Mutant", "MutationReport", "NameClashError", "NotChecked", "NotSimulatedError", "Op",
    "OperatorCalls", "OpwrightError", "Origin", "OtherThread", "Part", "PeakMemory", "Planted", "ProcessGroup",
    "Refused", "RooflineLimit", "SelfTest", "Shown", "SignatureMismatchError", "SimulatorError", "SizeRange", "Status",
    "TargetError", "TensorMap", "Verdict",
    "__version__", "bench", "bench_calls", "by_property", "cdiv", "check", "compile_numpy", "cuda_graphed",
    "cuda_module", "drawn_by", "explain", "mutate", "mutated", "offsets", "op", "positive_definite", "probabilities",
    "replicated",
    "saved_for_backward", "selftest", "simulate", "simulator_options", "tensor_map", "tune", "values",
    "well_conditioned",
]  # fmt: skip


if not TYPE_CHECKING:  # type checkers report missing names themselves

    def __getattr__(name: str) -> Any:
        if name not in _MODULE_OF:
            close = difflib.get_close_matches(name, __all__, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise AttributeError(f"module 'opwright' has no attribute {name!r}{hint}")
        value = getattr(importlib.import_module(_MODULE_OF[name]), name)
        globals()[name] = value
        if name in ("bench", "check", "tune"):
            _show_in_notebooks()
        return value


def _show_in_notebooks() -> None:
    """Give reports their HTML form in notebooks. Done here because the records do not depend on how they are shown."""
    from opwright.results import BenchReport, CheckReport

    def to_html(report: CheckReport | BenchReport) -> str:
        from opwright.report.html import notebook

        return notebook(report)

    for record in (BenchReport, CheckReport):
        setattr(record, "_repr_html_", to_html)  # noqa: B010  # an assignment would not type-check


def __dir__() -> list[str]:
    return sorted(__all__)
