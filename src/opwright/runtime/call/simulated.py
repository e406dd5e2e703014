"""Calls of kernels that a simulator runs: it learns which tensors the contract lets them write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opwright.backends.simulation import reading_only, watches_writes
from opwright.contract.signature import Signature

__all__ = ["writing_mutated_only"]

Launch = Callable[..., Any]


def writing_mutated_only(launch: Launch, device: int | None, signature: Signature) -> Launch:
    """Let no simulated kernel write an argument that the contract does not declare as mutated."""
    if device is not None or not watches_writes():
        return launch

    def launch_reading(*arguments: Any) -> Any:
        with reading_only(signature.read_only(arguments)):
            return launch(*arguments)

    return launch_reading
