"""What each kind of finding means, with an example and the usual repairs: the sections of ``findings.md``."""

from __future__ import annotations

import functools
import re
from pathlib import Path

__all__ = ["explained_kind", "explanation", "kinds"]

_PAGE = Path(__file__).with_name("findings.md")


@functools.cache
def _sections() -> dict[str, str]:
    """The text below each heading, by the heading."""
    _, *parts = re.split(r"(?m)^## (.+)\n", _PAGE.read_text(encoding="utf-8"))
    return dict(zip(parts[::2], (text.strip() for text in parts[1::2]), strict=True))


def kinds() -> tuple[str, ...]:
    """The names of checks, of other findings and of the simulator's, in the order of the page."""
    return tuple(_sections())


def explained_kind(check: str, message: str) -> str | None:
    """The kind that explains a finding: the simulator's, which the message names after a line, else the check; None if
    neither has an explanation."""
    named = re.findall(r":\d+: ([a-z-]+): ", message)
    return next((kind for kind in (*named, check) if kind in _sections()), None)


def explanation(kind: str) -> str:
    """The explanation of a kind of finding, as Markdown.

    Raises:
        KeyError: no kind has this name.
    """
    by_name = {name.lower(): text for name, text in _sections().items()}
    return by_name[kind.lower().replace("_", " ")]
