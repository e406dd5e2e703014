"""A program turns some heads at one position: their angles are read once."""

import torch
import triton
import triton.language as tl


# What no load or store of several elements depends on.
@triton.jit(do_not_specialize=["heads", "length", "d", "position_batch", "position_step"])
def rope_kernel(
    x, cos, sin, positions, out, heads, length, r, d,
    x_batch, x_place, x_head, x_step, out_batch, out_place, out_head, out_step,
    cos_batch, cos_place, cos_step, sin_batch, sin_place, sin_step, position_batch, position_step,
    HEADS: tl.constexpr, HALF: tl.constexpr, REST: tl.constexpr, INTERLEAVED: tl.constexpr, AT: tl.constexpr,
):  # fmt: skip
    across = tl.cdiv(heads, HEADS)
    row = (tl.program_id(0) // across).to(tl.int64)
    place, batch = row % length, row // length
    head = (tl.program_id(0) % across * HEADS + tl.arange(0, HEADS)).to(tl.int64)[:, None]
    pair = tl.arange(0, HALF).to(tl.int64)
    near = pair < r
    of_cos, of_sin = cos + batch * cos_batch, sin + batch * sin_batch
    angle = tl.load(positions + batch * position_batch + place * position_step).to(tl.int64) if AT else place
    c = tl.load(of_cos + angle * cos_place + pair * cos_step, mask=near, other=0).to(tl.float32)
    s = tl.load(of_sin + angle * sin_place + pair * sin_step, mask=near, other=0).to(tl.float32)
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
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, out: torch.Tensor, interleaved: bool, rest: int,
    positions: torch.Tensor | None = None,
) -> None:  # fmt: skip
    (batches, length, heads, d), r = x.shape, cos.shape[-1]
    if not x.numel():
        return
    half = triton.next_power_of_2(max(int(r), 1))
    block = min(triton.next_power_of_2(int(heads)), max(2048 // half, 1))
    # With positions, all batches have one table.
    angles = [t[None] if positions is not None else t for t in (cos, sin)]
    strides = [stride for t in angles for stride in (t.stride(0) if len(t) > 1 else 0, *t.stride()[1:])]
    rope_kernel[(batches * length * triton.cdiv(heads, block),)](
        x, cos, sin, cos if positions is None else positions, out, heads, length, r, d, *x.stride(), *out.stride(),
        *strides, *of_positions(positions), HEADS=block, HALF=half, REST=triton.next_power_of_2(rest) if rest else 0,
        INTERLEAVED=interleaved, AT=positions is not None,
    )  # fmt: skip


def of_positions(positions: torch.Tensor | None) -> tuple[int, int]:
    if positions is None:
        return 0, 0
    return positions.stride(0) if len(positions) > 1 else 0, positions.stride(1)


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    launch(x, cos, sin, out, interleaved, int(x.shape[-1] - 2 * cos.shape[-1]))
    return out


def rope_(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> None:
    launch(x, cos, sin, x, interleaved, 0)


def rope_at(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor, interleaved: bool
) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    launch(x, cos, sin, out, interleaved, int(x.shape[-1] - 2 * cos.shape[-1]), positions)
    return out


def rope_at_(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor, interleaved: bool) -> None:
    launch(x, cos, sin, x, interleaved, 0, positions)
