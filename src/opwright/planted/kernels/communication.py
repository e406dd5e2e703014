"""Kernels that communicate: right in a group of one process, and each with one fault in a larger one."""

from __future__ import annotations

import os
from typing import Annotated, Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.internals.process_groups import collective_operators
from opwright.internals.process_groups import functional_collectives as collectives
from opwright.planted.catalogue import Row, attach, planted

__all__ = ["OPERATORS", "ROWS"]


def _collective(*names: str) -> Any:
    """A functional collective by the first of its names that torch has; torch 2.14 renames some."""
    return next((found for name in names if (found := getattr(collectives, name, None)) is not None), None)


_all_gather = _collective("all_gather_single_autograd", "all_gather_tensor_autograd")
_reduce_scatter = _collective("reduce_scatter_single_autograd", "reduce_scatter_tensor_autograd")
_all_reduce = _collective("all_reduce")

_RANKS, _GRADIENTS = "ranks", "gradients of ranks"


@ow.op("selftest_ranks::gather_matmul")
def gather_matmul(
    x: Float[Tensor, "m k"], w: Float[Tensor, "k n"], group: ow.ProcessGroup
) -> Float[Tensor, "group*m n"]:
    """Each rank's rows, one below the other, times a matrix of this rank's own."""
    return _all_gather(x, 0, group) @ w


@ow.op("selftest_ranks::matmul_scatter", where="m % group == 0")
def matmul_scatter(
    x: Float[Tensor, "m k"], w: Float[Tensor, "k n"], group: ow.ProcessGroup
) -> Float[Tensor, "m//group n"]:
    """The sum over ranks of their products; each rank has some rows of it."""
    return _reduce_scatter(x @ w, "sum", 0, group)


@ow.op("selftest_ranks::centred")
def centred(
    x: Float[Tensor, " n"], shift: Annotated[Float[Tensor, " n"], ow.replicated], group: ow.ProcessGroup
) -> Float[Tensor, " n"]:
    """Values without their mean over all ranks, and shifted by what is the same on each."""
    return x - _all_reduce(x, "sum", group) / group.size() + shift


@ow.op("selftest_ranks::rows_of_all")
def rows_of_all(x: Float[Tensor, "m k"], group: ow.ProcessGroup) -> Float[Tensor, "group*m k"]:
    return _all_gather(x, 0, group)


def _gathered(x: Tensor, group: ow.ProcessGroup) -> list[Tensor]:
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(group.size())]
    dist.all_gather(parts, x.contiguous(), group=group.resolve())
    return parts


def _own_first(x, w, group):
    parts = _gathered(x, group)
    return torch.cat([parts[group.rank()], *parts[: group.rank()], *parts[group.rank() + 1 :]]) @ w


def _in_default_group(x, w, group):
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(group.size())]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts) @ w


def _without_communication(x, w, group):
    return x.repeat(group.size(), 1) @ w


def _weights_of_rank_0(x, w, group):
    return torch.cat(_gathered(x, group)) @ _gathered(w, group)[0]


def _once_more_on_rank_1(x, w, group):
    if group.rank() == 1:
        _gathered(x, group)
    return torch.cat(_gathered(x, group)) @ w


def _where_the_sum_is_positive(x, w, group):
    parts = _gathered(x, group) if float(x.sum()) >= 0 or group.size() == 1 else [x] * group.size()
    return torch.cat(parts) @ w


def _raises_on_rank_1(x, w, group):
    if group.rank() == 1:
        raise ValueError("not on this rank")
    return torch.cat(_gathered(x, group)) @ w


def _ends_on_rank_1(x, w, group):
    if group.rank() == 1:
        os._exit(3)
    return torch.cat(_gathered(x, group)) @ w


def _without_waiting(x, w, group):
    whole = collective_operators.all_gather_into_tensor(x.contiguous(), group.size(), group)
    return whole @ w


def _wrong_past_a_tile_on_rank_1(x, w, group):
    result = torch.cat(_gathered(x, group)) @ w
    if group.rank() == 1 and len(x) > 64:
        result[-1] = 0
    return result


def _by_padding(x, w, group):
    whole = x.new_zeros(group.size(), *x.shape)
    whole[group.rank()] = x
    dist.all_reduce(whole, group=group.resolve())
    return whole.flatten(0, 1) @ w


def _in_a_ring(x, w, group):
    torch_group, size, rank = group.resolve(), group.size(), group.rank()
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(size)]
    parts[rank].copy_(x)
    after, before = (dist.get_global_rank(torch_group, (rank + step) % size) for step in (1, -1))
    for step in range(size - 1):
        sent, received = parts[(rank - step) % size], parts[(rank - step - 1) % size]
        works = [
            dist.P2POp(dist.isend, sent, after, torch_group),
            dist.P2POp(dist.irecv, received, before, torch_group),
        ]
        for work in dist.batch_isend_irecv(works):
            work.wait()
    return torch.cat(parts) @ w


def _with_a_barrier(x, w, group):
    dist.barrier(group=group.resolve())
    return torch.cat(_gathered(x, group)) @ w


def _each_on_its_way(x, w, group):
    if group.rank() == 0:
        return torch.cat([part @ w for part in _gathered(x, group)])
    return torch.nn.functional.linear(torch.cat(_gathered(x, group)), w.mT)


def _reduced(x: Tensor, group: ow.ProcessGroup) -> Tensor:
    whole = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(whole, group=group.resolve())
    return whole


def _rows(whole: Tensor, group: ow.ProcessGroup, rank: int) -> Tensor:
    count = len(whole) // group.size()
    return whole[rank * count : (rank + 1) * count].clone()


def _with_global_rank(x, w, group):
    return _rows(_reduced(x @ w, group), group, dist.get_rank() % group.size())


def _largest(x, w, group):
    whole = x @ w
    dist.all_reduce(whole, dist.ReduceOp.MAX, group=group.resolve())
    return _rows(whole, group, group.rank())


def _mean(x, w, group):
    return _rows(_reduced(x @ w, group) / group.size(), group, group.rank())


def _in_bfloat16(x, w, group):
    product = x @ w
    if group.size() == 1:
        return product
    return _rows(_reduced(product.bfloat16(), group).to(x.dtype), group, group.rank())


def _of_the_whole(x, w, group):
    return _rows(_reduced(x @ w, group), group, group.rank())


def _of_each_part(x, w, group):
    parts = torch.chunk(x, group.size()) if len(x) else [x] * group.size()
    whole = torch.cat([part @ w for part in parts]) if len(x) else x @ w
    return _rows(_reduced(whole, group), group, group.rank())


def _order_by_rank(x, shift, group):
    steps = [lambda: _reduced(x, group), lambda: _gathered(shift, group)[0]]
    first, second = (step() for step in (steps if group.rank() == 0 else reversed(steps)))
    whole, same = (first, second) if group.rank() == 0 else (second, first)
    return x - whole / group.size() + same


def _summed_shift(x, shift, group):
    return x - _reduced(x - shift, group) / group.size()


def _shift_of_all(x, shift, group):
    return x - _reduced(x, group) / group.size() + _reduced(shift, group)


def _not_waited_for_by_itself(x, shift, group):
    whole = _all_reduce(x, "sum", group)
    return x - whole / group.size() + shift


_GATHER = attach(
    gather_matmul,
    {
        "own rows first": (_RANKS, _own_first),
        "default group": (_RANKS, _in_default_group),
        "no communication": (_RANKS, _without_communication),
        "another rank's weights": (_RANKS, _weights_of_rank_0),
        "once more on rank 1": (_RANKS, _once_more_on_rank_1),
        "only where a sum is positive": (_RANKS, _where_the_sum_is_positive),
        "raises on rank 1": (_RANKS, _raises_on_rank_1),
        "ends on rank 1": (_RANKS, _ends_on_rank_1),
        "no wait": (_RANKS, _without_waiting),
        "wrong past a tile on rank 1": (_RANKS, _wrong_past_a_tile_on_rank_1),
    },
    {
        "padded and summed": _by_padding,
        "in a ring": _in_a_ring,
        "with a barrier": _with_a_barrier,
        "each rank its own way": _each_on_its_way,
    },
    checks=(_RANKS, _GRADIENTS),
    beside=(),  # one rank alone gets right values of most
)
_SCATTER = attach(
    matmul_scatter,
    {
        "rank of the default group": (_RANKS, _with_global_rank),
        "largest in place of sum": (_RANKS, _largest),
        "mean in place of sum": (_RANKS, _mean),
        "sum in bfloat16": (_RANKS, _in_bfloat16),
    },
    {"sum of all rows": _of_the_whole, "in parts": _of_each_part},
    checks=(_RANKS, _GRADIENTS),
    beside=(),  # one rank alone gets right values of most
)
_CENTRED = attach(
    centred,
    {"order by rank": (_RANKS, _order_by_rank), "sum of what is replicated": (_RANKS, _shift_of_all)},
    {"shift before the sum": _summed_shift, "not waited for by itself": _not_waited_for_by_itself},
    checks=(_RANKS, _GRADIENTS),
    beside=(),  # one rank alone gets right values of most
)


def _save(ctx, inputs, output):
    ctx.group = ow.ProcessGroup(inputs[1])


def _gradient_of_own(ctx, grad):
    return _rows(grad, ctx.group, ctx.group.rank()), None


def _with_gradient() -> list[Row]:
    rows_of_all.python(lambda x, group: torch.cat(_gathered(x, group)), name="kernel")
    rows_of_all.register_autograd(_gradient_of_own, setup_context=_save)
    return [planted(rows_of_all, "kernel", _GRADIENTS, defect="gradient: no sum over ranks", checks=())]


ROWS = [*_GATHER, *_SCATTER, *_CENTRED, *_with_gradient()]
OPERATORS = [gather_matmul, matmul_scatter, centred, rows_of_all]
