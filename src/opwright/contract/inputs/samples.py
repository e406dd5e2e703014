"""The samples of ``op.samples`` as cases and arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from opwright import tree
from opwright.contract.binding import bind, fill
from opwright.contract.contract import Contract
from opwright.contract.inputs.case import Case, Size, own_size_name
from opwright.contract.shapes.dims import AnyDim, NamedDim, VariadicDim, size_name
from opwright.contract.signature import Argument
from opwright.errors import ArgumentError, CheckError

__all__ = ["case_of", "sample_arguments", "sample_cases"]


def sample_arguments(contract: Contract, number: int) -> tuple[Any, ...]:
    """The arguments of one sample, in signature order, on the CPU.

    Raises:
        CheckError: there is no such sample, or it disagrees with the contract.
    """
    drawn = contract.own_inputs.draw(contract.qualname)
    if not 0 <= number < len(drawn):
        raise CheckError(
            f"{contract.qualname} has no sample {number}", fix=f"op.samples yields {len(drawn)}, counted from 0"
        )
    given = drawn[number]
    positional, named = ((), given) if isinstance(given, dict) else (given, {})
    if not isinstance(positional, tuple | list):
        raise CheckError(
            f"{contract.qualname}: op.samples yields {type(given).__name__}",
            fix="yield a tuple of arguments, or a dictionary of them by name",
        )
    try:
        arguments = fill(contract, positional, named)
        bind(contract, arguments)
    except ArgumentError as error:
        raise CheckError(f"sample {number} of op.samples must be a call: {error.message}", fix=error.fix) from error
    # A lazy negation, as of the imaginary part of a conjugate, cannot be copied as memory; a lazy conjugation can.
    return tuple(tree.map_tensors(torch.Tensor.resolve_neg, list(arguments)))


def sample_cases(contract: Contract) -> list[Case]:
    """A case for each sample, with the sizes and dtypes that it has."""
    count = len(contract.own_inputs.draw(contract.qualname))
    return [case_of(contract, sample_arguments(contract, number), number) for number in range(count)]


def case_of(contract: Contract, arguments: Sequence[Any], sample: int | None) -> Case:
    """A case with the sizes and dtypes of some arguments.

    Raises:
        ArgumentError: they contradict the contract.
    """
    binding = bind(contract, arguments)
    tensors = [a.tensor for a in contract.signature.arguments if a.tensor]
    sizes: dict[str, Size] = {}
    for argument, value in zip(contract.signature.arguments, arguments, strict=True):
        for axis, dim in enumerate(argument.tensor.dims if argument.tensor else ()):
            if isinstance(dim, NamedDim | VariadicDim) and dim.name in binding.sizes:
                sizes[dim.name] = binding.sizes[dim.name]
            elif isinstance(dim, AnyDim):
                sizes |= _size_of_any(argument, axis, value, sizes)
    classes = dict.fromkeys(t.dtype_class for t in tensors if len(t.dtypes) > 1 and t.dtype_class in binding.dtypes)
    dtypes = tuple((name, binding.dtypes[name]) for name in classes)
    if not dtypes:
        dtypes = tuple((tensors[0].dtype_class, t.dtype) for t in tree.tensors(list(arguments))[:1])
    return Case(tuple(sizes.items()), dtypes, sample=sample)


def _size_of_any(argument: Argument, axis: int, value: Any, known: dict[str, Size]) -> dict[str, Size]:
    """The size that a ``_`` has in a sample, where the same axis of another argument has none or another one."""
    found = tree.tensors([value])
    if argument.tensor is None or not found:
        return {}
    dims = argument.tensor.dims
    is_after = any(isinstance(dim, VariadicDim) for dim in dims[:axis])
    size, shared = found[0].shape[axis - len(dims) if is_after else axis], str(size_name(dims[axis], axis))
    if known.get(shared) == size:
        return {}
    return {own_size_name(argument.name, axis) if shared in known else shared: size}
