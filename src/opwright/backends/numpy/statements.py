"""The first statement of a function after which the values of its variables on tensors are not NumPy's."""

from __future__ import annotations

import linecache
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from opwright import tree
from opwright.backends.numpy.state import State, codes_of
from opwright.contract.numpy.array import Array, numpy_on_tensors
from opwright.contract.numpy.comparison import copied, difference
from opwright.contract.numpy.facts import is_scalar
from opwright.contract.numpy.rules import DefaultFloatDtype
from opwright.contract.reference import replace_globals

__all__ = ["first_difference"]

_MOST_STEPS = 5000
_MOST_BYTES = 1 << 28


@dataclass(frozen=True)
class _Step:
    """The variables of a function after one of its lines ran."""

    file: str
    line: int
    variables: dict[str, Any]


class _Recorder:
    """Records the variables after each line of some functions; for ``sys.settrace``."""

    def __init__(self, codes: set[types.CodeType]) -> None:
        self._codes = codes
        self._bytes = 0
        self._before: dict[types.FrameType, int] = {}
        self.steps: list[_Step] = []

    def __call__(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        if frame.f_code not in self._codes:
            return None
        if event in ("line", "return") and self._has_room():
            line = self._before.get(frame)
            if line is not None:
                self._record(frame, line)
            self._before[frame] = frame.f_lineno
        return self

    def _has_room(self) -> bool:
        return len(self.steps) < _MOST_STEPS and self._bytes < _MOST_BYTES

    def _record(self, frame: types.FrameType, line: int) -> None:
        values = {name: _comparable(value) for name, value in frame.f_locals.items()}
        kept = {name: value for name, value in values.items() if value is not None}
        self._bytes += sum(v.nbytes for v in kept.values() if isinstance(v, np.ndarray))
        self.steps.append(_Step(frame.f_code.co_filename, line, kept))


def _comparable(value: Any) -> Any:
    """A copy of an array or a number; None for other values, which are not compared."""
    if isinstance(value, Array):
        array = value.tensor.detach().cpu().resolve_conj().numpy().copy()
        return array[()] if is_scalar(value.tensor) else array
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy().copy()
    return copied(value) if isinstance(value, np.ndarray | np.generic) else None


def first_difference(
    function: Callable[..., Any], args: Any, keywords: Any, state: State, default_float: DefaultFloatDtype
) -> str:
    """Where values part, such as ``file:line `b = a[::-1]`: b[0] is 1, NumPy's 3``; "" if no statement shows it.

    The function runs twice: in NumPy, and step by step on tensors. The state is put back each time.
    """
    target = getattr(function, "__func__", function)
    if not isinstance(target, types.FunctionType):
        return ""
    codes = codes_of(target)
    state.restore()
    numpys = _steps(lambda: target(*args, **keywords), codes)
    state.restore()
    tensors = tree.map_leaves(_as_array, (list(args), dict(keywords)))
    ours = _steps(lambda: replace_globals(target, numpy_on_tensors())(*tensors[0], **tensors[1]), codes)
    state.restore()
    single = default_float == "float32"
    for expected, came in zip(numpys, ours, strict=False):
        if expected.line != came.line:
            return ""
        for name, value in expected.variables.items():
            what = difference(value, came.variables.get(name), single=single, where=name)
            if what:
                source = linecache.getline(expected.file, expected.line).strip()
                return f"{expected.file}:{expected.line} `{source}`: {what}"
    return ""


def _as_array(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return Array(value.detach().clone())
    if isinstance(value, np.ndarray):
        return Array(torch.from_numpy(np.ascontiguousarray(value).reshape(value.shape).copy()))
    return value


def _steps(run: Callable[[], Any], codes: set[types.CodeType]) -> list[_Step]:
    recorder = _Recorder(codes)
    before = sys.gettrace()
    sys.settrace(recorder)
    try:
        run()
    except Exception:  # its steps so far are enough
        pass
    finally:
        sys.settrace(before)
    return recorder.steps
