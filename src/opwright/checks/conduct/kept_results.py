"""Whether a kernel does less in a call whose arguments it has had before: it keeps results instead of computing them.

Such results are right, and each benchmark that repeats a call measures a look-up. The steps of calls in Python and in
torch's dispatcher are counted, which are the same each time for whoever computes.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

from opwright import tree
from opwright.checks.calls.repeated_calls import is_right, write_into
from opwright.checks.context import Context
from opwright.checks.kernel_calls import same_layout
from opwright.checks.observation import Prepared, SkippedCase
from opwright.internals.compiler import DispatchMode

__all__ = ["kept_results", "uncounted"]

# What a kernel sets up, it sets up in the first of these calls.
_FIRST_CALLS = 2


def kept_results(context: Context, draws: Sequence[Prepared]) -> str:
    """In words, what it keeps its results by; "" if each call computes.

    Args:
        draws: the arguments of one case with several values.
    """
    first, *others, unseen = draws
    for _ in range(_FIRST_CALLS):
        _steps(context, same_layout(list(first.arguments)))
    new, same, equal = list[int](), list[int](), list[int]()
    for draw in others:
        arguments = same_layout(list(draw.arguments))
        new.append(_steps(context, arguments))
        if not any(a.mutated for a in context.op.contract.signature.arguments):
            same.append(_steps(context, arguments))
        equal.append(_steps(context, same_layout(list(draw.arguments))))
    for counts, words in ((equal, "equal values at other addresses"), (same, "the same tensors again")):
        if not counts or max(counts) >= min(new) or _prepares_an_argument(context, draws, max(counts)):
            continue
        saved = min(before - after for before, after in zip(new, counts, strict=True))
        if counts is same and _describes_memory(context, arguments, unseen, saved):
            continue
        return f"it keeps results: for {words}, a call has {max(counts)} steps, for new values {min(new)}"
    return ""


def _describes_memory(context: Context, arguments: list[Any], unseen: Prepared, saved: int) -> bool:
    """Whether a call with the same tensors saves as many steps for values that the kernel has never had: what is kept
    describes memory, such as a tensor map, and no values."""
    _steps(context, arguments)
    arguments = write_into(arguments, unseen.arguments)
    steps = _steps(context, arguments)
    if is_right(context, unseen, context.results(arguments)) is not None:
        return False
    return _steps(context, same_layout(list(unseen.arguments))) - steps >= saved


def _prepares_an_argument(context: Context, draws: Sequence[Prepared], least: int) -> bool:
    """Whether as few steps are enough if only some argument changes: what is kept is made of the others, such as packed
    weights, and not the result. If it is kept for the same tensors only, it has to be made anew where these have been
    written to: another value may be at the same address later."""
    for i, changed in _with_one_changed(context, draws[0], draws[1]):
        given = same_layout(list(draws[0].arguments))
        _steps(context, given)  # it prepares what is not changed
        copied = same_layout(list(changed.arguments))
        if _is_enough(context, changed, copied, least):
            return True
        _steps(context, given)
        same = [*given[:i], copied[i], *given[i + 1 :]]
        if _is_enough(context, changed, same, least) and _looks_for_changes(context, same, i, least):
            return True
    return False


def _is_enough(context: Context, draw: Prepared, arguments: list[Any], least: int) -> bool:
    """Whether a call takes as few steps, and a call gives right results."""
    if _steps(context, arguments) > least:
        return False
    return is_right(context, draw, context.results(arguments)) is None


def _looks_for_changes(context: Context, arguments: list[Any], changed: int, least: int) -> bool:
    """Whether a call takes more steps after the arguments but one were written to, though the values are the same."""
    for tensor in tree.tensors([value for i, value in enumerate(arguments) if i != changed]):
        tensor.copy_(tensor.clone())
    return _steps(context, arguments) > least


def _with_one_changed(context: Context, one: Prepared, other: Prepared) -> Iterator[tuple[int, Prepared]]:
    """For each argument that has another value alone, its number and the arguments."""
    stated = context.op.contract.signature.arguments
    tensors = [i for i, a in enumerate(stated) if tree.tensors([one.arguments[i]]) and not a.goes_together]
    for i in tensors if len(tensors) > 1 else ():
        arguments = list(one.arguments)
        arguments[i] = other.arguments[i]
        changed = context.prepare_with(one.case, arguments)
        if not isinstance(changed, SkippedCase):
            yield i, changed


def _steps(context: Context, arguments: Sequence[Any]) -> int:
    """The calls of functions, in Python and of torch's operations, in one call of the kernel."""
    counting = _Counting()
    collects = gc.isenabled()
    gc.disable()  # what a collection calls is no step of the kernel
    try:
        with counting:
            _profiled(counting, lambda: context.run_kernel(arguments))
    finally:
        if collects:
            gc.enable()
    return counting.steps


_uncounted: list[None] = []


@contextlib.contextmanager
def uncounted() -> Iterator[None]:
    """A block whose steps are not a kernel's, such as those of giving parameters to a published module. Whoever enters
    it does so in each call, as entering it counts."""
    _uncounted.append(None)
    try:
        yield
    finally:
        _uncounted.pop()


def _profiled(counting: _Counting, call: Callable[[], Any]) -> None:
    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            counting.steps += not _uncounted

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(before)


class _Counting(DispatchMode):  # type: ignore[misc]  # found at run time
    """Counts torch's operations, also those that C++ calls."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.steps += not _uncounted
        return function(*args, **(kwargs or {}))
