"""The tables of docs/checking.md: checks, from their descriptors, and what layouts and values of cases mean.

``python -m tests.check_table`` writes them anew; ``test_docs.py`` fails if they differ from the code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from opwright.checks.check import LEVELS
from opwright.checks.table import CHECKS
from opwright.contract.inputs import case_help
from opwright.results import Status
from tests import REPOSITORY

__all__ = ["PAGE", "with_tables"]

PAGE = REPOSITORY / "docs" / "checking.md"


def with_tables(page: str) -> str:
    """The page with the tables that follow from the code."""
    for name, lines in _TABLES.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
        before, found, rest = page.partition(begin)
        _, ended, after = rest.partition(end)
        assert found, f"{PAGE.name} must have the mark {begin.strip()}"
        assert ended, f"{PAGE.name} must have the mark {end.strip()}"
        page = "\n".join((before + begin + "\n".join(lines()), end + after))
    return page


def _checks() -> Iterator[str]:
    yield "| check | question | cases | finds |"
    yield "|---|---|---|---|"
    for check in CHECKS.values():
        level = "" if check.levels == LEVELS else f" (level {', '.join(check.levels)}, or by name)"
        finds = "failures" if check.worst is Status.FAIL else "warnings"
        yield f"| {check.name} | {check.question} | {check.cases}{level} | {finds} |"


def _words(part: str, of_part: Mapping[str, str]) -> Iterator[str]:
    yield f"| `{part}=` | meaning |"
    yield "|---|---|"
    for word, meaning in of_part.items():
        yield f"| `{word}` | {meaning} |"


_TABLES: Mapping[str, Callable[[], Iterator[str]]] = {
    "checks": _checks,
    "layouts": lambda: _words("layout", case_help.LAYOUTS),
    "values": lambda: _words("values", case_help.VALUES),
}


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
