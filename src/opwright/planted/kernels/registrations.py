"""Rules that an author replaces, and contracts that prove nothing: each has one fault."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributed.tensor import Partial, Placement, Replicate, Shard

import opwright as ow
from opwright.planted.catalogue import Row, correct, planted
from opwright.runtime.op import Op

__all__ = ["OPERATORS", "ROWS"]

_FAKE, _VMAP, _FLOPS, _CONTRACT = ("metadata", "opcheck"), ("vmap",), ("flops",), ("contract",)
_SHARDING = ("sharding",)


def _rows_of(name: str) -> Op:
    """Twice a matrix, row by row."""

    @ow.op(f"selftest_rules::{name}")
    def operator(x: Float[Tensor, "b n"]) -> Float[Tensor, "b n"]:
        return 2 * x

    operator.python(lambda x: (2 * x).contiguous(), name="kernel")
    return operator


def _with_fake(name: str, fake: Any) -> Op:
    operator = _rows_of(name)
    operator.register_fake(fake)
    return operator


def _with_vmap(name: str, rule: Any) -> Op:
    operator = _rows_of(name)
    operator.register_vmap(rule)
    return operator


def _product(name: str) -> Op:
    @ow.op(f"selftest_rules::{name}")
    def operator(a: Float[Tensor, "m k"], b: Float[Tensor, "k n"]) -> Float[Tensor, "m n"]:
        return a @ b

    operator.python(lambda a, b: a @ b, name="kernel")
    return operator


def _with_flops(name: str, count: Any) -> Op:
    operator = _product(name)
    operator.register_flops(count)
    return operator


def _with_sharding(name: str, result: Placement, a: Placement, b: Placement) -> Op:
    operator = _product(name)
    operator.register_sharding(lambda *_: [([result], [a, b])])
    return operator


def _contract(name: str, reference: Any) -> Op:
    @ow.op(f"selftest_rules::{name}")
    def operator(x: Float[Tensor, " n"], a: float) -> Float[Tensor, " n"]:
        result: Tensor = reference(x, a)
        return result

    operator.python(lambda x, a: reference(x, a), name="kernel")
    return operator


def _moved(x: Tensor, dim: int | None) -> Tensor:
    return x if dim is None else x.movedim(dim, 0)


def _rows() -> list[Row]:
    return [
        planted(_with_fake("fake_shape", lambda x: x.new_empty(x.shape[::-1])), "kernel", "metadata", defect="fake: another shape", checks=_FAKE),
        planted(_with_fake("fake_dtype", lambda x: x.new_empty(x.shape, dtype=torch.float64)), "kernel", "metadata", defect="fake: another dtype", checks=_FAKE),
        planted(_with_fake("fake_strides", lambda x: x.new_empty(x.shape[::-1]).mT), "kernel", "metadata", defect="fake: other strides", checks=_FAKE),
        planted(_with_fake("fake_size", lambda x: x.new_empty(x.shape[0], x.shape[1] + (x.shape[1] > 100))), "kernel", "metadata", defect="fake: one column more past 100", checks=_FAKE),
        planted(_with_fake("fake_raises", lambda x: x.no_such_method()), "kernel", "metadata", defect="fake: it raises", checks=_FAKE),
        correct(_with_fake("fake_right", lambda x: x.new_empty(x.shape)), "kernel", defect="fake: as it is", checks=_FAKE),
        correct(_with_fake("fake_like", lambda x: torch.empty_like(x, memory_format=torch.contiguous_format)), "kernel", defect="fake: empty_like", checks=_FAKE),
        planted(_with_vmap("vmap_wrong", lambda info, dims, x: (3 * _moved(x, dims[0]), 0)), "kernel", "vmap", defect="vmap: another value", checks=_VMAP),
        planted(_with_vmap("vmap_dim", lambda info, dims, x: ((2 * _moved(x, dims[0])).contiguous(), 1)), "kernel", "vmap", defect="vmap: another dim", checks=_VMAP),
        planted(_with_vmap("vmap_zero", lambda info, dims, x: (2 * x, 0)), "kernel", "vmap", defect="vmap: the batch is taken for the first dim", checks=_VMAP),
        planted(_with_sharding("sharding_other_dim", Shard(1), Shard(0), Replicate()), "kernel", "sharding", defect="sharding: rows said to be columns", checks=_SHARDING),
        planted(_with_sharding("sharding_no_sum", Replicate(), Shard(1), Shard(0)), "kernel", "sharding", defect="sharding: a sum of parts said to be whole", checks=_SHARDING),
        planted(_with_sharding("sharding_of_both", Partial(), Partial(), Partial()), "kernel", "sharding", defect="sharding: a product of two sums", checks=_SHARDING),
        correct(_with_sharding("sharding_rows", Shard(0), Shard(0), Replicate()), "kernel", defect="sharding: rows", checks=_SHARDING),
        correct(_with_sharding("sharding_sum", Partial(), Shard(1), Shard(0)), "kernel", defect="sharding: a sum of parts", checks=_SHARDING),
        correct(_with_vmap("vmap_right", lambda info, dims, x: ((2 * _moved(x, dims[0])).contiguous(), 0)), "kernel", defect="vmap: as it is", checks=_VMAP),
        planted(_with_flops("flops_half", lambda a, b: a.shape[0] * b.shape[1]), "kernel", "flops", defect="flops: one for each result", checks=_FLOPS),
        planted(_with_flops("flops_zero", lambda a, b: 0), "kernel", "flops", defect="flops: none", checks=_FLOPS),
        correct(_with_flops("flops_right", lambda a, b: 2 * a.shape[0] * a.shape[1] * b.shape[1]), "kernel", defect="flops: two for each term", checks=_FLOPS),
        planted(_contract("zero", lambda x, a: torch.zeros_like(x)), "kernel", "contract", defect="contract: the result is zero", checks=_CONTRACT),
        planted(_contract("constant", lambda x, a: torch.full_like(x, 7)), "kernel", "contract", defect="contract: the result is constant", checks=_CONTRACT),
        planted(_contract("ignored", lambda x, a: 2 * x), "kernel", "contract", defect="contract: an argument does not matter", checks=_CONTRACT),
        planted(_contract("scalar_only", lambda x, a: torch.full_like(x, a)), "kernel", "contract", defect="contract: the tensor does not matter", checks=_CONTRACT),
        correct(_contract("sum_of", lambda x, a: x + a), "kernel", defect="contract: both matter", checks=_CONTRACT),
    ]  # fmt: skip


ROWS = _rows()
OPERATORS = [row.op for row in ROWS]
