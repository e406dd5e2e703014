"""Writes the list of records into README.md: ``python benchmarks/list_records.py``. A test compares the two."""

from __future__ import annotations

from pathlib import Path

import records

README = Path(__file__).parent / "README.md"
_BEGIN, _END = "<!-- records: made by list_records.py -->\n", "<!-- end of records -->\n"


def main() -> None:
    README.write_text(with_list(README.read_text()))


def with_list(document: str) -> str:
    """The document with a row for each record, by subject."""
    before, _, rest = document.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not end:
        raise ValueError(f"{README.name} must have the lines {_BEGIN.strip()} and {_END.strip()}")
    return before + _BEGIN + "\n".join(_lines()) + "\n" + end + after


def _lines() -> list[str]:
    kept = sorted(((records.about(f), f) for f in records.all_records()), key=lambda row: (row[0].subject, row[1].name))
    rows = [
        f"| [{a.subject}](results/{file.name}) | {a.date} | {a.machine} | {a.torch} | {a.shows} | {a.made_by} |"
        for a, file in kept
    ]
    return ["| subject | date | machine | torch | what it shows | made by |", "|---|---|---|---|---|---|", *rows]


if __name__ == "__main__":
    main()
