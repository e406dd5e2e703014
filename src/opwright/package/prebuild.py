"""Compiles GPU kernels ahead of time, into files that are shipped beside their source."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from opwright.backends import get_backend
from opwright.backends.build_tools import build_tools
from opwright.contract.inputs.arguments import arguments_of
from opwright.contract.inputs.sizes import dtypes_to_check
from opwright.contract.inputs.text import parse_case
from opwright.errors import KernelError
from opwright.runtime.op import Op

__all__ = ["prebuild"]


def prebuild(operator: Op, kernels: Sequence[str] | None, archs: Sequence[str], cases: Sequence[str]) -> list[Path]:
    """Write the PTX of an operator's kernels with a folder for it (``prebuilt=``), for each of their dtypes.

    Args:
        kernels: names of kernels; None for all with a folder.
        archs: such as ``sm_90``.
        cases: sizes, such as ``n=8 m=4``, for kernels whose compile-time parameters depend on them; ``""`` takes
            them from the contract.

    Raises:
        KernelError: there is no such kernel, or its language or itself has no folder.
        CheckError: an invalid case.
        KernelRefusedError: its compiler is not installed.
        CompileError: a kernel does not compile.
    """
    if unknown := [k for k in kernels or () if k not in operator.kernels]:
        raise KernelError(
            f"{operator.contract.qualname}: the kernel must be one of {[*operator.kernels]}, got {unknown[0]!r}",
            fix="name one of them, or attach it",
        )
    written = []
    for name, kernel in operator.kernels.items():
        chosen = name in kernels if kernels else "prebuilt" in kernel.spec.options
        if not chosen:
            continue
        backend = get_backend(kernel.backend)
        taken = kernel.spec.dtypes if kernel.spec.dtypes is not None else backend.dtypes
        calls = [
            arguments_of(kernel.contract, dataclasses.replace(parse_case(kernel.contract, case), dtypes=dtypes), "cpu")
            for dtypes in dtypes_to_check(kernel.contract, None if taken is None else tuple(taken))
            for case in cases
        ]
        written += backend.prebuild(kernel.spec, kernel.contract, build_tools(), archs, calls)
    return written
