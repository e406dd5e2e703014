"""Runs the units of a check where an executor has room for them, and gives one verdict for each kernel, whether it ran
whole or in slices."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field

from opwright.checks.arrangement import START, Held, Piece, arranged, name_of, seconds_by_slice
from opwright.checks.plan import Task
from opwright.checks.slices import VALUES, SliceUnit, can_be_cut, merged, slices_of, wants_all_cases, with_all_cases
from opwright.checks.unit import CheckUnit
from opwright.checks.verdict import Part
from opwright.results import Status, Verdict
from opwright.sweep.executor import Executor, run_units
from opwright.sweep.journal import Journal
from opwright.sweep.lengths import Lengths
from opwright.sweep.unit import Done

__all__ = ["Sweep"]


@dataclass
class _Gathered:
    """The slices of a kernel that are over."""

    slices: list[SliceUnit]
    parts: dict[str, Part] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        return all(one.name in self.parts for one in self.slices)

    def of(self, label: str) -> list[Part]:
        return [self.parts[one.name] for one in self.slices if one.label == label]


class Sweep:
    """The check of some kernels.

    Args:
        on_step: called with a kernel and what is done with it.
    """

    def __init__(
        self,
        units: Sequence[CheckUnit],
        executor: Executor,
        *,
        journal: Journal | None = None,
        on_step: Callable[[Task, str], None],
    ) -> None:
        self._units, self._executor, self._journal, self._on_step = units, executor, journal, on_step
        self._lengths = Lengths(executor.machine.cache_dir)
        self._gathered: dict[int, _Gathered] = {}
        self._seconds: dict[str, dict[str, float]] = {}

    def verdicts(self) -> Generator[tuple[int, Verdict], None, None]:
        """The number of each kernel and its verdict, when it is there. Closing the iterator ends what runs."""
        known = {} if self._executor.goes_in_order else self._lengths.read()
        pieces = arranged(self._units, known, lambda unit: self._executor.room(unit.needs), self._held)
        try:
            while pieces:  # what needs another process with all cases follows
                again: list[Piece] = []
                for piece, done in self._run(pieces):
                    verdict = self._verdict(piece, done.result, again)
                    if verdict is not None:
                        yield piece.kernel, verdict
                pieces = again
        finally:
            if self._seconds:
                self._lengths.add(self._seconds)

    def _held(self, unit: CheckUnit) -> Held:
        """What the journal has of a kernel."""
        journal = self._journal
        if journal is None or not can_be_cut(unit):
            return Held.NOTHING
        slices = slices_of(unit)
        if journal.holds(unit):
            journal.forget([*slices, *with_all_cases(slices)])
            return Held.VERDICT
        return Held.SLICES if any(map(journal.holds, slices)) else Held.NOTHING

    def _run(self, pieces: Sequence[Piece]) -> Iterator[tuple[Piece, Done]]:
        units = [piece.unit for piece in pieces]
        with run_units(units, self._executor, journal=self._journal, on_step=self._shows) as results:
            for done in results:
                yield pieces[done.number], done

    def _shows(self, unit: CheckUnit | SliceUnit, what: str) -> None:
        self._on_step(unit.task if isinstance(unit, CheckUnit) else unit.whole.task, what)

    def _verdict(self, piece: Piece, result: Verdict | Part, again: list[Piece]) -> Verdict | None:
        """The kernel's verdict, if this was the last that it waited for; what has to follow is added to ``again``."""
        whole = self._units[piece.kernel]
        if isinstance(piece.unit, CheckUnit):
            assert isinstance(result, Verdict)  # of such a unit
            self._note(whole, result)
            return result
        assert isinstance(result, Part)
        gathered = self._gathered.setdefault(piece.kernel, _Gathered(slices_of(whole)))
        gathered.parts[piece.unit.name] = result
        if not gathered.is_complete:
            return None
        shares = gathered.of(VALUES)
        if len(shares) > 1 and wants_all_cases(shares):
            gathered.slices = with_all_cases(gathered.slices)
            again.append(Piece(piece.kernel, next(s for s in gathered.slices if s.label == VALUES), piece.seconds))
            return None
        del self._gathered[piece.kernel]
        verdict = merged(whole, gathered.slices, [gathered.parts[one.name] for one in gathered.slices])
        self._note(whole, verdict, len(gathered.slices))
        if self._journal is not None and not any(part.lost for part in gathered.parts.values()):
            self._journal.add(whole, verdict)  # so that a run on one machine takes it up, too
        return verdict

    def _note(self, unit: CheckUnit, verdict: Verdict, slices: int = 1) -> None:
        """Note how long a kernel took, for a later sweep."""
        if verdict.status in (Status.PASS, Status.WARNING, Status.THIN) and not unit.settings.case:
            seconds = seconds_by_slice(verdict)
            seconds[START] /= slices
            self._seconds[name_of(unit)] = seconds
