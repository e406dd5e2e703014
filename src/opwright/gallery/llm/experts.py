"""A mixture of experts: routes, tokens in the order of their experts, a product for each, and back; in Triton."""

from typing import Annotated

import torch
import torch.nn.functional as F
from jaxtyping import Float32, Int32
from torch import Tensor

import opwright as ow
from opwright.gallery.llm.floats import Floats

__all__ = [
    "combine", "combine_backward", "grouped_mm", "grouped_mm_weights", "permute", "route", "sort_by_expert",
]  # fmt: skip


# -- routes ------------------------------------------------------------------------------------------------------


@ow.op("llm::route", where=["1 <= k <= e", "e <= 1024"])
def route(
    logits: Annotated[Floats[Tensor, "t e"], ow.values(finite=True)],
    k: Annotated[int, ow.values(1, 4)],
    renormalised: bool = True,
) -> tuple[Float32[Tensor, "t k"], Annotated[Int32[Tensor, "t k"], ow.by_property]]:
    """The k largest of each token's ``softmax(logits)``, in descending order, and their experts.

    Renormalised, the weights of a token have the sum 1. Of equal logits, any may be chosen.
    """
    shares, experts = logits.float().softmax(-1).topk(k)
    return shares / shares.sum(-1, keepdim=True) if renormalised else shares, experts.to(torch.int32)


@route.register_property
def the_experts_have_the_largest_logits(logits, k, result1):
    chosen = logits.gather(1, result1.long())
    return chosen == logits.topk(k).values


@route.register_property
def the_experts_of_a_token_differ(result1):
    ordered = result1.sort(-1).values
    return ordered[:, 1:] != ordered[:, :-1]


def keep_route(ctx, inputs, output):
    logits, _, ctx.renormalised = inputs
    ctx.save_for_backward(logits, *output)


def route_gradient(ctx, grad, _):
    logits, weights, experts = ctx.saved_tensors
    experts = experts.long()
    if ctx.renormalised:  # a softmax of the chosen logits; differences of pairs do not cancel where a weight is near 1
        pairs = grad[:, :, None] - grad[:, None, :]
        change = weights * (weights[:, None, :] * pairs).sum(-1)
        return torch.zeros_like(logits).scatter(1, experts, change.to(logits.dtype)), None, None
    shares = logits.float().softmax(-1)
    above = torch.zeros_like(shares).scatter(1, experts, grad)
    return (shares * (above - (above * shares).sum(-1, keepdim=True))).to(logits.dtype), None, None


route.register_autograd(route_gradient, setup_context=keep_route)


# -- tokens in the order of their experts ------------------------------------------------------------------------


@ow.op("llm::sort_by_expert", where=["t*k < 2**31", "1 <= count <= 1024"])
def sort_by_expert(
    experts: Annotated[Int32[Tensor, "t k"], ow.values(0, "count-1")], count: Annotated[int, ow.values(1, 70)]
) -> tuple[Int32[Tensor, "t k"], Int32[Tensor, " t*k"], Int32[Tensor, " count+1"]]:
    """Pairs of a token and an expert, sorted by expert; those of one expert stay in order.

    Returns the place of each pair, the pair at each place (``token · k + j``), and where each expert's places begin,
    with the number of pairs at the end.
    """
    order = experts.flatten().sort(stable=True).indices
    places = torch.empty_like(order).scatter(0, order, torch.arange(len(order), device=order.device))
    sizes = (experts.reshape(-1, 1) == torch.arange(count, device=order.device)).sum(0)
    offsets = F.pad(sizes.cumsum(0), (1, 0))
    return places.reshape(experts.shape).to(torch.int32), order.to(torch.int32), offsets.to(torch.int32)


def permutation(shape, generator):
    return torch.randperm(shape[0] * shape[1], generator=generator).reshape(shape)


Places = Annotated[Int32[Tensor, "t k"], ow.inputs.drawn_by(permutation)]


@ow.op("llm::permute", where="1 <= k")
def permute(x: Floats[Tensor, "t d"], places: Places) -> Floats[Tensor, "t*k d"]:
    """Each token's row at all of its places."""
    (t, k), d = places.shape, x.shape[1]
    index = places.reshape(-1, 1).long().expand(-1, d)
    return x.new_zeros(t * k, d).scatter(0, index, x.repeat_interleave(k, 0))


@ow.op("llm::combine", where="1 <= k")
def combine(y: Floats[Tensor, "t*k d"], weights: Float32[Tensor, "t k"], places: Places) -> Floats[Tensor, "t d"]:
    """The weighted sum of the rows at each token's places."""
    return (y[places.long()].float() * weights[..., None]).sum(1).to(y.dtype)


@ow.op("llm::combine_backward", where="1 <= k")
def combine_backward(
    grad: Floats[Tensor, "t d"], y: Floats[Tensor, "t*k d"], weights: Float32[Tensor, "t k"], places: Places
) -> tuple[Floats[Tensor, "t*k d"], Float32[Tensor, "t k"]]:
    """The gradients of the rows and of the weights."""
    rows = (grad.float()[:, None] * weights[..., None]).flatten(0, 1).to(y.dtype)
    index = places.reshape(-1, 1).long().expand(-1, y.shape[1])
    grad_weights = (grad.float()[:, None] * y[places.long()].float()).sum(-1)
    return torch.zeros_like(y).scatter(0, index, rows), grad_weights


def keep_places(ctx, inputs, output):
    ctx.save_for_backward(inputs[1])


def permute_gradient(ctx, grad):
    (places,) = ctx.saved_tensors
    ones = torch.ones(places.shape, dtype=torch.float32, device=places.device)
    return combine(grad, ones, places), None


def keep_inputs(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def combine_gradient(ctx, grad):
    return *combine_backward(grad, *ctx.saved_tensors), None


permute.register_autograd(permute_gradient, setup_context=keep_places)
combine.register_autograd(combine_gradient, setup_context=keep_inputs)


# -- a product for each expert -----------------------------------------------------------------------------------

Offsets = Annotated[Int32[Tensor, " e+1"], ow.inputs.offsets("s")]


@ow.op("llm::grouped_mm", where="1 <= e <= 1024")
def grouped_mm(x: Floats[Tensor, "s d"], weights: Floats[Tensor, "e n d"], offsets: Offsets) -> Floats[Tensor, "s n"]:
    """``x[i] @ weights[expert of i].t()``. Expert j has the rows from ``offsets[j]`` up to ``offsets[j + 1]``."""
    of_all = (x @ weights.flatten(0, 1).t()).unflatten(1, weights.shape[:2])
    return of_all[torch.arange(len(x), device=x.device), expert_of(x, offsets)]


def expert_of(rows: Tensor, offsets: Tensor) -> Tensor:
    return torch.bucketize(torch.arange(len(rows), device=rows.device), offsets[1:].contiguous(), right=True)


@ow.op("llm::grouped_mm_weights", where="2 <= bounds <= 1025")
def grouped_mm_weights(
    grad: Annotated[Floats[Tensor, "s n"], ow.values(finite=True)],
    x: Annotated[Floats[Tensor, "s d"], ow.values(finite=True)],
    offsets: Annotated[Int32[Tensor, " bounds"], ow.inputs.offsets("s")],
) -> Floats[Tensor, "bounds-1 n d"]:
    """The gradient of the weights: ``grad[rows].t() @ x[rows]`` of each expert's rows."""
    own = expert_of(x, offsets)[:, None] == torch.arange(len(offsets) - 1, device=x.device)
    of_experts = torch.where(own[:, :, None], grad[:, None], 0)
    return (of_experts.flatten(1).t() @ x).unflatten(0, of_experts.shape[1:])


def grouped_gradient(ctx, grad):
    x, weights, offsets = ctx.saved_tensors
    return grouped_mm(grad, weights.transpose(1, 2), offsets), grouped_mm_weights(grad, x, offsets), None


grouped_mm.register_autograd(grouped_gradient, setup_context=keep_inputs)

for operator in (route, sort_by_expert, permute, combine, combine_backward, grouped_mm, grouped_mm_weights):
    operator.triton("kernels/experts_triton.py", entry=operator.contract.name)

route.sizes(t=(4096, 16_384), e=(8, 64))
permute.sizes(t=(4096,), k=(2, 8), d=(4096,))
combine.sizes(t=(4096,), k=(2, 8), d=(4096,))
grouped_mm.sizes(s=(8192,), e=(8,), n=(14_336,), d=(4096,))
