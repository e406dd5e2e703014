"""AdamW of lists of tensors, in place: one launch for all of them, in CUDA C++."""

import itertools
import math
from typing import TYPE_CHECKING, Annotated

import torch
from jaxtyping import AbstractDtype
from torch import Tensor

import opwright as ow
from opwright.gallery.llm.floats import CPP_TYPE, Floats

__all__ = ["adamw_"]

CHUNK = 4096  # as in adamw.cu

if TYPE_CHECKING:
    from jaxtyping import Float as Moments
else:

    class Moments(AbstractDtype):
        """Float32, or half of its memory with an error of up to 0.4 %."""

        dtypes = ["float32", "bfloat16"]  # noqa: RUF012  # as jaxtyping reads it


@ow.op("llm::adamw_")
@torch.no_grad()
def adamw_(
    parameters: Annotated[list[Floats[Tensor, "?n"]], ow.mutated],
    gradients: list[Floats[Tensor, "?n"]],
    first: Annotated[list[Moments[Tensor, "?n"]], ow.mutated],
    second: Annotated[list[Moments[Tensor, "?n"]], ow.mutated, ow.values(0, 1)],
    step: Annotated[int, ow.values(1, 50)],
    rate: Annotated[float, ow.values(1e-3, 0.1)] = 1e-3,
    beta1: Annotated[float, ow.values(0.5, 0.99)] = 0.9,
    beta2: Annotated[float, ow.values(0.9, 0.999)] = 0.999,
    eps: Annotated[float, ow.values(1e-8, 1e-2)] = 1e-8,
    decay: Annotated[float, ow.values(0, 0.5)] = 0.01,
) -> None:
    """One step of AdamW with decoupled weight decay. ``step`` is 1 in the first call, and corrects the moments' bias.

    A step is computed in float32, and what is kept is rounded. Pass flat views: ``p.detach().view(-1)``.
    """
    for p, g, m, v in zip(parameters, gradients, first, second, strict=True):
        mean = m.float().lerp(g.float(), 1 - beta1)
        square = v.float().lerp(g.float().square(), 1 - beta2)
        root = (square / (1 - beta2**step)).sqrt() + eps
        p.copy_(p.float() * (1 - rate * decay) - rate / (1 - beta1**step) * mean / root)
        m.copy_(mean)
        v.copy_(square)


in_cuda = ow.cuda_module("kernels/adamw.cu")


@adamw_.cuda(name="cuda")
def _(parameters, gradients, first, second, step, rate, beta1, beta2, eps, decay):
    lists = [[t if t.is_contiguous() else t.contiguous() for t in ts] for ts in (parameters, gradients, first, second)]
    sizes = [t.numel() for t in parameters]
    first_blocks = [0, *itertools.accumulate(ow.cdiv(size, CHUNK) for size in sizes)]
    rates = 1 - rate * decay, rate / (1 - beta1**step), 1 / math.sqrt(1 - beta2**step), eps
    types = f"{CPP_TYPE[parameters[0].dtype]}, {CPP_TYPE[first[0].dtype]}"
    in_cuda[f"adamw<{types}>"][first_blocks[-1], 256](
        [t for ts in lists for t in ts], sizes, first_blocks[:-1], len(parameters), beta1, beta2, *rates
    )
    for given, used in zip((parameters, first, second), (lists[0], *lists[2:]), strict=True):
        for old, new in zip(given, used, strict=True):
            if new is not old:  # it had gaps
                old.copy_(new)
