"""One operator, any kernel: write its reference once, attach kernels in any language.

>>> import opwright as ow
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0.dev0"

if TYPE_CHECKING:
    from opwright.backends.cuda.module import CudaModule, cdiv, cuda_module
    from opwright.backends.cuda.simulator.simulate import simulator_options
    from opwright.backends.numpy.compile_numpy import CompiledNumpy, compile_numpy
    from opwright.checks.run import check
    from opwright.contract.signature import saved, values
    from opwright.runtime.op import Op, explain, op
    from opwright.timing.run import bench
    from opwright.timing.tune import tune

# Where each public name lives. They are imported when first used, so that `import opwright` and
# `opwright --help` do not wait for torch.
_HOME = {
    "CompiledNumpy": "opwright.backends.numpy.compile_numpy",
    "CudaModule": "opwright.backends.cuda.module",
    "Op": "opwright.runtime.op",
    "bench": "opwright.timing.run",
    "cdiv": "opwright.backends.cuda.module",
    "check": "opwright.checks.run",
    "compile_numpy": "opwright.backends.numpy.compile_numpy",
    "cuda_module": "opwright.backends.cuda.module",
    "explain": "opwright.runtime.op",
    "op": "opwright.runtime.op",
    "saved": "opwright.contract.signature",
    "tune": "opwright.timing.tune",
    "simulator_options": "opwright.backends.cuda.simulator.simulate",
    "values": "opwright.contract.signature",
}

__all__ = [
    "CompiledNumpy", "CudaModule", "Op", "__version__", "bench", "cdiv", "check", "compile_numpy", "cuda_module",
    "explain", "op", "saved", "simulator_options", "tune", "values",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'opwright' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    if name in ("bench", "check", "tune"):
        _show_in_notebooks()
    return value


def _show_in_notebooks() -> None:
    """Give reports their HTML form. Done here because records know nothing of how they are shown."""
    from opwright.results import BenchReport, CheckReport

    def to_html(report: CheckReport | BenchReport) -> str:
        from opwright.report.html import notebook

        return notebook(report)

    for record in (BenchReport, CheckReport):
        setattr(record, "_repr_html_", to_html)  # noqa: B010  # an assignment would not type-check


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
