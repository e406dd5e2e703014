"""The check "surroundings": results are the same in inference mode, in another thread, and with other settings; and are
right where one tensor is passed for two arguments."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from opwright.checks.calls.repeated_calls import is_right
from opwright.checks.context import Context
from opwright.checks.exceptions import Raised
from opwright.checks.kernel_calls import same_layout
from opwright.checks.observation import Observation, SkippedCase
from opwright.results import Finding, NotChecked, Status

__all__ = ["NAME", "check"]

NAME = "surroundings"
_LONGEST_S = 3600.0  # the parent ends the worker long before


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """Run a typical case in each of the surroundings."""
    if context.kernel not in context.op.kernels or context.op.contract.random:
        return
    cases = context.typical_cases(1)
    if not cases:
        yield NotChecked(NAME, "no case could be run")
        return
    run = context.observe(cases[0])
    assert isinstance(run, Observation)  # typical_cases returns only cases that ran
    if is_right(context, run, run.outputs) is not None:
        return  # the check "values" reports it
    found = [*(_difference(context, run, around) for around in _SURROUNDINGS), _of_one_tensor(context, run)]
    yield from (f for f in found if f is not None)
    if not any(f is not None and f.status is Status.FAIL for f in found):
        yield Finding(NAME, Status.PASS, message=", ".join(around.words for around in _SURROUNDINGS))


@dataclass(frozen=True)
class _Surrounding:
    words: str
    block: Callable[[], contextlib.AbstractContextManager[Any]]
    remedy: str = ""  # of a difference that is a warning


def _difference(context: Context, run: Observation, around: _Surrounding) -> Finding | None:
    context.progress(NAME, str(run.case))
    with around.block() as call:
        if around.remedy and _reference_differs(run):
            return None
        outputs = _returned(context, same_layout(list(run.arguments)), call)
    wrong = is_right(context, run, outputs)
    if wrong is None:
        return None
    if around.remedy:
        return Finding(NAME, Status.WARNING, str(run.case), f"{around.words}: {wrong}", remedy=around.remedy)
    return context.failed(NAME, str(run.case), f"{around.words}: {wrong}")


def _of_one_tensor(context: Context, run: Observation) -> Finding | None:
    """What is wrong where one tensor is passed for two arguments that are only read."""
    stated = context.op.contract.signature.arguments
    pairs = itertools.combinations((i for i, a in enumerate(stated) if a.is_tensor and not a.mutated), 2)
    alike = ((i, j) for i, j in pairs if stated[i].values == stated[j].values and _alike(run, i, j))
    first, second = next(alike, (0, 0))
    if first == second:
        return None
    once = context.prepare_with(run.case, [run.arguments[first if i == second else i] for i in range(len(stated))])
    if isinstance(once, SkippedCase):
        return None
    copies = same_layout(list(once.arguments))
    copies[second] = copies[first]
    context.progress(NAME, str(run.case))
    wrong = is_right(context, once, _returned(context, copies, _call))
    both = f"{stated[first].name!r} and {stated[second].name!r}"
    return None if wrong is None else context.failed(NAME, str(run.case), f"with one tensor for {both}: {wrong}")


def _alike(run: Observation, first: int, second: int) -> bool:
    one, other = run.arguments[first], run.arguments[second]
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor) or not one.numel():
        return False
    return (one.shape, one.dtype, one.stride()) == (other.shape, other.dtype, other.stride())


def _returned(context: Context, arguments: Sequence[Any], call: Callable[..., Any]) -> tuple[Any, ...] | Raised:
    try:
        outputs: tuple[Any, ...] = call(context.results, arguments)
        context.synchronize()
    except Exception as error:  # an exception of the kernel is a finding
        return context.described(error)
    return outputs


def _reference_differs(run: Observation) -> bool:
    """Whether the reference itself depends on the surroundings."""
    with contextlib.suppress(Exception):
        again = run.reference.run(run.before)
        return any(a.dtype != b.dtype or a.shape != b.shape for a, b in zip(again, run.expected, strict=True))
    return True


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


@contextlib.contextmanager
def _without_deterministic_algorithms() -> Iterator[Callable[..., Any]]:
    torch.use_deterministic_algorithms(False)
    try:
        yield _call
    finally:
        torch.use_deterministic_algorithms(True, warn_only=True)


@contextlib.contextmanager
def _in_inference_mode() -> Iterator[Callable[..., Any]]:
    with torch.inference_mode():
        yield _call


@contextlib.contextmanager
def _with_float64_as_default() -> Iterator[Callable[..., Any]]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield _call
    finally:
        torch.set_default_dtype(before)


def _with_threads(count: int) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    @contextlib.contextmanager
    def block() -> Iterator[Callable[..., Any]]:
        before = torch.get_num_threads()
        torch.set_num_threads(count)
        try:
            yield _call
        finally:
            torch.set_num_threads(before)

    return block


@contextlib.contextmanager
def _in_another_thread() -> Iterator[Callable[..., Any]]:
    def call(function: Callable[..., Any], *arguments: Any) -> Any:
        results: list[Any] = []

        def run() -> None:
            try:
                results.append(function(*arguments))
            except Exception as error:  # raised again in the caller's thread
                results.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join(_LONGEST_S)
        if isinstance(results[0], Exception):
            raise results[0]
        return results[0]

    yield call


_SURROUNDINGS = (
    _Surrounding("without deterministic algorithms", _without_deterministic_algorithms),
    _Surrounding("in inference mode", _in_inference_mode),
    _Surrounding("in another thread", _in_another_thread),
    _Surrounding("with one of torch's threads", _with_threads(1)),
    _Surrounding("with seven of torch's threads", _with_threads(7)),
    _Surrounding(
        "with float64 as the default dtype",
        _with_float64_as_default,
        "give the dtype of each tensor that the kernel makes",
    ),
)
