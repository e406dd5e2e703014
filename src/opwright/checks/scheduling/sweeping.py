"""Runs the work items of a check where an executor has room for them, and gives one verdict for each kernel."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field

from opwright.checks.scheduling.arrangement import START, Finished, ScheduledItem, arranged, name_of, seconds_by_group
from opwright.checks.scheduling.check_item import CheckItem
from opwright.checks.scheduling.partial_items import (
    VALUES,
    PartialItem,
    can_be_split,
    merged,
    partial_items_of,
    wants_all_cases,
    with_all_cases,
)
from opwright.checks.scheduling.plan import Task
from opwright.checks.scheduling.verdict import Outcome
from opwright.results import Status, Verdict
from opwright.sweep.executor import Executor, run_items
from opwright.sweep.journal import Journal
from opwright.sweep.lengths import Lengths
from opwright.sweep.work_item import Done

__all__ = ["Sweep"]


@dataclass
class _Gathered:
    """The items of a kernel that are over."""

    items: list[PartialItem]
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        return all(one.name in self.outcomes for one in self.items)

    def of(self, group: str) -> list[Outcome]:
        return [self.outcomes[one.name] for one in self.items if one.group == group]


class Sweep:
    """The check of some kernels.

    Args:
        on_step: called with a kernel and what is done with it.
    """

    def __init__(
        self,
        items: Sequence[CheckItem],
        executor: Executor,
        *,
        journal: Journal | None = None,
        on_step: Callable[[Task, str], None],
    ) -> None:
        self._items, self._executor, self._journal, self._on_step = items, executor, journal, on_step
        self._lengths = Lengths(executor.machine.cache_dir)
        self._gathered: dict[int, _Gathered] = {}
        self._seconds: dict[str, dict[str, float]] = {}

    def verdicts(self) -> Generator[tuple[int, Verdict], None, None]:
        """The number of each kernel and its verdict, when it is there. Closing the iterator ends what runs."""
        known = {} if self._executor.goes_in_order else self._lengths.read()
        scheduled = arranged(self._items, known, lambda item: self._executor.slots_for(item.needs), self._finished)
        try:
            while scheduled:  # what needs another process with all cases follows
                again: list[ScheduledItem] = []
                for one, done in self._run(scheduled):
                    verdict = self._verdict(one, done.result, again)
                    if verdict is not None:
                        yield one.kernel, verdict
                scheduled = again
        finally:
            if self._seconds:
                self._lengths.add(self._seconds)

    def _finished(self, item: CheckItem) -> Finished:
        """What the journal has of a kernel."""
        journal = self._journal
        if journal is None or not can_be_split(item):
            return Finished.NOTHING
        items = partial_items_of(item)
        if journal.holds(item):
            journal.forget([*items, *with_all_cases(items)])
            return Finished.ALL
        return Finished.SOME if any(map(journal.holds, items)) else Finished.NOTHING

    def _run(self, scheduled: Sequence[ScheduledItem]) -> Iterator[tuple[ScheduledItem, Done]]:
        items = [one.item for one in scheduled]
        with run_items(items, self._executor, journal=self._journal, on_step=self._shows) as results:
            for done in results:
                yield scheduled[done.number], done

    def _shows(self, item: CheckItem | PartialItem, what: str) -> None:
        self._on_step(item.task if isinstance(item, CheckItem) else item.whole.task, what)

    def _verdict(self, one: ScheduledItem, result: Verdict | Outcome, again: list[ScheduledItem]) -> Verdict | None:
        """The kernel's verdict, if this was the last that it waited for; what has to follow is added to ``again``."""
        whole = self._items[one.kernel]
        if isinstance(one.item, CheckItem):
            assert isinstance(result, Verdict)  # of such a work item
            self._note(whole, result)
            return result
        assert isinstance(result, Outcome)
        gathered = self._gathered.setdefault(one.kernel, _Gathered(partial_items_of(whole)))
        gathered.outcomes[one.item.name] = result
        if not gathered.is_complete:
            return None
        outcomes = gathered.of(VALUES)
        if len(outcomes) > 1 and wants_all_cases(outcomes):
            gathered.items = with_all_cases(gathered.items)
            again.append(ScheduledItem(one.kernel, next(s for s in gathered.items if s.group == VALUES), one.seconds))
            return None
        del self._gathered[one.kernel]
        verdict = merged(whole, gathered.items, [gathered.outcomes[one.name] for one in gathered.items])
        self._note(whole, verdict, len(gathered.items))
        if self._journal is not None and not any(outcome.lost for outcome in gathered.outcomes.values()):
            self._journal.add(whole, verdict)  # so that a run on one machine takes it up, too
        return verdict

    def _note(self, item: CheckItem, verdict: Verdict, items: int = 1) -> None:
        """Note how long a kernel took, for a later sweep."""
        if verdict.status in (Status.PASS, Status.WARNING, Status.THIN) and not item.settings.case:
            seconds = seconds_by_group(verdict)
            seconds[START] /= items
            self._seconds[name_of(item)] = seconds
