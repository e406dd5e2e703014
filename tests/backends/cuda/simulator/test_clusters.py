"""Clusters of blocks in the simulator: right kernels are left alone, wrong ones are named with their line."""

from __future__ import annotations

import pytest
import torch

import opwright as ow
from opwright.backends.cuda.nvrtc import available
from opwright.results import Refused
from tests.backends.cuda.simulator.clusters import ASYNC, GROUPS, LAUNCHES

pytestmark = pytest.mark.compiler
needs_nvrtc = pytest.mark.skipif(isinstance(available(), Refused), reason="there is no NVRTC")


@pytest.mark.parametrize("name", LAUNCHES)
@pytest.mark.parametrize("seed", [None, 1])
def test_a_right_kernel_is_left_alone(name: str, seed: int | None) -> None:
    text, launch = LAUNCHES[name]
    with ow.simulator_options(seed=seed, time_limit_s=60):
        result, wanted = launch(text, "cpu")
    assert torch.equal(result, wanted)


@pytest.mark.parametrize("name", LAUNCHES)
def test_the_fast_build_gives_the_same(name: str) -> None:
    text, launch = LAUNCHES[name]
    with ow.simulator_options(checked=False, time_limit_s=60):
        result, wanted = launch(text, "cpu")
    assert torch.equal(result, wanted)


@needs_nvrtc
@pytest.mark.parametrize("text", [GROUPS, ASYNC], ids=["groups", "async"])
def test_nvrtc_takes_them(text: str) -> None:
    assert ow.cuda_module(text).compile("sm_90a").entries
