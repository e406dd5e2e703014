"""The candidates of a benchmark: an operator with one kernel, its reference, eager and compiled; both directions."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from opwright import tree
from opwright.contract import derive
from opwright.contract.contract import Contract
from opwright.contract.inputs.arguments import arguments_of
from opwright.contract.inputs.case import Case
from opwright.runtime.baselines import Baseline
from opwright.runtime.languages import REFERENCE
from opwright.runtime.op import Op

__all__ = [
    "BackwardState",
    "Candidate",
    "backward_of",
    "baseline_candidate",
    "compiled_reference",
    "input_sets",
    "kernel_candidate",
    "plain_reference",
]

# One call's arguments, in signature order.
Arguments = tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Candidate:
    """A candidate of a benchmark. ``prepared`` is a context for its samples; ``run`` calls it with arguments."""

    name: str
    backend: str
    run: Callable[[Any], Any]
    prepared: Callable[[], contextlib.AbstractContextManager[Any]] = field(default=contextlib.nullcontext)
    # Makes the arguments for the capture of a CUDA graph, on the stream of the capture; None if no others are needed.
    # (Autograd runs a backward on the stream of its forward, so the forward must run on that stream.)
    for_capture: Callable[[], Any] | None = None


def kernel_candidate(operator: Op, name: str) -> Candidate:
    """The operator as a user calls it, with one kernel."""
    signature = operator.contract.signature

    def run(arguments: Arguments) -> Any:
        return signature.call(operator, arguments)

    return Candidate(name, operator.kernels[name].backend, run, prepared=lambda: operator.only(name))


def baseline_candidate(operator: Op, baseline: Baseline) -> Candidate:
    """A baseline, called directly."""
    signature = operator.contract.signature

    def run(arguments: Arguments) -> Any:
        return signature.call(baseline.function, arguments)

    return Candidate(baseline.name, "baseline", run)


def plain_reference(operator: Op) -> Candidate:
    """The reference in eager mode."""
    contract = operator.contract

    def run(arguments: Arguments) -> Any:
        return contract.visible(contract.pack(contract.reference(arguments)))

    if contract.signature.language == "torch":

        def run(arguments: Arguments) -> Any:  # without opwright's own steps around it
            return contract.visible(contract.signature.call(contract.function, arguments))

    return Candidate(REFERENCE, contract.signature.language, run)


def compiled_reference(operator: Op) -> Candidate:
    """The reference under torch.compile with static shapes, its fastest setting by default."""
    contract = operator.contract

    function = contract.function
    if contract.signature.language == "numpy":
        function = torch.compiler.wrap_numpy(function)

    def reference(*arguments: Any) -> Any:
        return contract.visible(contract.signature.call(function, arguments))

    compiled = torch.compile(reference, dynamic=False)

    def run(arguments: Arguments) -> Any:
        return compiled(*arguments)

    return Candidate("torch.compile", "inductor", run)


def input_sets(operator: Op, case: Case, device: str, cache_bytes: int, most_bytes: int) -> list[Arguments]:
    """Sets of arguments with values and addresses of their own, together at least five times the cache.

    With fewer, a kernel would find inputs in the cache that a real program has to fetch. At least two, at most 64.
    """
    first = arguments_of(operator.contract, case, device)
    each = max(1, derive.least_bytes(operator.contract, first))
    count = max(2, min(64, -(-5 * cache_bytes // each), most_bytes // each))
    if case.sample is not None:  # what holds between the author's values is not known
        return [first, *(tuple(tree.map_tensors(torch.clone, list(first))) for _ in range(1, count))]
    return [first, *(_fresh_values(operator.contract, first, seed) for seed in range(1, count))]


def _fresh_values(contract: Contract, arguments: Arguments, seed: int) -> Arguments:
    """Other values from the same distribution, at another address: the same elements, rolled; the same tensor, if its
    elements go together (offsets, sorted ones)."""

    def roll(t: torch.Tensor) -> torch.Tensor:
        return t.flatten().roll(37 * seed).view(t.shape)

    arranged = [a.goes_together for a in contract.signature.arguments]
    return tuple(
        tree.map_tensors(torch.clone if together else roll, argument)
        for argument, together in zip(arguments, arranged, strict=True)
    )


class BackwardState(NamedTuple):
    """The state after a forward. ``incoming``: a gradient or None for each output. ``grads``: those of ``outputs``."""

    outputs: list[torch.Tensor]
    tracked: list[torch.Tensor]
    grads: list[torch.Tensor]
    incoming: list[torch.Tensor | None]


def backward_of(
    contract: Contract, candidate: Candidate, sets: Sequence[Arguments]
) -> tuple[Candidate, list[BackwardState]] | None:
    """The backward pass alone, after a forward whose graph is kept. None if no output has a gradient."""
    prepared: list[BackwardState] = []
    for arguments in sets:
        state = _run_forward(contract, candidate, arguments)
        if state is None:
            return None
        prepared.append(state)

    def run(state: BackwardState) -> Any:
        outputs, tracked, grads, _ = state
        return torch.autograd.grad(outputs, tracked, grads, retain_graph=True, allow_unused=True)

    for_capture = functools.partial(_run_forward, contract, candidate, sets[0])
    return Candidate(candidate.name, candidate.backend, run, candidate.prepared, for_capture), prepared


def _run_forward(contract: Contract, candidate: Candidate, arguments: Arguments) -> BackwardState | None:
    inputs = derive.leaves(contract, arguments)
    with candidate.prepared():
        every = tree.leaves(candidate.run(tuple(inputs)))
    incoming = [_gradient_like(o, i) if derive.differentiable(o) else None for i, o in enumerate(every)]
    pairs = [(o, g) for o, g in zip(every, incoming, strict=True) if g is not None and o.requires_grad]
    tracked = [t for t in tree.tensors(inputs) if t.requires_grad]
    if not pairs or not tracked:
        return None
    return BackwardState([o for o, _ in pairs], tracked, [g for _, g in pairs], incoming)


def _gradient_like(output: torch.Tensor, seed: int) -> torch.Tensor:
    """An incoming gradient, the same for every candidate, so that their gradients can be compared."""
    generator = torch.Generator(output.device).manual_seed(seed)
    return torch.randn(output.shape, dtype=output.dtype, device=output.device, generator=generator)
