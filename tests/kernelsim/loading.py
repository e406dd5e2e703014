"""Kernels and texts as tests load them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from kernelsim.cuda_sim.compilation import Built
from kernelsim.cuda_sim.kernel import SimulatedKernel
from kernelsim.own_host import own_host
from kernelsim.settings import options
from kernelsim.text.device_text import device_sources
from kernelsim.text.parsed_source import parsed
from kernelsim.triton_kernels import triton_launches

__all__ = ["device_text", "loaded", "simulated"]


def loaded(built: Built) -> SimulatedKernel:
    """A compiled kernel, which uses all cores."""
    return SimulatedKernel(built, own_host())


def device_text(text: str, kernels: Sequence[str] | None = None) -> str:
    """The device code of a source without headers of its own; of all its kernels, if none are named."""
    source = parsed(text)
    return device_sources((source,), tuple(kernels) if kernels is not None else source.kernels)[0].text


@contextlib.contextmanager
def simulated(*, given: Any = None, **how: Any) -> Iterator[None]:
    """A block in which Triton kernels run in the simulator, with options."""
    with options(**how), triton_launches(given=given):
        yield
