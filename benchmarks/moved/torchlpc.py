"""torchlpc's kernels for the CPU (https://github.com/DiffAPF/torchlpc) with opwright: in place of its registrations and
``setup.py``. It stands beside the folder ``torchlpc`` of that repository, as ``ops.py``."""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Inexact
from torch import Tensor

import opwright as ow

__all__ = ["lpc", "scan"]

Stable = ow.values(-0.25, 0.25)  # coefficients with which nothing grows without end


@ow.op("torchlpc::scan")
def scan(
    a: Inexact[Tensor, "b t"], b: Annotated[Inexact[Tensor, "b t"], Stable], c: Inexact[Tensor, " b"]
) -> Inexact[Tensor, "b t"]:
    """The states ``s = s * b + a``, from ``c`` on."""
    states = []
    for x, weight in zip(a.unbind(1), b.unbind(1), strict=True):
        c = c * weight + x
        states.append(c)
    return torch.stack(states, 1) if states else torch.empty_like(a)


@ow.op("torchlpc::lpc")
def lpc(
    a: Inexact[Tensor, "b t"], b: Annotated[Inexact[Tensor, "b t order"], Stable], c: Inexact[Tensor, "b order"]
) -> Inexact[Tensor, "b t"]:
    """Each result is ``a`` less the last results, the newest first, times ``b``; before them is ``c``."""
    last, results = c, []
    for x, weights in zip(a.unbind(1), b.unbind(1), strict=True):
        results.append(x - (weights * last).sum(1))
        last = torch.cat([results[-1][:, None], last], 1)[:, : c.shape[1]]
    return torch.stack(results, 1) if results else torch.empty_like(a)


SOURCE = "torchlpc/csrc/scan_cpu.cpp"
DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)


def is_contiguous(a, b, c):
    return a.is_contiguous()  # else the source's own assertion on its result fails


scan.cpp(SOURCE, entry="scan_cpu_wrapper", abi="aten", dtypes=DTYPES, options=["-fopenmp"], when=is_contiguous)
lpc.cpp(SOURCE, entry="lpc_cpu", abi="aten", dtypes=DTYPES, options=["-fopenmp"])
