"""gallery.llm: operators of a training step agree with torch's own modules and with plain code."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

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


# -- cross entropy of a linear layer -----------------------------------------------------------------------------


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_of_a_linear_layer_is_torch_s(smoothing):
    x, weight = random(150, 16).requires_grad_(), random(40, 16, seed=1).requires_grad_()
    labels = torch.randint(40, (150,), generator=torch.Generator().manual_seed(2)).masked_fill(x[:, 0] < -1, -100)
    theirs = F.cross_entropy(x @ weight.t(), labels, label_smoothing=smoothing, reduction="sum")
    ours = llm.linear_cross_entropy(x, weight, labels, smoothing)
    torch.testing.assert_close(ours, theirs)
    pairs = (torch.autograd.grad(loss / 7, (x, weight)) for loss in (ours, theirs))
    for mine, other in zip(*pairs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
def test_the_loss_of_a_linear_layer_never_holds_all_logits():
    t, v, d = 4096, 65_536, 1024
    x, weight = (torch.randn(n, d, device="cuda", dtype=torch.bfloat16) for n in (t, v))
    labels = torch.randint(v, (t,), device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    llm.linear_cross_entropy(x.requires_grad_(), weight.requires_grad_(), labels).backward()
    assert torch.cuda.max_memory_allocated() - before < t * v * 2


# -- experts -----------------------------------------------------------------------------------------------------


def mixture(x, logits, weights, k):
    shares, experts = llm.route(logits, k)
    places, order, offsets = llm.sort_by_expert(experts, len(weights))
    rows = llm.permute(x, places)
    assert torch.equal(rows, x[order.long() // k])
    return llm.combine(llm.grouped_mm(rows, weights, offsets), shares, places)


def plain_mixture(x, logits, weights, k):
    values, experts = logits.topk(k)
    of_all = torch.einsum("td,end->ten", x, weights)
    chosen = of_all.gather(1, experts[..., None].expand(-1, -1, weights.shape[1]))
    return (values.softmax(-1)[..., None] * chosen).sum(1)


@pytest.mark.parametrize("k", [1, 3])
def test_a_mixture_of_experts_and_its_gradients_are_those_of_plain_code(k):
    inputs = random(20, 8).requires_grad_(), random(20, 5, seed=1).requires_grad_(), random(5, 6, 8, seed=2)
    inputs[2].requires_grad_()
    ours, theirs = mixture(*inputs, k), plain_mixture(*inputs, k)
    torch.testing.assert_close(ours, theirs)
    above = random(20, 6, seed=3)
    pairs = (torch.autograd.grad(y, inputs, above) for y in (ours, theirs))
    for mine, other in zip(*pairs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)
