"""An error that a tool found: what, where, and at which address."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["AccessError", "short"]


@dataclass(frozen=True)
class AccessError:
    """An error that a tool found.

    Attributes:
        what: as in "reads 4 bytes", with what the tool calls it.
        address: of the access, if it is known.
        where: the function, and on a GPU the block and the thread.
        file, line: of the source, or empty and 0.
    """

    what: str
    address: int | None = None
    where: str = ""
    file: str = ""
    line: int = 0


def short(function: str) -> str:
    """A function without its arguments."""
    return re.sub(r"\((?:[^()]|\([^()]*\))*\)( const)?$", "", function.strip())
