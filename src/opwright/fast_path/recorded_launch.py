"""Repeats launchers in Python: calls like a watched one are one native function, which allocates and launches.

A recording is made in the first call of a guard on a GPU. It is kept if all that the launcher's code depends on is
known (``known_code.py``), and if the watched call did nothing but allocate, take views and launch kernels
(``backends/gpu/recording.py``). It is used while everything that the code names is as it was. And it is checked while
it lives: the first repetitions, and some later ones, are made both ways and compared bit by bit. A difference ends
recording for the process, with a warning.

CUDA graphs would do the same, but fix addresses and copy what changes. A launcher is not recorded when it is attached,
because what it does follows from sizes and numbers that only a call has.
"""

from __future__ import annotations

import builtins
import contextlib
import inspect
import math
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from opwright.backends.base import Launch
from opwright.backends.build_tools import build_tools
from opwright.backends.cuda.module import cdiv
from opwright.backends.gpu.recording import METADATA, VIEWS, PassedOn, RecordableLauncher, Recorder
from opwright.backends.native.native_call import native_calls
from opwright.fast_path.extension import FastCalls, Watched, fast_calls_extension
from opwright.fast_path.known_code import Known, UnknownCode, is_constant, members_of, watched_names
from opwright.fast_path.verify import difference

__all__ = ["repeated", "unknown_in"]

# The calls after which a launcher that did something else, such as measuring configurations, is given up.
_ATTEMPTS = 3
_ALLOCATIONS = ("new_empty", "new_empty_strided")
# Attributes and methods of what cannot change, or is the launcher's own: lists, dtypes, devices, properties of a GPU.
_OF_OTHERS = ("append", "extend", "index", "multi_processor_count")
_ATTRIBUTES: Mapping[str, Any] = {
    **{
        n: inspect.getattr_static(torch.Tensor, n)
        for n in (*METADATA, *VIEWS, *_ALLOCATIONS)
        if hasattr(torch.Tensor, n)
    },
    **dict.fromkeys(_OF_OTHERS),
}
_BUILTINS = {
    name: vars(builtins)[name]
    for name in (
        "len", "min", "max", "int", "float", "bool", "range", "tuple", "list", "abs", "sum", "zip", "enumerate",
        "isinstance", "all", "any", "reversed", "sorted", "divmod", "round", "slice", "dict", "str", "ValueError",
        "TypeError", "RuntimeError", "AssertionError", "NotImplementedError",
    )
}  # fmt: skip
_FUNCTIONS = {
    **members_of(torch, ("empty", "empty_like", "empty_strided", "Tensor")),
    **members_of(torch.cuda, ("get_device_properties",)),
    **members_of(math, ("ceil", "floor", "log2", "sqrt", "prod")),
    id(cdiv): cdiv,
}
# Launchers are recorded in this process until a repetition differs.
_is_on = True


def _functions() -> Mapping[int, Any]:
    """Functions of libraries. Triton's are those of the moment when it was first seen, as it may be imported late."""
    if "triton" in sys.modules and not _of_triton:
        _of_triton.update(members_of(sys.modules["triton"], ("cdiv", "next_power_of_2")))
    return {**_FUNCTIONS, **_of_triton}


_of_triton: dict[int, Any] = {}


def unknown_in(launcher: RecordableLauncher) -> str | None:
    """Why a launcher is not recorded, as far as its code says; None if nothing in it is unknown."""
    try:
        _watched(launcher)
    except UnknownCode as reason:
        return str(reason)
    return None


def _watched(launcher: RecordableLauncher) -> tuple[Watched, ...]:
    known = Known(_functions(), _BUILTINS, torch.Tensor, _ATTRIBUTES, launcher.kernels)
    return watched_names(launcher.written_by_user or launcher.launch, known)


def repeated(launcher: RecordableLauncher, arguments: Sequence[Any], free: frozenset[int]) -> Launch:
    """A function of arguments like these that repeats what the launcher does in one call; the launcher itself if it
    cannot be repeated.

    Args:
        free: the positions of numbers that the guard of such calls does not compare.
    """
    extension = fast_calls_extension.loaded
    are_known = all(isinstance(a, torch.Tensor) or is_constant(a) for a in arguments)  # an enumeration has attributes
    if extension is None or not _is_on or not are_known or not _are_on_a_gpu(arguments):
        return launcher.launch
    return _Recording(launcher, free, extension) if unknown_in(launcher) is None else launcher.launch


def _are_on_a_gpu(arguments: Sequence[Any]) -> bool:
    return all(a.device.type == "cuda" for a in arguments if isinstance(a, torch.Tensor))


class _Recording:
    """The calls of one guard: the first one is watched, later ones are repeated."""

    def __init__(self, launcher: RecordableLauncher, free: frozenset[int], extension: FastCalls) -> None:
        self._launcher, self._free, self._extension = launcher, free, extension
        self._attempts = 0
        self._run: Launch = self._record

    def __call__(self, *arguments: Any) -> Any:
        return self._run(*arguments)

    def _record(self, *arguments: Any) -> Any:
        self._attempts += 1
        if self._attempts == _ATTEMPTS:
            self._run = self._launcher.launch
        try:
            watched = _watched(self._launcher)  # anew, as names may have other values than when it was attached
        except UnknownCode:
            self._run = self._launcher.launch
            return self._launcher.launch(*arguments)
        passed_on = self._passed_on(arguments)
        if passed_on:
            standing_in = [PassedOn(a, i) if i in passed_on else a for i, a in enumerate(arguments)]
            with contextlib.suppress(Exception):  # a launcher that does more with a number runs again, without this
                return self._watch(standing_in, watched)
        return self._watch(arguments, watched)

    def _passed_on(self, arguments: Sequence[Any]) -> frozenset[int]:
        if self._launcher.writes:
            return frozenset()  # a call that was made must not be made again
        kinds = self._launcher.passed_on
        return frozenset(i for i in self._free if type(arguments[i]) in kinds)

    def _watch(self, arguments: Sequence[Any], watched: tuple[Watched, ...]) -> Any:
        recorder = Recorder(arguments)
        with self._launcher.observing(), recorder.watching():
            result = self._launcher.launch(*arguments)
        description = recorder.description(result, self._launcher.launch)
        native = native_calls(build_tools())
        with contextlib.suppress(AttributeError):  # a dtype that torch's C interface does not have
            repeat = None if description is None or native is None else native.function_for(description)
            if repeat is not None:
                numbers = tuple((i, arguments[i]) for i in self._free if type(arguments[i]) is not PassedOn)
                self._run = self._extension.recorded_call(
                    watched, numbers, repeat, self._launcher.launch, _BothWays(self, repeat)
                )
        return result

    def stop(self) -> None:
        self._run = self._launcher.launch

    @property
    def launch(self) -> Launch:
        return self._launcher.launch

    @property
    def writes(self) -> bool:
        return self._launcher.writes

    @property
    def name(self) -> str:
        function = self._launcher.written_by_user or self._launcher.launch
        return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', repr(function))}"


class _BothWays:
    """Makes a call with a launcher and with its repetition, on tensors of the same values, and compares them."""

    def __init__(self, recording: _Recording, repeat: Launch) -> None:
        self._recording, self._repeat = recording, repeat

    def __call__(self, *arguments: Any) -> Any:
        launch = self._recording.launch
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return launch(*arguments)  # a capture must not wait for the GPU
        writes = self._recording.writes
        with _new_memory_is_filled():
            try:
                copies = [[_copied(a) if writes else a for a in arguments] for _ in range(2)]
            except Exception:  # memory ran out
                self._recording.stop()
                return launch(*arguments)
            result = launch(*arguments)
            try:
                self._compare(_flat(result, arguments, writes), copies)
            except Exception:  # memory ran out, or somebody has replaced what the comparison uses
                self._recording.stop()
        return result

    def _compare(self, expected: Sequence[Any], copies: Sequence[Sequence[Any]]) -> None:
        writes = self._recording.writes
        if difference(_results(self._repeat, copies[0], writes), expected) is None:
            return
        self._recording.stop()  # also of a launcher whose results differ from call to call
        if difference(_results(self._recording.launch, copies[1], writes), expected) is None:
            _end_recording(self._recording.name)


def _copied(argument: Any) -> Any:
    """A tensor of the same values, sizes and strides in a copy of its storage: a kernel may write what is around it."""
    if not isinstance(argument, torch.Tensor):
        return argument
    copy = torch.empty(0, dtype=argument.dtype, device=argument.device)
    copy.set_(argument.untyped_storage().clone(), argument.storage_offset(), argument.shape, argument.stride())
    return copy.requires_grad_(argument.requires_grad)


def _results(launch: Launch, arguments: Sequence[Any], writes: bool) -> list[Any]:
    return _flat(launch(*arguments), arguments, writes)


def _flat(result: Any, arguments: Sequence[Any], writes: bool) -> list[Any]:
    """What a call returned, and, if it writes arguments, what these hold after it."""
    returned = [*result] if isinstance(result, tuple | list) else [result]
    return [*returned, *(a.detach() for a in arguments if writes and isinstance(a, torch.Tensor))]


@contextlib.contextmanager
def _new_memory_is_filled() -> Iterator[None]:
    """A block in which new memory has the same content, written or not."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _end_recording(name: str) -> None:
    global _is_on
    _is_on = False
    warnings.warn(
        f"opwright: the recorded call of the launcher {name} differs from the launcher. Launchers run in Python from "
        "now on, in this process. Please report the launcher; OPWRIGHT_FAST_CALLS=0 switches recording off.",
        stacklevel=3,
    )
