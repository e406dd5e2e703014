"""Values that go together (probabilities, what a function of the author's draws), with the hard values among them.

What a statement says of elements still holds: the normal numbers that they are computed from are larger, or of a few
bits, so that tails are empty, rows have ties, and two arguments of one statement are equal.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from opwright import tree
from opwright.contract.contract import Contract
from opwright.contract.dtypes import short
from opwright.contract.inputs.case import CONFIDENT, DYADIC
from opwright.contract.signature import Argument
from opwright.contract.values import Draw, Values
from opwright.errors import CheckError

__all__ = ["draw_by", "draw_probabilities", "has_arranged_floats", "let_some_be_equal", "with_what_it_reads"]

Shape = tuple[int, ...]
# As of values for which nothing is stated; what is drawn from them may be as large as those are.
_CONFIDENT, _MOST, _MOST_TIMES = 30.0, 1e5, 100.0
# A function that draws more often may wait for numbers that it never gets.
_MOST_DRAWS = 64


def has_arranged_floats(contract: Contract) -> bool:
    """Whether some floating tensor's values go together in a way that allows for hard ones."""
    tensors = [a.tensor for a in contract.signature.arguments if a.tensor and _may_be_hard(a)]
    return any(d.is_floating_point and d.itemsize > 1 for t in tensors for d in t.dtypes)


def _may_be_hard(argument: Argument) -> bool:
    stated = argument.values
    return stated is not None and (stated.draw is not None or stated.arrangement == "probabilities")


def draw_probabilities(
    shape: Shape, dtype: torch.dtype, chosen: Values, generator: torch.Generator, unstated: str = ""
) -> torch.Tensor:
    """Positive numbers whose rows add up to 1."""
    drawn = _changed(torch.randn(shape, dtype=torch.float64, generator=generator), unstated)
    return (drawn.softmax(-1) if shape else torch.ones(())).to(dtype)


def draw_by(
    function: Callable[[Shape, torch.Generator], torch.Tensor],
    shape: Shape,
    dtype: torch.dtype,
    generator: torch.Generator,
    unstated: str = "",
) -> torch.Tensor:
    """What a function of the author's draws; of other normal numbers, if that gives finite and moderate ones."""
    state = generator.get_state()
    drawn = _called(function, shape, generator)
    if unstated not in (CONFIDENT, DYADIC) or not drawn.is_floating_point():
        return _converted(drawn, dtype)
    generator.set_state(state)
    try:
        with _OtherNumbers(unstated):
            harder = _called(function, shape, generator)
    except Exception:  # the author's function may refuse such numbers by any exception
        return _converted(drawn, dtype)
    most = max(_MOST, _MOST_TIMES * _largest(drawn))
    is_moderate = harder.to(dtype).double().isfinite().all() and _largest(harder) <= most
    return (harder if is_moderate else drawn).to(dtype)


def with_what_it_reads(contract: Contract, place: int, found: Sequence[Any], env: Mapping[str, Any]) -> Argument:
    """An argument whose values are drawn from others, with a function that has these.

    Args:
        found: the arguments that have been drawn.
        env: sizes by name.
    """
    argument = contract.signature.arguments[place]
    stated = argument.values
    assert stated is not None  # it reads others
    assert stated.draw is not None
    known = {a.name: value for a, value in zip(contract.signature.arguments, found, strict=True)}
    others = {name: known[name] if name in known else env[name] for name in stated.reads}
    if any(t.is_meta for t in tree.tensors(list(others.values()))):  # only sizes are asked for
        draw: Draw = _zeros
    else:
        copies = {name: tree.map_tensors(_as_drawn, value) for name, value in others.items()}
        draw = functools.partial(stated.draw, **copies)
    return dataclasses.replace(argument, values=dataclasses.replace(stated, draw=draw))


def _as_drawn(t: torch.Tensor) -> torch.Tensor:
    """A tensor's values by themselves: a function may write into it."""
    return t.detach().cpu().clone(memory_format=torch.contiguous_format)


def _zeros(shape: Shape, generator: torch.Generator) -> torch.Tensor:
    return torch.zeros(shape)


def let_some_be_equal(contract: Contract, arguments: Sequence[Any], generator: torch.Generator) -> None:
    """Let arguments of one statement and shape be equal: probabilities in about half of the rows, else everywhere."""
    first: dict[Any, torch.Tensor] = {}
    for argument, value in zip(contract.signature.arguments, arguments, strict=True):
        if not isinstance(value, torch.Tensor) or value.is_meta or not _may_be_hard(argument):
            continue
        assert argument.values is not None  # it is arranged
        of = first.setdefault((argument.values, value.shape, value.dtype), value)
        if of is value or not value.dim():
            continue
        if argument.values.draw is not None:
            value.copy_(of)
        else:
            is_equal = torch.rand((*value.shape[:-1], 1), generator=generator) < 0.5
            value.copy_(torch.where(is_equal.to(value.device), of, value))


def _called(
    function: Callable[[Shape, torch.Generator], torch.Tensor], shape: Shape, generator: torch.Generator
) -> torch.Tensor:
    try:
        drawn = function(shape, generator)
    except Exception as error:  # the author's function may raise anything
        raise CheckError(
            f"the function of ow.inputs.drawn_by raised {type(error).__name__}: {error}",
            fix="choose other sizes with where=, or correct the function",
        ) from error
    if not isinstance(drawn, torch.Tensor) or drawn.shape != torch.Size(shape):
        got = f"shape {list(drawn.shape)}" if isinstance(drawn, torch.Tensor) else type(drawn).__name__
        raise CheckError(
            f"the function of ow.inputs.drawn_by returned {got}, expected a tensor of shape {list(shape)}",
            fix="return a tensor of the shape that it is given",
        )
    return drawn.detach().cpu()


def _converted(drawn: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The values in another dtype; integers that it does not have are refused."""
    converted = drawn.to(dtype)
    is_integer = not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)
    if is_integer and not drawn.is_complex():
        whole = drawn.double().trunc() if drawn.is_floating_point() else drawn  # torch truncates no float8
        if (is_other := converted != whole).any():
            raise CheckError(f"{short(dtype)} has no value {whole[is_other][0].item()}", fix="choose another dtype")
    return converted


def _largest(t: torch.Tensor) -> float:
    return float(t.double().abs().nan_to_num(math.inf).max()) if t.numel() else 0.0


def _changed(normal: torch.Tensor, unstated: str) -> torch.Tensor:
    if unstated == CONFIDENT:
        return normal * _CONFIDENT
    return normal.mul(8).round().div(8) + 0.0 if unstated == DYADIC else normal


class _OtherNumbers(TorchFunctionMode):
    """A mode in which torch draws other normal numbers."""

    def __init__(self, unstated: str) -> None:
        super().__init__()
        self._unstated, self._left = unstated, _MOST_DRAWS

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func not in _NORMAL:
            return out
        self._left -= 1
        if self._left < 0:
            raise CheckError("a function draws again and again", fix="draw without conditions")
        if func is torch.Tensor.normal_:
            return out.copy_(_changed(out.clone(), self._unstated))
        return tree.map_tensors(lambda t: _changed(t, self._unstated), out)


_NORMAL = (torch.randn, torch.randn_like, torch.normal, torch.Tensor.normal_)
