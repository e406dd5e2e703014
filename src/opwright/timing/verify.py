"""Verifies candidates: compares outputs and gradients with the reference's, and checks that inputs are unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from opwright import tree
from opwright.contract.contract import Contract
from opwright.timing.candidates import Candidate

__all__ = ["wrong_gradients", "wrong_output"]

# An output may differ from the reference's by this much (norm of the difference over the norm).
_CLOSE = {torch.float16: 2e-2, torch.bfloat16: 5e-2, torch.float32: 1e-3, torch.float64: 1e-9}


def wrong_output(
    contract: Contract, candidate: Candidate, arguments: Any, expected: Sequence[torch.Tensor]
) -> str | None:
    """A description of what is wrong with a candidate's timed output, or None."""
    before = tree.map_tensors(torch.clone, list(arguments))
    with candidate.prepared():
        out = candidate.run(arguments)
    written = contract.signature.written(arguments)
    returned = out if isinstance(out, list | tuple) else contract.unpack(out)  # a baseline may return too many
    got = [*returned, *(t.clone() for t in written)]
    for tensor, was in zip(written, contract.signature.written(before), strict=True):
        tensor.copy_(was)  # for the next candidate
    if len(got) != len(expected):
        return f"it returns {len(got)} outputs, not {len(expected)}"
    stated = contract.signature.stated_returns(len(got))[: contract.signature.visible]
    free = [contract.random or r.by_property for r in stated]
    free += [bool(contract.random)] * (len(got) - len(free))
    for a, b, is_free in zip(got, expected, free, strict=True):
        if not isinstance(a, torch.Tensor) or not (_same_form(a, b) if is_free else _close(a, b)):
            return "its timed output is wrong"
    pairs = zip(tree.leaves(before), tree.leaves(list(arguments)), strict=True)
    if any(isinstance(was, torch.Tensor) and not _same(was, now) for was, now in pairs):
        return "it changes its inputs, on which the other candidates are timed"
    return None


def wrong_gradients(candidate: Candidate, state: Any, expected: Sequence[torch.Tensor]) -> str | None:
    """What is wrong with a candidate's timed gradients, or None; ``expected`` are the reference's."""
    with candidate.prepared():
        got = candidate.run(state)
    right = (_close(torch.zeros_like(b) if a is None else a, b) for a, b in zip(got, expected, strict=True))
    return None if all(right) else "its timed gradient is wrong"


def _same_form(got: torch.Tensor, expected: torch.Tensor) -> bool:
    """Of results that may differ: `opwright check` compares their distributions, or properties."""
    return got.shape == expected.shape and got.dtype == expected.dtype


def _close(got: torch.Tensor, expected: torch.Tensor) -> bool:
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return False
    if not (expected.is_floating_point() or expected.is_complex()):
        # Near-ties may be resolved either way: a few indices, or small differences in counts; `opwright check`
        # checks them one by one.
        off = (got.double() - expected.double()).abs()
        are_counts = expected.numel() <= 1024 and bool((off <= 1e-5 * expected.double().abs()).all())
        return are_counts or float((off > 0).float().mean()) < 1e-3
    wide = torch.complex128 if expected.is_complex() else torch.float32
    wide = torch.float64 if expected.dtype == torch.float64 else wide
    difference = torch.linalg.vector_norm((got - expected).to(wide))
    return bool(difference <= _CLOSE.get(expected.dtype, 1e-3) * torch.linalg.vector_norm(expected.to(wide)) + 1e-12)


def _same(was: torch.Tensor, now: torch.Tensor) -> bool:
    return was.shape == now.shape and bool(((was == now) | ((was != was) & (now != now))).all())
