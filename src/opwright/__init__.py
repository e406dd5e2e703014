"""One operator, any kernel: write its meaning once, attach kernels in any language.

>>> import opwright as ow
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0.dev0"

if TYPE_CHECKING:
    from opwright.checks.run import check
    from opwright.contract.signature import values
    from opwright.runtime.op import Op, explain, op
    from opwright.timing.run import bench

# Where each public name lives. They are imported when first used, so that `import opwright` and
# `opwright --help` do not wait for torch.
_HOME = {
    "Op": "opwright.runtime.op",
    "bench": "opwright.timing.run",
    "check": "opwright.checks.run",
    "explain": "opwright.runtime.op",
    "op": "opwright.runtime.op",
    "values": "opwright.contract.signature",
}

__all__ = ["Op", "__version__", "bench", "check", "explain", "op", "values"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'opwright' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
