"""Triton's private names. Imports Triton only when one is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from opwright.internals.lookup import find

__all__ = ["Stages", "nvidia_driver", "stages", "time_by_default"]


class Stages(NamedTuple):
    """What compiles a jitted function for a GPU that is not here."""

    GPUTarget: Any
    ASTSource: Any


def stages() -> Stages | None:
    """None where this Triton has it no longer."""
    target, source = find("triton_target"), find("triton_source")
    return None if target is None or source is None else Stages(target, source)


def nvidia_driver() -> Any | None:
    """The class of Triton's driver for NVIDIA's GPUs; None where this Triton has it no longer."""
    backends = find("triton_backends")
    return None if backends is None or "nvidia" not in backends else backends["nvidia"].driver


def time_by_default(kernel: Any, timer: Callable[..., list[float]]) -> None:
    """Have an autotuned kernel choose its configuration with a timer, unless its author gave it one."""
    if find("autotuner_timer") is not None and getattr(kernel, "_do_bench", timer) is None:
        kernel._do_bench = timer
