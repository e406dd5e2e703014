"""Kernels in Python that add up, normalise, multiply matrices and pick: tails, precision, axes and ties."""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import BFloat16, Bool, Float, Float16, Float32, Int, Int64, UInt8
from torch import Tensor

import opwright as ow
from opwright.planted.catalogue import attach

__all__ = [
    "ROWS",
    "attended",
    "averaged",
    "best",
    "best_of_integers",
    "class_gradient",
    "kept",
    "log_sums",
    "mix",
    "normed",
    "product",
    "softmax",
    "take",
    "total",
    "weighted",
]


@ow.op("selftest::total")
def total(x: Float[Tensor, "b n"]) -> Float[Tensor, " b"]:
    return x.sum(1)


_TOTAL = attach(
    total,
    {
        "only 1024 columns": ("values", lambda x: x[:, :1024].sum(1)),
        "columns past a multiple of 32 are left out": ("values", lambda x: x[:, : x.shape[1] // 32 * 32].sum(1)),
        "accumulates in float16": ("values", lambda x: _accumulated(x, torch.float16)),
        "accumulates in bfloat16": ("values", lambda x: _accumulated(x, torch.bfloat16)),
        "the last row is left out": ("values", lambda x: torch.cat([x[:-1].sum(1), x.new_zeros(len(x[-1:]))])),
        "only 64 rows": ("values", lambda x: torch.cat([x[:64].sum(1), x[64:, :1].sum(1)])),
        "the other axis where it is square": ("values", lambda x: x.sum(0) if x.shape[0] == x.shape[1] else x.sum(1)),
        "the mean": ("values", lambda x: x.mean(1)),
        "the first column twice": ("values", lambda x: x.sum(1) + x[:, :1].sum(1)),
        "one NaN is left out": ("special values", lambda x: x.nansum(1)),
        "absolute values": ("values", lambda x: x.abs().sum(1)),
        "one of 4096 rows is wrong": ("values", lambda x: torch.where(torch.arange(len(x), device=x.device) % 4096 == 4095, 0, x.sum(1))),
    },
    {
        "from the end": lambda x: x.flip(1).sum(1),
        "in pieces": lambda x: sum(p.double().sum(1) for p in (x[:, :64], x[:, 64:])).to(x.dtype),
        "in float64": lambda x: x.double().sum(1).to(x.dtype),
        "by a product": lambda x: (x.double() @ x.new_ones(x.shape[1], dtype=torch.float64)).to(x.dtype),
        "by columns": lambda x: x.mT.contiguous().sum(0),
        "pairs first": lambda x: (x[:, ::2].double().sum(1) + x[:, 1::2].double().sum(1)).to(x.dtype),
    },
)  # fmt: skip


def _accumulated(x: Tensor, dtype: torch.dtype) -> Tensor:
    sums = x.new_zeros(len(x), dtype=dtype)
    for part in x.split(max(1, x.shape[1] // 64), 1):
        sums += part.sum(1).to(dtype)
    return sums.to(x.dtype)


@ow.op("selftest::weighted")
def weighted(x: Float32[Tensor, " n"], table: Float32[Tensor, " _"]) -> Float32[Tensor, " n"]:
    return x * table.sum()


_WITHOUT_A_NAME = attach(
    weighted,
    {
        "only the first three of an axis without a name": ("values", lambda x, table: x * table[:3].sum()),
        "an axis without a name has one element": ("values", lambda x, table: x * (table[0] if len(table) else 0)),
    },
    {"an axis without a name from its end": lambda x, table: x * table.flip(0).double().sum().float()},
)


@ow.op("selftest::kept")
def kept(x: Float16[Tensor, "b n"], keep: Bool[Tensor, "b n"]) -> Float16[Tensor, " b"]:
    return (x * keep).sum(1)


_MASKED = attach(
    kept,
    {"a masked sum is kept in half": ("values", lambda x, keep: _accumulated(x * keep, torch.float16))},
    {"a masked sum in float32": lambda x, keep: (x.float() * keep).sum(1).half()},
)


@ow.op("selftest::log_sums")
def log_sums(x: BFloat16[Tensor, "b n"]) -> Float32[Tensor, " b"]:
    return x.float().logsumexp(1)


_IN_FLOAT32 = attach(
    log_sums,
    {"a float32 result of bfloat16 is off by a percent": ("values", lambda x: 1.01 * x.float().logsumexp(1))},
    {"a float32 result of bfloat16 in float64": lambda x: x.double().logsumexp(1).float()},
)


@ow.op("selftest::softmax")
def softmax(x: Float[Tensor, "b n"]) -> Float[Tensor, "b n"]:
    return x.softmax(1)


_SOFTMAX = attach(
    softmax,
    {
        "the largest is not subtracted": ("values", lambda x: x.exp() / x.exp().sum(1, keepdim=True)),
        "the largest of all rows": ("values", lambda x: _by_exp(x, x.max() if x.numel() else 0)),
        "the sum leaves out a tail": ("values", lambda x: _by_exp(x, _top(x), slice(0, 1000))),
        "normalised over rows": ("values", lambda x: x.softmax(0) if x.shape[0] == x.shape[1] else x.softmax(1)),
        "an epsilon in the sum": ("values", lambda x: (x - _top(x)).exp() / ((x - _top(x)).exp().sum(1, keepdim=True) + 1e-3)),
        "small results are zero": ("values", lambda x: torch.where(x.softmax(1) < 1e-4, 0, x.softmax(1))),
        "in float16": ("values", lambda x: x.half().softmax(1).to(x.dtype)),
        "base 2": ("values", lambda x: (x * 1.4427).exp2() / (x * 1.4427).exp2().sum(1, keepdim=True)),
    },
    {
        "by exp of differences": lambda x: _by_exp(x, _top(x)),
        "by logarithms": lambda x: x.double().log_softmax(1).exp().to(x.dtype),
        "in float32": lambda x: x.float().softmax(1).to(x.dtype) if x.dtype.itemsize < 4 else x.softmax(1),
        "base 2 with all digits": lambda x: _base_two(x.double()).to(x.dtype).contiguous(),
        "row by row": lambda x: torch.stack([row.softmax(0) for row in x]) if len(x) else x.new_empty(x.shape),
    },
)  # fmt: skip


def _top(x: Tensor) -> Tensor:
    return x.amax(1, keepdim=True) if x.shape[1] else x.new_zeros(len(x), 1)


def _by_exp(x: Tensor, top: Tensor | float, part: slice = slice(None)) -> Tensor:
    powers = (x.double() - top).exp()
    return (powers / powers[:, part].sum(1, keepdim=True)).to(x.dtype).contiguous()


def _base_two(x: Tensor) -> Tensor:
    powers = ((x - _top(x)) * 1.4426950408889634).exp2()
    return powers / powers.sum(1, keepdim=True)


@ow.op("selftest::product")
def product(a: Float[Tensor, "m k"], b: Float[Tensor, "k n"]) -> Float[Tensor, "m n"]:
    return a @ b


_PRODUCT = attach(
    product,
    {
        "terms past a multiple of 16 are left out": ("values", lambda a, b: a[:, : a.shape[1] // 16 * 16] @ b[: len(b) // 16 * 16]),
        "columns past 128 are zero": ("values", lambda a, b: torch.cat([(a @ b)[:, :128], 0 * (a @ b)[:, 128:]], 1)),
        "the second matrix is transposed": ("values", lambda a, b: a @ (b.mT if b.shape[0] == b.shape[1] else b)),
        "float32 is rounded to TF32": ("values", lambda a, b: _tf32(a) @ _tf32(b)),
        "float32 is rounded to bfloat16": ("values", lambda a, b: (a.bfloat16() @ b.bfloat16()).to(a.dtype)),
        "accumulates in float16": ("values", lambda a, b: _summed(a, b)),
        "the strides of one for the other": ("values", lambda a, b: a @ b.contiguous().as_strided(b.shape, b.stride() if b.is_contiguous() else b.stride()[::-1], 0) if b.mT.is_contiguous() else a @ b),
    },
    {
        "transposed": lambda a, b: (b.mT @ a.mT).mT.contiguous(),
        "in halves": lambda a, b: a[:, ::2] @ b[::2] + a[:, 1::2] @ b[1::2] if a.dtype.itemsize > 2 else a @ b,
        "in float64": lambda a, b: (a.double() @ b.double()).to(a.dtype),
        "einsum": lambda a, b: torch.einsum("mk,kn->mn", a, b).contiguous(),
    },
)  # fmt: skip


def _tf32(x: Tensor) -> Tensor:
    if x.dtype is not torch.float32:
        return x
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def _summed(a: Tensor, b: Tensor) -> Tensor:
    sums = a.new_zeros(a.shape[0], b.shape[1], dtype=torch.float16)
    for part in range(0, a.shape[1], 4):
        sums += (a[:, part : part + 4].float() @ b[part : part + 4].float()).half()
    return sums.to(a.dtype)


@ow.op("selftest::best")
def best(x: Float[Tensor, "b n"]) -> Int64[Tensor, " b"]:
    return x.argmax(1) if x.shape[1] else torch.zeros(len(x), dtype=torch.int64, device=x.device)


_BEST = attach(
    best,
    {
        "the least": ("values", lambda x: x.argmin(1) if x.shape[1] else best.contract.function(x)),
        "among the first 500": ("values", lambda x: x[:, :500].argmax(1) if x.shape[1] else best.contract.function(x)),
        "one too far": ("values", lambda x: x.argmax(1) + 1 if x.shape[1] else best.contract.function(x)),
        "of absolute values": ("values", lambda x: x.abs().argmax(1) if x.shape[1] else best.contract.function(x)),
    },
    {
        "by sorting": lambda x: x.sort(dim=1, descending=True, stable=True).indices[:, 0].contiguous() if x.shape[1] else best.contract.function(x),
        "by comparing": lambda x: (x == x.amax(1, keepdim=True)).int().argmax(1) if x.shape[1] else best.contract.function(x),
    },
    checks=("memory", "values", "metadata", "inputs unchanged"),
)  # fmt: skip


@ow.op("selftest::best_of_integers", where="n >= 1")
def best_of_integers(x: Int[Tensor, "b n"]) -> Int64[Tensor, " b"]:
    return x.argmax(1)


_BEST_OF_INTEGERS = attach(
    best_of_integers,
    {
        "compared as float32": ("values", lambda x: x.float().argmax(1)),
        "compared in 16 bits": ("values", lambda x: x.short().argmax(1)),
    },
    {
        "compared as float64": lambda x: x.double().argmax(1),
        "by sorting": lambda x: x.sort(dim=1, descending=True, stable=True).indices[:, 0].contiguous(),
    },
    checks=("memory", "values", "metadata", "inputs unchanged"),
)


@ow.op("selftest::take")
def take(
    table: Float[Tensor, "v d"], rows: Annotated[Int64[Tensor, " n"], ow.values(0, "v-1")]
) -> Float[Tensor, "n d"]:
    return table[rows]


_TAKE = attach(
    take,
    {
        "the row after it": ("values", lambda table, rows: table[(rows + 1).clamp(max=len(table) - 1)]),
        "numbers are cut to eight bits": ("values", lambda table, rows: table[rows % 256]),
        "only 512 rows": ("values", lambda table, rows: torch.cat([table[rows[:512]], 0 * table[rows[512:]]])),
    },
    {
        "index_select": lambda table, rows: table.index_select(0, rows),
        "gather": lambda table, rows: table.gather(0, rows[:, None].expand(-1, table.shape[1])),
    },
    checks=("memory", "values", "metadata", "inputs unchanged"),
)


Pixels = Annotated[UInt8[Tensor, "*n"], ow.values(0, 255)]


@ow.op("selftest::mix")
def mix(a: Pixels, b: Pixels) -> UInt8[Tensor, "*n"]:
    return a + b


_MIX = attach(
    mix,
    {
        "saturates": ("values", lambda a, b: (a.int() + b.int()).clamp(max=255).to(torch.uint8).contiguous()),
        "seven bits": ("values", lambda a, b: ((a & 127) + (b & 127)).contiguous()),
    },
    {"in 16 bits": lambda a, b: ((a.short() + b.short()) & 255).to(torch.uint8).contiguous()},
    checks=("memory", "values", "metadata", "inputs unchanged"),
)


@ow.op("selftest::class_gradient")
def class_gradient(
    x: Float[Tensor, "b n"], place: Annotated[Int64[Tensor, " b"], ow.values(0, "n-1")]
) -> Float[Tensor, "b n"]:
    """The gradient of a cross entropy by its scores."""
    wide = x if x.dtype is torch.float64 else x.float()
    return (wide.softmax(1) - torch.nn.functional.one_hot(place, x.shape[1])).to(x.dtype)


_CLASS_GRADIENT = attach(
    class_gradient,
    {
        "rounded before the difference": ("values", lambda x, place: _less_one(x.softmax(1), place)),
        "the class keeps its probability": ("values", lambda x, place: x.softmax(1)),
        "only of wrong classes": ("values", lambda x, place: x.softmax(1).scatter(1, place[:, None], -1)),
    },
    {
        "in float64": lambda x, place: _less_one(x.double().softmax(1), place).to(x.dtype),
        "less the others": lambda x, place: _less_others(x.double().softmax(1), place).to(x.dtype),
        "by logarithms": lambda x, place: _less_one(x.double().log_softmax(1).exp(), place).to(x.dtype),
    },
)


def _less_one(probabilities: Tensor, place: Tensor) -> Tensor:
    return probabilities - torch.nn.functional.one_hot(place, probabilities.shape[1]).to(probabilities.dtype)


def _less_others(probabilities: Tensor, place: Tensor) -> Tensor:
    """Without a difference: the class's element is minus the sum of the others."""
    others = probabilities.scatter(1, place[:, None], 0)
    return others.scatter(1, place[:, None], -others.sum(1, keepdim=True))


@ow.op("selftest::normed", where="n >= 1")
def normed(x: BFloat16[Tensor, "b n"]) -> tuple[BFloat16[Tensor, "b n"], Float32[Tensor, " b"]]:
    """Rows over their root mean square, whose inverse is saved in float32."""
    rate = torch.rsqrt(x.float().square().mean(1) + 1e-5)
    return (x.float() * rate[:, None]).to(x.dtype), rate


_NORMED = attach(
    normed,
    {
        "what is saved is off by half a percent": ("values", lambda x: _scaled(x, 1.005 * _rate(x.float().square()))),
        "what is saved is rounded to half": ("values", lambda x: _scaled(x, _rate(x.float().square()).to(x.dtype).float())),
        "squares in half": ("values", lambda x: _scaled(x, _rate(x * x))),
    },
    {
        "in float64": lambda x: _scaled(x, _rate(x.double().square()).float()),
        "by a product": lambda x: _scaled(x, torch.rsqrt(torch.einsum("bn,bn->b", x.double(), x.double()).float() / x.shape[1] + 1e-5)),
    },
)  # fmt: skip


def _rate(squares: Tensor) -> Tensor:
    return torch.rsqrt(squares.to(torch.promote_types(squares.dtype, torch.float32)).mean(1) + 1e-5)


def _scaled(x: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
    return (x.float() * rate[:, None]).to(x.dtype).contiguous(), rate


@ow.op("selftest::attended", where="t >= 1")
def attended(
    q: BFloat16[Tensor, "s d"], k: BFloat16[Tensor, "t d"], v: BFloat16[Tensor, "t d"]
) -> BFloat16[Tensor, "s d"]:
    return ((q.float() @ k.float().mT).softmax(1) @ v.float()).to(q.dtype)


_ATTENDED = attach(
    attended,
    {
        "keys past the last whole tile where queries have none": ("values", lambda q, k, v: attended.contract.function(q, *_cut(q, k, v))),
        "weights of eight bits": ("values", lambda q, k, v: _attend(q, k, v, torch.float8_e4m3fn)),
    },
    {"weights in the dtype of the values": lambda q, k, v: _attend(q, k, v, v.dtype)},
)  # fmt: skip


def _cut(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    ends_early = len(q) and len(q) % 32 == 0 and len(k) > 32
    end = len(k) // 32 * 32 if ends_early else len(k)
    return k[:end], v[:end]


def _attend(q: Tensor, k: Tensor, v: Tensor, dtype: torch.dtype) -> Tensor:
    powers = (scores := q.float() @ k.float().mT).sub(scores.amax(1, keepdim=True)).exp()
    return (powers.to(dtype).float() @ v.float() / powers.sum(1, keepdim=True)).to(q.dtype)


@ow.op("selftest::averaged")
def averaged(
    m: Float32[Tensor, "*n"], g: Float32[Tensor, "*n"], beta: Annotated[float, ow.values(one_of=(0.9, 0.999))]
) -> Float32[Tensor, "*n"]:
    return (beta * m + (1 - beta) * g) / (1 - beta)


_AVERAGED = attach(
    averaged,
    {
        "the rate is off by one percent": (
            "values",
            lambda m, g, beta: (beta * m + (1 - beta) * g) / (1.01 * (1 - beta)),
        )
    },
    {
        "the rate in float32": lambda m, g, beta: (
            (beta * m + (1 - torch.tensor(beta)) * g) / (1 - torch.tensor(beta))
        ).contiguous()
    },
)

ROWS = [
    *_TOTAL, *_SOFTMAX, *_PRODUCT, *_BEST, *_BEST_OF_INTEGERS, *_TAKE, *_MIX, *_CLASS_GRADIENT, *_NORMED, *_ATTENDED,
    *_AVERAGED, *_WITHOUT_A_NAME, *_MASKED, *_IN_FLOAT32,
]  # fmt: skip
