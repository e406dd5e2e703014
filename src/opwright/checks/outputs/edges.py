"""The check "reads": whether a kernel reads past its arguments, even if it does not use what it reads.

On a CPU each argument lies once at the end and once at the start of memory that can be accessed. A read beyond ends the
process, so this check is the last one.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import torch

from opwright import tree
from opwright.checks.context import Context
from opwright.checks.guarded import Edge, at_edge
from opwright.checks.observation import SkippedCase
from opwright.checks.outputs import guard_bands
from opwright.checks.state import in_simulator
from opwright.contract.inputs.case import Case
from opwright.contract.inputs.sizes import elements
from opwright.results import Coverage, Finding, NotChecked, Status

__all__ = ["NAME", "check"]

NAME = "reads"
# The elements of a usual tile.
_TILE = 1024


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """Run the contiguous cases with each argument at both edges in turn."""
    if context.kernel not in context.op.kernels:
        return
    if context.device != "cpu" or in_simulator():
        why = "the simulator examines every access" if context.device == "cpu" else "it needs memory of the CPU"
        yield NotChecked(NAME, why)
        return
    if guard_bands.NAME in context.wrong:
        yield NotChecked(NAME, "it writes outside of its arguments")
        return
    contiguous = [c for c in guard_bands.some_of_each(context) if c.layout == "contiguous"]
    contiguous = list(dict.fromkeys([*contiguous, *_past_a_tile(context)]))
    alignment = _alignment(context, contiguous)
    ran = sum(_runs_at_edges(context, case, alignment) for case in contiguous)
    if ran:
        yield Finding(NAME, Status.PASS, message=f"{ran} cases", coverage=Coverage(ran, len(contiguous)))


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


def _runs_at_edges(context: Context, case: Case, alignment: int) -> bool:
    prepared = context.prepare(case)
    if isinstance(prepared, SkippedCase):
        return False
    for place, argument in enumerate(context.op.contract.signature.arguments):
        if not tree.tensors([prepared.arguments[place]]):
            continue
        for edge in Edge:
            context.progress(NAME, str(case), f"{edge} of argument {argument.name!r}")
            arguments = list(tree.map_tensors(torch.clone, list(prepared.arguments)))
            arguments[place] = tree.map_tensors(functools.partial(at_edge, edge, alignment), arguments[place])
            try:
                context.run_kernel(arguments)
            except Exception:  # the check "values" reports it
                return False
    return True
