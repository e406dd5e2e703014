"""Operators of opwright from torch's own test definitions (OpInfo): a contract, samples, and two kernels."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import jaxtyping
import torch
from jaxtyping import AbstractDtype
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, OpInfo, UnaryUfuncInfo

import opwright as ow
from opwright.contract.binding import bind
from tests.opinfo import left_out
from tests.opinfo.functions import HALVES, alone, as_tensors, bind_constants, eager_kernel, fused_kernel
from tests.opinfo.shapes import Layout, find_layout, fixed_layout
from tests.opinfo.structures import Group, Sample, first_dtype, groups_of, read_samples

__all__ = ["LeftOut", "Made", "full_name", "infos", "make"]

# The samples that an operator has in the first dtype, and in each of the others.
_FIRST, _OTHERS = 4, 2
# The groups of samples of which the one with the most free sizes is chosen.
_TRIED = 12
_ANY = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64",
        "complex64", "complex128", "uint16", "uint32", "uint64", "complex32")  # fmt: skip
# What derived matrices are, for functions that refuse or magnify others.
_POSITIVE_DEFINITE = {"cholesky", "linalg.cholesky", "linalg.cholesky_ex", "logdet"}
_WELL_CONDITIONED = {
    "linalg.inv", "linalg.inv_ex", "linalg.det", "linalg.slogdet", "linalg.cond", "linalg.solve", "linalg.solve_ex",
    "linalg.matrix_rank", "linalg.matrix_rank.hermitian", "linalg.pinv", "linalg.pinv.hermitian", "cholesky_inverse",
}  # fmt: skip
# The same of the second argument.
_SECOND_WELL_CONDITIONED = {"cholesky_solve"}
# Functions whose results say nothing for infinities and overflow.
_FINITE = {
    "lu", "linalg.lu", "linalg.lu_factor", "linalg.lu_factor_ex", "linalg.householder_product", "linalg.tensorinv",
    "linalg.qr", "qr", "linalg.svdvals",
}  # fmt: skip
# Products of many numbers, which do not overflow with these: in another order, one of its parts might.
_PRODUCTS = {"masked.cumprod", "cumprod", "prod", "masked.prod"}
# Functions of matrices: others than small ones take minutes, or all of the memory, as the factor P of a long matrix.
_OF_MATRICES = ("linalg.", "lu", "qr", "pinverse", "cholesky")
# Functions on a GPU that take half precision in sizes that are powers of two only, and functions that may give the
# place of any of equal values there: of integers, there are many.
_POWERS_OF_TWO = "fft."
_ANY_OF_EQUAL = {"argsort", "kthvalue", "median", "nanmedian", "sort", "topk"}


class LeftOut(Exception):
    """No operator is made of a function, for the reason that the message states."""


@dataclass(frozen=True)
class Made:
    """An operator, and how its contract was found."""

    function: str
    operator: Any
    layout: Layout
    samples: int


def infos() -> dict[str, OpInfo]:
    """All of torch's definitions by name."""
    from torch.testing._internal.common_methods_invocations import op_db  # takes seconds, also where no test needs it

    return {full_name(info): info for info in op_db}


def full_name(info: OpInfo) -> str:
    return f"{info.name}.{info.variant_test_name}" if info.variant_test_name else str(info.name)


def make(info: OpInfo, device: str = "cpu") -> Made:
    """An operator ``opinfo::<name>`` with the kernels "eager" and "fused", of the largest group of samples.

    Raises:
        LeftOut: it cannot be.
    """
    name = full_name(info)
    if why := left_out.reason(info.name, device) or left_out.reason(name, device):
        raise LeftOut(why)
    if not info.supported_dtypes(device):
        raise LeftOut(f"it has no dtypes on {device}")
    elementwise = isinstance(info, UnaryUfuncInfo | BinaryUfuncInfo)
    samples = read_samples(info, first_dtype(info))
    found, why = [], "no sample has a tensor argument of its own dtype and plain constants"
    for is_elementwise in (True, False) if elementwise else (False,):
        for group in groups_of(samples, elementwise=is_elementwise)[:_TRIED]:
            try:
                found.append((_find_layout(info, group, elementwise=is_elementwise), group))
            except LeftOut as error:
                why = str(error)
            if found and found[-1][0].free[:2] == (True, True):
                break
        if found:
            break
    if not found:
        raise LeftOut(why)
    layout, group = max(found, key=lambda pair: pair[0].free)
    try:
        return _make(info, group, layout, device)
    except ow.errors.OpwrightError as error:
        raise LeftOut(str(error).splitlines()[0]) from None


def _find_layout(info: OpInfo, group: Group, *, elementwise: bool) -> Layout:
    example = group.example
    call = bind_constants(info.op, example.leaves, example.spec, example.slots)
    draw = functools.partial(_draw_to_probe, info, example, first_dtype(info))
    try:
        if full_name(info) in left_out.UNCHECKED_SIZES:
            return fixed_layout(example, call)
        layout = find_layout(group, call, draw, elementwise=elementwise)
    except Exception as error:  # the function itself may raise anything on its own sample
        raise LeftOut((str(error) or type(error).__name__).splitlines()[0]) from None
    if elementwise and not layout.verified:
        raise LeftOut("it does not take tensors of any rank")
    return layout


def _make(info: OpInfo, group: Group, layout: Layout, device: str) -> Made:
    example = group.example
    call = bind_constants(info.op, example.leaves, example.spec, example.slots)
    if len(layout.outputs) == 1 and not layout.is_list:
        call = alone(call)
    supported, first = _supported(info, device), first_dtype(info)
    samples = [s for d in supported for s in _samples_in(info, group, d, _FIRST if d is first else _OTHERS)]
    converted = [(d, _in_dtype(example, d)) for d in supported]
    outputs = _output_dtypes(call, [*samples, *converted], device)
    if not outputs:
        raise LeftOut("no sample could be run")
    reference = _typed(call, _annotations(info, example, layout, outputs))
    name = re.sub("[^A-Za-z0-9_]", "_", full_name(info))
    operator: Any = ow.op(f"opinfo::{name}", where=_small(info, layout))(reference)
    fitting = [s.tensors for _, s in samples if _fits(operator, s)]
    operator.samples(functools.partial(list, fitting))
    operator.python(eager_kernel(call), name="eager", dtypes=supported)
    halves = [d for d in supported if d in HALVES]
    if halves:
        rounded = {d: kinds for d, kinds in outputs.items() if d in HALVES}
        fixed = [d for d in example.dtypes if d is not None and d.is_floating_point]
        operator.python(fused_kernel(call, rounded), name="fused", dtypes=[*halves, *fixed])
    return Made(full_name(info), operator, layout, len(fitting))


def _small(info: OpInfo, layout: Layout) -> list[str]:
    """Relations that keep matrices small."""
    if not info.name.startswith(_OF_MATRICES):
        return []
    # A factor with elements of about 1 is ill-conditioned, unless it is small.
    most = 12 if info.name in ("cholesky_inverse", "cholesky_solve") else 130
    return [f"{d} <= {most}" for d in dict.fromkeys(d for tensor in layout.dims for d in tensor) if d.isalpha()]


def _supported(info: OpInfo, device: str) -> list[torch.dtype]:
    found = set(info.supported_dtypes(device))
    if device == "cuda" and info.name.startswith(_POWERS_OF_TWO):
        found -= {*HALVES, torch.complex32}
    if device == "cuda" and info.name in _ANY_OF_EQUAL:
        found = {d for d in found if d.is_floating_point}
    return sorted(found, key=lambda d: (d is not first_dtype(info), str(d)))


def _draw_to_probe(
    info: OpInfo, example: Sample, dtype: torch.dtype, i: int, shape: tuple[int, ...], high: Any
) -> Tensor:
    """A tensor with which a function is tried with other sizes."""
    own, stated = example.dtypes[i] or dtype, _stated(info, i, None)
    generator = torch.Generator().manual_seed(i)
    if stated is not None and stated.is_arranged:
        drawn = torch.randn(shape, generator=generator)
        is_square = len(shape) > 1 and shape[-1] == shape[-2]
        return (drawn @ drawn.mT + torch.eye(shape[-1]) if is_square else drawn).to(own)
    if own is torch.bool:
        return torch.rand(shape, generator=generator) > 0.5
    if own.is_floating_point or own.is_complex:
        drawn = torch.randn(shape, generator=generator) if stated is None else _within(stated, shape, generator)
        return drawn.to(own)
    low, end = (1, 4) if high is None else (0, high + 1)
    return torch.randint(low, end, shape, generator=generator).to(own)


def _within(stated: Any, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    low = stated.low if stated.low is not None else stated.high - 1
    return float(low) + torch.rand(shape, generator=generator)


def _samples_in(info: OpInfo, group: Group, dtype: torch.dtype, most: int) -> Iterator[tuple[torch.dtype, Sample]]:
    """A few samples of the group in a dtype; at most one without elements."""
    example, empty, count = group.example, 0, 0
    for sample in read_samples(info, dtype):
        alike = sample.arguments == example.arguments and sample.constants == example.constants
        if not alike or (sample.ranks != example.ranks and len(set(group_ranks(group))) == 1):
            continue
        empty += sample.is_empty
        if sample.is_empty and empty > 1:
            continue
        yield dtype, sample
        count += 1
        if count == most:
            return


def group_ranks(group: Group) -> list[tuple[int, ...]]:
    return [s.ranks for s in group.wider]


def _fits(operator: Any, sample: Sample) -> bool:
    """Whether the contract takes a sample."""
    try:
        bind(operator.contract, sample.tensors)
    except ow.errors.ArgumentError:
        return False
    return True


def _in_dtype(sample: Sample, dtype: torch.dtype) -> Sample:
    """A sample whose own dtype is another one."""
    own = [slot for slot, fixed in zip(sample.slots, sample.dtypes, strict=True) if fixed is None]
    leaves = tuple(leaf.to(dtype) if i in own else leaf for i, leaf in enumerate(sample.leaves))
    return dataclasses.replace(sample, leaves=leaves)


def _dtypes_on_cpu(call: Callable[..., Any], sample: Sample) -> list[torch.dtype]:
    return [t.dtype for t in as_tensors(call(*(t.clone() for t in sample.tensors)))]


def _dtypes_on_gpu(call: Callable[..., Any], sample: Sample) -> list[torch.dtype]:
    """Of fakes, which need no GPU; where these say nothing, as where sizes depend on data, those on a CPU."""
    found = _dtypes_on_cpu(call, sample)
    try:
        with FakeTensorMode() as mode:
            fakes = [mode.from_tensor(t).to("cuda") for t in sample.tensors]
            return [t.dtype for t in as_tensors(call(*fakes))]
    except Exception:  # a function may raise anything on fakes
        return found


def _output_dtypes(
    call: Callable[..., Any], samples: Sequence[tuple[torch.dtype, Sample]], device: str
) -> dict[torch.dtype, list[torch.dtype]]:
    """The dtypes of outputs on a device, by the dtype of inputs."""
    found: dict[torch.dtype, list[torch.dtype]] = {}
    for dtype, sample in samples:
        if dtype in found:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found[dtype] = _dtypes_on_gpu(call, sample) if device == "cuda" else _dtypes_on_cpu(call, sample)
        except TypeError as error:
            if "it returns" in str(error):
                raise LeftOut(str(error)) from None
        except Exception:  # it may not have this dtype on the CPU
            continue
    return found


# -- annotations --------------------------------------------------------------------------------------------------


def _annotations(
    info: OpInfo, example: Sample, layout: Layout, outputs: dict[torch.dtype, list[torch.dtype]]
) -> dict[str, Any]:
    supported = info.supported_dtypes("cpu") | info.supported_dtypes("cuda")
    own = _dtype_class("Supported", [_short(d) for d in sorted(supported, key=str)])
    hints: dict[str, Any] = {}
    for i, (dims, dtype, bound) in enumerate(zip(layout.dims, example.dtypes, layout.bounds, strict=True)):
        kind = own if dtype is None else _concrete(dtype)
        annotation = kind[Tensor, " ".join(dims)]
        stated = _stated(info, i, bound)
        hints[f"t{i}"] = annotation if stated is None else Annotated[annotation, stated]
    count = max(map(len, outputs.values()))
    if layout.is_list:
        kind = _output_class(own, 0, [(d, kinds[0]) for d, kinds in outputs.items() if kinds])
        hints["return"] = list[kind[Tensor, "..."]]  # type: ignore[valid-type]
        return hints
    if len(layout.outputs) != count:
        raise LeftOut("the number of its outputs depends on the arguments")
    listed = [
        _output_class(own, i, [(d, kinds[i]) for d, kinds in outputs.items()])[Tensor, " ".join(dims)]
        for i, dims in enumerate(layout.outputs)
    ]
    hints["return"] = listed[0] if count == 1 and not _is_tuple(layout) else tuple.__class_getitem__(tuple(listed))
    return hints


def _is_tuple(layout: Layout) -> bool:
    return len(layout.outputs) > 1


def _stated(info: OpInfo, i: int, bound: Any) -> Any:
    """The values of an argument: indices, the domain of an elementwise function, or matrices."""
    if bound is not None:
        return ow.values(0, bound)
    if i == 0 and full_name(info) in _POSITIVE_DEFINITE:
        return ow.inputs.positive_definite()
    if (i == 0 and full_name(info) in _WELL_CONDITIONED) or (i == 1 and full_name(info) in _SECOND_WELL_CONDITIONED):
        return ow.inputs.well_conditioned()
    if full_name(info) in _FINITE:
        return ow.values(-3, 3)
    if full_name(info) in _PRODUCTS:
        return ow.values(-1.25, 1.25)
    low, high = getattr(info, "domain", None) or (None, None)
    if low is None and high is None:
        return None
    return ow.values(*(None if end is None or math.isinf(end) else end for end in (low, high)))


def _dtype_class(name: str, dtypes: list[str]) -> Any:
    return type(name, (AbstractDtype,), {"dtypes": dtypes})


def _output_class(own: Any, i: int, pairs: Sequence[tuple[torch.dtype, torch.dtype]]) -> Any:
    """The inputs' class, if the dtype is always theirs; one dtype; or a class that leaves it open."""
    if len(pairs) > 1 and all(before is after for before, after in pairs):
        return own
    kinds = {after for _, after in pairs}
    return _concrete(kinds.pop()) if len(kinds) == 1 and len(pairs) > 2 else _dtype_class(f"Result{i}", list(_ANY))


def _concrete(dtype: torch.dtype) -> Any:
    name = _short(dtype)
    found = next((c for n, c in vars(jaxtyping).items() if n.lower() == name and isinstance(c, type)), None)
    return found or _dtype_class(name, [name])


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _typed(call: Callable[..., Any], hints: dict[str, Any]) -> Callable[..., Any]:
    """A function with the annotations as its signature."""

    def reference(*tensors: Tensor) -> Any:
        return call(*tensors)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(n, kind, annotation=h) for n, h in hints.items() if n != "return"]
    reference.__signature__ = inspect.Signature(parameters, return_annotation=hints["return"])  # type: ignore[attr-defined]
    reference.__annotations__ = dict(hints)
    return reference
