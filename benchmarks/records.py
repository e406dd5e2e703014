"""Writes records of benchmarks: JSON with as much as possible in each line, so that a diff shows the changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["formatted", "rounded", "write"]

WIDTH = 140


def write(file: Path, record: Any) -> None:
    """Write a record, numbers to five digits."""
    file.write_text(formatted(rounded(record)) + "\n")


def rounded(value: Any) -> Any:
    """The same with each float to five digits that count: a time is not known better."""
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
