"""Launches of Triton kernels, as a recorder of calls takes them: the binary, its grid, and the arguments it gets."""

from __future__ import annotations

import contextlib
import inspect
import re
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from opwright.backends.base import Launch
from opwright.backends.gpu.recording import (
    LookedAtError,
    PassedOn,
    RecordableLauncher,
    Recorder,
    plain_number,
    recorder_of_this_thread,
)
from opwright.backends.native.native_call import ArgumentSource, GpuKernel, KernelArgument
from opwright.internals.triton import LaunchOf, launches_made_by

__all__ = ["launches_reach_the_recorder", "recordable"]

_INTEGER = re.compile(r"[iu](1|8|16|32|64)")
_FLOATS = {"fp32": "<f", "f32": "<f", "fp64": "<d", "f64": "<d"}
_FLOATING = {
    kind: ArgumentSource.FLOATING32 if code == "<f" else ArgumentSource.FLOATING for kind, code in _FLOATS.items()
}
_THREADS_OF_WARP = 32


def launches_reach_the_recorder() -> contextlib.AbstractContextManager[None]:
    """A block in which launches of jitted functions reach the recorder of this thread."""
    return launches_made_by(_record)


def recordable(launch: Launch, *, writes: bool) -> RecordableLauncher:
    """A launcher of Triton kernels, whose calls can be recorded.

    Args:
        writes: whether it writes arguments.
    """
    return RecordableLauncher(
        launch,
        observing=launches_reach_the_recorder,
        kernels=_what_launches_depend_on,
        passed_on=(float,),
        writes=writes,
    )


def _what_launches_depend_on(value: Any) -> list[tuple[Any, str, Any]] | None:
    """What to watch for a kernel: hooks, and the globals that it has used, whose change Triton reports in a call.

    None for another object, and for a kernel that runs a function of the user in each launch. Functions of
    ``heuristics`` may run: they see what is watched, and numbers.
    """
    watched: list[tuple[Any, str, Any]] = []
    while type(value).__module__.startswith("triton.runtime") and hasattr(value, "fn"):
        kind = type(value).__name__
        if kind not in ("JITFunction", "Autotuner") or getattr(value, "user_defined_pre_hook", False):
            return None
        if getattr(value, "user_defined_post_hook", False):
            return None
        if any(getattr(c, "pre_hook", None) is not None for c in getattr(value, "configs", ())):
            return None
        hooks = getattr(value, "pre_run_hooks", [])
        if type(hooks) is not list or hooks:
            return None
        watched.append((hooks, "pre_run_hooks", NotImplemented))
        for (name, _), (_, names) in getattr(value, "used_global_vals", {}).items():
            watched.append((names, name, names.get(name, NotImplemented)))
        if kind == "JITFunction":
            return [*watched, *_launch_hooks()]
        value = value.fn
    return None


def _launch_hooks() -> Iterator[tuple[Any, str, Any]]:
    """The lists of those who are told of launches, such as the profiler Proton, while they are empty."""
    for hook in _hooks_of_launches():
        calls = getattr(hook, "calls", None)
        if type(calls) is list:
            yield calls, "calls", NotImplemented


def _record(launch: LaunchOf) -> Any:
    recorder = recorder_of_this_thread()
    arguments = tuple(map(plain_number, launch.arguments))
    keywords = {name: plain_number(value) for name, value in launch.keywords.items()}
    if recorder is None:
        return launch.run(arguments, keywords)
    with recorder.launching():
        compiled = launch.run(arguments, keywords)
        try:
            grid = _grid(launch)
            if 0 not in grid:
                recorder.launched(_kernel(compiled, grid), list(_arguments(launch, compiled, recorder)))
        except (AttributeError, KeyError, OverflowError, TypeError, struct.error) as error:  # a Triton of another form
            recorder.problem = recorder.problem or f"the launch is not understood: {error}"
    return compiled


def _bound(launch: LaunchOf) -> Mapping[str, Any]:
    """The values of the function's parameters."""
    signature = inspect.signature(launch.function.fn)
    named = {name: value for name, value in launch.keywords.items() if name in signature.parameters}
    if any(type(value) is PassedOn and name not in named for name, value in launch.keywords.items()):
        raise LookedAtError  # an option of the launch
    bound = signature.bind(*launch.arguments, **named)
    bound.apply_defaults()
    return bound.arguments


def _grid(launch: LaunchOf) -> tuple[int, int, int]:
    grid = launch.grid(dict(_bound(launch))) if callable(launch.grid) else launch.grid
    x, y, z = (*grid, 1, 1)[:3]
    return int(x), int(y), int(z)


def _kernel(compiled: Any, grid: tuple[int, int, int]) -> GpuKernel | None:
    """The loaded binary; None if its launch takes more than a grid and a block."""
    facts = compiled.metadata
    if facts.num_ctas != 1 or getattr(facts, "launch_cooperative_grid", False) or getattr(facts, "launch_pdl", False):
        return None
    if getattr(facts, "global_scratch_size", 0) or getattr(facts, "profile_scratch_size", 0) or _is_listened_to():
        return None
    block = (_THREADS_OF_WARP * facts.num_warps, 1, 1)
    return GpuKernel(int(compiled.function), grid, block, int(facts.shared), parameters=0)


def _is_listened_to() -> bool:
    """Whether a profiler, such as Proton, is told of launches."""
    return any(getattr(hook, "calls", hook) for hook in _hooks_of_launches() if hook is not None)


def _hooks_of_launches() -> tuple[Any, Any]:
    import triton

    knobs = getattr(getattr(triton, "knobs", None), "runtime", None)
    return getattr(knobs, "launch_enter_hook", None), getattr(knobs, "launch_exit_hook", None)


def _arguments(launch: LaunchOf, compiled: Any, recorder: Recorder) -> Iterator[KernelArgument | torch.Tensor]:
    """What the binary takes: the parameters that are not constants in it, then null pointers to scratch memory that it
    does not use."""
    source = compiled.src
    bound = _bound(launch)
    count = 0
    for position, (name, kind) in enumerate(source.signature.items()):
        if kind == "constexpr":
            if type(bound[name]) is PassedOn:
                raise LookedAtError  # the binary is for this number only
            continue
        count += 1
        yield _argument(bound[name], kind, dict(source.attrs).get((position,), ()), recorder)
    for _ in range(_parameters_in_ptx(compiled.asm["ptx"]) - count):
        yield KernelArgument(ArgumentSource.CONSTANT, 0)


def _argument(value: Any, kind: str, promises: Any, recorder: Recorder) -> KernelArgument | torch.Tensor:
    if type(value) is PassedOn:
        return recorder.number(value, KernelArgument(_FLOATING[kind], 0) if kind in _FLOATING else None)
    if isinstance(value, torch.Tensor) and isinstance(kind, str) and kind.startswith("*"):
        alignment = max((n for promise, n in promises if promise == "tt.divisibility"), default=1)
        if alignment == 1:  # for another address Triton may choose another binary
            recorder.problem = recorder.problem or "an address that a kernel gets must be a multiple of 16"
        return recorder.aligned(value, alignment)
    if isinstance(value, int) and _INTEGER.fullmatch(kind):
        return KernelArgument(ArgumentSource.CONSTANT, (int(value) + (1 << 63)) % (1 << 64) - (1 << 63))
    if isinstance(value, int | float) and kind in _FLOATS:
        word = struct.pack(_FLOATS[kind], value)
        return KernelArgument(ArgumentSource.CONSTANT, int.from_bytes(word, "little", signed=True))
    raise TypeError(f"an argument {kind} is {type(value).__name__}")


def _parameters_in_ptx(ptx: str) -> int:
    """The number of parameters of the kernel."""
    declared = re.search(r"\.entry\s+[^(]+\(([^)]*)\)", ptx)
    if declared is None:
        raise TypeError("its PTX has no kernel")
    return declared[1].count(".param")
