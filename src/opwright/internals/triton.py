"""Wrappers of Triton's private APIs. Imports Triton only when one is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from opwright.internals.lookup import find

__all__ = ["Stages", "nvidia_driver", "stages", "time_by_default"]


class Stages(NamedTuple):
    """The classes that compile a jitted function for a target GPU."""

    GPUTarget: Any
    ASTSource: Any


def stages() -> Stages | None:
    """The classes; None if this Triton lacks one."""
    target, source = find("triton_target"), find("triton_source")
    return None if target is None or source is None else Stages(target, source)


def nvidia_driver() -> Any | None:
    """The class of Triton's driver for NVIDIA GPUs; None if this Triton lacks it."""
    backends = find("triton_backends")
    return None if backends is None or "nvidia" not in backends else backends["nvidia"].driver


def time_by_default(kernel: Any, timer: Callable[..., list[float]]) -> None:
    """Set the timer of an autotuned kernel, unless the kernel has one."""
    if find("autotuner_timer") is not None and getattr(kernel, "_do_bench", timer) is None:
        kernel._do_bench = timer
