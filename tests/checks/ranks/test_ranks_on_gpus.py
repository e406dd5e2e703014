"""Ranks with a GPU each, over NCCL: planted kernels, and DTensors. On a machine with two GPUs or more."""

from __future__ import annotations

import pytest
import torch

import opwright as ow
from opwright.gallery.conv1d import conv1d
from opwright.gallery.outer_sum import outer_sum
from opwright.internals.process_groups import can_compare_collectives
from opwright.planted.kernels import communication

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two ranks need two GPUs"),
]


@pytest.mark.parametrize("row", communication.ROWS, ids=lambda row: row.defect)
def test_every_planted_kernel(row):
    checks = [check for check in row.checks if check in ("ranks", "gradients of ranks")]
    (verdict,) = ow.check(row.op, kernels=[row.kernel], checks=checks, device="cuda", ranks=2)
    # Where torch does not compare collectives, ranks that are out of step wait for each other until their time is over.
    wrong = (
        {ow.results.Status.FAIL}
        if can_compare_collectives
        else {ow.results.Status.FAIL, ow.results.Status.INCONCLUSIVE}
    )
    assert verdict.status in (wrong if row.expected else {ow.results.Status.PASS}), (verdict, verdict.findings)


@pytest.mark.parametrize("operator", [outer_sum, conv1d], ids=lambda op: op.contract.name)
def test_dtensors(operator):
    (verdict,) = ow.check(operator, kernels=["reference"], checks=["DTensor"], device="cuda", ranks=2)
    if "does not have a sharding strategy registered" in verdict.reason:
        pytest.skip(verdict.reason)
    assert verdict.status is ow.results.Status.PASS, verdict
