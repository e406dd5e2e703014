"""The items of mutation testing, each of which runs checks of one kernel on some machine: of itself, of one mutant, and
searches for what kills a survivor."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from opwright.checks.scheduling.plan import Task
from opwright.contract.fingerprint import digest
from opwright.mutation.edits import Edit
from opwright.mutation.judging import MutatedKernel, judge, record_of, search, usable_searches, why_unsuitable
from opwright.mutation.sources import Source, sources_of
from opwright.results import Fate, Killer, Mutant
from opwright.runtime.source_files import digest_of_sources
from opwright.sweep.work_item import Needs

__all__ = ["Found", "KernelItem", "MutantItem", "SearchItem", "Searches", "SearchesItem", "Suitability"]


@dataclass(frozen=True)
class _Item:
    """What the items of mutation testing have in common: each runs checks of one kernel."""

    task: Task
    timeout: float

    @property
    def name(self) -> str:
        return f"{self.task}: {self._what}"

    @property
    def key(self) -> str:
        others = [f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.name != "task"]
        return digest("mutation", self._what, digest_of_sources(self.task.op), str(self.task), *others)

    @property
    def needs(self) -> Needs:
        return Needs(gpu=self.task.target.device == "cuda")

    @property
    def _what(self) -> str:
        raise NotImplementedError

    @contextlib.contextmanager
    def _kernel(self) -> Iterator[MutatedKernel]:
        """The kernel, with a folder on the machine where the item runs."""
        with tempfile.TemporaryDirectory(prefix="opwright-mutants-") as folder:
            yield MutatedKernel(self.task, self.timeout, Path(folder))


@dataclass(frozen=True)
class Suitability:
    """Whether mutants of a kernel would tell something, and how long its own checks take.

    Attributes:
        unsuitable: why not; empty if they would.
    """

    unsuitable: str
    seconds: float


@dataclass(frozen=True)
class KernelItem(_Item):
    """The kernel itself is checked."""

    _what = "the kernel itself"
    kind = Suitability

    def run(self, on_step: Callable[[str], None]) -> Suitability:
        started = time.monotonic()
        with self._kernel() as kernel:
            return Suitability(why_unsuitable(kernel), time.monotonic() - started)

    def without_result(self, why: str, remedy: str) -> Suitability:
        return Suitability(why, 0.0)


@dataclass(frozen=True)
class MutantItem(_Item):
    """One mutant is checked."""

    source: Source
    edit: Edit

    kind = Mutant

    @property
    def _what(self) -> str:
        return f"mutant in line {self.edit.line(self.source.text)}"

    def run(self, on_step: Callable[[str], None]) -> Mutant:
        with self._kernel() as kernel:
            return judge(kernel, 0, _on_this_machine(self.task, self.source), self.edit)

    def without_result(self, why: str, remedy: str) -> Mutant:
        return dataclasses.replace(record_of(self.source, self.edit), fate=Fate.UNKNOWN, message=why)


@dataclass(frozen=True)
class Searches:
    """The further inputs on which a kernel itself passes, by their numbers among all."""

    usable: tuple[int, ...]


@dataclass(frozen=True)
class SearchesItem(_Item):
    """The kernel itself is checked with further inputs."""

    _what = "further inputs"
    kind = Searches

    def run(self, on_step: Callable[[str], None]) -> Searches:
        with self._kernel() as kernel:
            return Searches(tuple(usable_searches(kernel)))

    def without_result(self, why: str, remedy: str) -> Searches:
        return Searches(())


@dataclass(frozen=True)
class Found:
    """The inputs that kill a survivor, if some were found."""

    killer: Killer | None


@dataclass(frozen=True)
class SearchItem(_Item):
    """A survivor is checked with further inputs."""

    source: Source
    edit: Edit
    usable: tuple[int, ...]

    kind = Found

    @property
    def _what(self) -> str:
        return f"survivor in line {self.edit.line(self.source.text)}"

    def run(self, on_step: Callable[[str], None]) -> Found:
        with self._kernel() as kernel:
            return Found(search(kernel, _on_this_machine(self.task, self.source), self.edit, self.usable))

    def without_result(self, why: str, remedy: str) -> Found:
        return Found(None)


def _on_this_machine(task: Task, source: Source) -> Source:
    """The same text, under the name that its file has here."""
    here, _ = sources_of(task.op, task.kernel)
    return next(found for found in here if (found.kind, found.text) == (source.kind, source.text))
