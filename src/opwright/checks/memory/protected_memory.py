"""The check "protected memory": whether a kernel reads past its arguments, even if it does not use what it reads, or
writes into them, even if it sets back what it has written.

On a CPU each argument lies once at the end and once at the start of memory that can be accessed, and once in memory
that can only be read. Any other access ends the process, so this check is the last one. Elsewhere, torch's own count of
the writes to a tensor shows those of its functions.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from opwright import tree
from opwright.checks.check import Check, Process
from opwright.checks.chosen_cases import typical_cases
from opwright.checks.context import Context
from opwright.checks.memory import memory
from opwright.checks.memory.guarded import Edge, at_edge, read_only
from opwright.checks.observation import Prepared, SkippedCase
from opwright.contract.inputs.case import Case
from opwright.contract.inputs.sizes import elements
from opwright.contract.signature import Argument
from opwright.internals.tensors import version_of
from opwright.results import Coverage, Finding, NotChecked, Status

__all__ = ["CHECK", "NAME", "check"]

NAME = "protected memory"
# The elements of a usual tile.
_TILE = 1024


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """Run the contiguous cases with each argument in memory that ends the process if it is accessed wrongly."""
    if context.kernel not in context.op.kernels:
        return
    if context.device != "cpu" or context.is_simulated:
        yield from _written_by_torch(context)
        why = "the simulator examines every access" if context.device == "cpu" else "it needs memory of the CPU"
        yield NotChecked(NAME, why)
        return
    if memory.NAME in context.failed_checks:
        yield NotChecked(NAME, "it writes outside of its arguments")
        return
    contiguous = [c for c in memory.some_of_each(context) if c.layout == "contiguous"]
    contiguous = list(dict.fromkeys([*contiguous, *_past_a_tile(context)]))
    alignment = _alignment(context, contiguous)
    ran = sum(_runs_in_protected_memory(context, case, alignment) for case in contiguous)
    if ran:
        yield Finding(NAME, Status.PASS, message=f"{ran} cases", coverage=Coverage(ran, len(contiguous)))


def _written_by_torch(context: Context) -> Iterator[Finding]:
    """What torch's functions write into an argument within a call, also if they set it back."""
    for case in typical_cases(context, 1):
        prepared = context.prepare(case)
        assert isinstance(prepared, Prepared)  # these are only cases that ran
        arguments = list(tree.map_tensors(torch.clone, list(prepared.arguments)))
        each = zip(context.op.contract.signature.arguments, arguments, strict=True)
        only_read = [(a.name, t, version_of(t)) for a, value in each if not a.mutated for t in tree.tensors([value])]
        context.run_kernel(arguments)
        for name, tensor, before in only_read:
            if version_of(tensor) != before:
                message = f"a function of torch wrote into argument {name!r}, perhaps to set it back later"
                yield context.failed(NAME, str(case), f"{message}: other threads and streams may read it meanwhile")


def _past_a_tile(context: Context) -> list[Case]:
    """For each dim a case in which it is longer than a tile: many kernels treat what lies inside in another way than
    the end."""
    usual = [
        c for c in context.cases if c.layout == "contiguous" and c.is_plain and c.dtypes == context.cases[0].dtypes
    ]
    sizes = {c: elements(context.op.contract, c) for c in usual}
    found: dict[str, Case] = {}
    for case in sorted((c for c, size in sizes.items() if size <= 8 * _TILE), key=sizes.__getitem__):
        found |= {name: case for name, size in case.sizes if isinstance(size, int) and size > _TILE}
    return list(dict.fromkeys(found.values()))


def _alignment(context: Context, cases: Sequence[Case]) -> int:
    """What the kernel may take for granted, in bytes: what new tensors have, unless it takes any address."""
    takes_any = any(context.ran(dataclasses.replace(case, layout="offset")) for case in cases[:1])
    return 1 if takes_any else 64


def _runs_in_protected_memory(context: Context, case: Case, alignment: int) -> bool:
    prepared = context.prepare(case)
    if isinstance(prepared, SkippedCase):
        return False
    for place, argument in enumerate(context.op.contract.signature.arguments):
        if not tree.tensors([prepared.arguments[place]]):
            continue
        for where, protected in _protections(argument, alignment).items():
            context.progress(NAME, str(case), where)
            arguments = list(tree.map_tensors(torch.clone, list(prepared.arguments)))
            arguments[place] = tree.map_tensors(protected, arguments[place])
            try:
                context.run_kernel(arguments)
            except Exception:  # the check "values" reports it
                return False
    return True


def _protections(argument: Argument, alignment: int) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """Copies of a tensor in protected memory, by what ends the process."""
    found: dict[str, Callable[[torch.Tensor], Any]] = {
        f"{edge} of argument {argument.name!r}": functools.partial(at_edge, edge, alignment) for edge in Edge
    }
    if not argument.mutated:
        advice = "write into a copy of it, or mark it with ow.mutated"
        found[f"as it wrote into argument {argument.name!r}: {advice}"] = read_only
    return found


CHECK = Check(
    NAME,
    "Does the kernel read past an argument, or write into one that it must not, even if it sets that back?",
    cases="the contiguous ones of *memory*, and one past a tile in each dim",
    run=check,
    process=Process.KERNEL,
    group="memory",
)
