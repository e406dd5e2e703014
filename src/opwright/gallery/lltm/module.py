"""The LLTM cell as modules: in plain PyTorch, and with any of opwright's kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import opwright as ow
from opwright.gallery.lltm import lltm, lltm_with

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


class LLTM(ReferenceLLTM):
    """The same with opwright's kernels; parameters and ``state_dict`` are the plain module's.

    In a region with autocast it computes in autocast's dtype, state included, as ``torch.nn.LSTMCell`` does.

    Args:
        kernel: the name of the kernel (``"triton"``, ``"cuda"``, …) that runs, forward and backward (default: the first
            that is applicable).
        cuda_graph: replay each step, forward and backward, as CUDA graphs (``ow.cuda_graphed``).

    Raises:
        KernelError: there is no such kernel.
    """

    def __init__(
        self, input_features: int, state_size: int, *, kernel: str | None = None, cuda_graph: bool = False
    ) -> None:
        super().__init__(input_features, state_size)
        self.kernel = kernel
        self.cuda_graph = cuda_graph
        self._step = self._make_step()

    def _make_step(self) -> Callable[..., Any]:
        operator = lltm if self.kernel is None else lltm_with(self.kernel)
        return ow.cuda_graphed(operator) if self.cuda_graph else operator

    def forward(self, x: Tensor, state: State) -> State:
        """The next (h, c)."""
        h, c = self._step(x, self.weights, self.bias, *state)
        return h, c

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_step"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._step = self._make_step()  # a copy captures its own graphs

    def extra_repr(self) -> str:
        chosen = f", kernel={self.kernel!r}" if self.kernel else ""
        return super().extra_repr() + chosen + (", cuda_graph=True" if self.cuda_graph else "")
