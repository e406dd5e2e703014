"""What the parts of a signature state of each other: names of dims, and what test values are computed from."""

from __future__ import annotations

import torch

from opwright.contract.shapes.dims import Dim, ExprDim, NamedDim, VariadicDim, names_in
from opwright.contract.signature import Kind, Signature
from opwright.contract.values import contradiction
from opwright.errors import ContractError

__all__ = ["refuse_inconsistent"]


def refuse_inconsistent(signature: Signature, qualname: str) -> None:
    """Raises ContractError if a dim or a bound has an unknown name, or if test values cannot be."""
    _check_dim_names(signature, qualname)
    _refuse_each_outside_of_lists(signature, qualname)
    _check_names_in_values(signature, qualname)
    _refuse_impossible_values(signature, qualname)
    _check_what_functions_read(signature, qualname)


def _check_dim_names(signature: Signature, qualname: str) -> None:
    """Every dim of an output, and every name in an expression, must be known from the arguments."""
    integers = {a.name for a in signature.arguments if a.schema_type is int or a.is_group}
    known, variadic = set(integers), set[str]()
    for argument in signature.arguments:
        if argument.tensor is None:
            continue
        for dim in argument.tensor.dims:
            if isinstance(dim, NamedDim | VariadicDim) and dim.name:
                if dim.name in integers:
                    raise ContractError(
                        f"{qualname}: {dim.name!r} names both an argument and a dim of {argument.name!r}",
                        fix="rename one of them",
                    )
                known.add(dim.name)
                if isinstance(dim, VariadicDim):
                    variadic.add(dim.name)
    everywhere = [(f"argument {a.name!r}", a.tensor) for a in signature.arguments if a.tensor]
    everywhere += [("the return value", r.tensor) for r in signature.returns]
    known |= signature.data_dependent
    for where, tensor in everywhere:
        for dim in tensor.dims:
            several = _names_of(dim) & variadic if isinstance(dim, ExprDim) else set()
            if several:
                raise ContractError(
                    f"{qualname}: {where} computes {str(dim)!r} from {sorted(several)}, which stands for several axes",
                    fix="use a dim that is one axis, or '_'",
                )
            unknown = _names_of(dim) - known
            if unknown:
                raise ContractError(
                    f"{qualname}: {where} has the dim {str(dim)!r}, but no argument's shape has {sorted(unknown)}",
                    fix=f"known dims and int arguments are {sorted(known)}; use '_' for a size that is not known",
                )


# What stands for the dtype of a number, where its test values are compared with its type.
_DTYPE_OF = {int: torch.int64, float: torch.float64, bool: torch.bool}


def _refuse_impossible_values(signature: Signature, qualname: str) -> None:
    for argument in signature.arguments:
        if argument.values is None or not (argument.is_tensor or argument.scalar_type in _DTYPE_OF):
            continue
        dtypes = argument.tensor.dtypes if argument.tensor else (_DTYPE_OF[argument.scalar_type],)
        why = contradiction(argument.values, dtypes, is_tensor=argument.is_tensor)
        if why is not None:
            raise ContractError(
                f"{qualname}: the test values of {argument.name!r} cannot be: {why}",
                fix="change them, or the annotation",
            )


def _check_names_in_values(signature: Signature, qualname: str) -> None:
    """The bounds of test inputs are computed from single axes and int arguments."""
    dims = {d.name for a in signature.arguments if a.tensor for d in a.tensor.dims if isinstance(d, NamedDim)}
    integers = [a.name for a in signature.arguments if a.schema_type is int]
    for argument in signature.arguments:
        # The integers are drawn in their order, before everything else.
        earlier = integers[: integers.index(argument.name)] if argument.name in integers else integers
        known = dims | set(earlier)
        unknown = (argument.values.names if argument.values is not None else set()) - known
        if unknown:
            raise ContractError(
                f"{qualname}: the values of {argument.name!r} are computed from {sorted(unknown)}",
                fix=f"use dims of one axis and int arguments: {sorted(known)}",
            )


def _check_what_functions_read(signature: Signature, qualname: str) -> None:
    """Functions of ``ow.inputs.drawn_by`` read arguments and dims, and no two arguments are drawn from each other."""
    arguments = {a.name: a for a in signature.arguments}
    every = (d for a in signature.arguments if a.tensor for d in a.tensor.dims)
    dims = {d.name for d in every if isinstance(d, NamedDim | VariadicDim) and d.name}
    for argument in signature.arguments:
        for name in argument.values.reads if argument.values is not None else ():
            where = f"{qualname}: the function that draws {argument.name!r}"
            if name not in arguments and name not in dims:
                raise ContractError(
                    f"{where} must have parameters that are arguments or dims, got {name!r}",
                    fix=f"use some of {sorted(arguments.keys() | dims)}, or give {name!r} a default",
                )
            if name in arguments and arguments[name].replicated != argument.replicated:
                raise ContractError(
                    f"{where} must read arguments that are ow.replicated as it is, got {name!r}",
                    fix="mark both, or none: else its values follow from those of another process",
                )
    drawn = {i for i, a in enumerate(signature.arguments) if a.values is not None and a.values.reads}
    if circle := drawn - set(signature.drawing_order):
        names = " and ".join(repr(signature.arguments[i].name) for i in sorted(circle))
        raise ContractError(
            f"{qualname}: arguments must be drawn one after another, got {names}, which are drawn from each other",
            fix="draw one of them without the other",
        )


def _refuse_each_outside_of_lists(signature: Signature, qualname: str) -> None:
    tensors = [(a.name, a.tensor) for a in signature.arguments if a.tensor and a.kind is not Kind.TENSOR_LIST]
    tensors += [("the return value", r.tensor) for r in signature.returns if not signature.returns_list]
    for where, tensor in tensors:
        if any(isinstance(d, NamedDim) and d.each for d in tensor.dims):
            raise ContractError(
                f"{qualname}: {where} must be a list, because its shape has a dim of each tensor of a list: {tensor}",
                fix="write the dim without '?'",
            )


def _names_of(dim: Dim) -> set[str]:
    match dim:
        case NamedDim(name=name, each=each):
            return set() if each else {name}
        case VariadicDim(name=str(name)):
            return {name}
        case ExprDim(text=text):
            return names_in(text)
    return set()
