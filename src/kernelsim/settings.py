"""The options of launches, for a block of code."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from kernelsim.cuda_sim import simulate
from kernelsim.cuda_sim.memory import Unwritten
from kernelsim.triton_sim import memory as triton_memory

__all__ = ["Options", "current_options", "options"]


@dataclass(frozen=True)
class Options(simulate.Options):
    """See ``options``. Which bytes of uninitialised tensors were written is remembered from launch to launch."""

    raises: bool = True

    @functools.cached_property
    def uninitialised_in_triton(self) -> list[triton_memory.Unwritten]:
        return [triton_memory.Unwritten(one.tensor) for one in self.uninitialised]


_DEFAULT = Options()
_current: ContextVar[Options] = ContextVar("kernelsim_options", default=_DEFAULT)


def current_options() -> Options:
    """Those of this block."""
    return _current.get()


@contextlib.contextmanager
def options(
    *,
    checked: bool = True,
    seed: int | None = None,
    time_limit_s: float | None = None,
    uninitialised: Sequence[Any] = (),
    reachable: Sequence[Any] = (),
    read_only: Sequence[Any] = (),
    raises: bool = True,
) -> Iterator[None]:
    """A block with other options for launches. Options of a block around it do not count in it.

    Args:
        checked: check every access and every barrier (the default); without it, kernels run many times faster.
        seed: permute the order of blocks and threads, or of programs, so that a result that depends on it differs.
        time_limit_s: seconds after which a launch of a CUDA kernel counts as hung.
        uninitialised: tensors without values, such as from ``numpy.empty``: reading what no kernel of this block has
            written is a finding.
        reachable: tensors whose addresses CUDA kernels take from structures, or from other tensors.
        read_only: tensors that kernels must not write: a write of an element is a finding, even if the kernel sets it
            back.
        raises: raise a FindingError for findings (the default); without it, only the report has them.
    """
    unwritten = tuple(Unwritten(tensor) for tensor in uninitialised)
    token = _current.set(Options(checked, seed, time_limit_s, unwritten, tuple(reachable), tuple(read_only), raises))
    try:
        yield
    finally:
        _current.reset(token)
