"""The table of docs/checking.md: a row for each check, from its descriptor.

``python -m tests.check_table`` writes it anew; ``test_docs.py`` fails if it differs from the descriptors.
"""

from __future__ import annotations

from collections.abc import Iterator

from opwright.checks.check import LEVELS
from opwright.checks.table import CHECKS
from opwright.results import Status
from tests import REPOSITORY

__all__ = ["PAGE", "with_checks"]

PAGE = REPOSITORY / "docs" / "checking.md"
_BEGIN, _END = "<!-- checks -->\n", "<!-- end of checks -->\n"


def with_checks(page: str) -> str:
    """The page with the table that follows from the descriptors."""
    before, _, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    assert end, f"{PAGE.name} must have the marks {_BEGIN.strip()} and {_END.strip()}"
    return "\n".join((before + _BEGIN + "\n".join(_lines()), end + after))


def _lines() -> Iterator[str]:
    yield "| check | question | cases | finds |"
    yield "|---|---|---|---|"
    for check in CHECKS.values():
        level = "" if check.levels == LEVELS else f" (level {', '.join(check.levels)}, or by name)"
        finds = "failures" if check.worst is Status.FAIL else "warnings"
        yield f"| {check.name} | {check.question} | {check.cases}{level} | {finds} |"


if __name__ == "__main__":
    PAGE.write_text(with_checks(PAGE.read_text()))
