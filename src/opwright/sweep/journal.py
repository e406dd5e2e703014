"""A file to which each finished item is written at once, and from which a later run takes up what is finished.

It has one line of JSON for each run, with its versions, and after it one for each item that this run has finished.
Lines are only added. A process that is killed can leave the last line unfinished; it is left out, and the next run
begins a new line.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from opwright.errors import CheckError
from opwright.machine import Machine
from opwright.results.json_form import MalformedRecordError, from_json, to_json
from opwright.sweep.versions import versions_of
from opwright.sweep.work_item import WorkItem

__all__ = ["Journal", "open_journal"]

_SCHEMA = "opwright.sweep/1"


class Journal:
    """The finished items of a sweep, in a file.

    Args:
        file: it is made if it is not there.
        versions: of everything that a result depends on besides the item itself. Only items that were finished with
            equal ones are taken up.
        goes_on: keep what cannot be written, such as on a full disk, until it can.

    Attributes:
        taken: how many items ``known`` has taken up.
        unwritten: how many results are not in the file, and why; empty if all are.

    Raises:
        CheckError: the file cannot be read or written, or is something else.
    """

    def __init__(self, file: Path, versions: Mapping[str, str], *, goes_on: bool = False) -> None:
        self._file, self._versions, self._goes_on = file, dict(versions), goes_on
        self.taken, self.unwritten = 0, ""
        self._lines: list[str] = []  # to be written
        self._results: dict[str, Any] = {}
        self._other_versions: list[dict[str, str]] = []
        self._of_other_versions = 0
        try:
            text = file.read_text() if file.exists() else ""
            self._read(text)
            self._descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            self._begin = "\n" if text and not text.endswith("\n") else ""
            self._write(json.dumps({"schema": _SCHEMA, "versions": self._versions}))
        except (OSError, UnicodeDecodeError) as error:
            raise _unusable(file, error) from None

    def known(self, items: Sequence[WorkItem[Any]]) -> dict[int, Any]:
        """The results of those items that were finished, by the item's number."""
        found: dict[int, Any] = {}
        for number, item in enumerate(items):
            if item.key in self._results:
                try:
                    found[number] = from_json(item.kind, self._results.pop(item.key))
                except MalformedRecordError:  # edited, or cut off: it is run again
                    continue
        self.taken += len(found)
        return found

    def holds(self, item: WorkItem[Any]) -> bool:
        """Whether a work item was finished, and not taken up so far."""
        return item.key in self._results

    def forget(self, items: Sequence[WorkItem[Any]]) -> None:
        """Leave items out that are parts of one whose result is taken up."""
        for item in items:
            self._results.pop(item.key, None)

    @property
    def left(self) -> int:
        """How many results of the file are not taken up: of other versions, sources or settings."""
        return len(self._results) + self._of_other_versions

    def add(self, item: WorkItem[Any], result: Any) -> None:
        """Write a finished item, so that it is there after a crash of the machine, too.

        Raises:
            CheckError: it cannot be written, such as on a full disk, and the journal does not go on.
        """
        self._lines.append(json.dumps({"unit": item.name, "key": item.key, "result": to_json(result)}))
        try:
            while self._lines:
                self._write(self._lines[0])
                del self._lines[0]
            self.unwritten = ""
        except OSError as error:
            if not self._goes_on:
                raise _unusable(self._file, error) from None
            count = f"{len(self._lines)} result{'s' * (len(self._lines) != 1)}"
            self.unwritten = f"{count} could not be written to {self._file}: {error.strerror}"

    def describe(self) -> str:
        """What was taken up, and what was not, in words; empty for a file without results."""
        if not self.taken and not self.left:
            return ""
        text = f"{self.taken} finished before are taken from {self._file}"
        if self.left:
            text += f"; {self.left} in it are not: they are of other sources, settings or versions"
        for versions in self._other_versions:
            names = sorted({*versions, *self._versions})
            differ = [n for n in names if versions.get(n) != self._versions.get(n)]
            text += "".join(f"; {n} was {versions.get(n)}, and is {self._versions.get(n)}" for n in differ)
        return text

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, text: str) -> None:
        run: dict[str, str] | None = None
        for number, line in enumerate(text.splitlines()):
            try:
                record = json.loads(line)
            except ValueError:
                if run is None:
                    raise _unusable(self._file, f"line {number + 1} is not JSON") from None
                continue  # the last line of a process that was killed
            if not isinstance(record, dict) or (run is None and record.get("schema") != _SCHEMA):
                raise _unusable(self._file, f"line {number + 1} must be {_SCHEMA}")
            if "versions" in record:
                run = record["versions"]
                if run != self._versions and run not in self._other_versions:
                    self._other_versions.append(dict(record["versions"]))
            elif run == self._versions:
                self._results[record.get("key", "")] = record.get("result")
            else:
                self._of_other_versions += 1
        if not self._of_other_versions:
            self._other_versions.clear()  # such a run has finished nothing

    def _write(self, line: str) -> None:
        data, self._begin = f"{self._begin}{line}\n".encode(), "\n"  # a part may be written
        while data:
            data = data[os.write(self._descriptor, data) :]
        os.fsync(self._descriptor)
        self._begin = ""


@contextlib.contextmanager
def open_journal(
    resume: Path | str | Journal | None, machine: Machine, on_resume: Callable[[str], None], *, goes_on: bool = False
) -> Iterator[Journal | None]:
    """The journal of a command; None without one.

    Args:
        resume: the file; or a journal that is open, of a command that has several parts.
        on_resume: called at the end with what was taken up, in words.
        goes_on: keep what cannot be written.
    """
    if resume is None or isinstance(resume, Journal):
        yield resume
        return
    with Journal(Path(resume), versions_of(machine), goes_on=goes_on) as journal:
        try:
            yield journal
        finally:
            if text := journal.describe():
                on_resume(text)


def _unusable(file: Path, why: object) -> CheckError:
    reason = why.strerror if isinstance(why, OSError) else why
    return CheckError(
        f"--resume {file} cannot be used: {reason}",
        fix="name a file that an earlier run with --resume wrote, or a new one on a disk with space; "
        "what is finished stays in it",
    )
