"""CPU tensors that stand for CUDA tensors in launchers, as published ones treat them."""

from __future__ import annotations

import pytest
import torch

from opwright.backends.gpu.simulated_tensors import on_simulated

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


def published(x: torch.Tensor) -> list[torch.Tensor]:
    assert x.is_cuda
    return [
        x.cuda(),
        x.to("cuda"),
        x.to("cuda:0", torch.float64),
        torch.zeros(3, device="cuda"),
        torch.empty_like(x, device=torch.device("cuda", 0)),
    ]


def test_what_is_sent_to_a_gpu_stays() -> None:
    found = on_simulated(published)(torch.ones(3))
    assert {t.device.type for t in found} == {"cpu"}
    assert [t.dtype for t in found] == [torch.float32, torch.float32, torch.float64, torch.float32, torch.float32]


def test_outside_of_launchers_nothing_is_hidden() -> None:
    with pytest.raises((RuntimeError, AssertionError), match=r"NVIDIA|CUDA"):
        torch.ones(3).cuda()
    assert not torch.ones(3).is_cuda
