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
from opwright.checks.comparison.rounding import exactly, to_double
from opwright.checks.comparison.tolerance import Computation
from opwright.checks.context import Context
from opwright.checks.observation import Observation, copy_of, to_cpu
from opwright.contract.binding import fill
from opwright.contract.contract import Contract
from opwright.internals.compiler import DispatchMode
from opwright.results import Origin
from opwright.runtime.register import registration

__all__ = ["explain"]

_RUNS = 8
_HALVES = (torch.float16, torch.bfloat16)


def explain(
    context: Context, run: Observation, tracked: Sequence[bool], incoming: Sequence[Any], reference: Computation,
    i: int, actual: torch.Tensor,
) -> bool:  # fmt: skip
    """Whether stored results explain how a gradient differs from the reference's: the registered gradient, in float64,
    is right, and moves as far where only the results that it reads have a kernel's errors."""
    if context.op.parts["autograd"].origin is not Origin.CUSTOM:
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
    except Exception:  # the gradient may have no reference, or not take float64
        return False
    return False


def _gradient(
    context: Context,
    run: Observation,
    tracked: Sequence[bool],
    incoming: Sequence[Any],
    results: Sequence[torch.Tensor] | None,
) -> Sequence[torch.Tensor | None]:
    """The registered gradient in float64. If there are other results, it reads these, rounded to their dtypes."""
    form, needs = context.op.functional, iter(tracked)
    values = to_double(list(to_cpu(copy_of(run.before))))
    inputs = tree.map_tensors(lambda t: t.detach().requires_grad_(next(needs)), values)
    stored = dict[int, torch.Tensor]()

    def read(t: torch.Tensor) -> torch.Tensor:
        return stored.get(t.data_ptr(), t)

    with exactly(), _References(), torch.autograd.graph.saved_tensors_hooks(lambda t: t, read):
        own = form.contract.unpack(form.contract.signature.call(form.with_saved, inputs))
        for mine, other, expected in zip(own, results or (), run.expected, strict=results is not None):
            if expected.is_floating_point():
                stored[mine.data_ptr()] = other.to(expected.dtype).to(mine.dtype)
        grads = to_double(to_cpu(list(incoming)))
        pairs = [(r, g) for r, g in zip(own, grads, strict=False) if g is not None]
        leaves = [t for t in tree.tensors(inputs) if t.requires_grad]
        return torch.autograd.grad([r for r, _ in pairs], leaves, [g for _, g in pairs], allow_unused=True)


class _References(DispatchMode):  # type: ignore[misc]  # found at run time
    """Operators compute their references, in any dtype, whatever their contracts take."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operator, keywords = registration.find(function.name()), kwargs or {}
        if operator is None or operator.contract.signature.mutated:
            return function(*args, **keywords)
        contract = operator.contract
        with self, _Unrounded(_halves_only(contract)):
            return contract.pack(contract.reference(fill(contract, args, keywords)))


class _Unrounded(DispatchMode):  # type: ignore[misc]  # found at run time
    """Conversions to some dtypes are to float64, as those that a reference makes because it takes no others."""

    def __init__(self, dtypes: Sequence[torch.dtype]) -> None:
        super().__init__()
        self._dtypes = dtypes

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords = dict(kwargs or {})
        with self:  # below autograd, a mode gets ``to``, not the ``_to_copy`` with keywords that it consists of
            returned = function.decompose(*args, **keywords)
        if returned is not NotImplemented:
            return returned
        if keywords.get("dtype") in self._dtypes:
            keywords["dtype"] = torch.float64
        return function(*args, **keywords)


def _halves_only(contract: Contract) -> list[torch.dtype]:
    """The half dtypes of arguments that may not be in float32."""
    of_each = [spec.tensor.dtypes for spec in contract.signature.arguments if spec.tensor is not None]
    return [half for half in _HALVES if any(half in dtypes and torch.float32 not in dtypes for dtypes in of_each)]
