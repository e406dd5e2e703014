"""The origin of each part of an operator: derived from the reference, custom, or missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from opwright.contract.contract import Contract
from opwright.results import Origin, Part
from opwright.runtime.kernel import Kernel
from opwright.runtime.register.backward_operator import BackwardOperator
from opwright.runtime.register.vjp_operator import vjp_name

__all__ = ["parts_of"]


def parts_of(
    contract: Contract, overrides: Mapping[str, Callable[..., Any]], kernels: Sequence[Kernel]
) -> dict[str, Part]:
    """Each part of an operator by name, with its origin and a short description.

    Args:
        overrides: the custom parts, by name.
    """
    differentiated = vjp_name(contract.functional or contract)
    derived = {
        "schema": "torch.library.infer_schema on the type hints",
        "fake": "annotations; where they leave something open, the reference on fake tensors",
        "autograd": f"VJP of the reference, recomputed ({contract.namespace}::{differentiated})",
        "vmap": "vmap of the reference",
        "decomposition": "the reference",
        "sharding": "the decomposition's; whole tensors in every process, where torch has none",
        "flops": "counted on meta tensors",
        "bytes": "inputs + outputs",
    }
    parts = {name: Part(name, Origin.DERIVED, how) for name, how in derived.items()}
    for name, function in overrides.items():
        parts[name] = Part(name, Origin.CUSTOM, f"register_{name} ({_name_of(function)})")
    if contract.autocast is not None:
        parts["autocast"] = Part("autocast", Origin.CUSTOM, f"autocast={contract.autocast!r}")
    if contract.signature.mutated:
        for name in ("decomposition", "sharding"):
            parts[name] = Part(name, Origin.MISSING, "the operator writes its arguments")
    if contract.random:
        for name in ("decomposition", "sharding"):
            if name not in overrides:
                parts[name] = Part(name, Origin.MISSING, "results are random")
    if contract.signature.data_dependent:
        for name in ("decomposition", "sharding", "vmap"):
            if name not in overrides:
                parts[name] = Part(name, Origin.MISSING, "sizes of outputs depend on data")
    if contract.signature.groups:
        for name in ("decomposition", "sharding", "vmap"):
            if name not in overrides:
                parts[name] = Part(name, Origin.MISSING, "it communicates with other processes")
    if contract.functional is None:
        for name in ("autograd", "vmap"):
            parts[name] = Part(name, Origin.MISSING, "it writes a list of tensors or an optional one")
    marked = [a.name for a in contract.signature.arguments if a.no_gradient]
    if marked and "autograd" in parts:
        how = f"{parts['autograd'].how}; none for {', '.join(map(repr, marked))} (ow.no_gradient)"
        parts["autograd"] = Part("autograd", parts["autograd"].origin, how)
    tensors = [a.tensor for a in contract.signature.arguments if a.tensor and not a.no_gradient]
    why = "every floating argument is marked ow.no_gradient" if marked else "no argument has a floating dtype"
    if "autograd" not in overrides and not any(_has_gradient(d) for t in tensors for d in t.dtypes):
        parts["autograd"] = Part("autograd", Origin.MISSING, why)
    if contract.random and "autograd" not in overrides:
        parts["autograd"] = Part(
            "autograd", Origin.MISSING, "results are random: return what was drawn, and register a gradient"
        )
    for device in ("cpu", "cuda"):
        own = [k.name for k in kernels if device in k.spec.devices]
        origin = Origin.CUSTOM if own else Origin.DERIVED
        parts[device] = Part(device, origin, ", ".join(own) if own else "the reference itself")
    return parts


def _has_gradient(dtype: torch.dtype) -> bool:
    return dtype.is_complex or (dtype.is_floating_point and dtype.itemsize > 1)


def _name_of(function: Callable[..., Any]) -> str:
    if isinstance(function, BackwardOperator):
        return function.operator.contract.qualname
    return getattr(function, "__name__", "?")
