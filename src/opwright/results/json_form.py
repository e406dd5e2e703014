"""Converts records to JSON and back: reports in files, tuning tables, messages of worker processes.

The form follows from the annotations: dataclasses are objects, enums their values, tuples arrays. Reading
ignores unknown fields, which were added without a new schema, and uses the default of a missing
field.
"""

from __future__ import annotations

import functools
from typing import Any, TypeVar

import cattrs
from cattrs.preconf.json import make_converter

__all__ = ["MalformedRecordError", "from_json", "to_json"]

Record = TypeVar("Record")


class MalformedRecordError(ValueError):
    """A JSON value does not have the form of the record."""


@functools.cache
def _converter() -> cattrs.Converter:
    return make_converter()


def to_json(record: Any) -> Any:
    """A record as plain lists, dictionaries, strings and numbers."""
    return _converter().unstructure(record)


def from_json(kind: type[Record], value: Any) -> Record:
    """Make a record from the value of ``to_json``.

    Raises:
        MalformedRecordError: a field is missing or wrong; the message names it.
    """
    try:
        return _converter().structure(value, kind)
    except Exception as error:  # cattrs raises groups of errors; values of wrong types raise others
        raise MalformedRecordError("; ".join(cattrs.transform_error(error)[:3])) from error
