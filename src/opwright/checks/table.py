"""The table of the checks: one file each, one line each. They run in this order."""

from __future__ import annotations

from opwright.checks import meaning
from opwright.checks.context import Check, Checker
from opwright.checks.derivatives import gradients, own_backward, second_derivatives
from opwright.checks.outputs import (
    configurations,
    edges,
    global_state,
    guard_bands,
    metadata,
    properties,
    purity,
    special_values,
    streams,
    values,
)
from opwright.checks.registration import compiled, flops, opcheck, vmap

__all__ = ["CHECKS", "EACH_CASE"]

CHECKS: dict[str, Check] = {
    meaning.NAME: meaning.check,
    guard_bands.NAME: guard_bands.check,
    values.NAME: values.check,
    special_values.NAME: special_values.check,
    properties.NAME: properties.check,
    metadata.NAME: metadata.check,
    purity.NAME: purity.check,
    global_state.NAME: global_state.check,
    streams.NAME: streams.check,
    configurations.NAME: configurations.check,
    gradients.NAME: gradients.check,
    own_backward.NAME: own_backward.check,
    second_derivatives.NAME: second_derivatives.check,
    vmap.NAME: vmap.check,
    flops.NAME: flops.check,
    opcheck.NAME: opcheck.check,
    compiled.NAME: compiled.check,
    edges.NAME: edges.check,
}

# Those that examine every case: each case runs once for all of them.
EACH_CASE: dict[str, Checker] = {
    metadata.NAME: metadata.find_error,
    purity.NAME: purity.find_error,
    global_state.NAME: global_state.find_error,
}
