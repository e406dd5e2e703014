"""The table of the checks: one file each, one line each. They run in this order."""

from __future__ import annotations

from opwright.checks import (
    compiled,
    configurations,
    flops,
    gradients,
    meaning,
    metadata,
    opcheck,
    own_backward,
    properties,
    purity,
    second_derivatives,
    special_values,
    streams,
    values,
    vmap,
)
from opwright.checks.context import Check

__all__ = ["CHECKS"]

CHECKS: dict[str, Check] = {
    meaning.NAME: meaning.check,
    values.NAME: values.check,
    special_values.NAME: special_values.check,
    properties.NAME: properties.check,
    metadata.NAME: metadata.check,
    purity.NAME: purity.check,
    streams.NAME: streams.check,
    configurations.NAME: configurations.check,
    gradients.NAME: gradients.check,
    own_backward.NAME: own_backward.check,
    second_derivatives.NAME: second_derivatives.check,
    vmap.NAME: vmap.check,
    flops.NAME: flops.check,
    opcheck.NAME: opcheck.check,
    compiled.NAME: compiled.check,
}
