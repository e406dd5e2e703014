"""The checks of memory and state on a GPU: Triton kernels with one fault each, and right ones."""

from __future__ import annotations

import pytest

import opwright as ow
from opwright.results import Status

pytestmark = pytest.mark.gpu
pytest.importorskip("triton")
from tests.checks.kernels_on_gpu import RIGHT, WRONG, total, twice  # noqa: E402  # needs Triton

CHECKS = ["memory", "repeated calls", "execution context", "threads", "own work", "protected memory"]


@pytest.fixture(scope="module")
def verdicts():
    return {v.kernel: v for v in ow.check(twice, total, checks=CHECKS, device="cuda").verdicts}


@pytest.mark.parametrize("kernel", WRONG)
def test_is_found(verdicts, kernel):
    check, message = WRONG[kernel]
    found = [f.message for f in verdicts[kernel].findings if f.check == check and f.status is not Status.PASS]
    assert any(message in one for one in found), verdicts[kernel].findings


@pytest.mark.parametrize("kernel", [*RIGHT, "adds in any order"])
def test_is_left_alone(verdicts, kernel):
    assert verdicts[kernel].status is Status.PASS, verdicts[kernel].findings
