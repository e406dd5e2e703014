"""A report in SARIF 2.1.0, which editors and code hosts show on the lines of a source.

https://docs.oasis-open.org/sarif/sarif/v2.1.0/
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opwright.report.on_lines.located import Located

__all__ = ["to_sarif"]

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def to_sarif(found: Sequence[Located], questions: Mapping[str, str], version: str) -> dict[str, Any]:
    """The record.

    Args:
        questions: what the check of each rule asks.
        version: that of opwright.
    """
    rules = list(dict.fromkeys(one.rule for one in found))
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "opwright",
                        "semanticVersion": version,
                        "rules": [_rule(rule, questions.get(rule, "")) for rule in rules],
                    }
                },
                "results": [_result(one, rules.index(one.rule)) for one in found],
            }
        ],
    }


def _rule(rule: str, question: str) -> dict[str, Any]:
    text = question or rule
    return {"id": rule, "name": rule.rpartition("/")[2], "shortDescription": {"text": text}}


def _result(one: Located, index: int) -> dict[str, Any]:
    location = {"artifactLocation": {"uri": _uri(one.place.file)}, "region": {"startLine": one.place.line}}
    return {
        "ruleId": one.rule,
        "ruleIndex": index,
        "level": "error" if one.is_error else "warning",
        "message": {"text": f"{one.title}\n{one.message}"},
        "locations": [{"physicalLocation": location}],
        "partialFingerprints": {"opwright/v1": one.identifier},
    }


def _uri(file: Path) -> str:
    """Relative to the working folder, which is the repository's in CI; absolute for a file outside of it."""
    relative = os.path.relpath(file)
    return file.resolve().as_uri() if relative.startswith("..") else Path(relative).as_posix()
