"""Defines a contract from a typed function, and refuses what its reference contradicts."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import math
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from opwright import tree
from opwright.contract.contract import Contract, checked_name, infer_schema
from opwright.contract.definition.annotations import read_signature
from opwright.contract.definition.randomness import RandomOperations
from opwright.contract.numpy.names import lacking, what_is_wrong, what_to_write
from opwright.contract.reference import run_traceable
from opwright.contract.shapes.dims import Dim, VariadicDim, evaluate, names_in
from opwright.contract.shapes.relations import Relation, broken, parse_relation
from opwright.contract.signature import Argument, Kind, Signature
from opwright.errors import ContractError
from opwright.internals.compiler import fake_tensors
from opwright.internals.tensors import share_memory, version_of

__all__ = ["fake_arguments", "make_contract"]

# The policies under torch.autocast (described in ``runtime/register/autocast.py``).
AUTOCAST = ("lower", "float32", "promote")
# Where a reference is tried on fake tensors: the largest size that is computed from an int argument's default, and how
# many combinations of such arguments are tried to find sizes.
_LARGEST_FAKE, _MOST_FAKE = 1 << 16, 256
_FAKE_SIZES = (4, 8, 2, 16, 1, 3)


def make_contract(
    qualname: str, function: Callable[..., Any], scope: Mapping[str, Any], autocast: str | None = None,
    *, where: Sequence[str] | str = (), random: bool | str = False, deterministic: bool = False, tf32: bool = False,
    examined: bool = False,
) -> Contract:  # fmt: skip
    """Make a contract from a typed function.

    Args:
        qualname: ``"namespace::name"``.
        function: the reference.
        scope: the names visible at its definition.
        autocast: one of ``AUTOCAST``, or None.
        where: conditions on sizes and ``int`` arguments.
        random: whether results are random, or the name of the argument that is the seed.
        deterministic: whether the same arguments are to give the same bits in every call.
        tf32: whether kernels may compute products of float32 matrices in TF32.
        examined: what the function writes was compared with what it declares before, when it was packaged.

    Raises:
        ContractError: the name or an annotation cannot be expressed, or the body writes what is not declared.
    """
    checked_name(qualname)
    if autocast is not None and autocast not in AUTOCAST:
        raise ContractError(
            f"{qualname}: autocast must be {', '.join(map(repr, AUTOCAST))} or None, got {autocast!r}",
            fix="leave it out to get arguments as they are",
        )
    if deterministic and random is True:
        raise ContractError(
            f"{qualname}: random must be False with deterministic=True, got True",
            fix='leave one of them out, or take the seed as an int argument and write random="seed"',
        )
    if not inspect.isfunction(function):
        raise ContractError(
            f"{qualname}: @ow.op must decorate a function, got {type(function).__name__}",
            fix="put @ow.op directly on the def, below nothing else",
        )
    signature = read_signature(function, qualname, scope)
    if signature.language == "numpy":
        _refuse_lacking(qualname, function)
    contract = Contract(
        qualname=qualname,
        signature=signature,
        function=function,
        schema=infer_schema(qualname, signature),
        module=function.__module__,
        file=inspect.getsourcefile(inspect.unwrap(function)),
        doc=inspect.getdoc(function) or "",
        autocast=autocast,
        random=_checked_random(qualname, signature, random),
        deterministic=deterministic,
        tf32=tf32,
        where=_read_relations(qualname, signature, _texts_of(qualname, where)),
    )
    if contract.signature.mutated and signature.language == "numpy":
        raise ContractError(
            f"{qualname}: a reference in NumPy is marked as writing its arguments",
            fix="write the reference in torch, or return the new values",
        )
    if contract.signature.mutated and autocast is not None:
        raise ContractError(
            f"{qualname}: autocast={autocast!r} casts arguments, and what is written into a cast copy is lost",
            fix="leave autocast out, and cast inside of the reference",
        )
    if not examined:
        _compare_mutation(contract)
    return contract


def _checked_random(qualname: str, signature: Signature, random: bool | str) -> bool | str:
    integers = [a.name for a in signature.arguments if a.schema_type is int]
    if isinstance(random, str) and random not in integers:
        raise ContractError(
            f"{qualname}: random={random!r} names no int argument",
            fix=f"name the seed, one of {integers}, or write random=True if there is none",
        )
    if random and signature.data_dependent:
        raise ContractError(
            f"{qualname}: its results are random, and the size {min(signature.data_dependent)!r} depends on data, so "
            "that each call has other sizes",
            fix="return a mask of what is kept, of a size that the arguments determine",
        )
    return random


def _texts_of(qualname: str, where: Any) -> list[str]:
    texts = [where] if isinstance(where, str) else list(where) if isinstance(where, list | tuple) else [where]
    for text in texts:
        if not isinstance(text, str):
            raise ContractError(
                f"{qualname}: where must be a condition in text, or a list of them, got {text!r}",
                fix='write it as where="n % 4 == 0"',
            )
    return texts


def _read_relations(qualname: str, signature: Signature, texts: Sequence[str]) -> tuple[Relation, ...]:
    optional = {a.name for a in signature.arguments if a.scalar_type is int}  # left out of a call, no condition on it
    known, found = signature.single_sizes | optional, []
    for text in texts:
        try:
            relation = parse_relation(text)
        except ValueError as error:
            raise ContractError(f"{qualname}: where: {error}", fix="compare dims and int arguments") from None
        if unknown := relation.names - known:
            raise ContractError(
                f"{qualname}: where={text!r} must use dims of one axis and int arguments, got {sorted(unknown)}",
                fix=f"use {', '.join(sorted(known))}" if known else "state a shape with a named dim of one axis",
            )
        found.append(relation)
    return tuple(found)


def _refuse_lacking(qualname: str, function: Callable[..., Any]) -> None:
    """Refuse a reference that uses NumPy functions without torch equivalents: derived parts need these."""
    for name in lacking(function):
        raise ContractError(
            f"{qualname}: {name}, used in {name.function} at {name.where}, {what_is_wrong(name.path)}, so that "
            "nothing can be derived from the reference",
            fix=what_to_write(name.path),
        )


def _compare_mutation(contract: Contract) -> None:
    """Run the reference once on fake tensors, and compare what it writes with what is declared.

    Nothing is computed. A reference that cannot run on fake tensors (it reads values) is accepted if it has written no
    other argument until then: ``opwright check`` compares the arguments of every real run as well.
    """
    where, signature = contract.qualname, contract.signature
    completed, outputs = False, None
    with fake_tensors(data_dependent=bool(signature.data_dependent)), RandomOperations() as drawn:
        arguments = fake_arguments(contract)
        versions = [_versions(a) for a in arguments]
        # An exception is not a mutation (sizes that do not match, a reference that reads values), and the
        # version counters below show a mutation that came before it.
        with contextlib.suppress(Exception):
            outputs = run_traceable(contract.function, signature, arguments)
            completed = True
    if drawn.first and not contract.random:
        raise ContractError(
            f"{where}: the reference must return the same for the same arguments, got random numbers ({drawn.first})",
            fix="declare it, @ow.op(..., random=True), and results are compared by their statistics; or draw with a "
            'torch.Generator that an argument seeds, and declare random="seed" if kernels may draw other numbers',
        )
    for argument, value, before in zip(signature.arguments, arguments, versions, strict=True):
        is_written = _versions(value) != before
        if is_written and not argument.mutated:
            raise ContractError(
                f"{where}: the reference must leave its argument {argument.name!r} unchanged, got a write into it",
                fix="work on a copy (.clone()) and return it, or declare it: "
                f"{argument.name}: Annotated[{argument.tensor}, ow.mutated]",
            )
        if argument.mutated and completed and not is_written and None not in before:
            raise ContractError(
                f"{where}: the reference must write {argument.name!r}, which is marked ow.mutated, got no write",
                fix="write into it (.copy_(), .add_(), x[...] = …); `x = x + 1` only binds the name to a new tensor",
            )
    if completed:
        _compare_sizes(contract, tree.tensors(outputs))
    for output in tree.tensors(outputs):
        if any(share_memory(output, written) for written in signature.written(arguments)):
            raise ContractError(
                f"{where}: the reference must return new tensors, got an argument that it writes, or a view of it",
                fix="leave it out of the result (-> None if nothing else is returned): the caller has it",
            )


def _compare_sizes(contract: Contract, outputs: Sequence[torch.Tensor]) -> None:
    """Refuse an output dim that no argument has, if its size does not depend on data: it is a typing error."""
    for returned, output in zip(contract.signature.stated_returns(len(outputs)), outputs, strict=False):
        dims = returned.tensor.dims
        if any(isinstance(d, VariadicDim) for d in dims) or len(dims) != output.dim():
            continue
        for dim, size in zip(dims, output.shape, strict=True):
            if str(dim) in contract.signature.data_dependent and isinstance(size, int):
                known = sorted(contract.signature.single_sizes)
                raise ContractError(
                    f"{contract.qualname}: the return value must have dims of the arguments, or sizes that depend on "
                    f"data, got {str(dim)!r}",
                    fix=f"compute it from {known}, or write '_' for a size that is not stated",
                )


def _versions(argument: Any) -> list[int | None]:
    return [version_of(t) for t in tree.tensors(argument)]


def _fake_numbers(contract: Contract) -> dict[str, int]:
    """Such int arguments, and sizes of dims: 4, or a few others with which the contract's conditions hold."""
    scalars = {a.name: _fake_scalar(a) for a in contract.signature.arguments if a.scalar_type is int}
    integers = {name: n for name, n in scalars.items() if isinstance(n, int)} | _fake_integers(contract.signature)
    usual = dict.fromkeys(contract.signature.single_sizes - scalars.keys(), 4) | integers
    free = sorted({name for relation in contract.where for name in relation.names} - integers.keys())
    tried = itertools.islice(itertools.product(_FAKE_SIZES, repeat=len(free)), _MOST_FAKE)
    found = (usual | dict(zip(free, sizes, strict=True)) for sizes in tried)
    return next((numbers for numbers in found if broken(contract.where, numbers) is None), usual)


def fake_arguments(contract: Contract) -> list[Any]:
    """Arguments of one small call. In a block of fake tensors, they have no memory."""
    numbers = _fake_numbers(contract)
    return [_fake_argument(a, numbers) for a in contract.signature.arguments]


def _fake_integers(signature: Signature) -> dict[str, int]:
    """The int arguments from which sizes of tensors are computed: their defaults, or 4 as dims, where these sizes are
    small then; else another choice, or 4."""
    dims = {_text_of(dim) for a in signature.arguments if a.tensor for dim in a.tensor.dims} - {""}
    named = {name for dim in dims for name in names_in(dim)}
    candidates = {a.name: _fake_candidates(a) for a in signature.arguments if a.schema_type is int and a.name in named}
    computed = sorted(dim for dim in dims if names_in(dim) & candidates.keys())

    def unfit(values: Sequence[int]) -> int:
        integers = dict(zip(candidates, values, strict=True))
        return sum(not 0 <= _evaluated(dim, integers) <= _LARGEST_FAKE for dim in computed)

    tried = [*itertools.islice(itertools.product(*candidates.values()), _MOST_FAKE), (4,) * len(candidates)]
    best = min(tried, key=unfit)  # the first of those that are as good
    return dict(zip(candidates, best, strict=True))


def _fake_candidates(argument: Argument) -> list[int]:
    default = [argument.default] if argument.has_default else []
    return [*(v for v in [*default, *argument.choices] if isinstance(v, int)), 4]


def _fake_argument(argument: Argument, numbers: Mapping[str, int]) -> Any:
    if argument.kind is Kind.SCALAR:
        return numbers.get(argument.name, _fake_scalar(argument))
    assert argument.tensor is not None  # every argument that is not a scalar has one
    shape = [_fake_size(_text_of(dim), numbers) for dim in argument.tensor.dims if _text_of(dim)]
    dtypes = argument.tensor.dtypes
    dtype = next((d for d in (torch.float32, torch.int64, torch.complex64) if d in dtypes), dtypes[0])
    try:
        fake = torch.empty(shape, dtype=dtype)
    except RuntimeError:  # there is no such memory, even for a fake tensor
        fake = torch.empty([4] * len(shape), dtype=dtype)
    return [fake, fake.clone()] if argument.kind is Kind.TENSOR_LIST else fake


def _fake_scalar(argument: Argument) -> Any:
    plain: dict[Any, Any] = {int: 1, float: 1.0, bool: False, str: "", Sequence[int]: 1, Sequence[float]: 1.0}
    if argument.has_default or argument.optional:
        return argument.default if argument.has_default else None
    if argument.choices:
        return argument.choices[0]
    value = plain.get(argument.schema_type)
    return [value] * (argument.length or 1) if isinstance(argument.schema_type, types.GenericAlias) else value


def _text_of(dim: Dim) -> str:
    """A dim as an expression; of any number of axes, with or without a name, as one or none."""
    text = str(dim).lstrip("*#?")
    return "" if text == "..." else text


def _fake_size(dim: str, numbers: Mapping[str, int]) -> int:
    """Every other name is 4, also in expressions, so that sizes match. Any size, if there is no such one: the reference
    is tried all the same."""
    size = _evaluated(dim, numbers)
    return int(size) if 0 <= size < 2**53 else 4


def _evaluated(dim: str, integers: Mapping[str, int]) -> float:
    """The size that an expression gives, NaN if none. It is computed in floats, whose powers end at once, however large
    they are; up to 2**53 they are exact."""
    try:
        values = {name: float(integers.get(name, 4)) for name in names_in(dim)}
        return float(evaluate(dim, values))
    except (ArithmeticError, TypeError):  # a division by zero, a power that is too large or complex
        return math.nan
