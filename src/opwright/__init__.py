"""One operator, any kernel: write its reference once, attach kernels in any language.

>>> import opwright as ow
"""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0.dev0"

if TYPE_CHECKING:
    from opwright import errors, inputs, results, testing
    from opwright.adopted.adopt import adopt
    from opwright.backends.cuda.module import CudaModule, cdiv, cuda_module
    from opwright.backends.cuda.tensor_map import TensorMap, tensor_map
    from opwright.backends.numpy.compile_numpy import CompiledNumpy, compile_numpy
    from opwright.captured.recording import capture
    from opwright.checks.run import assert_checked, check
    from opwright.contract.process_group import ProcessGroup
    from opwright.contract.signature import by_property, mutated, no_gradient, replicated, saved_for_backward
    from opwright.contract.values import values
    from opwright.fast_path.switch import fast_calls
    from opwright.judged.run import judge
    from opwright.mutation.run import mutate
    from opwright.planted.run import selftest
    from opwright.runtime.cuda_graphs.native_replay import CudaGraphed, cuda_graphed
    from opwright.runtime.decorator import op
    from opwright.runtime.kernel import Kernel
    from opwright.runtime.op import Op, explain
    from opwright.sweep.events import Events
    from opwright.timing.run import bench
    from opwright.timing.tune import tune

# The public names, by the module that defines them. They are imported when first used, so that `import opwright` and
# `opwright --help` do not wait for torch.
_NAMES_OF = {
    "opwright.adopted.adopt": ["adopt"],
    "opwright.backends.cuda.module": ["CudaModule", "cdiv", "cuda_module"],
    "opwright.backends.cuda.tensor_map": ["TensorMap", "tensor_map"],
    "opwright.backends.numpy.compile_numpy": ["CompiledNumpy", "compile_numpy"],
    "opwright.captured.recording": ["capture"],
    "opwright.checks.run": ["assert_checked", "check"],
    "opwright.contract.process_group": ["ProcessGroup"],
    "opwright.contract.signature": ["by_property", "mutated", "no_gradient", "replicated", "saved_for_backward"],
    "opwright.contract.values": ["values"],
    "opwright.judged.run": ["judge"],
    "opwright.mutation.run": ["mutate"],
    "opwright.fast_path.switch": ["fast_calls"],
    "opwright.runtime.cuda_graphs.native_replay": ["CudaGraphed", "cuda_graphed"],
    "opwright.runtime.kernel": ["Kernel"],
    "opwright.runtime.decorator": ["op"],
    "opwright.runtime.op": ["Op", "explain"],
    "opwright.planted.run": ["selftest"],
    "opwright.sweep.events": ["Events"],
    "opwright.timing.run": ["bench"],
    "opwright.timing.tune": ["tune"],
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _NAMES_OF.items() for name in names}
# What users look for here and kernelsim, the package beside this one, has.
_IN_KERNELSIM = {"simulate": "triton_launches", "simulator_options": "options"}
# Exceptions, what reports hold, and how test inputs are drawn.
_HELD_APART = ("errors", "inputs", "results")
_MODULES = (*_HELD_APART, "testing")  # the last one needs pytest

__all__ = [
    "CompiledNumpy", "CudaGraphed", "CudaModule", "Events", "Kernel", "Op", "ProcessGroup", "TensorMap", "__version__",
    "adopt", "assert_checked", "bench", "by_property", "capture", "cdiv", "check", "compile_numpy", "cuda_graphed",
    "cuda_module", "errors", "explain", "fast_calls", "inputs", "judge", "mutate", "mutated", "no_gradient", "op",
    "replicated", "results", "saved_for_backward", "selftest", "tensor_map", "testing", "tune", "values",
]  # fmt: skip


if not TYPE_CHECKING:  # type checkers report missing names themselves

    def __getattr__(name: str) -> Any:
        if name == "load_ipython_extension":  # IPython asks for it, and nobody types it
            return importlib.import_module("opwright.notebook").load_ipython_extension
        if name in _MODULES:
            return importlib.import_module(f"opwright.{name}")
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'opwright' has no attribute {name!r}{_hint(name)}")
        value = getattr(importlib.import_module(_MODULE_OF[name]), name)
        globals()[name] = value
        if name in ("assert_checked", "bench", "check", "tune"):
            _show_in_notebooks()
        return value


def _hint(name: str) -> str:
    """Where a name is that is not here, or which name is like it. Exceptions, records and inputs are in modules of
    their own. Python asks for private names by itself, for which no module is imported."""
    if name in _IN_KERNELSIM:
        return f"; it is kernelsim.{_IN_KERNELSIM[name]}"
    if close := difflib.get_close_matches(name, __all__, n=1):
        return f"; did you mean {close[0]!r}?"
    if name.startswith("_"):
        return ""
    for module in _HELD_APART:
        if name in importlib.import_module(f"opwright.{module}").__all__:
            return f"; it is ow.{module}.{name}"
    return ""


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
