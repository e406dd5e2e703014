"""Checks a call's arguments against the contract: ranks, sizes, dtypes and devices.

``bind`` is the only place that checks arguments. It runs on real tensors and on fake ones (whose sizes may be symbolic;
each comparison then becomes a guard), for ``op(...)``, ``torch.ops`` and ``op.kernels[...]``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch

from opwright.contract.dtypes import short
from opwright.contract.process_group import ProcessGroup
from opwright.contract.shapes.dims import (
    AnyDim,
    Dim,
    ExprDim,
    FixedDim,
    NamedDim,
    VariadicDim,
    describe,
    evaluate,
    names_in,
    rank_range,
)
from opwright.contract.shapes.relations import Relation, broken
from opwright.contract.signature import Argument, Kind, TensorType
from opwright.errors import ArgumentError
from opwright.internals.tensors import is_true

if TYPE_CHECKING:
    from opwright.contract.contract import Contract

__all__ = ["Binding", "bind", "describe_outputs", "fill"]


@dataclass
class Binding:
    """The values of a contract's names in one call.

    ``sizes`` maps dims to sizes (tuples for ``*name``), and int arguments to their values; ``dtypes``
    maps dtype classes to dtypes; ``device`` is that of all tensors.
    """

    device: torch.device | None = None
    sizes: dict[str, Any] = field(default_factory=dict)
    dtypes: dict[str, torch.dtype] = field(default_factory=dict)
    bound_by: dict[str, str] = field(default_factory=dict)


def fill(contract: Contract, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """The arguments in signature order, defaults filled in. ArgumentError for a wrong count or name."""
    if not kwargs and (tail := contract.tails.get(len(args))) is not None:
        return _converted(contract, (*args, *tail))  # the fast path of nearly every call
    arguments = contract.signature.arguments
    positional = contract.signature.positional
    if len(args) > len(positional):
        raise ArgumentError(
            f"{contract.qualname} must get at most {len(positional)} positional arguments, got {len(args)}",
            fix=f"call it as {contract.call_form}",
        )
    values = dict(zip((a.name for a in positional), args, strict=False))
    for name, value in kwargs.items():
        if name in values:
            raise ArgumentError(
                f"{contract.qualname}: argument {name!r} must be given once, got it by position and by keyword",
                fix=f"call it as {contract.call_form}",
            )
        if not any(a.name == name for a in arguments):
            raise ArgumentError(
                f"{contract.qualname}: an argument must be one of {', '.join(a.name for a in arguments)}, got {name!r}",
                fix=f"call it as {contract.call_form}",
            )
        values[name] = value
    missing = [a.name for a in arguments if a.name not in values and not a.has_default]
    if missing:
        raise ArgumentError(
            f"{contract.qualname}: {', '.join(map(repr, missing))} must be given, got only {len(values)} of "
            f"{len(arguments)} arguments",
            fix=f"call it as {contract.call_form}",
        )
    return _converted(contract, tuple(values.get(a.name, a.default) for a in arguments))


def _converted(contract: Contract, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments as the dispatcher passes them to a kernel (``conversion.py``), with members of a ``StrEnum`` and
    process groups in the place of their texts."""
    values = tuple(contract.with_members(values))
    converted: list[Any] | None = None
    for i, exact, convert in contract.conversions:
        value = values[i]
        if type(value) is not exact and value is not None and not hasattr(type(value), "__torch_function__"):
            converted = converted or list(values)
            converted[i] = value = convert(value)
            if type(value) is not exact and not isinstance(value, list):
                _bind_scalar(contract, contract.signature.arguments[i], value, Binding())
    return values if converted is None else tuple(converted)


def bind(contract: Contract, arguments: Sequence[Any]) -> Binding:
    """Check the arguments (in signature order) and return the values of the contract's names.

    Raises:
        ArgumentError: with the operator, the argument, the dim, the expected and the actual value.
    """
    binding = Binding()
    postponed: list[tuple[str, ExprDim, Any]] = []
    for spec, value in zip(contract.signature.arguments, arguments, strict=True):
        if spec.kind is Kind.SCALAR:
            _bind_scalar(contract, spec, value, binding)
            continue
        for index, (where, tensor) in enumerate(_tensors_of(contract, spec, value)):
            assert spec.tensor is not None  # every non-scalar argument has one
            _bind_dtype_and_device(contract, where, spec.tensor, tensor, binding)
            if spec.mutated and (tensor.is_conj() or tensor.is_neg()):
                raise ArgumentError(
                    f"{contract.qualname}: argument {where!r} is mutated and must be plain memory, got a view that "
                    "conjugates or negates when it is read",
                    fix=f"pass {where}.resolve_conj().resolve_neg(), and copy it back",
                )
            postponed += _bind_shape(contract, where, spec.tensor.dims, tensor, binding, index)
        if spec.kind is Kind.TENSOR_LIST:
            _bind_lengths(contract, spec, value, binding)
    for where, dim, size in postponed:
        _bind_expression(contract, where, dim, size, binding)
    if (relation := broken(contract.where, binding.sizes)) is not None:
        raise _relation_error(contract, relation, binding)
    if binding.device is None:
        raise ArgumentError(
            f"{contract.qualname} must get at least one tensor, got none",
            fix=f"pass one, whose device decides where the operator runs; the contract is {contract.call_form}",
        )
    return binding


def describe_outputs(contract: Contract, arguments: Sequence[Any], outputs: Sequence[torch.Tensor]) -> str | None:
    """The first difference of the outputs from the contract's return annotation, or None."""
    binding = bind(contract, arguments)
    stated = contract.signature.stated_returns(len(outputs))
    for i, (spec, output) in enumerate(zip(stated, outputs, strict=True)):
        name = f"output {i}"
        if output.dtype not in spec.tensor.dtypes:
            return f"{name} must be {spec.tensor.dtype_class}, got {short(output.dtype)}"
        shared = binding.dtypes.setdefault(spec.tensor.dtype_class, output.dtype)
        if len(spec.tensor.dtypes) > 1 and shared != output.dtype:
            return (
                f"{name} is {short(output.dtype)}, but the arguments annotated with {spec.tensor.dtype_class} are "
                f"{short(shared)}: annotate it with its dtype, such as {str(short(output.dtype)).capitalize()}"
            )
        try:
            for where, dim, size in _bind_shape(contract, name, spec.tensor.dims, output, binding, i):
                _bind_expression(contract, where, dim, size, binding)
        except ArgumentError as error:
            return error.message.removeprefix(f"{contract.qualname}: ").replace(f"argument {name!r}", name)
    return None


def _bind_expression(contract: Contract, where: str, dim: ExprDim, size: Any, binding: Binding) -> None:
    if not names_in(dim.text) <= binding.sizes.keys():
        return  # an absent optional argument, or an axis of size 1 that broadcasts, leaves a name open
    try:
        expected = evaluate(dim.text, binding.sizes)
    except ZeroDivisionError:
        expected = f"{dim}, which divides by zero"
    if isinstance(expected, str) or _differ(size, expected):
        raise _size_error(contract, where, dim, expected, size, f"{dim} with {_known(dim, binding)}")


def _bind_lengths(contract: Contract, spec: Argument, value: Sequence[Any], binding: Binding) -> None:
    """Lists with a dim ``?n`` are as long as one another."""
    assert spec.tensor is not None  # every list of tensors has one
    for dim in spec.tensor.dims:
        if isinstance(dim, NamedDim) and dim.each:
            expected = binding.sizes.setdefault(f"len {dim}", len(value))
            first = binding.bound_by.setdefault(f"len {dim}", spec.name)
            if expected != len(value):
                raise ArgumentError(
                    f"{contract.qualname}: argument {spec.name!r} must have {expected} tensors, as {first!r} has, "
                    f"got {len(value)}; both have the dim {dim}",
                    fix=f"the contract is {contract.call_form}",
                )


def _tensors_of(contract: Contract, spec: Argument, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Each tensor of an argument with the name to use in errors; nothing for an absent optional."""
    if spec.kind is Kind.TENSOR_LIST:
        if not isinstance(value, list | tuple):
            raise _kind_error(contract, spec.name, "a list of tensors", value)
        for i, item in enumerate(value):
            if not isinstance(item, torch.Tensor):
                raise _kind_error(contract, f"{spec.name}[{i}]", "a tensor", item)
            yield f"{spec.name}[{i}]", item
    elif isinstance(value, torch.Tensor):
        yield spec.name, value
    elif not (value is None and spec.optional):
        raise _kind_error(contract, spec.name, "a tensor or None" if spec.optional else "a tensor", value)


_SCALAR_TYPES: dict[Any, tuple[tuple[type, ...], str]] = {
    int: ((int, torch.SymInt), "an int"),
    float: ((int, float, torch.SymInt, torch.SymFloat), "a float"),
    bool: ((bool, torch.SymBool), "a bool"),
    str: ((str,), "a str"),
    torch.dtype: ((torch.dtype,), "a torch.dtype"),
    torch.device: ((torch.device, str), "a torch.device"),
}
_LIST_TYPES: dict[Any, Any] = {Sequence[int]: int, Sequence[float]: float, Sequence[bool]: bool}


def _bind_scalar(contract: Contract, spec: Argument, value: Any, binding: Binding) -> None:
    if value is None and spec.optional:
        return
    plain = spec.scalar_type
    if spec.is_group:
        _bind_group(contract, spec, value, binding)
        return
    if plain in _LIST_TYPES:
        items = _LIST_TYPES[plain]
        if not isinstance(value, list | tuple):
            raise _kind_error(contract, spec.name, f"a list of {items.__name__}s", value)
        if spec.length is not None and len(value) != spec.length:
            raise _kind_error(contract, spec.name, f"{spec.length} {items.__name__}s", value)
        for i, item in enumerate(value):
            _check_scalar(contract, f"{spec.name}[{i}]", items, item)
        return
    _check_scalar(contract, spec.name, plain, value)
    if spec.choices and value not in spec.choices:
        raise _kind_error(
            contract, spec.name, f"one of {', '.join(repr(_plain_value(c)) for c in spec.choices)}", value
        )
    if plain is int:
        binding.sizes[spec.name] = value


def _bind_group(contract: Contract, spec: Argument, value: Any, binding: Binding) -> None:
    """The argument's name stands for the number of processes."""
    if not isinstance(value, ProcessGroup):
        raise _kind_error(contract, spec.name, "a process group, a mesh of one dim, or a group's name", value)
    try:
        binding.sizes[spec.name] = value.size()
    except ArgumentError as error:
        raise ArgumentError(f"{contract.qualname}: argument {spec.name!r}: {error.message}", fix=error.fix) from None


def _plain_value(choice: Any) -> Any:
    return choice.value if isinstance(choice, Enum) else choice


def _check_scalar(contract: Contract, where: str, plain: Any, value: Any) -> None:
    types, article = _SCALAR_TYPES[plain]
    if not isinstance(value, types) or (plain is not bool and isinstance(value, bool)):
        raise _kind_error(contract, where, article, value)


def _bind_dtype_and_device(
    contract: Contract, where: str, expected: TensorType, tensor: torch.Tensor, binding: Binding
) -> None:
    if tensor.dtype not in expected.dtypes:
        raise ArgumentError(
            f"{contract.qualname}: argument {where!r} must be {expected.dtype_class}, got {short(tensor.dtype)}",
            fix=f"convert it, for example with {where}.to({expected.dtypes[-1]})",
        )
    if len(expected.dtypes) > 1:
        first = binding.dtypes.setdefault(expected.dtype_class, tensor.dtype)
        bound_by = binding.bound_by.setdefault(f"dtype {expected.dtype_class}", where)
        if first != tensor.dtype:
            raise ArgumentError(
                f"{contract.qualname}: argument {where!r} must be {short(first)}, as {bound_by!r} is, got "
                f"{short(tensor.dtype)}; all {expected.dtype_class} arguments share one dtype",
                fix=f"convert one of them, for example with {where}.to({first})",
            )
    if tensor.layout is not torch.strided:
        raise ArgumentError(
            f"{contract.qualname}: argument {where!r} must be a strided tensor, got layout {tensor.layout}",
            fix=f"convert it with {where}.to_dense()",
        )
    if binding.device is None:
        binding.device, binding.bound_by["device"] = tensor.device, where
    elif tensor.device != binding.device:
        raise ArgumentError(
            f"{contract.qualname}: argument {where!r} must be on {binding.device}, as {binding.bound_by['device']!r} "
            f"is, got {tensor.device}",
            fix=f"move it with {where}.to({str(binding.device)!r})",
        )


def _bind_shape(
    contract: Contract, where: str, dims: Sequence[Dim], tensor: torch.Tensor, binding: Binding, index: int
) -> list[tuple[str, ExprDim, Any]]:
    """Bind each axis; return the axes that have an expression, to be compared when all names are known."""
    shape = tensor.shape
    least, more = rank_range(dims)
    if len(shape) < least or (len(shape) > least and not more):
        raise ArgumentError(
            f"{contract.qualname}: argument {where!r} must have {'at least ' if more else ''}{least} "
            f"dim{'s' * (least != 1)} {describe(dims)}, got {len(shape)}: {_shape(shape)}",
            fix="reshape it, or change the contract's annotation",
        )
    postponed, axis = [], 0
    for dim in dims:
        if isinstance(dim, VariadicDim):
            taken = len(shape) - least
            if dim.name is not None:
                _bind_name(contract, where, dim.name, dim, tuple(shape[axis : axis + taken]), binding)
            axis += taken
            continue
        size = shape[axis]
        axis += 1
        match dim:
            case NamedDim(broadcast=broadcast):
                if not (broadcast and size == 1):
                    _bind_name(contract, where, dim.at(index), dim, size, binding)
            case FixedDim(size=expected):
                if _differ(size, expected):
                    raise _size_error(contract, where, dim, expected, size, "fixed by the contract")
            case ExprDim():
                postponed.append((where, dim, size))
            case AnyDim():
                pass
    return postponed


def _bind_name(contract: Contract, where: str, name: str, dim: Dim, size: Any, binding: Binding) -> None:
    if name not in binding.sizes:
        binding.sizes[name], binding.bound_by[name] = size, where
    elif _differ(binding.sizes[name], size):
        expected = binding.sizes[name]
        raise _size_error(contract, where, dim, expected, size, f"as in argument {binding.bound_by[name]!r}")


def _differ(a: Any, b: Any) -> bool:
    # Tuples of symbolic sizes are compared one by one, so that each comparison becomes a guard.
    if isinstance(a, tuple):
        return len(a) != len(b) or not all(is_true(x == y) for x, y in zip(a, b, strict=True))
    return not is_true(a == b)


def _known(dim: ExprDim, binding: Binding) -> str:
    return ", ".join(f"{n}={binding.sizes[n]}" for n in sorted(names_in(dim.text)))


def _size_error(contract: Contract, where: str, dim: Dim, expected: Any, actual: Any, why: str) -> ArgumentError:
    return ArgumentError(
        f"{contract.qualname}: dim {str(dim)!r} of argument {where!r} must be {_plain(expected)} ({why}), "
        f"got {_plain(actual)}",
        fix=f"the contract is {contract.call_form}",
    )


def _relation_error(contract: Contract, relation: Relation, binding: Binding) -> ArgumentError:
    known = []
    for name in sorted(relation.names):
        argument = binding.bound_by.get(name)
        known.append(f"{name}={binding.sizes[name]}" + (f" (from argument {argument!r})" if argument else ""))
    return ArgumentError(
        f"{contract.qualname}: {relation} must hold, got {' and '.join(known)}",
        fix=f"the contract is {contract.call_form}",
    )


def _kind_error(contract: Contract, where: str, expected: str, actual: Any) -> ArgumentError:
    return ArgumentError(
        f"{contract.qualname}: argument {where!r} must be {expected}, got {type(actual).__name__} {actual!r:.60}",
        fix=f"the contract is {contract.call_form}",
    )


def _plain(size: Any) -> str:
    return "[" + ", ".join(map(str, size)) + "]" if isinstance(size, tuple) else str(size)


def _shape(shape: torch.Size) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"
