"""Reads the operator's signature from a Python function's annotations.

Annotations that cannot be expressed are refused here, at definition, with one error that names the
argument and what to write instead.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Annotated, Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import AbstractArray

from opwright.contract.definition.consistency import refuse_inconsistent
from opwright.contract.process_group import ProcessGroup
from opwright.contract.shapes.dims import parse_dims
from opwright.contract.signature import (
    Argument,
    ByProperty,
    Kind,
    Language,
    Mutated,
    NoGradient,
    Replicated,
    Return,
    Saved,
    Signature,
    TensorType,
    unwrap_optional,
)  # fmt: skip
from opwright.contract.values import Values
from opwright.errors import ContractError

__all__ = ["read_signature"]

# The supported scalar annotations, each with its type in torch's schema.
_SCALARS: dict[Any, Any] = {
    int: int, float: float, bool: bool, str: str,
    torch.dtype: torch.dtype, torch.device: torch.device,
    list[int]: Sequence[int], list[float]: Sequence[float], list[bool]: Sequence[bool],
    Sequence[int]: Sequence[int], Sequence[float]: Sequence[float], Sequence[bool]: Sequence[bool],
}  # fmt: skip
_SUPPORTED = (
    'Float[Tensor, "n k"] (or any jaxtyping array on torch.Tensor or np.ndarray), list[...] of one, '
    "int, float, bool, str, Literal[...] and StrEnum, torch.dtype, torch.device, list[int], list[float], list[bool], "
    "tuple[int, int] and the like, any of these | None, and ow.ProcessGroup"
)


def read_signature(function: Callable[..., Any], qualname: str, scope: Mapping[str, Any]) -> Signature:
    """Read a reference function's annotations.

    Args:
        function: the reference.
        qualname: the operator's name, for errors.
        scope: names visible where the function was defined (its annotations may be strings).

    Raises:
        ContractError: an annotation is missing or cannot be expressed.
    """
    hints = _resolve_hints(function, qualname, scope)
    arguments = tuple(_read_argument(p, hints, qualname) for p in inspect.signature(function).parameters.values())
    _refuse_saved_beside_mutated(arguments, hints, qualname)
    returns, is_tuple = _read_returns(hints, qualname, may_be_none=any(a.mutated for a in arguments))
    is_list = _is_list_of_arrays(_unwrap_annotated(hints["return"])[0])
    signature = Signature(arguments, returns, is_tuple, is_list)
    _refuse_list_beside_mutated(signature, qualname)
    if not any(a.is_tensor for a in arguments):
        raise ContractError(
            f"{qualname}: an argument must be a tensor, got {', '.join(a.name for a in arguments) or 'none'}",
            fix="give it a tensor, whose device decides where the operator runs",
        )
    refuse_inconsistent(signature, qualname)
    reads = {name for a in arguments if a.values is not None for name in a.values.reads}
    if any(a.name in reads for a in arguments):
        marked = tuple(dataclasses.replace(a, is_read=a.name in reads) for a in arguments)
        signature = dataclasses.replace(signature, arguments=marked)
    return signature


def _refuse_saved_beside_mutated(arguments: Sequence[Argument], hints: dict[str, Any], qualname: str) -> None:
    returned = hints.get("return")
    parts = typing.get_args(returned) if typing.get_origin(returned) is tuple else (returned,)
    written = next((a.name for a in arguments if a.mutated), None)
    if written is not None and any(_is_marked(part, Saved) for part in parts):
        raise ContractError(
            f"{qualname}: an output is saved for the backward, but the operator writes its argument {written!r}, and "
            "its gradient is that of op.functional",
            fix="return the output without ow.saved_for_backward, or return the new value instead of writing it",
        )


def _refuse_list_beside_mutated(signature: Signature, qualname: str) -> None:
    if signature.returns_list and signature.mutated:
        raise ContractError(
            f"{qualname}: it returns a list, and writes its argument "
            f"{signature.arguments[signature.mutated[0]].name!r}",
            fix="return new tensors for what it writes, or pass the list as an argument that is written",
        )


def _resolve_hints(function: Callable[..., Any], qualname: str, scope: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, localns=dict(scope), include_extras=True)
    except NameError as error:
        raise ContractError(
            f"{qualname}: an annotation uses the name {error.name!r}, which is not known where the function is defined",
            fix=f"import {error.name!r} at run time, not only under TYPE_CHECKING",
        ) from None
    except (TypeError, SyntaxError, ValueError) as error:
        raise ContractError(f"{qualname}: an annotation cannot be read: {error}", fix=f"use {_SUPPORTED}") from error


def _read_argument(parameter: inspect.Parameter, hints: dict[str, Any], qualname: str) -> Argument:
    name, where = parameter.name, f"{qualname}: argument {parameter.name!r}"
    if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        stars = "*" if parameter.kind is inspect.Parameter.VAR_POSITIONAL else "**"
        raise ContractError(
            f"{where} must be one argument, got {stars}{name}", fix="name every argument: a schema needs all of them"
        )
    if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
        raise ContractError(f"{where} must have a keyword, got a '/' behind it", fix="remove the '/'")
    if name not in hints:
        raise ContractError(f"{where} must have an annotation, got none", fix=f"annotate it: {_SUPPORTED}")
    annotation, drawn_from = _unwrap_annotated(hints[name])
    is_mutated = _is_marked(hints[name], Mutated)
    inner, optional = unwrap_optional(annotation)
    if parameter.default is None and not optional:
        raise ContractError(
            f"{where} must have a default of type {_show(inner)}, got None",
            fix="add '| None' to its annotation, or remove the default",
        )
    is_mutated = is_mutated or _is_marked(inner, Mutated)
    inner_marked = inner
    no_gradient = _is_marked(hints[name], NoGradient) or _is_marked(inner, NoGradient)
    inner, drawn_inside = _unwrap_annotated(inner)
    shared = {
        "name": name,
        "optional": optional,
        "default": parameter.default,
        "keyword_only": parameter.kind is inspect.Parameter.KEYWORD_ONLY,
        "values": drawn_from or drawn_inside,
        "mutated": is_mutated,
        "no_gradient": no_gradient,
        "replicated": _is_marked(hints[name], Replicated) or _is_marked(inner_marked, Replicated),
    }
    if is_mutated and not (_is_array(inner) or _is_list_of_arrays(inner)):
        raise ContractError(
            f"{where} is marked ow.mutated, but it is {_show(inner)}",
            fix="only tensors and lists of tensors can be mutated",
        )
    is_array = _is_array(inner) or _is_list_of_arrays(inner)
    if no_gradient:
        of_each = typing.get_args(inner)[0] if _is_list_of_arrays(inner) else inner
        _refuse_without_meaning(of_each, is_mutated, where)
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY and is_array and not is_mutated:
        raise ContractError(
            f"{where} must be positional, got a tensor after the '*'",
            fix="put it before the '*'; numbers, bools, strings and mutated tensors may be keyword-only",
        )
    if _is_array(inner):
        schema_type = torch.Tensor | None if optional else torch.Tensor
        return Argument(kind=Kind.TENSOR, schema_type=schema_type, tensor=_read_tensor(inner, where), **shared)
    if _is_list_of_arrays(inner):
        if optional:
            raise ContractError(
                f"{where} must be a list of tensors, got an optional one", fix="use an empty list instead of None"
            )
        tensor = _read_tensor(typing.get_args(inner)[0], where)
        return Argument(kind=Kind.TENSOR_LIST, schema_type=list[torch.Tensor], tensor=tensor, **shared)
    if inner is ProcessGroup:
        if optional or parameter.default is not inspect.Parameter.empty:
            raise ContractError(
                f"{where} must be passed in every call, got a process group that may be left out",
                fix="remove the default, and None from the annotation",
            )
        return Argument(kind=Kind.SCALAR, schema_type=str, is_group=True, **shared)
    plain, choices, length = _read_scalar(inner)
    if plain in _SCALARS:
        schema_type = _SCALARS[plain] | None if optional else _SCALARS[plain]
        return Argument(kind=Kind.SCALAR, schema_type=schema_type, choices=choices, length=length, **shared)
    if inner in (torch.Tensor, np.ndarray):
        raise ContractError(
            f"{where} must state a dtype and a shape, got {inner.__name__}",
            fix=f'write {name}: Float[{inner.__name__}, "n k"], or Shaped[{inner.__name__}, "..."] for any',
        )
    if inner is getattr(dist, "ProcessGroup", dist):
        raise ContractError(
            f"{where} must be an ow.ProcessGroup, got torch's own process group",
            fix=f"annotate it {name}: ow.ProcessGroup",
        )
    fix = "take a seed: int, and make the generator of it" if inner is torch.Generator else f"use {_SUPPORTED}"
    raise ContractError(f"{where} must have a type that a schema can express, got {_show(inner)}", fix=fix)


def _refuse_without_meaning(annotation: Any, is_mutated: bool, where: str) -> None:
    """Refuse ``ow.no_gradient`` of what has no gradient, or is written."""
    floating = _is_array(annotation) and any(
        d.is_complex or d.is_floating_point for d in _read_tensor(annotation, where).dtypes
    )
    if not floating or is_mutated:
        what = "a mutated argument" if floating else _show(annotation)
        raise ContractError(
            f"{where}: what is marked ow.no_gradient must be a floating tensor that is only read, got {what}",
            fix="remove ow.no_gradient: integers and numbers have no gradient"
            if not floating
            else "remove ow.no_gradient, and decorate the reference with @torch.no_grad() if what it writes has none",
        )


def _read_scalar(annotation: Any) -> tuple[Any, tuple[Any, ...], int | None]:
    """The annotation of a number or a string as one of ``_SCALARS``, its only values, and its length."""
    parts = typing.get_args(annotation)
    if typing.get_origin(annotation) is Literal:
        kinds = {type(value) for value in parts}
        return (kinds.pop(), parts, None) if len(kinds) == 1 and kinds <= {str, int} else (annotation, (), None)
    if isinstance(annotation, type) and issubclass(annotation, Enum) and issubclass(annotation, str):
        return str, tuple(annotation), None
    if typing.get_origin(annotation) is tuple and parts:
        is_open = len(parts) == 2 and parts[1] is Ellipsis
        same = set(parts) - {Ellipsis}
        if len(same) == 1 and same <= {int, float, bool}:
            return list.__class_getitem__(same.pop()), (), None if is_open else len(parts)
    try:
        hash(annotation)
    except TypeError:
        return None, (), None
    return annotation, (), None


def _read_returns(hints: dict[str, Any], qualname: str, *, may_be_none: bool) -> tuple[tuple[Return, ...], bool]:
    where = f"{qualname}: the return value"
    if "return" not in hints:
        raise ContractError(
            f"{where} must have an annotation, got none", fix='annotate it, as in -> Float[Tensor, "n"]'
        )
    annotation, _ = _unwrap_annotated(hints["return"])
    if annotation is type(None):
        if may_be_none:
            return (), False
        raise ContractError(
            f"{where} must be a tensor where no argument is marked as mutated, got None",
            fix="return the result, or mark what it writes: Annotated[Float[Tensor, ...], ow.mutated]",
        )
    is_tuple = typing.get_origin(annotation) is tuple
    listed = typing.get_args(annotation) if is_tuple else (hints["return"],)
    free = [_is_marked(part, ByProperty) for part in listed]
    marked = [_unwrap_saved(part) for part in listed]
    is_list = not is_tuple and _is_list_of_arrays(marked[0][0])
    parts = [typing.get_args(part)[0] if is_list else part for part, _ in marked]
    flags = [is_saved for _, is_saved in marked]
    if flags != sorted(flags) or all(flags):
        raise ContractError(
            f"{where} must have outputs with ow.saved_for_backward last, got one before an output for the caller",
            fix="return at least one tensor for the caller first, and the saved outputs last",
        )
    for part in parts:
        if not _is_array(part):
            raise ContractError(
                f"{where} must consist of tensors, got {_show(part)}",
                fix='return tensors: Float[Tensor, "n"], tuple[Float[Tensor, "n"], Int[Tensor, "n"]], or one list of '
                'them, list[Float[Tensor, "?n"]]; an empty tensor for one that may be absent',
            )
    tensors = [_read_tensor(part, where) for part in parts]
    return tuple(Return(*each) for each in zip(tensors, flags, free, strict=True)), is_tuple


def _is_array(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, AbstractArray)


def _is_list_of_arrays(annotation: Any) -> bool:
    arguments = typing.get_args(annotation)
    listed = typing.get_origin(annotation) in (list, typing.get_origin(Sequence[int]))
    return listed and bool(arguments) and _is_array(arguments[0])


def _read_tensor(annotation: Any, where: str) -> TensorType:
    if annotation.array_type not in (torch.Tensor, np.ndarray):
        raise ContractError(
            f"{where} must be a jaxtyping array on torch.Tensor or np.ndarray, got {_show(annotation.array_type)}",
            fix="write Float[torch.Tensor, ...]",
        )
    try:
        dims = parse_dims(annotation.dim_str)
    except ValueError as error:
        raise ContractError(f"{where}: {error}", fix='write a shape such as "*batch n k"') from None
    language: Language = "numpy" if annotation.array_type is np.ndarray else "torch"
    dtypes = _torch_dtypes(annotation.dtypes, language)
    if not dtypes:
        raise ContractError(
            f"{where} must have a dtype of torch, got {annotation.dtype.__name__}", fix="use Float or Int"
        )
    return TensorType(dims, annotation.dtype.__name__, dtypes, language)


_ALL_DTYPES = (
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
    "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip


def _torch_dtypes(names: Any, language: Language) -> tuple[torch.dtype, ...]:
    listed = names if isinstance(names, tuple | list) else _ALL_DTYPES  # Shaped holds a marker, not names
    found = [getattr(torch, name) for name in listed if isinstance(getattr(torch, name, None), torch.dtype)]
    # torch has names for integers of less than a byte, but no operation on them.
    found = [d for d in found if not re.fullmatch(r"torch\.u?int[1-7]", str(d))]
    if language == "numpy":  # NumPy itself has no bfloat16 and no float8
        found = [d for d in found if d is not torch.bfloat16 and "float8" not in str(d) and "float4" not in str(d)]
    return tuple(dict.fromkeys(found))


def _unwrap_annotated(annotation: Any) -> tuple[Any, Values | None]:
    if typing.get_origin(annotation) is not Annotated:
        return annotation, None
    stated = [m for m in annotation.__metadata__ if isinstance(m, Values)]
    if len(stated) > 1:
        raise ContractError(
            f"an annotation states values twice: {' and '.join(map(str, stated))}", fix="put both into one ow.values"
        )
    return annotation.__origin__, stated[0] if stated else None


def _is_marked(annotation: Any, marker: type) -> bool:
    return typing.get_origin(annotation) is Annotated and any(isinstance(m, marker) for m in annotation.__metadata__)


def _unwrap_saved(annotation: Any) -> tuple[Any, bool]:
    return _unwrap_annotated(annotation)[0], _is_marked(annotation, Saved)


def _show(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")
