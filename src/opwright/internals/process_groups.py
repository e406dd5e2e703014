"""Wrappers of private APIs of torch.distributed."""

from __future__ import annotations

from typing import Any

import torch

from opwright import tree
from opwright.internals.lookup import find

__all__ = [
    "can_compare_collectives",
    "collective_operators",
    "functional_collectives",
    "group_named",
    "has_group_names",
    "unwaited_collectives",
    "waited",
]

_resolve = find("resolve_process_group")
_operators = find("collective_operators")
_registry_size = find("work_registry_size", lambda size: size() >= 0)

has_group_names = _resolve is not None
# Whether torch's wrapper that compares the collectives of all ranks has those of functional collectives, too. Earlier
# versions, such as torch 2.11, refuse them.
can_compare_collectives = torch.torch_version.TorchVersion(torch.__version__) >= "2.13"
# torch's functional collectives, and the operators below them; None if they are missing.
functional_collectives: Any = find("functional_collectives")
collective_operators: Any = _operators


def group_named(name: str) -> Any | None:
    """The process group with a name; None if this process has none."""
    if _resolve is None:
        return None
    try:
        return _resolve(name)
    except (RuntimeError, ValueError):
        return None


def waited(operation: Any, results: Any) -> Any:
    """The results of an operation of torch; of a collective that may still be running, when they are there."""
    if operation.namespace not in ("_c10d_functional", "_c10d_functional_autograd") or "wait" in str(operation):
        return results
    return results if _operators is None else tree.map_tensors(_operators.wait_tensor, results)


def unwaited_collectives() -> int:
    """The number of functional collectives whose results nothing in this process has waited for; 0 where torch does
    not say."""
    return int(_registry_size()) if _registry_size is not None else 0
