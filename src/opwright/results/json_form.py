"""The one way between records and JSON: reports in files, tuning tables, messages of worker processes.

A record's form follows from its annotations: dataclasses are objects, enums their values, tuples arrays. Reading
ignores fields that this version does not know, as they were added without a new schema, and takes a missing field for
its default.
"""

from __future__ import annotations

import functools
from typing import Any, TypeVar

import cattrs
from cattrs.preconf.json import make_converter

__all__ = ["MalformedRecordError", "from_json", "to_json"]

Record = TypeVar("Record")


class MalformedRecordError(ValueError):
    """A JSON value is no such record."""


@functools.cache
def _converter() -> cattrs.Converter:
    return make_converter()


def to_json(record: Any) -> Any:
    """A record as plain lists, dictionaries, strings and numbers."""
    return _converter().unstructure(record)


def from_json(kind: type[Record], value: Any) -> Record:
    """The record that ``to_json`` made a value of.

    Raises:
        MalformedRecordError: it is none; says which field is missing or wrong.
    """
    try:
        return _converter().structure(value, kind)
    except Exception as error:  # cattrs groups what it found; values of other types raise their own
        raise MalformedRecordError("; ".join(cattrs.transform_error(error)[:3])) from error
