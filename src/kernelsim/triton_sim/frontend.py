"""What Triton's frontend does for the simulator: arguments → their types and constants → TTIR."""

from __future__ import annotations

import inspect
import linecache
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelsim.arrays import dtype_of
from kernelsim.errors import KernelError, NotSimulatedError
from kernelsim.host import Host
from kernelsim.triton_sim import internals
from kernelsim.triton_sim.memory import is_descriptor

__all__ = ["Specialised", "specialise", "stated_options", "ttir"]

_TYPES = {
    "float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "int64": "i64",
    "int32": "i32", "int16": "i16", "int8": "i8", "uint8": "u8", "bool": "i1",
    "uint16": "u16", "uint32": "u32", "uint64": "u64",
    "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5",
}  # fmt: skip
_OPTIONS = frozenset({"num_warps", "num_stages", "num_ctas", "maxnreg", "enable_fp_fusion", "debug", "launch_pdl",
                      "launch_cooperative_grid", "sanitize_overflow"})  # fmt: skip


@dataclass(frozen=True)
class Specialised:
    """A kernel's arguments by name: the types of those at run time, and the values of the others. An element of a tuple
    is ``name.0``."""

    signature: dict[str, Any]
    constants: dict[str, Any]
    run_time: tuple[tuple[str, Any], ...]
    options: dict[str, Any]


def specialise(function: Any, args: Sequence[Any], keywords: Mapping[str, Any]) -> Specialised:
    """The arguments as Triton specialises them: constants, ones and None are part of the kernel.

    Raises:
        KernelError: an argument is missing.
        NotSimulatedError: an argument of a kind that the simulator does not take.
    """
    values = {**dict(zip(function.arg_names, args, strict=False)), **keywords}
    options = {name: values.pop(name) for name in list(values) if name not in function.arg_names}
    signature: dict[str, Any] = {}
    constants: dict[str, Any] = {}
    run_time: list[tuple[str, Any]] = []
    for parameter in function.params:
        value = values.get(parameter.name, parameter.default)
        if value is inspect.Parameter.empty:
            raise KernelError(f"{function.__name__}: argument {parameter.name} is missing", fix="pass it at the launch")
        is_one = type(value) is int and value == 1 and not parameter.do_not_specialize
        if parameter.is_constexpr or value is None or is_one:
            signature[parameter.name], constants[parameter.name] = "constexpr", value
        elif isinstance(value, tuple):
            signature[parameter.name] = _types_in(function.__name__, parameter.name, value, constants, run_time)
        else:
            stated = getattr(parameter, "annotation_type", "") if isinstance(value, int | float) else ""
            signature[parameter.name] = stated or _type_of(function.__name__, parameter.name, value)
            run_time.append((parameter.name, value))
    return Specialised(signature, constants, tuple(run_time), {n: o for n, o in options.items() if n in _OPTIONS})


def _types_in(
    kernel: str, name: str, values: tuple[Any, ...], constants: dict[str, Any], run_time: list[tuple[str, Any]]
) -> tuple[Any, ...]:
    """The types of a tuple's elements, which are arguments of their own: ``name.0`` and so on."""
    types: list[Any] = []
    for i, value in enumerate(values):
        place = f"{name}.{i}"
        if value is None or type(value).__name__ == "constexpr" or (type(value) is int and value == 1):
            types.append("constexpr")
            constants[place] = getattr(value, "value", value)
        elif isinstance(value, tuple):
            types.append(_types_in(kernel, place, value, constants, run_time))
        else:
            types.append(_type_of(kernel, place, value))
            run_time.append((place, value))
    return tuple(types)


def _type_of(kernel: str, name: str, value: Any) -> str:
    dtype = dtype_of(value)
    if dtype in _TYPES:
        return f"*{_TYPES[dtype]}"
    if is_descriptor(value) and (of_base := dtype_of(value.base)) in _TYPES:
        return f"tensordesc<{_TYPES[of_base]}{list(value.block_shape)}>"
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64" if value < 2**63 else "u64"
    if isinstance(value, float):
        return "fp32"
    what = f"a tensor of {value.dtype}" if dtype is not None else f"a {type(value).__name__}"
    raise NotSimulatedError(
        f"{kernel}: argument {name} is {what}, which the Triton simulator does not take",
        fix="check this kernel on a GPU",
    )


def stated_options(specialised: Specialised) -> dict[str, Any]:
    """The options with which Triton's frontend runs."""
    return {"enable_fp_fusion": True, **specialised.options, "debug": True}


def ttir(function: Any, specialised: Specialised, host: Host) -> str:
    """The text of a jitted function's intermediate code for these arguments.

    Raises:
        KernelError: Triton refuses the kernel.
        NotSimulatedError: it is in Gluon, or there is no Triton whose frontend is known.
    """
    if is_gluon(function):
        raise NotSimulatedError(
            f"{function.__name__} is in Gluon, which the Triton simulator does not take",
            fix="check this kernel on a GPU",
        )
    source_class = internals.ast_source(host)
    if source_class is None:
        raise NotSimulatedError("this Triton has no frontend that the simulator knows", fix="use Triton 3.4 to 3.9")
    numbers = {name: i for i, name in enumerate(specialised.signature)}
    constants = {}
    for place, value in specialised.constants.items():
        name, *inner = place.split(".")
        constants[(numbers[name], *map(int, inner))] = value
    source = source_class(fn=function, signature=specialised.signature, constexprs=constants, attrs={})
    try:
        return internals.ttir(source, stated_options(specialised), host)
    except Exception as error:  # the frontend raises errors of its own
        raise KernelError(f"Triton does not compile {function.__name__}: {_described(function, error)}") from error


def is_gluon(function: Any) -> bool:
    """Whether a jitted function is in Gluon, Triton's language of layouts."""
    says = getattr(function, "is_gluon", None)
    return says is not None and bool(says())


def _described(function: Any, error: Exception) -> str:
    """The innermost error, with the line of the function that has it. (Triton numbers lines from ``def``.)"""
    inner = at = error
    while isinstance(inner.__cause__, Exception):
        inner = inner.__cause__
        at = inner if hasattr(inner, "node") else at
    source, line = getattr(at, "src", None), getattr(getattr(at, "node", None), "lineno", None)
    said = getattr(inner, "error_message", None) or str(inner)
    for called in _reached(function.fn, set()):
        lines, first = inspect.getsourcelines(called)
        start = next((i for i, text in enumerate(lines) if text.lstrip().startswith("def ")), 0)
        if source is not None and line is not None and textwrap.dedent("".join(lines[start:])) == source:
            file, number = called.__code__.co_filename, first + start + line - 1
            return f"{said}\n{Path(file).name}:{number}:\n    {linecache.getline(file, number).strip()}"
    return said if at is inner else str(error)


def _reached(function: Any, known: set[Any]) -> Iterator[Any]:
    """The Python functions of a jitted function and of those that it calls."""
    if function in known:
        return
    known.add(function)
    yield function
    for name in function.__code__.co_names:
        called = getattr(function.__globals__.get(name), "fn", None)
        if inspect.isfunction(called):
            yield from _reached(called, known)
