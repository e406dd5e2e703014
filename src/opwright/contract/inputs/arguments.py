"""From a case to arguments: values of scalars, tensors in a memory layout."""

from __future__ import annotations

import dataclasses
import inspect
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from opwright import tree
from opwright.contract.contract import Contract
from opwright.contract.inputs.arranged import let_some_be_equal, with_what_it_reads
from opwright.contract.inputs.case import DYADIC, PEAK_TARGETS, SCALAR_BOUNDS, Case, own_size_name
from opwright.contract.inputs.draw import draw, is_mask
from opwright.contract.inputs.layouts import BROADCAST, SHARED, arrange
from opwright.contract.inputs.options import choice_of
from opwright.contract.inputs.samples import sample_arguments
from opwright.contract.inputs.targets import point_at_largest, targets
from opwright.contract.process_group import ProcessGroup
from opwright.contract.shapes.dims import AnyDim, Dim, ExprDim, FixedDim, NamedDim, VariadicDim, evaluate, size_name
from opwright.contract.shapes.search import broken_by, nearest
from opwright.contract.signature import Argument, Kind, TensorType
from opwright.contract.values import Values, draw_range
from opwright.errors import CheckError

__all__ = [
    "always_its_default",
    "arguments_of",
    "env_of",
    "has_free_integers",
    "has_free_numbers",
    "has_free_tensors",
    "has_half_tensors",
    "has_masks",
    "has_ranges",
    "has_ranges_of_floats",
    "optional_arguments",
    "shape_of",
]


def arguments_of(
    contract: Contract, case: Case, device: str, *, draw: int = 0, group: str | None = None, only_sizes: bool = False
) -> tuple[Any, ...]:
    """The arguments of a case, in signature order, on a device.

    Values are drawn on the CPU, so that a case has the same values on every device.

    Args:
        draw: other numbers give tensors of the same sizes with other values; a sample has only its own. The scalars are
            the same for all but 0.
        group: the name of what process groups are; by default, of this process's default group.
        only_sizes: floats for which no values are stated are not drawn, as nobody reads them. Numbers are others, then.

    Raises:
        CheckError: the case's sizes contradict the contract, or there is not enough memory for its layout.
    """
    if case.sample is not None:
        own = list(sample_arguments(contract, case.sample))
        return tuple(tree.map_tensors(lambda t: _placed(t, case.layout, device), own))
    seed = zlib.crc32(str(case).encode())
    generator = torch.Generator().manual_seed(seed)
    of_tensors = generator if draw == 0 else torch.Generator().manual_seed(seed + draw)
    env = env_of(contract, case)
    try:
        later = contract.signature.drawing_order
        found = [
            _group(contract, group)
            if a.is_group
            else _argument(a, case, env, of_tensors if a.is_tensor else generator, device, place, only_sizes)
            if place not in later
            else None
            for place, a in enumerate(contract.signature.arguments)
        ]
        if case.values == PEAK_TARGETS:
            point_at_largest(found, targets(contract), of_tensors)
        if case.values == DYADIC and not only_sizes:
            let_some_be_equal(contract, found, of_tensors)
        for place in later:
            argument = with_what_it_reads(contract, place, found, env)
            found[place] = _argument(argument, case, env, of_tensors, device, place, only_sizes)
        return tuple(found)
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise CheckError(f"there is not enough memory for the case {case}", fix="use a larger machine") from error


def _group(contract: Contract, name: str | None) -> ProcessGroup:
    if name is None and not dist.is_initialized():
        raise CheckError(
            f"{contract.qualname} takes a process group, and this process has none",
            fix="call torch.distributed.init_process_group first",
        )
    return ProcessGroup(dist.group.WORLD if name is None else name)


def _argument(
    argument: Argument,
    case: Case,
    env: dict[str, Any],
    generator: torch.Generator,
    device: str,
    place: int,
    only_sizes: bool,
) -> Any:
    if not case.has(argument.name, is_optional=argument.optional):
        return None
    if argument.kind is Kind.SCALAR:
        return env.get(argument.name) if argument.scalar_type is int else _number(argument, env, generator, case)
    assert argument.tensor is not None  # every non-scalar argument has one
    count = case.lists if argument.kind is Kind.TENSOR_LIST else 1
    dtype = _dtype_in(case, argument.tensor)
    kind, _, only = case.layout.partition(":")
    broadcast = _broadcast(argument, only) if kind == BROADCAST else ""
    shapes = [shape_of(argument, env, index=i, broadcast=broadcast) for i in range(count)]
    arranged = argument.values is not None and argument.values.is_arranged
    if kind in SHARED and (argument.mutated or arranged):
        kind = ""  # elements that share an address cannot be written, and are neither unique nor offsets
    is_read = not only_sizes or argument.values is not None or not dtype.is_floating_point
    tensors = [
        arrange(
            draw(shape, dtype, argument.values, env, generator, case.values) if is_read else _not_drawn(shape, dtype),
            kind if only in ("", argument.name) else "",
            device,
            place + i,
        )
        for i, shape in enumerate(shapes)
    ]
    return tensors if argument.kind is Kind.TENSOR_LIST else tensors[0]


def _not_drawn(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros((), dtype=dtype).expand(tuple(shape))


def _broadcast(argument: Argument, only: str) -> str:
    """Of an argument's axes that may broadcast: all, those of one dim, or none, as what follows the layout says."""
    return only if only.startswith("#") else "#" if only in ("", argument.name) else ""


def env_of(contract: Contract, case: Case) -> dict[str, Any]:
    """Sizes by name, with a value for each int argument (which dims may depend on)."""
    env: dict[str, Any] = dict(case.sizes)
    if numbers := [a for a in contract.signature.arguments if a.scalar_type is int]:
        generator = torch.Generator().manual_seed(zlib.crc32(repr(case.sizes).encode()))
        for argument in numbers:
            value = _number(argument, env, generator, case)
            if value is not None and case.has(argument.name, is_optional=argument.optional):
                env[argument.name] = value
    env |= {contract.signature.arguments[i].name: case.ranks for i in contract.signature.groups}
    return _with_integers_where(contract, env, case)


def _with_integers_where(contract: Contract, env: dict[str, Any], case: Case) -> dict[str, Any]:
    """Int arguments that satisfy the contract's conditions with the sizes of a case."""
    if broken_by(env, contract.where) is None:
        return env
    known = {name: value for name, value in env.items() if isinstance(value, int)}
    free = [a for a in contract.signature.arguments if a.scalar_type is int and a.name in known]
    found = nearest(contract.where, known, known.keys() - {a.name for a in free})
    if found is None or not all(_may_be(a, found[a.name], env) for a in free):
        raise CheckError(f"the sizes {case} do not satisfy {broken_by(env, contract.where)}", fix="choose other sizes")
    return {**env, **found}


def _may_be(argument: Argument, value: int, env: Mapping[str, Any]) -> bool:
    """Whether the stated test values of an int argument contain a value."""
    if argument.values is None:
        return True
    drawn = argument.values.at(env)
    if drawn.one_of:
        return value in drawn.one_of
    low, high = draw_range(drawn, -math.inf, math.inf)
    return low <= value <= high


def shape_of(argument: Argument, env: dict[str, Any], *, index: int = 0, broadcast: str = "") -> tuple[int, ...]:
    """The shape of a tensor argument in a case.

    Args:
        index: its place in a list.
        broadcast: which of the axes that may broadcast have size 1: ``#`` all, ``#n`` those of the dim ``n``.
    """
    assert argument.tensor is not None  # nothing else has a shape
    shape: list[int] = []
    for axis, dim in enumerate(argument.tensor.dims):
        is_one = isinstance(dim, NamedDim) and dim.broadcast and broadcast in ("#", f"#{dim.name}")
        own = own_size_name(argument.name, axis)
        shape += (1,) if is_one else _extent(dim, env, index, own if own in env else size_name(dim, axis))
    if any(size < 0 for size in shape):
        raise CheckError(f"these sizes give {argument.tensor} the shape {shape}", fix="choose larger ones")
    return tuple(shape)


def _extent(dim: Dim, env: dict[str, Any], index: int, name: str | None) -> tuple[int, ...]:
    match dim:
        case VariadicDim():
            return tuple(env[str(name)])
        case NamedDim(each=False):
            return (env[str(name)],)
        case NamedDim() | AnyDim():
            size = env[str(name)]
            return ((size, size // 2, size + 1, 0, size + 2)[index % 5],)
        case FixedDim(size=size):
            return (size,)
        case ExprDim(text=text):
            return (int(evaluate(text, env)),)


def has_free_tensors(contract: Contract) -> bool:
    """Whether some floating tensor has no stated values, so that those of a case decide."""
    tensors = [a for a in contract.signature.arguments if a.tensor and (a.values is None or a.values.is_free)]
    return any(d.is_floating_point and d.itemsize > 1 for a in tensors if a.tensor for d in a.tensor.dtypes)


def has_half_tensors(contract: Contract, case: Case) -> bool:
    """Whether a tensor without stated values is float16 in a case."""
    tensors = (a.tensor for a in contract.signature.arguments if a.tensor and (a.values is None or a.values.is_free))
    return any(_dtype_in(case, tensor) is torch.float16 for tensor in tensors)


def has_free_integers(contract: Contract, case: Case) -> bool:
    """Whether integers are computed from integers without stated values, which are then no places in other tensors."""
    if contract.signature.data_dependent:
        return False
    arguments = [a for a in contract.signature.arguments if a.tensor]
    every = [
        _dtype_in(case, t)
        for t in (*(a.tensor for a in arguments), *(r.tensor for r in contract.signature.returns))
        if t
    ]
    are_integers = all(not d.is_floating_point and not d.is_complex for d in every)
    return are_integers and any(a.values is None or a.values.is_free for a in arguments)


def _dtype_in(case: Case, tensor: TensorType) -> torch.dtype:
    return dict(case.dtypes).get(tensor.dtype_class, tensor.dtypes[0])


def has_free_numbers(contract: Contract) -> bool:
    """Whether some int or float has no stated values."""
    return any(_is_free(argument) for argument in contract.signature.arguments)


def has_ranges(contract: Contract) -> bool:
    """Whether some values are drawn from a stated range."""
    return any(_is_range(argument) for argument in contract.signature.arguments)


def has_ranges_of_floats(contract: Contract) -> bool:
    """Whether some floating tensor's values are."""
    tensors = [a.tensor for a in contract.signature.arguments if a.tensor and _is_range(a)]
    return any(d.is_floating_point and d.itemsize > 1 for t in tensors for d in t.dtypes)


def _is_range(argument: Argument) -> bool:
    stated = argument.values
    return stated is not None and not stated.is_arranged and (stated.low is not None or stated.high is not None)


def has_masks(contract: Contract) -> bool:
    """Whether some tensor has one of a few values in each place."""
    return any(is_mask(t, a.values) for a in contract.signature.arguments if a.tensor for t in a.tensor.dtypes)


def optional_arguments(contract: Contract) -> tuple[str, ...]:
    """The names of the arguments that may be None."""
    return tuple(a.name for a in contract.signature.arguments if a.optional)


def _is_free(argument: Argument) -> bool:
    return argument.scalar_type in (int, float) and argument.values is None and not argument.choices


# What a case's ``scalars`` mean for an int and for a float.
_NUMBERS: dict[str, tuple[int, float]] = {
    "zero": (0, 0.0), "negative": (-1, -1.375), "large": (6, 7.5), "hundreds": (130, 130.5),
}  # fmt: skip


def _number(argument: Argument, env: Mapping[str, Any], generator: torch.Generator, case: Case) -> Any:
    """The value of a scalar in a case."""
    drawn, scalars = _scalar(argument, env, generator), case.scalars
    if argument.name in (options := dict(case.options)):
        return choice_of(argument, options[argument.name])
    if case.values == DYADIC and not scalars:
        return _as_dyadic(argument, env, drawn)
    if scalars in SCALAR_BOUNDS:
        return _bound(argument, env, scalars, drawn)
    if scalars == "default":
        return argument.default if argument.has_default and argument.values is None else drawn
    if not scalars or not _is_free(argument):
        return drawn
    integer, real = _NUMBERS[scalars]
    # Of a small positive default, such as an epsilon, neither its negative nor a large value is meant.
    is_epsilon = _around(argument) != _AROUND
    return drawn if is_epsilon else integer if argument.scalar_type is int else real


def _as_dyadic(argument: Argument, env: Mapping[str, Any], drawn: Any) -> Any:
    """A float as the tensors' elements are, some of which it then equals: a threshold, say. An epsilon stays."""
    if argument.scalar_type is not float or not isinstance(drawn, float) or argument.choices:
        return drawn
    stated = (argument.values or Values()).at(env)
    low, high = draw_range(stated, *_around(argument))
    rounded = round(drawn * 8) / 8
    return rounded if not stated.one_of and low <= rounded <= high else drawn


def _bound(argument: Argument, env: Mapping[str, Any], which: str, drawn: Any) -> Any:
    """An end of the range that is stated for a number; what was drawn, if there is none."""
    if argument.values is None or argument.scalar_type not in (int, float):
        return drawn
    stated = argument.values.at(env)
    end = stated.low if which == "lowest" else stated.high
    if end is None or math.isinf(float(end)):
        return drawn
    if argument.scalar_type is float:
        return float(end)
    return math.ceil(float(end)) if which == "lowest" else math.floor(float(end))


_ITEMS: dict[Any, type] = {Sequence[int]: int, Sequence[float]: float, Sequence[bool]: bool}


def _scalar(argument: Argument, env: Mapping[str, Any], generator: torch.Generator) -> Any:
    def pick(options: Sequence[Any]) -> Any:
        return options[int(torch.randint(len(options), (), generator=generator))]

    drawn, plain = (argument.values or Values()).at(env), argument.scalar_type
    if choices := drawn.one_of or argument.choices:
        return pick(choices)
    if argument.length is not None and not (argument.has_default and argument.values is None):
        item = dataclasses.replace(argument, schema_type=_ITEMS[plain], length=None, default=inspect.Parameter.empty)
        return tuple(_scalar(item, env, generator) for _ in range(argument.length))
    if plain is bool:
        return pick((False, True))
    if (beside := _beside_the_range(argument, drawn)) and pick((False, True)):
        return pick(beside)
    if plain is float:
        low, high = draw_range(drawn, *_around(argument))
        number = low + (high - low) * float(torch.rand((), generator=generator))
        return float(f"{number:.4g}")
    if _has_no_values(argument):
        return argument.default if argument.has_default else None
    if plain is int:
        low, high = draw_range(drawn, 1, 3)
        if low > high:
            raise CheckError(f"no value of {argument.name!r} is from {low} to {high}", fix="choose other sizes")
        return int(torch.randint(int(low), int(high) + 1, (), generator=generator))
    raise CheckError(
        f"there are no test values for the argument {argument.name!r}",
        fix=f"annotate it with test values: {argument.name}: Annotated[..., ow.values(one_of=(...))]",
    )


def _beside_the_range(argument: Argument, stated: Values) -> tuple[Any, ...]:
    """What a number is in half of the cases, as a kernel may treat it apart, such as 0 for "off": its default, unless
    a range is stated that it is not in, and other values that are stated."""
    if argument.scalar_type not in (int, float) or _has_no_values(argument):
        return ()
    default, low, high = argument.default, stated.low, stated.high
    is_meant = _is_number(default) and (low is None or low <= default) and (high is None or default <= high)
    return (*((default,) if is_meant else ()), *stated.also)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _around(argument: Argument) -> tuple[float, float]:
    """The range of a float for which none is stated: of a small positive default, such as an epsilon, its own size."""
    if argument.values is None and _is_number(argument.default) and 0 < argument.default <= 0.01:
        return argument.default / 2, argument.default * 2
    return _AROUND


_AROUND = (-2.0, 2.0)


def always_its_default(argument: Argument) -> bool:
    """Whether cases use only the default (or None) of an argument, because no other values are stated."""
    return _has_no_values(argument) and argument.scalar_type is not int


def _has_no_values(argument: Argument) -> bool:
    stated = argument.values is not None or argument.choices or argument.scalar_type in (bool, float)
    return not argument.is_tensor and not stated and (argument.has_default or argument.optional)


def _placed(tensor: torch.Tensor, layout: str, device: str) -> torch.Tensor:
    """A tensor of a sample: as it is, or in another layout."""
    return tensor.to(device) if layout == "contiguous" else arrange(tensor, layout, device)
