"""Declares ATen's operators as C++ functions on stable tensors, from their schemas.

torch's stable ``ops.h`` has about thirty operators; its dispatcher has all of them. A schema says what a function takes
and returns, and that is all that a wrapper around ``torch_call_dispatcher`` needs.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from opwright.internals.registration import AtenArgument, AtenOverload, overloads_of_aten

__all__ = ["BY_HAND", "advice", "is_method", "is_operator", "kind_returned", "why_not", "wrappers"]

# Written in <opwright/ops.h>: torch's stable ABI cannot pass the numbers that they take.
BY_HAND = frozenset({
    "add", "add_", "addmm", "arange", "baddbmm", "copy_", "elu", "fill_", "full", "full_like", "leaky_relu", "mul",
    "neg", "result_type", "rsub", "sub", "sub_", "tensor", "to", "where", "item", "cpu", "cuda",
})  # fmt: skip
_ALSO_GENERATED = frozenset({"mul", "where"})  # other overloads of these are generated, too

_TYPES = {
    "Tensor": "const Tensor&",
    "Optional[Tensor]": "const std::optional<Tensor>&",
    "List[Tensor]": "const std::vector<Tensor>&",
    "List[Optional[Tensor]]": "const std::vector<std::optional<Tensor>>&",
    "int": "int64_t",
    "Optional[int]": "std::optional<int64_t>",
    "List[int]": "const Integers&",
    "Optional[List[int]]": "const OptionalIntegers&",
    "float": "double",
    "Optional[float]": "std::optional<double>",
    "List[float]": "const std::vector<double>&",
    "bool": "bool",
    "Optional[bool]": "std::optional<bool>",
    "List[bool]": "const std::vector<bool>&",
    "str": "const std::string&",
    "Optional[str]": "const std::optional<std::string>&",
    "ScalarType": "ScalarType",
    "Optional[ScalarType]": "std::optional<ScalarType>",
    "Layout": "Layout",
    "Optional[Layout]": "std::optional<Layout>",
    "Device": "Device",
    "Optional[Device]": "std::optional<Device>",
    "MemoryFormat": "MemoryFormat",
    "Optional[MemoryFormat]": "std::optional<MemoryFormat>",
    "number": "Number",
    "Optional[number]": "std::optional<Number>",
}
_RETURNED = {"Tensor": "Tensor", "List[Tensor]": "std::vector<Tensor>", "bool": "bool", "int": "int64_t"}
_NUMBERS = ("number", "Optional[number]")
# The arguments that C++ takes as one, at::TensorOptions.
_OPTIONS = ("dtype", "layout", "device", "pin_memory")
_RESERVED = frozenset({"self", "default", "this", "class", "operator", "new", "delete", "not", "and", "or", "xor"})


@dataclass(frozen=True)
class _Parameter:
    """A parameter of a wrapper, and what it passes on."""

    text: str
    passed: tuple[str, ...]


def is_operator(name: str) -> bool:
    """Whether ATen has an operator of this name that works on tensors."""
    return bool(_on_tensors(name))


def is_method(name: str) -> bool:
    """Whether ATen has an operator of this name whose first argument is a tensor."""
    return any(o.arguments and o.arguments[0].type == "Tensor" for o in _on_tensors(name))


def kind_returned(name: str, given: int, *, of_two_tensors: bool = False) -> str:
    """What an operator gives with so many arguments: "tensor", "tuple" or "tensors"; "" for anything else.

    x.min() is a tensor, x.min(0) a tuple of them, and x.min(y) a tensor.
    """
    fitting = [
        o
        for o in _on_tensors(name)
        if sum(not a.has_default for a in o.arguments) <= given <= len(o.arguments)
        and (len(o.arguments) < 2 or given < 2 or of_two_tensors == (o.arguments[1].type == "Tensor"))
    ]
    kinds = {_kind(o.returned) for o in fitting or _on_tensors(name)}
    return kinds.pop() if len(kinds) == 1 else ""


@functools.cache
def _on_tensors(name: str) -> tuple[AtenOverload, ...]:
    return tuple(
        o
        for o in overloads_of_aten(name)
        if not o.name.startswith("prim_")
        and not any(a.is_written and a.keyword_only for a in o.arguments)  # out= forms have names of their own in C++
        and (any("Tensor" in r for r in o.returned) or any(a.type == "Tensor" for a in o.arguments))
        and not any(re.search(r"\bt\b|complex|Dict|Dimname", a.type) for a in o.arguments)
    )


def _kind(returned: Sequence[str]) -> str:
    if len(returned) == 1:
        return {"Tensor": "tensor", "List[Tensor]": "tensors"}.get(returned[0], "")
    return "tuple" if len(returned) > 1 and set(returned) == {"Tensor"} else ""


def wrappers(name: str) -> list[str]:
    """The C++ functions of an operator that are not in <opwright/ops.h>: one for each overload that can be called."""
    if name in BY_HAND - _ALSO_GENERATED:
        return []
    made: dict[tuple[str, ...], str] = {}
    for overload in _on_tensors(name):
        text = _wrapper(overload)
        if text is not None:  # of two with the same parameters (the other takes a generator), C++ can have one
            types = (
                p.text.rpartition(" ")[0].split(" = ")[0].rpartition(" ")[0] for p in _parameters(overload.arguments)
            )
            made.setdefault(tuple(filter(None, types)), text)
    return list(made.values())


def why_not(name: str) -> str:
    """Why no overload of an operator can be called; "" if one can."""
    if name in BY_HAND or wrappers(name):
        return ""
    found = _on_tensors(name)
    if not found:
        return f"ATen has no operator {name} on tensors"
    types = {a.type for o in found for a in o.arguments if a.type not in _TYPES or a.type in _NUMBERS}
    shown = ", ".join(sorted({"Scalar" if t in _NUMBERS else t for t in types}))
    return f"torch's stable ABI cannot pass {shown or 'what it returns'}: {found[0].schema}"


def _wrapper(overload: AtenOverload) -> str | None:
    if overload.name in _present(overload.operator):
        return None
    if any(a.type not in _TYPES and a.type != "Optional[Generator]" for a in overload.arguments):
        return None
    if overload.returned and any(r not in _RETURNED for r in overload.returned):
        return None
    returned = [_RETURNED[r] for r in overload.returned]
    result = "void" if not returned else returned[0] if len(returned) == 1 else f"std::tuple<{', '.join(returned)}>"
    parameters = _parameters(overload.arguments)
    head = f"inline {result} {overload.operator}({', '.join(p.text for p in parameters if p.text)}) {{"
    if any(a.type in _NUMBERS for a in overload.arguments):
        body = _through_tensors(overload)
    else:
        passed = [text for p in parameters for text in p.passed]
        operator = f'"aten::{overload.operator}", "{overload.name}"'
        body = f"return call<{result}>({', '.join([operator, *passed])});"
    return None if body is None else f"// {overload.schema}\n{head}\n  {body}\n}}"


def _present(name: str) -> frozenset[str]:
    """Overloads in <opwright/ops.h> of an operator whose others are generated."""
    return {"mul": frozenset({"Tensor", "Scalar"}), "where": frozenset({"self"})}.get(name, frozenset())


def _parameters(arguments: Sequence[AtenArgument]) -> list[_Parameter]:
    """The parameters in ATen's order, with at::TensorOptions in the place of its four parts."""
    names = [a.name for a in arguments]
    start = names.index("dtype") if "dtype" in names else -1
    has_options = start >= 0 and tuple(names[start : start + 4]) == _OPTIONS
    made: list[_Parameter] = []
    for i, argument in enumerate(arguments):
        if has_options and start <= i < start + 4:
            if i == start:
                parts = ("dtype_", "layout_", "device_", "pinned_")
                made.append(_Parameter("const Options& options = {}", tuple(f"options.{part}" for part in parts)))
            continue
        name = f"{argument.name}_" if argument.name in _RESERVED else argument.name
        if argument.type == "Optional[Generator]":
            made.append(_Parameter("", ("std::optional<int64_t>()",)))
            continue
        default = _default(argument)
        made.append(_Parameter(f"{_TYPES[argument.type]} {name}{default}", (name,)))
    return _with_defaults_last(made)


def _with_defaults_last(parameters: list[_Parameter]) -> list[_Parameter]:
    """C++ takes defaults only if all that follow have one: others are dropped."""
    fixed: list[_Parameter] = []
    may_have = True
    for parameter in reversed(parameters):
        has = " = " in parameter.text or not parameter.text
        may_have = may_have and has
        text = parameter.text if may_have else parameter.text.split(" = ")[0]
        fixed.append(_Parameter(text, parameter.passed))
    return fixed[::-1]


def _default(argument: AtenArgument) -> str:
    if not argument.has_default:
        return ""
    value = argument.default
    if value is None:
        return " = std::nullopt"
    if isinstance(value, bool):
        return f" = {str(value).lower()}"
    if argument.type.endswith("MemoryFormat"):
        return f" = static_cast<MemoryFormat>({value})"
    if isinstance(value, int | float) and argument.type in ("int", "float", "number", "Optional[int]"):
        return f" = {value!r}" if abs(value) < float("inf") else ""
    if isinstance(value, list) and argument.type == "List[int]":
        return f" = Integers({{{', '.join(map(str, value))}}})" if value else " = Integers({})"
    if isinstance(value, str):
        return f' = "{value}"'
    return ""


def _through_tensors(overload: AtenOverload) -> str | None:
    """The body of an overload that takes numbers, where another one takes tensors in their place."""
    other = next((o for o in _on_tensors(overload.operator) if _takes_tensors_for(o, overload)), None)
    first = next((a for a in overload.arguments if a.type == "Tensor"), None)
    if other is None or first is None or "layout" in {a.name for a in overload.arguments}:
        return None
    beside = f"{first.name}_" if first.name in _RESERVED else first.name
    by_name = {a.name: a for a in overload.arguments}
    passed = []
    for argument in other.arguments:
        mine = by_name[argument.name]
        name = f"{argument.name}_" if argument.name in _RESERVED else argument.name
        if mine.type == "number":
            passed.append(f"number_beside({beside}, {name})")
        elif mine.type == "Optional[number]":
            passed.append(f"{name} ? std::optional<Tensor>(number_beside({beside}, *{name})) : std::optional<Tensor>()")
        else:
            passed.append(name)
    return f'return call<Tensor>("aten::{other.operator}", "{other.name}", {", ".join(passed)});'


def _takes_tensors_for(other: AtenOverload, overload: AtenOverload) -> bool:
    """Whether an overload takes the same, but for tensors in the place of numbers."""
    if other.returned != overload.returned or other.returned != ("Tensor",):
        return False
    if [a.name for a in other.arguments] != [a.name for a in overload.arguments]:
        return False
    pairs = list(zip(other.arguments, overload.arguments, strict=True))
    replaced = {"number": ("Tensor",), "Optional[number]": ("Optional[Tensor]", "Tensor")}
    same = all(t.type == n.type if n.type not in _NUMBERS else t.type in replaced[n.type] for t, n in pairs)
    return same and not any(t.type in _NUMBERS for t in other.arguments)


def advice(name: str) -> str:
    """What to do about a name that has no counterpart, to be added to a message; "" if nothing is known."""
    if name.endswith("::increment_version"):
        return ": mark the argument ow.mutated in the operator, and delete this line"
    if re.match(r"torch::autograd|at::autograd", name):
        return ": gradients belong to the operator (op.register_autograd)"
    if re.match(r"torch::(?:nn|optim|jit|data)\b", name):
        return ": torch's C++ frontend is not in it"
    if name.startswith(("torch::Library", "torch::RegisterOperators", "torch::class_")):
        return ": opwright registers the operator"
    bare = name.rpartition("::")[2]
    return f" ({reason})" if (reason := why_not(bare)) and is_operator(bare) else ""
