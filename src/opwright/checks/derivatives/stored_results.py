"""What a registered gradient loses because it reads results of the kernel, which are rounded.

FlashAttention (Dao et al., 2022) computes its gradient from its result, which has the dtype of the inputs. The
reference's gradient has no such errors, which all elements of a row share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from opwright import tree
from opwright.checks.comparison.magnitudes import distance, typical
from opwright.checks.comparison.tolerance import Computation
from opwright.checks.context import Context
from opwright.checks.observation import Observation, copy_of, to_cpu
from opwright.results import Origin

__all__ = ["explain"]

_RUNS = 8
_HALVES = (torch.float16, torch.bfloat16)


def explain(
    context: Context, run: Observation, tracked: Sequence[bool], incoming: Sequence[Any], reference: Computation,
    i: int, actual: torch.Tensor,
) -> bool:  # fmt: skip
    """Whether stored results explain how a gradient differs from the reference's: the registered gradient, in float32,
    is right, and moves as far where only the results that it reads have a kernel's errors."""
    is_custom = context.op.parts["autograd"].origin is Origin.CUSTOM
    if not is_custom or any(t.dtype is torch.float64 for t in run.expected):
        return False
    try:
        plain = _gradient(context, run, tracked, incoming, None)[i]
        exact, allowed = reference.exact[i], reference.all_allowed(i)
        if plain is None or not bool((distance(plain, exact) <= allowed).all()):
            return False
        moved = torch.zeros_like(exact)
        for seed in range(_RUNS):
            stored = _gradient(context, run, tracked, incoming, run.reference.with_errors(seed))[i]
            moved = moved if stored is None else torch.maximum(moved, distance(stored, plain))
            # As for other errors: a few runs may miss an element by chance, or a row, which shares an error.
            if bool((distance(actual, exact) <= allowed + 3 * torch.maximum(moved, typical(moved))).all()):
                return True
    except Exception:  # the operator may not take float32, or a gradient have no reference
        return False
    return False


def _gradient(
    context: Context,
    run: Observation,
    tracked: Sequence[bool],
    incoming: Sequence[Any],
    results: Sequence[torch.Tensor] | None,
) -> Sequence[torch.Tensor | None]:
    """The registered gradient in float32. If there are other results, it reads these, rounded to their dtypes."""
    form, needs = context.op.functional, iter(tracked)
    inputs = tree.map_tensors(
        lambda t: _wide(t).detach().requires_grad_(next(needs)), list(to_cpu(copy_of(run.before)))
    )
    stored = dict[int, torch.Tensor]()

    def read(t: torch.Tensor) -> torch.Tensor:
        return stored.get(t.data_ptr(), t)

    with context.op.only("reference"), torch.autograd.graph.saved_tensors_hooks(lambda t: t, read):
        own = form.contract.unpack(form.contract.signature.call(form.with_saved, inputs))
        for mine, other, expected in zip(own, results or (), run.expected, strict=results is not None):
            if expected.is_floating_point():
                stored[mine.data_ptr()] = other.to(expected.dtype).to(mine.dtype)
        pairs = [(r, _wide(g)) for r, g in zip(own, to_cpu(list(incoming)), strict=False) if g is not None]
        leaves = [t for t in tree.tensors(inputs) if t.requires_grad]
        return torch.autograd.grad([r for r, _ in pairs], leaves, [g for _, g in pairs], allow_unused=True)


def _wide(t: torch.Tensor) -> torch.Tensor:
    return t.float() if t.dtype in _HALVES else t
