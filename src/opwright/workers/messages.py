"""Messages of workers: one line of JSON each, with the kind of the message. Its texts may be those of a kernel."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping
from typing import Any

from opwright.results.json_form import from_json, to_json

__all__ = ["message_of", "read_message", "record_of", "visible", "write_message"]

Kinds = Mapping[str, type[Any]]


def write_message(message: Any) -> bytes:
    """The line of a message, which is a dataclass."""
    return json.dumps(record_of(message)).encode() + b"\n"


def read_message(line: bytes, kinds: Kinds) -> Any:
    """Read what ``write_message`` wrote. Texts may be a kernel's, so that each is made ``visible``."""
    return message_of(_visible_in(json.loads(line)), kinds)


def record_of(message: Any) -> dict[str, Any]:
    """A message as JSON."""
    return {"kind": type(message).__name__, "content": to_json(message)}


def message_of(record: Mapping[str, Any], kinds: Kinds) -> Any:
    """The reverse of ``record_of``, for messages of some kinds by their names."""
    return from_json(kinds[record["kind"]], record["content"])


def _visible_in(value: Any) -> Any:
    match value:
        case str():
            return visible(value)
        case list():
            return [*map(_visible_in, value)]
        case dict():
            return {visible(name): _visible_in(each) for name, each in value.items()}
    return value


def visible(text: str) -> str:
    """A text with escapes in place of what no terminal or file should get from a kernel: control characters, which may
    move the cursor, and halves of surrogate pairs, which UTF-8 does not have."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in "\n\t" or unicodedata.category(c) == "Zs" else _escaped(c) for c in text
    )


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
