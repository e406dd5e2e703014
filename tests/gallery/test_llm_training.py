"""gallery.llm: operators of a training step agree with torch's own modules and with plain code."""

from __future__ import annotations

import pytest
import torch

from opwright.gallery import llm


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# -- AdamW -------------------------------------------------------------------------------------------------------

RATES = {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}


def parameters() -> list[torch.Tensor]:
    return [random(n, seed=n) for n in (5, 5000, 0, 4096, 1)]


def stepped_by_torch(gradients):
    given = [p.requires_grad_() for p in parameters()]
    optimizer = torch.optim.AdamW(given, **RATES)
    for at_step in gradients:
        for p, g in zip(given, at_step, strict=True):
            p.grad = g
        optimizer.step()
    return [p.detach() for p in given]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_adamw_takes_torch_s_steps(device):
    ours = [p.to(device) for p in parameters()]
    first, second = [torch.zeros_like(p) for p in ours], [torch.zeros_like(p) for p in ours]
    gradients = [[random(len(p), seed=100 * step + len(p)) for p in ours] for step in range(3)]
    others = RATES["lr"], *RATES["betas"], RATES["eps"], RATES["weight_decay"]
    for step, at_step in enumerate(gradients, 1):
        llm.adamw_(ours, [g.to(device) for g in at_step], first, second, step, *others)
    for mine, theirs in zip(ours, stepped_by_torch(gradients), strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-5, atol=1e-6)
