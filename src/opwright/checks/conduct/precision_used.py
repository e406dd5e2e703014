"""Whether a kernel computes with a precision that the task does not have, though its results may be exact enough.

A narrower dtype, or TF32, makes a matrix product several times faster. Who compares times compares other work.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from opwright import tree
from opwright.checks.context import Context
from opwright.checks.outputs.own_work import MOVES
from opwright.contract.dtypes import short
from opwright.internals.compiler import DispatchMode

__all__ = ["lowered_precision"]

_PRECISIONS = ("cuda.matmul.fp32_precision", "cudnn.conv.fp32_precision", "mkldnn.matmul.fp32_precision")


def lowered_precision(context: Context, arguments: Sequence[Any]) -> str:
    """In words, the first of torch's operations in a call that computes in a lower precision; "" if none does."""
    seen = _Precisions()
    with seen:
        outputs = context.run_kernel(arguments)
    least = min(map(_digits, tree.tensors([list(arguments), list(outputs)])), default=0)
    for name, dtype, digits in seen.dtypes:
        if digits < least:
            return f"it computes aten::{name} in {short(dtype)}, which no argument and no result has"
    return "" if context.op.contract.tf32 else seen.setting


def _digits(tensor: torch.Tensor) -> int:
    """The bits of precision; of integers more than of any float."""
    is_float = tensor.is_floating_point() or tensor.is_complex()
    return round(-torch.tensor(torch.finfo(tensor.dtype).eps).log2().item()) if is_float else 64


class _Precisions(DispatchMode):  # type: ignore[misc]  # found at run time
    """The dtypes in which torch's operations compute, and the first that runs with other settings than before."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: list[tuple[str, torch.dtype, int]] = []
        self.setting = ""
        self._before = _settings()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        tensors = tree.tensors([list(args), list((kwargs or {}).values())])
        if function.namespace == "aten" and tensors and name not in MOVES and not function.is_view:
            narrowest = min(tensors, key=_digits)
            self.dtypes.append((name, narrowest.dtype, _digits(narrowest)))
            changed = [n for n, value in _settings().items() if value != self._before[n]]
            if changed and not self.setting:
                self.setting = f"it changes {changed[0]} while torch computes aten::{name}"
        return function(*args, **(kwargs or {}))


def _settings() -> dict[str, Any]:
    return {f"torch.backends.{path}": operator.attrgetter(path)(torch.backends) for path in _PRECISIONS}
