"""gallery.llm: values and gradients are those of torch's own functions, and every kernel passes the whole check."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F

import opwright as ow
from opwright.gallery import llm
from opwright.gallery.llm import activations, norms


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), requires_grad=True)


def assert_same(ours, theirs, *inputs):
    """Of two results, and of the gradients of what they come from."""
    torch.testing.assert_close(ours, theirs)
    above = torch.randn(theirs.shape, generator=torch.Generator().manual_seed(9))
    for mine, other in zip(
        *(torch.autograd.grad(y, inputs, above, retain_graph=True) for y in (ours, theirs)), strict=True
    ):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


def test_each_call_that_autograd_tracks_can_be_a_native_node():
    """It is known beforehand what each gradient saves."""
    operators = {name: op for name, op in vars(llm).items() if isinstance(op, ow.Op)}
    differentiable = {name for name, op in operators.items() if op._rules.custom.get("autograd")}
    assert {"rms_norm", "attention", "glu", "rope", "linear_cross_entropy"} <= differentiable
    assert [name for name in differentiable if operators[name]._rules.gradient.sources is None] == []


def test_norms_are_torch_s():
    x, weight, bias = random(3, 5, 64), random(64, seed=1), random(64, seed=2)
    assert_same(llm.rms_norm(x, weight), F.rms_norm(x, (64,), weight, 1e-6), x, weight)
    assert_same(llm.layer_norm(x, weight, bias), F.layer_norm(x, (64,), weight, bias, 1e-5), x, weight, bias)


def test_a_norm_of_a_sum_has_both_gradients():
    x, residual, weight = random(3, 64), random(3, 64, seed=1), random(64, seed=2)
    normed, total = llm.add_rms_norm(x, residual, weight)
    assert_same(normed + total, F.rms_norm(x + residual, (64,), weight, 1e-6) + x + residual, x, residual, weight)
    assert_same(llm.add_rms_norm(x, residual, weight)[1], x + residual, x, residual)
    in_place, written = x.detach().clone(), residual.detach().clone()
    llm.add_rms_norm_(in_place, written, weight.detach())
    torch.testing.assert_close(in_place, normed.detach())
    torch.testing.assert_close(written, total.detach())


@pytest.mark.parametrize(
    ("activation", "function"),
    [("silu", F.silu), ("gelu", F.gelu), ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"))],
)
def test_gated_activations_are_torch_s(activation, function):
    gate, up = random(7, 33), random(7, 33, seed=1)
    assert_same(llm.glu(gate, up, activation), function(gate) * up, gate, up)


def test_softmax_is_torch_s():
    x = random(4, 100)
    assert_same(llm.softmax(x), x.softmax(-1), x)


def turned(x, cos, sin):
    """As transformers has it, with each angle twice."""
    cos, sin = (torch.cat((t, t), -1)[:, :, None] for t in (cos, sin))
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


@pytest.mark.parametrize("batches", [1, 2])
def test_rotary_embedding_is_that_of_transformers(batches):
    x, angles = random(2, 5, 3, 8), torch.rand(batches, 5, 4)
    assert_same(llm.rope(x, angles.cos(), angles.sin()), turned(x, angles.cos(), angles.sin()), x)
    pairs = x.unflatten(-1, (4, 2)).transpose(-1, -2).flatten(-2)  # 2·i and 2·i + 1 become i and r + i
    expected = turned(pairs, angles.cos(), angles.sin()).unflatten(-1, (2, 4)).transpose(-1, -2).flatten(-2)
    assert_same(llm.rope(x, angles.cos(), angles.sin(), True), expected, x)
    written = x.detach().clone()
    llm.rope_(written, angles.cos(), angles.sin())
    torch.testing.assert_close(written, turned(x.detach(), angles.cos(), angles.sin()))


@pytest.mark.parametrize("batches", [1, 2])
def test_rotary_embedding_takes_angles_from_tables(batches):
    x, angles = random(2, 5, 3, 8), torch.rand(20, 4)
    positions = torch.randint(20, (batches, 5), generator=torch.Generator().manual_seed(3))
    expected = turned(x, angles[positions].cos(), angles[positions].sin())
    assert_same(llm.rope_at(x, angles.cos(), angles.sin(), positions), expected, x)
    written = x.detach().clone()
    llm.rope_at_(written, angles.cos(), angles.sin(), positions)
    torch.testing.assert_close(written, expected.detach())


def test_rotary_embedding_of_a_part_leaves_the_rest():
    x, angles = random(2, 5, 3, 10), torch.rand(2, 5, 3)
    out = llm.rope(x, angles.cos(), angles.sin())
    assert torch.equal(out[..., 6:], x[..., 6:])
    assert_same(out[..., :6], turned(x[..., :6], angles.cos(), angles.sin()), x)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_is_torch_s(smoothing):
    logits, labels = random(6, 50), torch.tensor([3, -100, 49, 0, -100, 7])
    theirs = F.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
    assert_same(llm.cross_entropy(logits, labels, smoothing), theirs, logits)
    lse = logits.logsumexp(1)
    with_z = theirs + torch.where(labels == -100, 0, 1e-3 * lse * lse)
    assert_same(llm.cross_entropy(logits, labels, smoothing, 1e-3), with_z, logits)


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    ("module", "instance"),
    [
        (norms, "rms_norm<{}, {}, 4>"), (activations, "softmax<{}, {}, 4>"), (activations, "glu<{}, {}, 2, 1>"),
    ],
)  # fmt: skip
def test_kernels_in_cuda_load_16_bytes_at_once(module, instance):
    for of_width in (("float", 4), ("__nv_bfloat16", 8)):
        code, _ = module.in_cuda.entry("sm_90", instance.format(*of_width))
        assert re.search(r"ld\.global\.nc\.v4|ld\.global\.nc\.v2\.b64", code.ptx.read_text())


@pytest.mark.mojo
@pytest.mark.slow  # compiles Mojo
def test_the_softmax_in_mojo_is_that_of_torch():
    for dtype in (torch.float32, torch.bfloat16):
        x = random(5, 77).detach().to(dtype)
        torch.testing.assert_close(llm.softmax.kernels["mojo"](x), x.softmax(-1))


OPERATORS = [name for name in llm.__all__ if isinstance(getattr(llm, name), ow.Op)]
# Whole checks in the simulator take up to two minutes each: some run with the slow tests, the others on request.
WHOLE = ("add_rms_norm_", "cross_entropy", "glu_backward", "permute", "rope_", "softmax")


def check_of(name, device, level="quick"):
    operator = getattr(llm, name)
    kernels = [name for name in operator.kernels if (name in ("cpp", "mojo")) == (device == "cpu")]
    if not kernels:
        pytest.skip("its kernels are for a GPU")
    for verdict in ow.check(operator, kernels=kernels, device=device, level=level).verdicts:
        assert verdict.status == "pass", (verdict.kernel, verdict.findings)


# Whole checks, of several seconds each.
@pytest.mark.parametrize(
    "device",
    [
        pytest.param("cpu", marks=[pytest.mark.slow, pytest.mark.compiler]),
        pytest.param("cuda", marks=pytest.mark.gpu),
    ],
)
@pytest.mark.parametrize("name", OPERATORS)
def test_every_kernel_passes_the_whole_check(name, device):
    check_of(name, device)


@pytest.mark.triton
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "level"),
    [
        *((name, "quick" if name in WHOLE else "smoke") for name in OPERATORS),
        *(pytest.param(name, "quick", marks=pytest.mark.exhaustive) for name in OPERATORS if name not in WHOLE),
    ],
)
def test_every_kernel_passes_in_the_simulator(name, level):
    check_of(name, "cpu-sim", level)
