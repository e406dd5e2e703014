"""Which of a reference's parameters and buffers those of a candidate are, which may have other names."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping

import torch

from opwright.errors import KernelError

__all__ = ["Tensors", "corresponding", "first_of", "state_of"]

Tensors = Mapping[str, torch.Tensor]


def state_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The parameters and buffers of a module, in the order in which a task has them as arguments."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


# Operators of torch have at most 64 arguments, and some are the inputs of a call.
_MOST_STATE = 56


def first_of(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Those that are arguments. A module with more has the others as its constructor makes them."""
    return dict(itertools.islice(state.items(), _MOST_STATE))


def corresponding(own: Tensors, reference: Tensors) -> dict[str, str]:
    """The name of one of the reference's for each of the candidate's that gets its value.

    They correspond by name; or else by value, the first first of equal ones; or else in order. Shapes may differ if the
    values are equal: a seed gives ``randn(8)`` and ``randn(8, 1, 1)`` the same numbers. One that has no other is left
    as its constructor has made it, if only one of the two modules has such: the candidate's is a constant of its own,
    and it does without the reference's.

    Args:
        own: the candidate's, as its constructor has made them.
        reference: the reference's as its constructor makes them, with the same seed, as KernelBench does.

    Raises:
        KernelError: both modules have parameters or buffers that do not correspond.
    """

    def are_of_one_shape(name: str, other: str) -> bool:
        return own[name].shape == reference[other].shape

    def are_equal(name: str, other: str) -> bool:
        return _are_equal(own[name], reference[other])

    pairs: dict[str, str] = {}
    left, others = dict(own), dict(reference)
    for correspond in (
        lambda name, other: are_of_one_shape(name, other) and _flat(name) == _flat(other),
        lambda name, other: are_of_one_shape(name, other) and are_equal(name, other),
        are_equal,
    ):
        pairs |= _paired(left, others, correspond)
        left, others = _without(own, pairs), _without(reference, pairs.values())
    if left and others and [t.shape for t in left.values()] != [t.shape for t in others.values()]:
        raise KernelError(
            f"the candidate must have the reference's parameters and buffers, {_listed(reference)}, got {_listed(own)}",
            fix="give it the same names, or as many of the same shapes in the same order",
        )
    return pairs | dict(zip(left, others, strict=False))


def _paired(own: Tensors, given: Tensors, correspond: Callable[[str, str], bool]) -> dict[str, str]:
    """Pairs that correspond, each name in one of them at most."""
    left, pairs = dict(given), {}
    for name in own:
        pairs[name] = next((n for n in left if correspond(name, n)), "")
        left.pop(pairs[name], None)
    return {name: other for name, other in pairs.items() if other}


def _are_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the values are equal, one after the other. A constructor may have made its own on a GPU, where a seed
    gives others."""
    if a.dtype != b.dtype:
        return False
    if a.dtype.itemsize == 1 and a.dtype.is_floating_point:  # torch compares none of these
        a, b = a.float(), b.float()
    return torch.equal(a.detach().cpu().flatten(), b.detach().cpu().flatten())


def _flat(name: str) -> str:
    """``bn.weight`` and ``bn_weight`` are one name: a module's parameter, and one that was taken out of it."""
    return name.replace(".", "_")


def _without(tensors: Tensors, names: Collection[str]) -> dict[str, torch.Tensor]:
    return {n: t for n, t in tensors.items() if n not in names and not _counts(t)}


def _counts(tensor: torch.Tensor) -> bool:
    """Whether it is a counter, such as the number of batches that a batch norm has seen, which decides no result."""
    return tensor.dim() == 0 and not tensor.is_floating_point()


def _listed(tensors: Tensors) -> str:
    return ", ".join(f"{name} {tuple(t.shape)}" for name, t in tensors.items()) or "none"
