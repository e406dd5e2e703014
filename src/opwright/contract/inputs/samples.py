"""The samples of ``op.samples`` as cases and arguments."""

from __future__ import annotations

from typing import Any

import torch

from opwright import tree
from opwright.contract.binding import bind, fill
from opwright.contract.contract import Contract
from opwright.contract.inputs.case import Case
from opwright.contract.shapes.dims import NamedDim, VariadicDim
from opwright.errors import ArgumentError, CheckError

__all__ = ["sample_arguments", "sample_cases"]


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
        raise CheckError(f"sample {number} of op.samples is no call: {error.message}", fix=error.fix) from error
    # A lazy negation, as of the imaginary part of a conjugate, cannot be copied as memory; a lazy conjugation can.
    return tuple(tree.map_tensors(torch.Tensor.resolve_neg, list(arguments)))


def sample_cases(contract: Contract) -> list[Case]:
    """A case for each sample, with the sizes and dtypes that it has."""
    count = len(contract.own_inputs.draw(contract.qualname))
    return [_case(contract, number) for number in range(count)]


def _case(contract: Contract, number: int) -> Case:
    arguments = sample_arguments(contract, number)
    binding = bind(contract, arguments)
    tensors = [a.tensor for a in contract.signature.arguments if a.tensor]
    names = dict.fromkeys(
        d.name for t in tensors for d in t.dims if isinstance(d, NamedDim | VariadicDim) and d.name in binding.sizes
    )
    sizes = tuple((str(name), binding.sizes[name]) for name in names)
    classes = dict.fromkeys(t.dtype_class for t in tensors if len(t.dtypes) > 1 and t.dtype_class in binding.dtypes)
    dtypes = tuple((name, binding.dtypes[name]) for name in classes)
    if not dtypes:
        dtypes = tuple((tensors[0].dtype_class, t.dtype) for t in tree.tensors(list(arguments))[:1])
    return Case(sizes, dtypes, sample=number)
