"""A work item under which machines die. Nothing is left of this cluster, so that no other test has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from opwright.sweep.work_item import no_step
from tests.cluster.work_items import FillsTheDisk, KillsItsMachine

pytest.importorskip("ray", reason="Ray is not installed")
pytestmark = pytest.mark.slow  # a cluster takes some seconds to start, and its workers to import torch

from tests.cluster.machines import two_machines  # noqa: E402


@pytest.mark.exhaustive
def test_a_unit_that_ends_two_machines_ends_no_third_one(tmp_path):
    with two_machines(tmp_path / "first", tmp_path / "second") as cluster:
        (done,) = cluster.run([KillsItsMachine()], no_step)
        assert done.lost
        assert done.result.why.startswith("2 machines died while they ran it, so it is tried on no other one"), done
        (after,) = cluster.run([FillsTheDisk(Path("never"))], no_step)
        assert after.result.why == "no machine of the cluster has a processor for tasks"
