"""The reverse of ``str(case)``: a case from its text."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import torch

from opwright.contract.contract import Contract
from opwright.contract.dtypes import short
from opwright.contract.inputs.arguments import optional_arguments
from opwright.contract.inputs.case import MOST_LISTS, OF_TENSORS, SCALAR_BOUNDS, SCALARS, Case, Size, own_size_name
from opwright.contract.inputs.layouts import layouts_of
from opwright.contract.inputs.options import choices_of
from opwright.contract.inputs.samples import sample_cases
from opwright.contract.inputs.sizes import admissible, axes_of_any_size, base_case
from opwright.errors import CheckError

__all__ = ["parse_case"]

_EXPLAINED = "`opwright check --help-cases` explains the parts of a case"


def parse_case(contract: Contract, text: str) -> Case:
    """The reverse of ``str(case)``; missing parts are filled in from the contract. Raises CheckError."""
    values = _split(text)
    if "sample" in values:
        return _parse_sample(contract, values, text)
    case = base_case(contract)
    given = [n for n, _ in case.sizes if n in values]
    case = _with_own_sizes(contract, case, values)
    sizes = tuple((n, _parse_size(values.pop(n), s, text) if n in values else s) for n, s in case.sizes)
    classes = [name for name, _ in case.dtypes]
    if "dtype" in values and len(classes) == 1:
        values[classes[0]] = values.pop("dtype")
    dtypes = tuple((n, _parse_dtype(values.pop(n), text) if n in values else d) for n, d in case.dtypes)
    layout, absent = values.pop("layout", "contiguous"), values.pop("optional", "") == "absent"
    without = _one_of(values.pop("absent", ""), "absent", optional_arguments(contract), text)
    lists = int(_parse_size(values.pop("lists", str(MOST_LISTS)), MOST_LISTS, text))  # type: ignore[arg-type]
    scalars = _one_of(values.pop("scalars", ""), "scalars", (*SCALARS, *SCALAR_BOUNDS), text)
    of_tensors = _one_of(values.pop("values", ""), "values", OF_TENSORS, text)
    options = _parse_options(contract, values, text)
    ranks = int(_parse_size(values.pop("ranks", "1"), 1, text)) if contract.signature.groups else 1  # type: ignore[arg-type]
    if values or layout not in layouts_of(contract):
        of_dtypes = ["dtype"] if len(classes) == 1 else classes
        known = [*(n for n, _ in case.sizes), *of_dtypes, "layout", "optional", "absent", "scalars", "values"]
        if values:
            part, expected, got = "a part", ", ".join(known), next(iter(values))
        else:
            part, expected, got = "layout", ", ".join(layouts_of(contract)), layout
        raise CheckError(f"the case {text!r}: {part} must be one of {expected}, got {got!r}", fix=_EXPLAINED)
    _refuse_other_dtypes(contract, dtypes, text)
    case = Case(
        sizes, dtypes, layout, absent, without, lists=lists, scalars=scalars, values=of_tensors, ranks=ranks,
        options=options,
    )  # fmt: skip
    fitted = admissible(contract, case, keep=given)
    if fitted is None:
        raise CheckError(
            f"no sizes of the case {text!r} satisfy {' and '.join(map(str, contract.where))}", fix="choose other sizes"
        )
    return fitted


def _with_own_sizes(contract: Contract, case: Case, given: Iterable[str]) -> Case:
    """The case with the sizes that a text gives to ``_`` of single arguments; their values follow."""
    for argument, axis, _ in axes_of_any_size(contract):
        if (name := own_size_name(argument, axis)) in given:
            case = case.with_size(name, 0)
    return case


def _parse_options(contract: Contract, values: dict[str, str], text: str) -> tuple[tuple[str, str], ...]:
    known = {a.name: tuple(map(str, choices_of(a))) for a in contract.signature.arguments}
    given = [name for name in known if known[name] and name in values]
    return tuple((name, _one_of(values.pop(name), name, known[name], text)) for name in given)


def _split(text: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for part in text.replace(",", " ").split():
        name, equals, value = part.partition("=")
        if not equals:
            raise CheckError(
                f"the case {text!r}: a part must be name=value, got {part!r}", fix=f'write "n=5"; {_EXPLAINED}'
            )
        values[name] = value
    return values


def _one_of(value: str, name: str, known: Sequence[str], text: str) -> str:
    if value and value not in known:
        raise CheckError(f"the case {text!r}: {name} must be one of {', '.join(known)}, got {value!r}", fix=_EXPLAINED)
    return value


def _parse_sample(contract: Contract, values: dict[str, str], text: str) -> Case:
    """A sample has its own sizes; those that are given must be the same."""
    number, layout = values.pop("sample"), values.pop("layout", "contiguous")
    known = sample_cases(contract)
    if not number.isdigit() or int(number) >= len(known) or layout not in layouts_of(contract):
        numbers = f"a number below {len(known)}" if known else "left out, as the operator has no samples"
        raise CheckError(f"the case {text!r}: sample must be {numbers}, got {number!r}", fix=_EXPLAINED)
    found = dataclasses.replace(known[int(number)], layout=layout)
    other = [f"{name}={value}" for name, value in values.items() if f"{name}={value}" not in str(found).split()]
    if other:
        raise CheckError(
            f"the case {text!r}: sizes and dtypes must be those of the sample, {found}, got {other[0]!r}",
            fix=f"leave {other[0]} out",
        )
    return found


def _parse_size(text: str, like: Size, case: str) -> Size:
    try:
        if isinstance(like, tuple):
            return () if text == "-" else tuple(int(part) for part in text.split("x"))
        return int(text)
    except ValueError:
        raise CheckError(
            f"the case {case!r}: a size must be a number, or numbers with x between, got {text!r}",
            fix="write n=5, or n=2x3 for two axes of a *n dim, or n=- for none",
        ) from None


def _parse_dtype(text: str, case: str) -> torch.dtype:
    dtype = getattr(torch, text, None)
    if not isinstance(dtype, torch.dtype):
        raise CheckError(f"the case {case!r}: a dtype must be one of torch, got {text!r}", fix="write dtype=float32")
    return dtype


def _refuse_other_dtypes(contract: Contract, dtypes: Iterable[tuple[str, torch.dtype]], text: str) -> None:
    admitted = {a.tensor.dtype_class: a.tensor.dtypes for a in contract.signature.arguments if a.tensor}
    for name, dtype in dtypes:
        if dtype not in admitted[name]:
            expected = ", ".join(map(short, admitted[name]))
            raise CheckError(
                f"the case {text!r}: the dtype must be one of {expected}, got {short(dtype)}",
                fix=f"choose one of {name}, as the operator states",
            )
