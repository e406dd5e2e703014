"""Baselines: callables with the operator's arguments that benchmarks compare kernels with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from opwright.backends.base import compare_with_contract
from opwright.contract.contract import Contract
from opwright.contract.dtypes import short
from opwright.errors import KernelError
from opwright.runtime.languages import REFERENCE

__all__ = ["DERIVED", "Baseline", "make_baseline", "refuse_name"]

# The baselines of every operator: its reference, eager and compiled.
DERIVED = (REFERENCE, "torch.compile")


@dataclass(frozen=True, eq=False)
class Baseline:
    """One callable to compare with. ``devices`` and ``dtypes`` are None if it is timed in all."""

    name: str
    function: Callable[..., Any]
    devices: tuple[str, ...] | None = None
    dtypes: tuple[torch.dtype, ...] | None = None

    def refuses(self, device: str, dtype: torch.dtype | None) -> str | None:
        """Why the baseline is not timed on a type of device in a dtype; None if it is."""
        if self.devices is not None and device not in self.devices:
            return f"for {' and '.join(self.devices)} only, not for {device}"
        if self.dtypes is not None and dtype is not None and dtype not in self.dtypes:
            return f"takes {', '.join(map(short, self.dtypes))}, not {short(dtype)}"
        return None


def make_baseline(
    contract: Contract,
    function: Callable[..., Any],
    name: str | None,
    devices: Sequence[str] | None,
    dtypes: Sequence[torch.dtype] | None,
) -> Baseline:
    """Make a baseline's record.

    Raises:
        KernelError: it is not callable, or its name is taken.
        SignatureMismatchError: its parameters are not the operator's.
    """
    where = f"{contract.qualname}: op.baseline"
    if not callable(function):
        raise KernelError(f"{where} must be given a callable, got {type(function).__name__}", fix="pass a function")
    own_name = getattr(function, "__name__", "_")
    chosen = name or (own_name if own_name not in ("_", "<lambda>") else "baseline")
    refuse_name(contract, "op.baseline", chosen, (), "")
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (ValueError, TypeError):
        parameters = None  # a function in C, such as torch.sub, has no signature to inspect
    if parameters is not None:
        entry = own_name if own_name.isidentifier() else "_"
        compare_with_contract(parameters, contract, f"the baseline {chosen!r}", entry)
    return Baseline(
        chosen, function, tuple(devices) if devices is not None else None, tuple(dtypes) if dtypes is not None else None
    )


def refuse_name(contract: Contract, where: str, name: str, taken: Container[str], by: str) -> None:
    """Raise KernelError if tables would show two candidates under one name."""
    if name in DERIVED:
        raise KernelError(
            f"{contract.qualname}: {where}: {name!r} is the name of the reference in tables",
            fix="choose another name",
        )
    if name in taken:
        raise KernelError(f"{contract.qualname}: {where}: {name!r} is {by} already", fix="choose another name")
