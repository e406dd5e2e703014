"""Findings as annotations of GitHub: workflow commands on stdout, which a pull request shows on the lines."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from opwright.report.on_lines.located import Located

__all__ = ["annotation_lines"]


def annotation_lines(found: Iterable[Located]) -> Iterator[str]:
    """One command for each finding."""
    for one in found:
        file = _property(os.path.relpath(one.place.file))
        kind = "error" if one.is_error else "warning"
        yield f"::{kind} file={file},line={one.place.line},title={_property(one.title)}::{_data(one.message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
