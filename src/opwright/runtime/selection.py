"""Chooses the kernel of a call: the one that tuning found fastest, else the first applicable one, else the
reference."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from opwright.contract.binding import bind
from opwright.contract.contract import Contract
from opwright.results import Accepted, Choice, Crossover, Explanation, Probe, Refused, SizeRange
from opwright.runtime.kernel import Kernel
from opwright.runtime.languages import REFERENCE
from opwright.runtime.tuning.size_tables import fastest_first
from opwright.runtime.tuning.tuned import Tuned

__all__ = ["choose", "explain"]


def choose(
    contract: Contract, kernels: Iterable[Kernel], arguments: Sequence[Any], tuned: Tuned | None = None
) -> Kernel | None:
    """The kernel that runs on these arguments; None stands for the reference.

    Raises:
        ArgumentError: the arguments disagree with the contract.
    """
    binding = bind(contract, arguments)
    listed = fastest_first(kernels, (tuned or Tuned()).ranges, arguments)
    return next((k for k in listed if isinstance(k.accepts(binding, arguments), Accepted)), None)


def explain(
    contract: Contract, kernels: Sequence[Kernel], arguments: Sequence[Any], tuned: Tuned | None = None
) -> Explanation:
    """The same choice, with the outcome of every kernel."""
    binding = bind(contract, arguments)
    tuned = tuned or Tuned()
    chosen = choose(contract, kernels, arguments, tuned)
    found = tuned.find(arguments) if len(kernels) > 1 else None
    fastest = found if chosen is not None and found is not None and found[1].kernel == chosen.name else None
    choices = [
        Choice(k.name, k.backend, _with_tuning(k.accepts(binding, arguments), k is chosen, fastest), k is chosen)
        for k in kernels
    ]
    note = "no kernel is applicable, so the reference itself runs" if chosen is None else "the fallback"
    outcome = Accepted(note) if chosen is None else Refused("a kernel was found before it")
    choices.append(Choice(REFERENCE, contract.signature.language, outcome, chosen is None))
    stale = "the tuning is for other kernels, versions or machines, and is not used: tune again"
    return Explanation(contract.qualname, tuple(choices), stale if tuned.stale and len(kernels) > 1 else "")


def _with_tuning(outcome: Probe, chosen: bool, fastest: tuple[Crossover, SizeRange] | None) -> Probe:
    """A kernel's outcome, with the result of tuning."""
    if fastest is None or isinstance(outcome, Refused):
        return outcome
    table, size_range = fastest
    text = (
        f"tuned on {table.device_name}, {table.measured}: fastest {size_range} ({table.dtype})"
        if chosen
        else f"could run; tuning found {size_range.kernel!r} fastest {size_range}"
    )
    return Accepted("; ".join(filter(None, (outcome.note, text))))
