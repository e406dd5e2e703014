"""Runs two kernels of an operator on the same arguments, in a process of its own, and compares what they give."""

from __future__ import annotations

import dataclasses
import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from opwright import tree
from opwright.checks.comparison.terms import reduction_length
from opwright.checks.comparison.tolerance import Computation
from opwright.contract.inputs.arguments import arguments_of
from opwright.contract.inputs.case import Case
from opwright.contract.inputs.cases import cases
from opwright.errors import CheckError
from opwright.machine import this_machine
from opwright.results.port import Compared
from opwright.runtime import serialization
from opwright.runtime.op import Op

__all__ = ["compare_here", "compare_kernels"]

_TIME_LIMIT_S = 300
# Up to so many roundings differ without a question. Beyond, the two may differ by what rounding does to the reference's
# own steps: operators that are put together from others add in another order than ATen's fused ones.
_ROUNDINGS = 4
_MAIN = """
import sys
from opwright.port.comparing import compare_here
from opwright.runtime import serialization
sys.path[:] = sys.argv[4:]
print("\\n" + compare_here(serialization.load(open(sys.argv[1], "rb").read()), sys.argv[2], sys.argv[3]))
"""


def compare_kernels(operator: Op, original: str, ported: str) -> Compared:
    """Compare two kernels on the cases of the operator's checks; a crash of one is a difference."""
    device = _device(operator, original)
    blank = Compared(operator.contract.qualname, original, ported, 0, 0)
    if device is None:
        where = ", ".join(operator.kernels[original].spec.devices)
        return dataclasses.replace(blank, not_run=f"{original} runs on {where}, which is not here")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "operator")
        file.write_bytes(serialization.dump(operator))
        command = [sys.executable, "-c", _MAIN, str(file), original, ported, *sys.path]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIME_LIMIT_S)
        except subprocess.TimeoutExpired:
            return dataclasses.replace(blank, different=f"the kernels did not end within {_TIME_LIMIT_S} s")
    try:
        return Compared(**json.loads(done.stdout.splitlines()[-1]))
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        ended = f"the process that ran them ended with {done.returncode}: {last}"
        return dataclasses.replace(blank, different=ended)


def _device(operator: Op, kernel: str) -> str | None:
    devices = operator.kernels[kernel].spec.devices
    return next((d for d in devices if d == "cpu" or (d == "cuda" and this_machine().has_gpu)), None)


def compare_here(operator: Op, original: str, ported: str) -> str:
    """Compare two kernels in this process; a ``Compared`` as JSON."""
    contract, spec = operator.contract, operator.kernels[original].spec
    device = _device(operator, original)
    assert device is not None  # the process that asks has looked
    compared = {"operator": contract.qualname, "original": original, "ported": ported}
    count = identical = refused = original_wrong = 0
    largest, different = 0.0, ""
    for case in cases(contract, "quick", spec.taken_dtypes, far=False):
        results: list[list[torch.Tensor] | Exception] = []
        for name in (original, ported):
            try:
                arguments = arguments_of(contract, case, device)
            except CheckError:  # sizes for which there are no values
                break
            try:
                torch.manual_seed(0)
                outputs = operator.kernels[name](*arguments)
                written = contract.signature.written(arguments)
                results.append([t.detach().cpu() for t in [*tree.tensors(outputs), *written]])
            except Exception as error:  # a kernel may raise anything
                results.append(error)
        if len(results) < 2:
            continue
        before, after = results
        if isinstance(before, Exception) and isinstance(after, Exception):
            refused += 1
            continue
        compute = functools.cache(functools.partial(_computation, operator, case, device))
        what, size = _difference(before, after, compute)
        if what and isinstance(before, list) and _is_wrong(before, compute):
            original_wrong += 1
            continue
        count += 1
        identical += size == 0 and not what
        largest = max(largest, size)
        different = different or (f"{case}: {what}" if what else "")
    return json.dumps(
        {**compared, "cases": count, "identical": identical, "refused": refused, "original_wrong": original_wrong,
         "largest": largest, "different": different}
    )  # fmt: skip


def _computation(operator: Op, case: Case, device: str) -> Computation:
    """The reference's computation of a case, which says what rounding does to its results."""
    contract = operator.contract
    arguments = tree.map_tensors(lambda t: t.detach().cpu().contiguous(), arguments_of(contract, case, device))
    reference = Computation(contract.reference, arguments, lambda i: terms())
    terms = functools.cache(lambda: reduction_length(contract, arguments, reference.rounded))
    return reference


def _difference(
    before: list[torch.Tensor] | Exception, after: list[torch.Tensor] | Exception, compute: Callable[[], Computation]
) -> tuple[str, float]:
    """What differs by more than rounding, and the largest difference of an element in units of its rounding."""
    if isinstance(before, Exception) or isinstance(after, Exception):
        who, error = ("the original", before) if isinstance(before, Exception) else ("the new kernel", after)
        return f"only {who} raised {str(error).splitlines()[0] if str(error) else type(error).__name__}", 0.0
    if len(before) != len(after):
        return f"{len(before)} and {len(after)} results", 0.0
    largest = 0.0
    for i, (a, b) in enumerate(zip(before, after, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"result {i} is {a.dtype} {list(a.shape)} and {b.dtype} {list(b.shape)}", largest
        if torch.equal(a, b) or not a.numel():
            continue
        size = _roundings(a, b)
        if size > _ROUNDINGS and not _is_rounding(i, a, b, compute):
            return f"result {i} differs by {size:.3g} roundings, more than its steps explain", size
        largest = max(largest, size)
    return "", largest


def _is_wrong(results: list[torch.Tensor], compute: Callable[[], Computation]) -> bool:
    """Whether results are not those of the reference."""
    try:
        reference = compute()
        shapes = [t.shape for t in reference.rounded]
        return [t.shape for t in results] == shapes and any(
            bool(reference.wrong(i, t).any()) for i, t in enumerate(results)
        )
    except Exception:  # a reference may refuse what the kernels take
        return False


def _is_rounding(i: int, a: torch.Tensor, b: torch.Tensor, compute: Callable[[], Computation]) -> bool:
    """Whether two results lie as close to each other as two ways to compute the reference may."""
    try:
        allowed = compute().all_allowed(i)
    except Exception:  # a reference may refuse what the kernels take
        return False
    if allowed.shape != a.shape:
        return False
    close = (a.double() - b.double()).abs() <= 2 * allowed if not a.is_complex() else (a - b).abs() <= 2 * allowed
    return bool((close | (a == b) | (a.isnan() & b.isnan())).all())


def _roundings(a: torch.Tensor, b: torch.Tensor) -> float:
    if not (a.is_floating_point() or a.is_complex()):
        return float("inf")
    is_nan = a.isnan() & b.isnan()
    same = (a == b) | is_nan
    if not bool((a.isfinite() & b.isfinite() | same).all()):
        return float("inf")
    wide = torch.complex128 if a.is_complex() else torch.float64
    gap = torch.where(same, torch.zeros((), dtype=wide), a.to(wide) - b.to(wide)).abs()
    scale = torch.where(is_nan, torch.zeros((), dtype=wide), a.to(wide)).abs()
    # Sums of large terms may be small: rounding is measured at the size of the largest element.
    largest = float(scale.max()) or 1.0
    return float((gap / (torch.finfo(a.dtype).eps * (scale + 1e-3 * largest))).max())
