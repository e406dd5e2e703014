"""Which kernel runs: the first one attached whose domain holds, else the reference."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from opwright.contract.binding import bind
from opwright.contract.contract import Contract
from opwright.results import Accepted, Choice, Explanation, Refused
from opwright.runtime.kernel import Kernel

__all__ = ["REFERENCE", "choose", "explain"]

# How the reference is named where a kernel's name is expected.
REFERENCE = "reference"


def choose(contract: Contract, kernels: Iterable[Kernel], arguments: Sequence[Any]) -> Kernel | None:
    """The kernel that runs on these arguments; None stands for the reference.

    Raises:
        ArgumentError: the arguments disagree with the contract.
    """
    binding = bind(contract, arguments)
    return next((k for k in kernels if isinstance(k.accepts(binding, arguments), Accepted)), None)


def explain(contract: Contract, kernels: Sequence[Kernel], arguments: Sequence[Any]) -> Explanation:
    """The same choice, with a word on every kernel."""
    binding = bind(contract, arguments)
    chosen = choose(contract, kernels, arguments)
    choices = [Choice(k.name, k.backend, k.accepts(binding, arguments), k is chosen) for k in kernels]
    note = "no kernel fits, so the meaning itself runs" if chosen is None else "the last resort"
    outcome = Accepted(note) if chosen is None else Refused("a kernel was found before it")
    choices.append(Choice(REFERENCE, contract.signature.language, outcome, chosen is None))
    return Explanation(contract.qualname, tuple(choices))
