"""What a case of the corpus is: a published function and a reference in torch, on the same inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["CASES", "Case", "both", "case", "difference", "same_module"]

# Of the largest element. Where tensor cores cut operands to tf32 (by up to 2⁻¹⁰), as ``tl.dot`` does by default, or
# where a library computes in bfloat16, sums differ by more.
FLOAT32, TF32, BFLOAT16 = 1e-4, 6e-3, 3e-2
GENERATIONS = {"Blackwell": (10, 0)}  # by their compute capability


@dataclass(frozen=True)
class Case:
    """``run`` returns the largest difference relative to the largest element; at most ``tolerance`` is right.

    Attributes:
        by_address: its kernels get addresses as numbers, which are a GPU's or the CPU's.
        needs: the generation of GPUs that it is written for, where it is not Hopper; the simulator runs it anywhere.
        faulty: what is wrong with the published kernel, read by hand.
    """

    name: str
    run: Callable[[], float]
    tolerance: float
    by_address: bool = False
    needs: str = ""
    faulty: str = ""

    def why_not_on(self, capability: tuple[int, int]) -> str:
        """Why a GPU of this compute capability does not make its launches, too; empty if it does."""
        if self.faulty:
            return "is faulty"
        if self.by_address:
            return "gets addresses"
        return f"needs {self.needs}" if self.needs and capability < GENERATIONS[self.needs] else ""


CASES: dict[str, Case] = {}


def case(
    name: str, tolerance: float = FLOAT32, *, by_address: bool = False, needs: str = "", faulty: str = ""
) -> Callable[[Callable[[], float]], Callable[[], float]]:
    """Add a case; its name begins with that of the library."""

    def add(run: Callable[[], float]) -> Callable[[], float]:
        assert name not in CASES, name
        CASES[name] = Case(name, run, tolerance, by_address, needs, faulty)
        return run

    return add


def difference(ours: Any, theirs: Any) -> float:
    """Of tensors, or of lists of them."""
    pairs = list(zip(_listed(ours), _listed(theirs), strict=True))
    assert pairs
    worst = 0.0
    for got, expected in pairs:
        assert got.shape == expected.shape, f"a result of {list(got.shape)}, expected {list(expected.shape)}"
        a, b = got.detach().double(), expected.detach().double()
        relative = ((a - b).abs().max() / b.abs().max().clamp(min=1e-9)).item()
        worst = max(worst, relative if relative == relative else float("inf"))
    return worst


def both(ours: Callable[..., Any], theirs: Callable[..., Any], *inputs: Tensor, backward: bool = True) -> float:
    """The difference of outputs, and of the gradients of all inputs."""
    return difference(_run(ours, inputs, backward=backward), _run(theirs, inputs, backward=backward))


def same_module(ours: nn.Module, theirs: nn.Module, x: Tensor) -> float:
    """The difference of two modules with the same parameters: outputs, gradients, parameters' gradients and buffers."""
    ours.load_state_dict({name: value.clone() for name, value in theirs.state_dict().items()}, strict=False)

    def step(module: nn.Module) -> list[Tensor]:
        given = x.clone().requires_grad_()
        out = module(given)
        out.backward(_incoming(out))
        gradients = [p.grad for p in module.parameters() if p.grad is not None]
        assert given.grad is not None
        return [out, given.grad, *gradients, *(b for b in module.buffers() if b.is_floating_point())]

    return difference(step(ours), step(theirs))


def _run(function: Callable[..., Any], inputs: Iterable[Tensor], *, backward: bool) -> list[Tensor]:
    given = [t.detach().clone().requires_grad_(backward and t.is_floating_point()) for t in inputs]
    outputs = [t for t in _listed(function(*given)) if t.is_floating_point()]
    tracked = [t for t in outputs if t.requires_grad]
    if not backward or not tracked:
        return outputs
    inputs_tracked = [t for t in given if t.requires_grad]
    found = torch.autograd.grad(tracked, inputs_tracked, list(map(_incoming, tracked)), allow_unused=True)
    gradients = [torch.zeros_like(t) if g is None else g for t, g in zip(inputs_tracked, found, strict=True)]
    return [*outputs, *gradients]


def _incoming(output: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(output.shape, generator=generator).to(output.dtype)


def _listed(found: Any) -> list[Tensor]:
    return [t for t in found if isinstance(t, Tensor)] if isinstance(found, list | tuple) else [found]
