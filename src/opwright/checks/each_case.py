"""Checks of every case: which of them fail, in how many ways, and the smallest case of each."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from opwright.checks.check import Checker
from opwright.checks.context import Context
from opwright.checks.hints.likely_cause import likely_cause
from opwright.checks.hints.ordinary import ordinary_case
from opwright.checks.observation import Observation, SkippedCase
from opwright.contract.inputs.case import Case, longest_of
from opwright.contract.inputs.sizes import elements, elements_of_arguments, smaller
from opwright.results import Coverage, Finding, NotChecked, Status

__all__ = ["MOST_FAILURES", "check_each_case", "kind_of", "kind_of_reason"]

# A checker stops after so many kinds of failures.
MOST_FAILURES = 4


def check_each_case(
    context: Context, check: str, checker: Checker, *, cases: Sequence[Case] | None = None, runs: bool = True
) -> Iterator[Finding | NotChecked]:
    """Apply a checker to every case (or some); yield each kind of failure with its smallest case, or one finding
    with the number of passed cases.

    Args:
        runs: whether the kernel runs first; else the checker gets a case that is only prepared, and runs it itself.
    """
    observe = context.observe if runs else context.prepare
    own = context.own_cases
    chosen = [c for c in (context.cases if cases is None else cases) if own is None or c in own]
    skipped: dict[str, list[tuple[Case, SkippedCase]]] = {}
    failures: list[tuple[str, Case]] = []
    ran = 0
    passed: list[Case] = []
    for case, following in itertools.zip_longest(chosen, chosen[1:]):
        if runs:
            wrong = _examine(context, check, checker, case, failures, following)
        else:
            wrong = _examine_alone(context, check, checker, case)
        if isinstance(wrong, SkippedCase):
            skipped.setdefault(kind_of_reason(wrong.why), []).append((case, wrong))
            continue
        ran += 1
        if wrong is None:
            passed.append(case)
        elif not any(_explains(known, (kind_of(wrong), case)) for known in failures):
            context.reports.unconfirmed(context.failed(check, str(case), wrong))
            case, wrong = _shrink(context, check, checker, case, wrong, observe)
            failures.append((kind_of(wrong), case))
            found = dataclasses.replace(context.failed(check, str(case), wrong), coverage=Coverage(ran, len(chosen)))
            yield _with_hints(context, found, checker, case, wrong, observe)
            if len(failures) == MOST_FAILURES:
                break
    for group in skipped.values():
        example, reason = group[0]
        why = f"{reason.why}{_instead(passed, example)}" if reason.is_too_large else reason.why
        yield NotChecked.in_cases(check, len(group), str(example), why)
    if failures:
        context.failed_checks.add(check)
        return
    too_small = _too_small(context, chosen, passed) if len(chosen) > 1 else ""
    if not passed:
        yield NotChecked(check, "no case could be run")
    elif too_small:
        yield NotChecked(check, f"only {too_small} could be run, which verify nothing")
    else:
        yield Finding(check, Status.PASS, message=f"{len(passed)} cases", coverage=Coverage(ran, len(chosen)))


def _instead(passed: Sequence[Case], refused: Case) -> str:
    """How long the longest dim of a refused case was in cases that passed, and how an author says so."""
    longest = {name: longest_of(size) for name, size in refused.sizes}
    name = max(longest, key=longest.__getitem__, default="")
    ran = max((longest_of(dict(case.sizes).get(name, 0)) for case in passed), default=0)
    return f" ({name} up to {ran} ran; state with when= which sizes the kernel takes)" if ran else ""


def _too_small(context: Context, chosen: Sequence[Case], passed: Sequence[Case]) -> str:
    """What inputs that verify nothing are: all empty, or with one element at most in an argument that may have more."""
    contract = context.op.contract
    if not any(elements(contract, case) for case in passed):
        return "empty inputs"
    if any(case.sample is not None for case in passed):  # its sizes are the author's
        return ""
    ran, wanted = ([elements_of_arguments(contract, case) for case in cases] for cases in (passed, chosen))
    for name in dict.fromkeys(name for each in wanted for name in each):
        if max(each.get(name, 0) for each in ran) <= 1 < max(each.get(name, 0) for each in wanted):
            return f"inputs with one element in {name}"
    return ""


def _examine(
    context: Context,
    check: str,
    checker: Checker,
    case: Case,
    failures: Sequence[tuple[str, Case]],
    following: Case | None,
) -> str | SkippedCase | None:
    """What a checker says of a case. The checkers beside it examine the same run, as many cases are too large to
    be kept for them. Meanwhile, the kernel runs on the following case."""
    if (check, case) not in context.examined:
        run: Observation | SkippedCase | None = None
        for name, each in {check: checker, **context.checkers}.items():
            if (name, case) not in context.examined:
                context.progress(name, str(case))
                if run is None:
                    run = context.observe(case)
                    if following is not None and (check, following) not in context.examined:
                        context.begin(following)
                known = failures if name == check else ()
                context.examined[name, case] = run if isinstance(run, SkippedCase) else _said(context, each, run, known)
    return context.examined[check, case]


def _examine_alone(context: Context, check: str, checker: Checker, case: Case) -> str | SkippedCase | None:
    context.progress(check, str(case))
    prepared = context.prepare(case)
    return prepared if isinstance(prepared, SkippedCase) else checker(context, prepared)


def _shrink(
    context: Context, check: str, checker: Checker, case: Case, wrong: str, observe: Callable[[Case], Any]
) -> tuple[Case, str]:
    """Replace the case by simpler ones as long as they fail in the same way."""
    kind, tries = kind_of(wrong), context.request.tries
    improved = context.request.shrinks
    while improved and tries > 0:
        improved = False
        for candidate in smaller(context.op.contract, case):
            tries -= 1
            context.progress(check, str(candidate))
            if tries < 0:
                break
            observation = observe(candidate)
            again = None if isinstance(observation, SkippedCase) else checker(context, observation)
            if isinstance(again, str) and kind_of(again) == kind:
                case, wrong, improved = candidate, again, True
                break
    return case, wrong


def _with_hints(
    context: Context, found: Finding, checker: Checker, case: Case, wrong: str, observe: Callable[[Case], Any]
) -> Finding:
    """The finding with the most ordinary case that fails in this way, and with a likely cause."""
    if found.remedy or not context.request.shrinks:
        return found

    @functools.cache
    def outcome(other: Case) -> str | None:
        context.progress(found.check, str(other))
        run = observe(other)
        said = run if isinstance(run, SkippedCase) else checker(context, run)
        return None if isinstance(said, SkippedCase) else "" if said is None else kind_of(said)

    ordinary = ordinary_case(context, case, outcome)
    found = dataclasses.replace(found, ordinary_case="" if ordinary is None else str(ordinary))
    return dataclasses.replace(found, remedy=likely_cause(context, case, ordinary, wrong, outcome, observe))


def kind_of(wrong: str) -> str:
    """What a message says, without numbers and places, so that equal kinds are probably one defect."""
    first = (wrong.splitlines() or [""])[0]
    return re.sub(r"#(, #)+", "#", re.sub(r"\d+([.e+-]+\d+)*", "#", first)).split(", ")[0]


def _explains(known: tuple[str, Case], other: tuple[str, Case]) -> bool:
    """Whether a failure that was found is as simple as another one of its kind."""
    (kind, simple), (other_kind, case) = known, other
    return (
        kind == other_kind
        and (simple.layout == "contiguous" or case.layout != "contiguous")
        and simple.values in ("", case.values)
        and simple.scalars in ("", case.scalars)
    )


def _said(
    context: Context, checker: Checker, run: Observation, failures: Sequence[tuple[str, Case]]
) -> str | SkippedCase | None:
    """What a checker says of a run: at once, where that is another case of a known failure."""
    if failures:
        run.reference.is_hasty = True
        try:
            wrong = checker(context, run)
        finally:
            run.reference.is_hasty = False
        if not isinstance(wrong, str) or any(_explains(known, (kind_of(wrong), run.case)) for known in failures):
            return wrong
    return checker(context, run)


def kind_of_reason(why: str) -> str:
    """The common part of reasons that differ only in a size: the text before the first digit."""
    return re.split(r"\d", why, maxsplit=1)[0]
