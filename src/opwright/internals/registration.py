"""Private APIs for registering an operator, and for undoing a registration."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from opwright.internals.lookup import find

__all__ = [
    "OVERLOAD",
    "PACKET",
    "AtenArgument",
    "AtenOverload",
    "call_directly",
    "destroy",
    "keep_opaque_in_inductor",
    "name_of_custom_op",
    "named_arguments",
    "native_overrides",
    "overloads_of_aten",
    "register_decomposition",
    "registered_kernels",
    "remove_decomposition",
    "remove_sharding",
    "schema_differs",
    "schema_of",
    "types_of_schema",
    "writes_arguments",
]  # fmt: skip

# The class of ``torch.ops.namespace.name.default``.
OVERLOAD: Any = find("overload", lambda overload: isinstance(torch.ops.aten.relu.default, overload))


# Of all overloads of an operator.
PACKET = type(torch.ops.aten.relu)


def name_of_custom_op(value: Any) -> str:
    """The qualified name of what ``torch.library.custom_op`` or ``triton_op`` returned; "" for anything else."""
    if type(value).__name__ != "CustomOpDef":
        return ""
    return repr(value).partition("(")[2].rstrip(")>")  # which torch writes as <CustomOpDef(namespace::name)>


@dataclass(frozen=True)
class NativeOverride:
    """An override in torch's own tree: when it runs, what it runs, and the kind of device that it is for."""

    condition: Callable[..., bool]
    implementation: Callable[..., Any]
    device: str


def native_overrides(overload: Any) -> list[NativeOverride]:
    """The overrides of an operator in torch's own tree, in the order of their conditions; none if torch does not show
    them."""
    graphs = find("native_overrides", lambda graphs: isinstance(graphs, dict)) or {}
    name = overload.name().removeprefix("aten::")
    return [
        NativeOverride(node.cond_fn, node.impl_fn, key.lower())
        for (symbol, key), nodes in graphs.items()
        for node in nodes
        if symbol in (name, f"{name}.default") and node.active and hasattr(node, "cond_fn")
    ]


def destroy(library: torch.library.Library) -> bool:
    """Remove everything that a library registered; False if torch cannot."""
    if find("destroy_library") is None:
        return False
    library._destroy()
    return True


def register_decomposition(overload: Any, function: Callable[..., Any]) -> None:
    """Register a decomposition of an operator, from which DTensor derives placements, if torch has a table for it."""
    register = find("decompose")
    if register is not None:
        register(overload)(function)


def registered_kernels(qualname: str) -> str | None:
    """A text that changes whenever anybody registers a kernel for an operator with torch's dispatcher; None if torch
    has none, and then nothing is known."""
    dump = find("registered_kernels", lambda dump: "aten::relu" in dump("aten::relu"))
    return None if dump is None else str(dump(qualname))


def remove_decomposition(overload: Any) -> None:
    """Remove a decomposition."""
    for table in (find("decompositions") or {}).values():
        table.pop(overload, None)


def remove_sharding(overload: Any) -> None:
    """Remove an operator's rule for DTensor placements."""
    if "torch.distributed.tensor" in sys.modules and (dispatcher := find("sharding_dispatcher")) is not None:
        dispatcher.sharding_propagator.op_strategy_funcs.pop(overload, None)


def keep_opaque_in_inductor(overload: Any) -> None:
    """Make Inductor call an operator although it has a decomposition, which is for DTensor.

    Inductor does so by default, unless the environment has ``CI``: then it raises, because it takes the pair of
    operator and decomposition for a mistake in torch's own tables. It accepts a registered fallback.
    """
    if not os.environ.get("CI"):
        return
    lowering, tag_of = find("lowerings"), find("layout_tag")
    if lowering is not None and tag_of is not None and overload not in lowering.lowerings:
        constraint = lowering.tag_to_layout_constraint(tag_of(overload, with_default=True))
        lowering.make_fallback(overload, constraint, warn=False)


def _is_relu(function: Any) -> bool:
    return bool(function(torch.tensor([-1.0, 2.0], device="cpu")).tolist() == [0.0, 2.0])


def _is_schema_of_relu(schema: Any) -> bool:
    return str(schema).startswith("aten::relu(") and schema.is_mutable is False


def _prints_what_it_read(parse: Any) -> bool:
    text = "aten::relu(Tensor self) -> Tensor"
    return str(parse(text)) == text


_overload_function: Any = find("overload_function", _is_relu)
_overload_schema: Any = find("overload_schema", _is_schema_of_relu)
_parse_schema: Any = find("parse_schema", _prints_what_it_read)


def call_directly(overload: Any) -> Callable[..., Any]:
    """The C++ function of an overload: its Python wrapper would add a tenth to a call."""
    function: Callable[..., Any] = overload if _overload_function is None else overload._op
    return function


def writes_arguments(overload: Any) -> bool:
    """Whether an operation writes into one of its arguments."""
    if _overload_schema is None:
        return bool(overload.overloadpacket.__name__.endswith("_") or overload.name().endswith("out"))
    return bool(overload._schema.is_mutable)


def named_arguments(overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """An operation's arguments by name, with defaults; only the keywords, if names are not known."""
    if _overload_schema is None:
        return dict(kwargs)
    declared = overload._schema.arguments
    defaults = {a.name: a.default_value for a in declared if a.has_default_value()}
    return {**defaults, **dict(zip((a.name for a in declared), args, strict=False)), **kwargs}


def types_of_schema(schema: str) -> tuple[list[str], list[str]] | None:
    """The types of a schema's arguments and returns, with what it writes; None if it cannot be read. Sizes that may be
    symbolic count as integers."""
    if _parse_schema is None:
        return None
    try:
        parsed = _parse_schema(schema)
    except RuntimeError:
        return None
    arguments = [f"{_type_text(a)}{'!' * bool(a.alias_info and a.alias_info.is_write)}" for a in parsed.arguments]
    return arguments, [_type_text(r) for r in parsed.returns]


@dataclass(frozen=True)
class AtenArgument:
    """An argument of one of ATen's operators: ``type`` as torch writes it, such as ``Optional[List[int]]``."""

    name: str
    type: str
    is_written: bool
    keyword_only: bool
    has_default: bool
    default: Any


@dataclass(frozen=True)
class AtenOverload:
    """One overload of an operator of ATen."""

    operator: str
    name: str
    arguments: tuple[AtenArgument, ...]
    returned: tuple[str, ...]
    schema: str


def overloads_of_aten(name: str) -> tuple[AtenOverload, ...]:
    """The overloads of an operator of ATen; none if there is no such operator, or if their schemas are not known."""
    packet: Any = getattr(torch.ops.aten, name, None) if _overload_schema is not None else None
    found = []
    for overload in packet.overloads() if hasattr(packet, "overloads") else ():
        schema = getattr(packet, overload)._schema
        arguments = tuple(
            AtenArgument(
                a.name, str(getattr(a, "real_type", a.type)).replace("SymInt", "int"),
                bool(a.alias_info and a.alias_info.is_write), a.kwarg_only, a.has_default_value(), a.default_value,
            )
            for a in schema.arguments
        )  # fmt: skip
        returned = tuple(str(getattr(r, "real_type", r.type)).replace("SymInt", "int") for r in schema.returns)
        found.append(AtenOverload(name, overload.replace("default", ""), arguments, returned, str(schema)))
    return tuple(found)


def _type_text(value: Any) -> str:
    return str(getattr(value, "real_type", value.type)).replace("SymInt", "int")


def schema_differs(overload: Any, schema: str) -> bool:
    """Whether an operator is known to have another schema."""
    if _parse_schema is None or _overload_schema is None:
        return False
    return str(overload._schema) != str(_parse_schema(schema))


def schema_of(overload: Any) -> Any:
    """The schema of an operator as torch has parsed it; None if torch does not show it."""
    return None if _overload_schema is None else overload._schema
