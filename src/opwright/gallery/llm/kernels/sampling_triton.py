"""A program samples a row. It finds thresholds bit by bit, without a sort: the row stays in the cache."""

import torch
import triton
import triton.language as tl

from opwright.gallery.llm.floats import rows_of

BLOCKS = 16, 256, 8192
# Bits of a float32 that are the same in every number of a dtype: an even number.
LOWEST = {torch.float32: 0, torch.float16: 12, torch.bfloat16: 16}


@triton.jit
def key_of(values):
    # Integers in the order of the floats.
    bits = tl.where(values == 0, 0.0, values).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def weights_from(logits, v, first, second, third, least, largest, factor, BY_SHARE: tl.constexpr, BLOCK: tl.constexpr):
    # How many tokens have a key from each of three thresholds on, and from the least; or their shares' sums.
    first, second, third, least = first.to(tl.int32), second.to(tl.int32), third.to(tl.int32), least.to(tl.int32)
    nothing = tl.zeros((BLOCK,), tl.float32)
    of_first, of_second, of_third = nothing, nothing, nothing
    for start in range(0, v, BLOCK):
        column = start + tl.arange(0, BLOCK)
        values = tl.load(logits + column, mask=column < v, other=-float("inf")).to(tl.float32)
        key = key_of(values)
        weight = tl.exp((values - largest) * factor) if BY_SHARE else tl.full((BLOCK,), 1.0, tl.float32)
        weight = tl.where((key >= least) & (column < v), weight, 0.0)
        of_first += tl.where(key >= first, weight, 0.0)
        of_second += tl.where(key >= second, weight, 0.0)
        of_third += tl.where(key >= third, weight, 0.0)
    return tl.sum(of_first, 0), tl.sum(of_second, 0), tl.sum(of_third, 0)


@triton.jit
def largest_threshold(
    logits, v, need, least, largest, factor, BY_SHARE: tl.constexpr, LOWEST: tl.constexpr, BLOCK: tl.constexpr
):
    # From which at least so much remains of what is from the least threshold on. Two bits in a pass over the row.
    threshold = tl.full((), -(2**31), tl.int64)
    for i in range((32 - LOWEST) // 2):
        step = tl.full((), 1, tl.int64) << (30 - 2 * i)
        first, second, third = weights_from(
            logits, v, threshold + step, threshold + 2 * step, threshold + 3 * step, least, largest, factor, BY_SHARE,
            BLOCK,
        )  # fmt: skip
        reached = (first >= need).to(tl.int64) + (second >= need).to(tl.int64) + (third >= need).to(tl.int64)
        threshold += reached * step
    return tl.maximum(threshold, least)


@triton.jit
def sample_kernel(
    logits, seeds, temperatures, top_ks, top_ps, min_ps, tokens, v, stride, LOWEST: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    factor = 1 / tl.load(temperatures + row)
    seed, min_p = tl.load(seeds + row), tl.load(min_ps + row)
    top_k, top_p = tl.load(top_ks + row), tl.load(top_ps + row)
    most = tl.full((BLOCK,), -float("inf"), tl.float32)
    for start in range(0, v, BLOCK):
        column = start + tl.arange(0, BLOCK)
        most = tl.maximum(most, tl.load(logits + column, mask=column < v, other=-float("inf")).to(tl.float32))
    largest = tl.max(most, 0)
    threshold = tl.full((), -(2**31), tl.int64)
    if top_k < v:
        threshold = largest_threshold(
            logits, v, top_k.to(tl.float32), threshold, largest, factor, False, LOWEST, BLOCK
        )  # fmt: skip
    if top_p < 1:
        total, _, _ = weights_from(
            logits, v, threshold, threshold, threshold, threshold, largest, factor, True, BLOCK
        )  # fmt: skip
        need = top_p * total
        threshold = largest_threshold(logits, v, need, threshold, largest, factor, True, LOWEST, BLOCK)
    # Exponential times of which the first has each token with the probability of its share.
    best, token = tl.full((BLOCK,), -float("inf"), tl.float32), tl.zeros((BLOCK,), tl.int64)
    for start in range(0, v, BLOCK):
        column = start + tl.arange(0, BLOCK)
        values = tl.load(logits + column, mask=column < v, other=-float("inf")).to(tl.float32)
        scaled = (values - largest) * factor
        score = scaled - tl.log(-tl.log(tl.maximum(tl.rand(seed, column), 1e-10)))
        is_in = (column < v) & (key_of(values) >= threshold) & (tl.exp(scaled) >= min_p)
        is_better = is_in & (score > best)
        best, token = tl.where(is_better, score, best), tl.where(is_better, column, token)
    first = tl.min(tl.where(best == tl.max(best, 0), token, v), 0)
    tl.store(tokens + row, first)


def sample(
    logits: torch.Tensor, seeds: torch.Tensor, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor,
    min_p: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    (b, v), lowest = logits.shape, LOWEST[logits.dtype]
    tokens, logits = torch.empty(b, dtype=torch.int64, device=logits.device), rows_of(logits)
    if b:
        block = min((size for size in BLOCKS if size >= v), default=BLOCKS[-1])
        sample_kernel[(b,)](
            logits, *(t.contiguous() for t in (seeds, temperature, top_k, top_p, min_p)), tokens, v, logits.stride(0),
            LOWEST=lowest, BLOCK=block, num_warps=min(block // 256 or 1, 32),
        )  # fmt: skip
    return tokens
