"""The families of checks: one file each, one line each. They run in this order."""

from __future__ import annotations

from opwright.checks import compiled, gradients, metadata, opcheck, purity, streams, values
from opwright.checks.context import Family

__all__ = ["FAMILIES"]

FAMILIES: dict[str, Family] = {
    values.NAME: values.check,
    metadata.NAME: metadata.check,
    purity.NAME: purity.check,
    streams.NAME: streams.check,
    gradients.NAME: gradients.check,
    opcheck.NAME: opcheck.check,
    compiled.NAME: compiled.check,
}
