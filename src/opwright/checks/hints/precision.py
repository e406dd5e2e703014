"""Whether results that are off are as exact as those of TF32, in which tensor cores multiply float32 matrices."""

from __future__ import annotations

from opwright.checks.exceptions import Raised
from opwright.checks.observation import Observation
from opwright.contract.contract import Contract

__all__ = ["likely_precision"]

_REMEDY = (
    "the results are as exact as those of TF32, in which tensor cores multiply float32 matrices: ask for float32 "
    '(input_precision="ieee" of tl.dot, torch.backends.cuda.matmul.allow_tf32 = False), or accept TF32 with '
    "tf32=True of ow.op"
)


def likely_precision(contract: Contract, run: Observation) -> str:
    """What to do about results that products in TF32 explain; "" if these do not."""
    if contract.tf32 or isinstance(run.outputs, Raised) or not run.reference.multiplies_float32:
        return ""
    lower = run.reference.with_tf32()
    are_wrong = [bool(run.reference.wrong(i, got.detach().cpu()).any()) for i, got in enumerate(run.outputs)]
    explained = (not lower.wrong(i, got.detach().cpu()).any() for i, got in enumerate(run.outputs) if are_wrong[i])
    return _REMEDY if any(are_wrong) and all(explained) else ""
