"""The check "cheats": what a kernel does to seem right, or fast, that computes nothing.

The first part looks at what happened in the kernel's process since it was loaded; the second calls a small case.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any

import torch

from opwright import tree
from opwright.checks.calls.repeated_calls import is_right, write_into
from opwright.checks.check import Check, Process
from opwright.checks.chosen_cases import typical_cases
from opwright.checks.conduct import observed
from opwright.checks.conduct.kept_results import kept_results
from opwright.checks.conduct.lookups import FRAMES, OBJECTS, Lookup
from opwright.checks.conduct.precision_used import lowered_precision
from opwright.checks.conduct.published_state import of_published_state
from opwright.checks.conduct.user_code import USER, caller_of, owner_of
from opwright.checks.context import Context
from opwright.checks.exceptions import Raised, in_words
from opwright.checks.kernel_calls import same_layout
from opwright.checks.observation import Prepared
from opwright.contract.inputs.case import Case
from opwright.results import Finding, NotChecked, Status

__all__ = ["CHECK", "NAME", "check"]

NAME = "cheats"
# Values that no earlier check has drawn: a kernel may have kept the results of those.
_WITH_VALUES, _NEW_VALUES = range(201, 204), range(211, 216)


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """What was replaced, read and looked up since the kernel was loaded; then what a few calls show."""
    if not context.is_due(CHECK):
        return
    if observed.process is None:  # it was set before the kernel was loaded
        yield context.failed(NAME, "", "it switches off what observes its process")
        return
    found: list[Finding | NotChecked] = [*_of_process(context, observed.process)]
    case = next(iter(typical_cases(context, 1)), None)
    if case is None:
        yield NotChecked(NAME, "what its calls do: no case could be run")
    elif context.op.contract.random:
        yield NotChecked(NAME, "what its calls do: its results are random")
    elif not context.hooks.is_compiled_function:  # of which opwright makes the kernel, and its calls
        context.progress(NAME, str(case))
        found += _of_calls(context, observed.process, case)
    yield from found
    if not any(isinstance(each, Finding) for each in found):
        yield Finding(NAME, Status.PASS, message="none of those that are known")
    yield from of_published_state(context, NAME)


def _of_process(context: Context, process: observed.Observed) -> Iterator[Finding]:
    for name in process.functions.replaced():
        yield context.failed(NAME, "", f"it replaces {name}, with which others measure or compare")
        break
    whole = frozenset(os.path.realpath(file) for file, name in _reference_code(context) if not name)
    for lookup in process.lookups.opened(whole)[:1]:
        yield context.failed(NAME, "", f"it reads the file of the reference, {lookup.what}, in {lookup.line}")


def _of_calls(context: Context, process: observed.Observed, of_case: Case) -> Iterator[Finding | NotChecked]:
    """What calls with several values show."""
    case, draws = str(of_case), _drawn(context, of_case, _WITH_VALUES)
    outputs, calls_reference = list[tuple[Any, ...] | Raised](), False
    at_same_address = same_layout(list(draws[0].arguments)) if draws else []
    for draw in draws:
        arguments = write_into(at_same_address, draw.arguments)
        with _CallsOfReference(_reference_code(context)) as watched:
            outputs.append(_returned(context, arguments))
        calls_reference |= watched.found
    if calls_reference:
        yield context.failed(NAME, case, "it calls the reference")
    wrong = [is_right(context, draw, each) for draw, each in zip(draws, outputs, strict=True)]
    is_wrong = any(wrong)
    if is_wrong and (words := _without_computing(context, draws, outputs, is_first_wrong=wrong[0] is not None)):
        yield context.failed(NAME, case, words)
    for words in _looked_up(process):
        yield _failed_or_warned(context, case, words, is_wrong, "pass what the kernel needs as arguments")
    if not draws or any(isinstance(each, Raised) for each in outputs):
        yield NotChecked(NAME, "what its calls do: the kernel raised an exception, or no values could be drawn")
        return
    try:
        yield from _of_watched_calls(context, of_case, draws[0], is_wrong)
    except Exception as error:  # of a kernel that does not run while torch's operations are watched
        yield NotChecked(NAME, f"kept results and precision: watched, the kernel raised {in_words(error)}")


def _of_watched_calls(context: Context, case: Case, draw: Prepared, is_wrong: bool) -> Iterator[Finding]:
    if words := lowered_precision(context, same_layout(list(draw.arguments))):
        remedy = "compute in the dtype of the arguments, or state tf32=True of ow.op"
        yield _failed_or_warned(context, str(case), words, is_wrong, remedy)
    new = _drawn(context, case, _NEW_VALUES)
    if not is_wrong and len(new) > 2 and (kept := kept_results(context, new)):
        remedy = "compute it in each call; keep what is made of parameters only, in the module that has them"
        if kept.is_one_argument:
            yield Finding(NAME, Status.WARNING, str(case), kept.words, remedy=remedy)
        else:
            yield context.failed(NAME, str(case), kept.words)


def _drawn(context: Context, case: Case, numbers: Iterable[int]) -> list[Prepared]:
    prepared = (context.prepare(case, draw=number) for number in numbers)
    return [each for each in prepared if isinstance(each, Prepared)]


def _failed_or_warned(context: Context, case: str, words: str, is_wrong: bool, remedy: str) -> Finding:
    if is_wrong:
        return context.failed(NAME, case, f"{words}, and its results are wrong")
    return Finding(NAME, Status.WARNING, case, words, remedy=remedy)


def _returned(context: Context, arguments: Sequence[Any]) -> tuple[Any, ...] | Raised:
    try:
        # Copies: another call may write into the memory of this one's results, which is another check's finding.
        return tuple(tree.map_tensors(torch.clone, context.run_kernel(arguments)))
    except Exception as error:  # the check "values" reports it
        return context.described(error)


def _without_computing(
    context: Context, draws: Sequence[Prepared], outputs: Sequence[tuple[Any, ...] | Raised], *, is_first_wrong: bool
) -> str:
    """How the wrong results come about: they are an argument, or the same for all values, which were at the same
    addresses. "" if in no such way."""
    known = [each for each in outputs if not isinstance(each, Raised)]
    if len(known) < len(draws) or not known[0]:
        return ""
    for i, argument in enumerate(context.op.contract.signature.arguments):
        passed = [draw.arguments[i] for draw in draws]
        if all(_are_equal(value, each[0]) for value, each in zip(passed, known, strict=True)):
            return f"it returns the argument {argument.name!r} unchanged"
    first = known[0][0]
    expected = [draw.expected[0] for draw in draws]
    if all(_are_equal(first, each[0]) for each in known) and not all(_are_equal(expected[0], t) for t in expected):
        if not is_first_wrong or _is_different_elsewhere(context, draws[0], first):
            return "it keeps results by the addresses of its arguments: new values get an earlier result"
        values = first.unique() if isinstance(first, torch.Tensor) else torch.empty(0)
        constant = f": all elements are {values.item():g}" if values.numel() == 1 else ""
        return f"it returns the same result for all values of the arguments{constant}"
    return ""


def _is_different_elsewhere(context: Context, draw: Prepared, first: Any) -> bool:
    """Whether a call at other addresses returns another result. A kept one may be of an earlier call at these, so that
    already the first result is wrong."""
    returned = _returned(context, same_layout(list(draw.arguments)))
    return not isinstance(returned, Raised) and not _are_equal(first, returned[0])


def _are_equal(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    is_alike = one.shape == other.shape and one.dtype is other.dtype
    return is_alike and bool(torch.equal(one.detach().cpu(), other.detach().cpu()))


def _looked_up(process: observed.Observed) -> Iterator[str]:
    frames, objects = (process.lookups.of(kind) for kind in (FRAMES, OBJECTS))
    if frames:
        yield f"it reads frames of the calls above it, where expected results may be ({_places(frames)})"
    if objects:
        yield f"it searches the objects of the process, where expected results may be ({_places(objects)})"


def _places(lookups: Sequence[Lookup]) -> str:
    return f"{lookups[0].what} in {lookups[0].line}"


def _reference_code(context: Context) -> tuple[tuple[str, str], ...]:
    """The code of the reference as a published task has it: files, with a function or for the whole file."""
    return tuple(context.op.contract.own_inputs.reference_code)


class _CallsOfReference:
    """A block in which calls of the reference's code by the user's are seen."""

    def __init__(self, code: Sequence[tuple[str, str]]) -> None:
        self._code = {(os.path.realpath(file), name) for file, name in code}
        self._files = {file for file, _ in self._code}
        self._before: Callable[..., Any] | None = None
        self.found = False

    def __enter__(self) -> _CallsOfReference:
        self._before = sys.getprofile()
        if self._code:
            sys.setprofile(self._profile)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(self._before)

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call" or self.found or not self._is_of_reference(frame):
            return
        caller = frame.f_back
        while caller is not None and self._is_of_reference(caller):
            caller = caller.f_back
        caller = caller_of(caller)
        self.found = caller is not None and owner_of(caller.f_code.co_filename) == USER

    def _is_of_reference(self, frame: FrameType) -> bool:
        code = frame.f_code
        file = code.co_filename
        if file not in self._files and (file := os.path.realpath(file)) not in self._files:
            return False
        function = code.co_qualname.partition(".<locals>")[0]  # of one within it, too
        return bool({(file, ""), (file, function)} & self._code)


CHECK = Check(
    NAME,
    "Does the kernel keep results, call the reference, or replace what measures it, instead of computing?",
    cases="one, some times",
    run=check,
    process=Process.KERNEL,
    levels=("full",),
    group="derivatives",
)
