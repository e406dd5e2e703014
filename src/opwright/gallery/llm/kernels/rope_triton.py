"""A program turns some heads at one position: their angles are read once."""

import torch
import triton
import triton.language as tl


@triton.jit
def rope_kernel(
    x, cos, sin, out, heads, length, r, d,
    x_batch, x_head, x_place, x_step, out_batch, out_head, out_place, out_step,
    cos_batch, cos_place, cos_step, sin_batch, sin_place, sin_step,
    HEADS: tl.constexpr, HALF: tl.constexpr, REST: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    place, batch = tl.program_id(0).to(tl.int64) % length, tl.program_id(0).to(tl.int64) // length
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS)).to(tl.int64)[:, None]
    pair = tl.arange(0, HALF).to(tl.int64)
    near = pair < r
    c = tl.load(cos + batch * cos_batch + place * cos_place + pair * cos_step, mask=near, other=0).to(tl.float32)
    s = tl.load(sin + batch * sin_batch + place * sin_place + pair * sin_step, mask=near, other=0).to(tl.float32)
    first = 2 * pair if INTERLEAVED else pair
    second = first + 1 if INTERLEAVED else pair + r
    inside = (head < heads) & near[None, :]
    source = x + batch * x_batch + head * x_head + place * x_place
    target = out + batch * out_batch + head * out_head + place * out_place
    a = tl.load(source + first[None, :] * x_step, mask=inside, other=0).to(tl.float32)
    b = tl.load(source + second[None, :] * x_step, mask=inside, other=0).to(tl.float32)
    tl.store(target + first[None, :] * out_step, a * c[None, :] - b * s[None, :], mask=inside)
    tl.store(target + second[None, :] * out_step, b * c[None, :] + a * s[None, :], mask=inside)
    if REST > 0:
        others = 2 * r + tl.arange(0, REST).to(tl.int64)[None, :]
        kept = (head < heads) & (others < d)
        tl.store(target + others * out_step, tl.load(source + others * x_step, mask=kept), mask=kept)


def launch(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, out: torch.Tensor, interleaved: bool, rest: int
) -> None:
    (batches, heads, length, d), r = x.shape, cos.shape[-1]
    if not x.numel():
        return
    half = triton.next_power_of_2(max(int(r), 1))
    block = min(triton.next_power_of_2(int(heads)), max(2048 // half, 1))
    rope_kernel[(batches * length, triton.cdiv(heads, block))](
        x, cos, sin, out, heads, length, r, d, *x.stride(), *out.stride(),
        cos.stride(0) if len(cos) > 1 else 0, *cos.stride()[1:], sin.stride(0) if len(sin) > 1 else 0,
        *sin.stride()[1:], HEADS=block, HALF=half, REST=triton.next_power_of_2(rest) if rest else 0,
        INTERLEAVED=interleaved,
    )  # fmt: skip


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    launch(x, cos, sin, out, interleaved, int(x.shape[-1] - 2 * cos.shape[-1]))
    return out


def rope_(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> None:
    launch(x, cos, sin, x, interleaved, 0)
