"""Runs a launcher of GPU kernels on meta tensors, which have sizes and no memory. Its launches are recorded, not made.

So a launcher can be asked what it would launch for tensors that this machine cannot hold, without a GPU. Run it in a
process of its own: what it keeps of such a call, such as a workspace, is of no use to later calls.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from opwright import tree
from opwright.backends.gpu.answers import answers_of_a_gpu
from opwright.backends.gpu.cuda_launches import cuda_launches_go_to
from opwright.backends.gpu.recording import VIEWS
from opwright.backends.simulation import (
    LARGEST_GRID,
    as_extent,
    autotuners_measure,
    triton_launches_go_to,
)
from opwright.contract.contract import Contract
from opwright.errors import LaunchError
from opwright.results.outcomes import LaunchGrid, RunOnMeta

__all__ = ["AsOnGpuWithoutMemory", "run_on_meta"]


class _RefusedGridError(LaunchError, RuntimeError):
    """Raised in the place of CUDA's "invalid argument", so that a launcher may catch it and launch something else."""

    def __init__(self, refused: LaunchGrid) -> None:
        super().__init__(f"Triton Error [CUDA]: invalid argument: {refused.kernel} has the grid {refused.grid}")
        self.refused = refused


def run_on_meta(launcher: Callable[..., Any], contract: Contract, arguments: Sequence[Any]) -> RunOnMeta:
    """Run a launcher on meta tensors, and record its launches of Triton and CUDA kernels.

    An autotuned kernel launches each of its configurations, as it does on a GPU in the first call of such a size.
    Whatever the launcher raises is passed on: values that it reads, say, which meta tensors do not have.
    """
    launches = _Launches()
    mode = AsOnGpuWithoutMemory()
    refused: LaunchGrid | None = None
    # A process that was forked after CUDA began can ask it for nothing.
    with answers_of_a_gpu(is_available=lambda: True), mode, launches.recording():
        try:
            contract.signature.call(launcher, arguments)
        except _RefusedGridError as error:
            refused = error.refused
    return RunOnMeta(launches.count, mode.allocated, refused)


# -- launches ---------------------------------------------------------------------------------------------------------


@dataclass
class _Launches:
    """The launches of a run."""

    count: int = field(default=0)

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """A block in which launches are recorded, and refused as CUDA refuses them. (A launcher without Triton need not
        wait for its import.)"""
        with contextlib.ExitStack() as stack:
            stack.enter_context(cuda_launches_go_to(self._of_cuda))
            if "triton" in sys.modules:
                stack.enter_context(triton_launches_go_to(self._of_triton))
                stack.enter_context(autotuners_measure())
            yield

    def _of_cuda(self, kernel: Any, launch: Any, *_: Any) -> None:
        grid = launch[0] if isinstance(launch, tuple) and launch else launch
        self._record(LaunchGrid(kernel.name, as_extent(grid, "grid", kernel.name), LARGEST_GRID))

    def _of_triton(self, function: Any, grid: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        given = {**dict(zip(function.arg_names, arguments, strict=False)), **keywords}
        defaults = {p.name: p.default for p in function.params if p.has_default}
        asked = grid({**defaults, **given}) if callable(grid) else grid
        sizes = [int(size) for size in (asked if isinstance(asked, list | tuple) else (asked,))]
        constants = {p.name: given[p.name] for p in function.params if p.is_constexpr and p.name in given}
        name = getattr(function, "__name__", "the kernel")
        self._record(LaunchGrid(name, as_extent(sizes, "grid", name), LARGEST_GRID, _blocks_among(constants)))

    def _record(self, launch: LaunchGrid) -> None:
        self.count += 1
        if 0 not in launch.grid and launch.axis is not None:
            raise _RefusedGridError(launch)


def _blocks_among(constants: Mapping[str, Any]) -> str:
    """The numbers that tell how much a block does, among compile-time constants, some of which are sizes."""
    numbers = {n: v for n, v in constants.items() if type(v) is int and n.isupper()}
    blocks = {n: v for n, v in numbers.items() if "BLOCK" in n}
    return ", ".join(f"{name}={value}" for name, value in list((blocks or numbers).items())[:3])


# -- tensors ----------------------------------------------------------------------------------------------------------

_GPU = torch.device("cuda", 0)
_NOT_COUNTED = frozenset(VIEWS) - {"contiguous", "reshape", "flatten"}


class AsOnGpuWithoutMemory(TorchFunctionMode):
    """A block in which meta tensors say that they are on a GPU, and what is to be made on a GPU is made on meta. It
    holds for one thread.

    Attributes:
        allocated: the bytes of the tensors that were made.
    """

    def __init__(self) -> None:
        super().__init__()
        self.allocated = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        # The getter of a property is bound to its descriptor.
        owner = getattr(func, "__self__", None)
        if owner is torch.Tensor.is_cuda and args[0].is_meta:
            return True
        if owner is torch.Tensor.device and args[0].is_meta:
            return _GPU
        if func is torch.Tensor.get_device and args[0].is_meta:
            return 0
        if func is torch.Tensor.cuda:
            return args[0].to("meta")
        result = func(*map(_on_meta, args), **{name: _on_meta(value) for name, value in (kwargs or {}).items()})
        if getattr(func, "__name__", "__get__") not in _NOT_COUNTED | {"__get__"}:
            self.allocated += sum(t.nbytes for t in tree.tensors([result]) if _is_new(t, args))
        return result


def _is_new(tensor: torch.Tensor, args: Sequence[Any]) -> bool:
    return tensor.is_meta and all(tensor is not given for given in args)


def _on_meta(value: Any) -> Any:
    """``meta`` in the place of a GPU."""
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("meta")
    return "meta" if isinstance(value, str) and value.partition(":")[0] == "cuda" else value
