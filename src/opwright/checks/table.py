"""The table of the checks: one file each, one line each. They run in this order."""

from __future__ import annotations

from opwright.checks import compiled, gradients, metadata, opcheck, properties, purity, streams, values
from opwright.checks.context import Check

__all__ = ["CHECKS"]

CHECKS: dict[str, Check] = {
    values.NAME: values.check,
    properties.NAME: properties.check,
    metadata.NAME: metadata.check,
    purity.NAME: purity.check,
    streams.NAME: streams.check,
    gradients.NAME: gradients.check,
    opcheck.NAME: opcheck.check,
    compiled.NAME: compiled.check,
}
