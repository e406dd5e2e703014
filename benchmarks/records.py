"""Records of benchmarks: what each is about, and JSON with as much as possible in each line, so that a diff is short.

A record in ``results/`` says what it is about: in JSON under the key ``about``, in text in lines ``key: value`` before
the first empty line. ``keep_record.py`` writes that, and ``list_records.py`` makes the list in README.md of it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["RESULTS", "About", "about", "all_records", "formatted", "read", "rounded", "write"]

RESULTS = Path(__file__).parent / "results"
WIDTH = 140


@dataclass(frozen=True)
class About:
    """What a record is about.

    Attributes:
        subject: what was measured; there is one record for each subject and machine.
        date: the day of the run, YYYY-MM-DD.
        machine: a key of the table of machines in README.md.
        torch: its version, or several; a dash if no torch took part.
        shows: the outcome, in a sentence.
        made_by: the command.
        details: more than the list shows, such as the commits of what was measured.
    """

    subject: str
    date: str
    machine: str
    torch: str
    shows: str
    made_by: str
    details: str = ""


def all_records() -> list[Path]:
    """The files of all records."""
    return sorted(RESULTS.iterdir())


def read(name: str) -> Any:
    """A record: the value of its JSON, or its text."""
    text = (RESULTS / name).read_text()
    return json.loads(text) if name.endswith(".json") else text


def about(file: Path) -> About:
    """What a record is about; raises ValueError if it does not say."""
    if file.suffix == ".json":
        fields = json.loads(file.read_text()).get("about")
    else:
        fields = dict(line.partition(": ")[::2] for line in file.read_text().partition("\n\n")[0].splitlines())
    try:
        return About(**fields)
    except TypeError as error:
        raise ValueError(f"{file.name} must say what it is about: {error}") from error


def write(file: Path, record: Any) -> None:
    """Write a record, numbers to five digits."""
    file.write_text(formatted(rounded(record)) + "\n")


def rounded(value: Any) -> Any:
    """The same with each float rounded to five significant digits, the accuracy of times."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list | tuple) else value


def formatted(value: Any, indent: int = 0) -> str:
    """JSON; lists and objects that are short enough are in one line."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    if len(text) + indent <= WIDTH or not isinstance(value, dict | list) or not value:
        return text
    if isinstance(value, dict):
        items = [f"{json.dumps(key, ensure_ascii=False)}: {formatted(item, indent + 1)}" for key, item in value.items()]
    else:
        items = [formatted(item, indent + 1) for item in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return "\n".join([opening, *_filled(items, indent + 1), " " * indent + closing])


def _filled(items: list[str], indent: int) -> list[str]:
    """Lines of items: short items share lines, items of several lines are alone."""
    lines: list[str] = []
    for i, item in enumerate(items):
        text = item + ("," if i < len(items) - 1 else "")
        if lines and "\n" not in lines[-1] + text and len(lines[-1]) + len(text) < WIDTH:
            lines[-1] += f" {text}"
        else:
            lines.append(" " * indent + text)
    return lines
