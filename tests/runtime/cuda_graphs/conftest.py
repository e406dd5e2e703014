"""Each test of CUDA graphs replays in Python and in native code, on a GPU and on a stand-in without one."""

from __future__ import annotations

import pytest

from tests.runtime.cuda_graphs.stand_in import replay_in_python, replay_natively, stand_in_for_graphs

# The extension is built first, from torch's headers.
NATIVELY = pytest.param(replay_natively, marks=[pytest.mark.compiler, pytest.mark.slow])


@pytest.fixture(params=[replay_in_python, NATIVELY], ids=["python", "native"])
def way(request, monkeypatch):
    """How steps are replayed."""
    request.param(monkeypatch)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def on(request, monkeypatch, way):
    """The device of tensors."""
    if request.param == "cpu":
        stand_in_for_graphs(monkeypatch)
    return request.param
