"""Operators and modules of flash-linear-attention (https://github.com/fla-org/flash-linear-attention, MIT), beside its
own references, which are loops in torch."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.corpus.triton.comparison import BFLOAT16, TF32, both, case, difference

os.environ["FLA_DISABLE_BACKEND_DISPATCH"] = "1"  # its Triton kernels, not those of another library

# Lengths that are no multiples of a tile: batch, time, heads, and the sizes of keys and values.
B, T, H, K, V = 1, 97, 2, 32, 16
Found = tuple[Any, ...]


def module(name: str) -> Any:
    return importlib.import_module(f"fla.{name}")


def operator(package: str, name: str) -> Callable[..., Any]:
    return getattr(module(f"ops.{package}"), name)  # type: ignore[no-any-return]


def naive(package: str, name: str) -> Callable[..., Any]:
    return getattr(module(f"ops.{package}.naive"), name)  # type: ignore[no-any-return]


def queries(time: int = T, keys: int = K, values: int = V, *, unit: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values; ``unit``: the first two of length one."""
    q, k, v = torch.randn(B, time, H, keys), torch.randn(B, time, H, keys), torch.randn(B, time, H, values)
    return (F.normalize(q, dim=-1), F.normalize(k, dim=-1), v) if unit else (q, k, v)


def decays(*shape: int) -> Tensor:
    return F.logsigmoid(torch.randn(shape))


def swapped(*tensors: Tensor) -> list[Tensor]:
    """Time and heads the other way round, as some references have them."""
    return [t.transpose(1, 2) for t in tensors]


def first(found: Any) -> Tensor:
    return found[0] if isinstance(found, tuple) else found  # type: ignore[no-any-return]


def add_simple_gla(kind: str) -> None:
    @case(f"fla.{kind}_simple_gla", tolerance=TF32)
    def simple_gla() -> float:
        state = torch.randn(B, H, K, V)

        def ours(q: Tensor, k: Tensor, v: Tensor, g: Tensor, h: Tensor) -> Found:
            return operator("simple_gla", f"{kind}_simple_gla")(q, k, v, g=g, initial_state=h, output_final_state=True)  # type: ignore[no-any-return]

        def reference(q: Tensor, k: Tensor, v: Tensor, g: Tensor, h: Tensor) -> Found:
            function = naive("simple_gla", "naive_recurrent_simple_gla")
            return function(q, k, v, g, initial_state=h, output_final_state=True)  # type: ignore[no-any-return]

        return both(ours, reference, *queries(), decays(B, T, H), state)


def add_gla(kind: str) -> None:
    @case(f"fla.{kind}_gla", tolerance=TF32)
    def gla() -> float:
        def ours(q: Tensor, k: Tensor, v: Tensor, g: Tensor, h: Tensor) -> Found:
            return operator("gla", f"{kind}_gla")(q, k, v, g, initial_state=h, output_final_state=True)  # type: ignore[no-any-return]

        def reference(q: Tensor, k: Tensor, v: Tensor, g: Tensor, h: Tensor) -> Found:
            return naive("gla", "naive_recurrent_gla")(q, k, v, g, h, True)  # type: ignore[no-any-return]

        return both(ours, reference, *queries(), decays(B, T, H, K), torch.randn(B, H, K, V))


def add_gated_delta_rule(kind: str) -> None:
    @case(f"fla.{kind}_gated_delta_rule", tolerance=TF32)
    def gated_delta_rule() -> float:
        def ours(q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, h: Tensor) -> Found:
            function = operator("gated_delta_rule", f"{kind}_gated_delta_rule")
            return function(q, k, v, g=g, beta=b, initial_state=h, output_final_state=True)  # type: ignore[no-any-return]

        def reference(q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, h: Tensor) -> Found:
            function = naive("gated_delta_rule", "naive_recurrent_gated_delta_rule")
            return function(q, k, v, b, g, initial_state=h, output_final_state=True)  # type: ignore[no-any-return]

        inputs = (*queries(unit=True), decays(B, T, H), torch.rand(B, T, H), torch.randn(B, H, K, V))
        return both(ours, reference, *inputs, backward=kind == "chunk")


def add_kda(kind: str) -> None:
    @case(f"fla.{kind}_kda", tolerance=TF32)
    def kda() -> float:
        def ours(*inputs: Tensor) -> Found:
            function = operator("kda", f"{kind}_kda")
            return function(*inputs[:5], initial_state=inputs[5], output_final_state=True)  # type: ignore[no-any-return]

        def reference(*inputs: Tensor) -> Found:
            function = naive("kda", "naive_recurrent_kda")
            return function(*inputs[:5], initial_state=inputs[5], output_final_state=True)  # type: ignore[no-any-return]

        inputs = (*queries(unit=True), decays(B, T, H, K), torch.rand(B, T, H), torch.randn(B, H, K, V))
        return both(ours, reference, *inputs, backward=kind == "chunk")


def add_gsa(kind: str) -> None:
    @case(f"fla.{kind}_gsa", tolerance=TF32)
    def gsa() -> float:
        slots = decays(B, T, H, 16)

        def ours(q: Tensor, k: Tensor, v: Tensor, s: Tensor, g: Tensor) -> Tensor:
            return first(operator("gsa", f"{kind}_gsa")(q, k, v, s, g))

        def reference(q: Tensor, k: Tensor, v: Tensor, s: Tensor, g: Tensor) -> Tensor:
            return first(naive("gsa", "naive_recurrent_gsa")(q, k, v, s, g))

        return both(ours, reference, *queries(), 1 - slots.exp(), slots)


for of_chunks in ("chunk", "fused_chunk", "fused_recurrent"):
    add_simple_gla(of_chunks)
for of_chunks in ("chunk", "fused_recurrent"):
    add_gla(of_chunks)
    add_gated_delta_rule(of_chunks)
    add_kda(of_chunks)
    add_gsa(of_chunks)


@case("fla.parallel_simple_gla", tolerance=TF32)
def parallel_simple_gla() -> float:
    def ours(*inputs: Tensor) -> Tensor:
        return first(operator("simple_gla", "parallel_simple_gla")(*inputs))

    def reference(*inputs: Tensor) -> Tensor:
        return first(naive("simple_gla", "naive_parallel_simple_gla")(*inputs))

    return both(ours, reference, *queries(), decays(B, T, H))


@case("fla.chunk_simple_gla of several sequences", tolerance=TF32)
def several_sequences() -> float:
    ends = torch.tensor([0, 15, 100, 130])

    def ours(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
        return first(operator("simple_gla", "chunk_simple_gla")(q, k, v, g=g, cu_seqlens=ends))

    def reference(*inputs: Tensor) -> Tensor:
        function = naive("simple_gla", "naive_recurrent_simple_gla")
        pairs = zip(ends.tolist()[:-1], ends.tolist()[1:], strict=True)
        return torch.cat([first(function(*(t[:, a:b] for t in inputs))) for a, b in pairs], 1)

    return both(ours, reference, *queries(130), decays(B, 130, H))


@case("fla.fused_recurrent_delta_rule")
def recurrent_delta_rule() -> float:
    def ours(*inputs: Tensor) -> Tensor:
        return first(operator("delta_rule", "fused_recurrent_delta_rule")(*inputs))

    def reference(*inputs: Tensor) -> Tensor:
        return first(naive("delta_rule", "delta_rule_recurrence")(*swapped(*inputs))).transpose(1, 2)

    return both(ours, reference, *queries(unit=True), torch.rand(B, T, H))


@case("fla.chunk_delta_rule in bfloat16", tolerance=BFLOAT16)
def chunk_delta_rule() -> float:
    def ours(*inputs: Tensor) -> Tensor:
        return first(operator("delta_rule", "chunk_delta_rule")(*(t.bfloat16() for t in inputs))).float()

    def reference(*inputs: Tensor) -> Tensor:
        return first(naive("delta_rule", "delta_rule_recurrence")(*swapped(*inputs))).transpose(1, 2)

    return both(ours, reference, *queries(unit=True), torch.rand(B, T, H))


@case("fla.chunk_linear_attn", tolerance=TF32)
def chunk_linear_attention() -> float:
    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return first(operator("linear_attn", "chunk_linear_attn")(q, k, v, normalize=False))

    def reference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return first(naive("linear_attn", "naive_recurrent_linear_attn")(q, k, v))

    return both(ours, reference, *queries())


@case("fla.fused_recurrent_hgrn")
def recurrent_hgrn() -> float:
    gates = decays(2, T, 50)
    inputs = torch.randn(2, T, 50) * (1 - gates.exp()), gates
    ours, reference = operator("hgrn", "fused_recurrent_hgrn"), naive("hgrn", "naive_recurrent_hgrn")
    return both(lambda x, g: first(ours(x, g)), lambda x, g: first(reference(x, g)), *inputs)


@case("fla.forgetting_attn", tolerance=TF32)
def forgetting_attention() -> float:
    ours = operator("forgetting_attn", "parallel_forgetting_attn")
    reference = naive("forgetting_attn", "naive_forgetting_attn")
    return both(ours, lambda *inputs: first(reference(*inputs)), *queries(), decays(B, T, H))


@case("fla.parallel_attn of groups of heads", tolerance=TF32)
def attention_of_groups() -> float:
    ours, reference = operator("attn", "parallel_attn"), naive("attn", "naive_parallel_attn")
    inputs = torch.randn(B, T, 4, K), torch.randn(B, T, 2, K), torch.randn(B, T, 2, K), decays(B, T, 4)
    return both(
        lambda q, k, v, g: first(ours(q, k, v, g=g)), lambda q, k, v, g: first(reference(q, k, v, g=g)), *inputs
    )


@case("fla.chunk_dplr_delta_rule", tolerance=TF32)
def generalised_delta_rule() -> float:
    package = "generalized_delta_rule.dplr"
    a = F.normalize(torch.randn(B, T, H, K), dim=-1)

    def ours(*inputs: Tensor) -> Tensor:
        return first(operator(package, "chunk_dplr_delta_rule")(*inputs))

    def reference(*inputs: Tensor) -> Tensor:
        return first(naive(package, "dplr_recurrence")(*swapped(*inputs))).transpose(1, 2)

    return both(ours, reference, *queries(values=32, unit=True), -a, a * 0.5, decays(B, T, H, K))


@case("fla.path_attn", tolerance=TF32)
def path_attention() -> float:
    w, b = F.normalize(torch.randn(B, 128, H, K), dim=-1), torch.rand(B, 128, H) * 2

    def ours(*inputs: Tensor) -> Tensor:
        return first(operator("path_attn", "parallel_path_attn")(*inputs))

    def reference(*inputs: Tensor) -> Tensor:
        return first(naive("path_attn", "naive_path_attn")(*inputs, K**-0.5))

    return both(ours, reference, *queries(128, values=32), w, b, decays(B, 128, H))


@case("fla.chunk_mesa_net", tolerance=TF32)
def mesa_net() -> float:
    inputs = (*queries(values=32, unit=True), decays(B, T, H), torch.rand(B, T, H), torch.rand(H, K) + 0.5)

    def ours(*inputs: Tensor) -> Tensor:
        return first(operator("mesa_net", "chunk_mesa_net")(*inputs))

    def reference(q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, ridge: Tensor) -> Tensor:
        return first(naive("mesa_net", "naive_mesa_net_exact")(q, k, v, g, ridge, b))

    return both(ours, reference, *inputs)


# -- parts and modules ------------------------------------------------------------------------------------------------


@case("fla.cumsum")
def cumulative_sums() -> float:
    functions = module("ops.utils.cumsum")
    x, y = torch.randn(1, T, 2), torch.randn(1, T, 2, 20)
    ours = [
        functions.chunk_global_cumsum(x),
        functions.chunk_global_cumsum(y, reverse=True),
        functions.chunk_local_cumsum(x, 32),
    ]
    in_chunks = torch.cat([part.cumsum(1) for part in x.split(32, 1)], 1)
    return difference(ours, [x.cumsum(1), y.flip(1).cumsum(1).flip(1), in_chunks])


@case("fla.logsumexp")
def logsumexp() -> float:
    x = torch.randn(7, 333)
    return difference(module("ops.utils.logsumexp").logsumexp_fwd(x), x.logsumexp(-1))


@case("fla.softmax")
def softmax() -> float:
    functions, x, g = module("ops.utils.softmax"), torch.randn(2, 9, 3, 77), torch.randn(2, 9, 3, 77)
    ours, expected = functions.softmax_fwd(x), x.softmax(-1)
    gradient = expected * (g - (expected * g).sum(-1, keepdim=True))
    return difference([ours, functions.softmax_bwd(ours, g)], [expected, gradient])


@case("fla.solve_tril")
def inverse_of_triangles() -> float:
    ours, expected = [], []
    for tile in (16, 32, 64):
        triangles, inverses = torch.zeros(1, T, 2, tile), torch.zeros(1, T, 2, tile)
        for start in range(0, T, tile):
            n = min(tile, T - start)
            part = (torch.randn(1, 2, n, n) * 0.2).tril(-1)
            triangles[:, start : start + n, :, :n] = part.permute(0, 2, 1, 3)
            inverses[:, start : start + n, :, :n] = torch.linalg.inv(torch.eye(n) + part).permute(0, 2, 1, 3)
        ours.append(module("ops.utils.solve_tril").solve_tril(triangles.clone()))
        expected.append(inverses)
    return difference(ours, expected)


@case("fla.mean_pooling")
def mean_pooling() -> float:
    ours = module("ops.utils.pooling").mean_pooling
    x = torch.randn(1, T, 2, 20)
    return both(lambda x: ours(x, 32), lambda x: torch.stack([part.mean(1) for part in x.split(32, 1)], 1), x)


@case("fla.l2norm")
def l2norm() -> float:
    ours = module("modules.l2norm").l2norm
    return both(ours, lambda x: x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt(), torch.randn(3, 33, 50))


@case("fla.layer_norm")
def layer_norm() -> float:
    ours = module("modules.layernorm").layer_norm
    inputs = torch.randn(33, 70), torch.randn(70), torch.randn(70)
    return both(lambda x, w, b: ours(x, w, b, eps=1e-5), lambda x, w, b: F.layer_norm(x, (70,), w, b), *inputs)


@case("fla.rms_norm with a residual")
def rms_norm_with_residual() -> float:
    function = module("modules.layernorm").rms_norm

    def ours(x: Tensor, w: Tensor, r: Tensor) -> Found:
        return function(x, w, None, residual=r, eps=1e-5, prenorm=True)  # type: ignore[no-any-return]

    inputs = torch.randn(33, 70), torch.randn(70), torch.randn(33, 70)
    return both(ours, lambda x, w, r: (F.rms_norm(x + r, (70,), w, 1e-5), x + r), *inputs)


@case("fla.FusedRMSNormGated")
def gated_rms_norm() -> float:
    layer = module("modules.fused_norm_gate").FusedRMSNormGated(64)
    inputs = torch.randn(9, 64), torch.randn(9, 64)
    return both(layer, lambda x, g: F.rms_norm(x, (64,), layer.weight, 1e-5) * F.silu(g), *inputs)


@case("fla.swiglu")
def swiglu() -> float:
    ours = module("modules.activations").swiglu
    return both(ours, lambda x, y: F.silu(x) * y, torch.randn(5, 77), torch.randn(5, 77))


@case("fla.token_shift")
def token_shift() -> float:
    ours = module("modules.token_shift").token_shift
    return both(ours, lambda x: F.pad(x, (0, 0, 1, -1)) - x, torch.randn(2, 33, 50))


@case("fla.causal_conv1d")
def causal_convolution() -> float:
    ours = module("modules.convolution").causal_conv1d

    def reference(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        padded = F.pad(x.transpose(1, 2), (3, 0))
        return F.silu(F.conv1d(padded, w[:, None], b, groups=50)).transpose(1, 2)

    inputs = torch.randn(2, 37, 50), torch.randn(50, 4), torch.randn(50)
    return both(lambda x, w, b: first(ours(x, w, b, activation="silu")), reference, *inputs)


@case("fla.fused_linear_cross_entropy")
def fused_linear_cross_entropy() -> float:
    loss = module("modules.fused_linear_cross_entropy").FusedLinearCrossEntropyLoss()
    target = torch.randint(0, 333, (20,))
    inputs = torch.randn(20, 32), torch.randn(333, 32)
    return both(lambda x, w: loss(x, target, w), lambda x, w: F.cross_entropy(x @ w.T, target), *inputs)


@case("fla.FusedKLDivLoss")
def fused_kl_divergence() -> float:
    loss = module("modules.fused_kl_div").FusedKLDivLoss()
    other, others = torch.randn(9, 32), torch.randn(77, 32)

    def reference(x: Tensor, w: Tensor) -> Tensor:
        probabilities = (other @ others.T).softmax(-1)
        return F.kl_div((x @ w.T).log_softmax(-1), probabilities, reduction="batchmean")

    return both(lambda x, w: loss(x, other, w, others), reference, torch.randn(9, 32), torch.randn(77, 32))
