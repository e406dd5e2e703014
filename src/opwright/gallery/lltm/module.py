"""The LLTM cell as modules: a plain one, and one behind which any kernel can stand."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opwright import Op
from opwright.gallery.lltm import lltm, lltm_with
from opwright.gallery.lltm.graphs import Graphs

__all__ = ["LLTM", "ReferenceLLTM"]

State = tuple[Tensor, Tensor]


class ReferenceLLTM(nn.Module):
    """The cell in plain PyTorch, as one would write it.

    Args:
        input_features: i, the columns of ``x`` (b × i).
        state_size: s, the columns of ``h`` and ``c`` (b × s).
    """

    def __init__(self, input_features: int, state_size: int) -> None:
        super().__init__()
        self.input_features = input_features
        self.state_size = state_size
        self.weights = nn.Parameter(torch.empty(3 * state_size, state_size + input_features))
        self.bias = nn.Parameter(torch.empty(3 * state_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform within ± 1/√s."""
        bound = 1 / math.sqrt(max(self.state_size, 1))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, x: Tensor, state: State) -> State:
        """The next (h, c)."""
        h, c = state
        gates = F.linear(torch.cat((h, x), 1), self.weights, self.bias)
        input_gate, output_gate, candidate = gates.chunk(3, 1)
        c = c + F.elu(candidate) * torch.sigmoid(input_gate)
        return torch.tanh(c) * torch.sigmoid(output_gate), c

    def extra_repr(self) -> str:
        return f"{self.input_features}, {self.state_size}"


def operator_for(kernel: str | None) -> Op:
    """The cell with one kernel, or with the first that fits."""
    return lltm if kernel is None else lltm_with(kernel)


class LLTM(ReferenceLLTM):
    """The same with opwright's kernels; parameters and ``state_dict`` are the plain module's.

    In a region with autocast it computes in autocast's dtype, state included, as ``torch.nn.LSTMCell`` does.

    Args:
        kernel: the name of a kernel (``"triton"``, ``"cuda"``, …) that is to run, forward and backward; otherwise the
            first that fits.
        cuda_graph: replay each step, forward and backward, as CUDA graphs (see ``graphs.py``).

    Raises:
        ValueError: there is no such kernel.
    """

    def __init__(
        self, input_features: int, state_size: int, *, kernel: str | None = None, cuda_graph: bool = False
    ) -> None:
        super().__init__(input_features, state_size)
        self.kernel = kernel
        self._operator = operator_for(kernel)
        self._graphs = Graphs() if cuda_graph else None

    def forward(self, x: Tensor, state: State) -> State:
        """The next (h, c)."""
        if self._graphs is not None and not torch.compiler.is_compiling():  # which has CUDA graphs of its own
            h, c = self._graphs(self._operator, x, self.weights, self.bias, *state)
        else:
            h, c = self._operator(x, self.weights, self.bias, *state)
        return h, c

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_operator"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._operator = operator_for(self.kernel)

    def extra_repr(self) -> str:
        chosen = f", kernel={self.kernel!r}" if self.kernel else ""
        return super().extra_repr() + chosen + (", cuda_graph=True" if self._graphs is not None else "")
