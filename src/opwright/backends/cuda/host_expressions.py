"""The values of simulated host functions: expressions, calls and launches, each as a function in Python."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from opwright.backends.cuda.host_syntax import inner_of, parsed, parsed_expression, plain_type, text_of
from opwright.backends.cuda.host_values import (
    CONSTANTS,
    CPP_TYPES,
    FUNCTIONS,
    METHODS,
    NO_EFFECT,
    Dim3,
    as_pointer_to,
    binary,
    convert,
    dispatched_dtypes,
)
from opwright.backends.cuda.module import CudaModule
from opwright.backends.simulation import Parameter, simulated_kernel
from opwright.errors import LaunchError, NotSimulatedError

__all__ = ["NUMBERS", "SIMULATE_BY_LAUNCHER", "Expressions", "Returned", "Run", "Scope"]

SIMULATE_BY_LAUNCHER = "write a launcher in Python around ow.cuda_module(file), which is simulated"
NUMBERS = frozenset({
    "int", "long", "long long", "short", "unsigned", "unsigned int", "unsigned long", "unsigned long long", "float",
    "double", "bool", "int64_t", "int32_t", "uint32_t", "uint64_t", "size_t", "int16_t", "int8_t", "uint8_t", "uint",
})  # fmt: skip
_CHECKS = frozenset({"TORCH_CHECK", "STD_TORCH_CHECK", "TORCH_INTERNAL_ASSERT", "assert"})
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_DISPATCH = re.compile(r"(?:AT_DISPATCH|THO_DISPATCH)_\w+")

Scope = dict[str, Any]
Run = Callable[[Scope], Any]


class Returned(Exception):  # no error
    def __init__(self, value: Any) -> None:
        self.value = value


class Expressions:
    """What a statement consists of. ``HostPart`` has the statements and the functions of the file."""

    module: CudaModule

    @property
    def constants(self) -> dict[str, Any]:
        """The declarators of the file's constants, by name."""
        raise NotImplementedError

    @property
    def own_names(self) -> frozenset[str]:
        """The names of the file's host functions."""
        raise NotImplementedError

    def function(self, name: str) -> Callable[..., Any]:
        raise NotImplementedError

    def statement(self, node: Any) -> Run:
        raise NotImplementedError

    # --- expressions ---

    def _value(self, node: Any) -> Run:
        handler = getattr(self, f"_of_{node.type}", None)
        if handler is None:
            raise self._not_simulated(node, f"a {node.type.replace('_', ' ')}")
        run: Run = handler(node)
        return run

    def _of_number_literal(self, node: Any) -> Run:
        text = text_of(node).replace("'", "").lower()
        is_hex = text.startswith("0x")
        if not is_hex and re.search(r"[.e]|f$", text):
            number: Any = float(text.rstrip("fl"))
        else:
            number = int(text.rstrip("ul"), 0)
        return lambda scope: number

    def _of_string_literal(self, node: Any) -> Run:
        text = text_of(node).strip('"')
        return lambda scope: text

    def _of_true(self, node: Any) -> Run:
        return lambda scope: True

    def _of_false(self, node: Any) -> Run:
        return lambda scope: False

    def _of_null(self, node: Any) -> Run:
        return lambda scope: None

    def _of_parenthesized_expression(self, node: Any) -> Run:
        return self._value(node.named_children[0])

    def _of_identifier(self, node: Any) -> Run:
        name = text_of(node).rpartition("::")[2]
        if name in CONSTANTS and name not in self.constants:
            return lambda scope: scope.get(name, CONSTANTS[name])
        known = self.constants.get(name)
        default = self._value(known.child_by_field_name("value")) if known is not None else None
        macro = next((m for m in self.module.source.parsed.macros if m.name == name and not m.parameters), None)
        if macro is not None and default is None:
            default = self._value(self._parsed_macro(macro, node))
        line = self._where(node)

        def run(scope: Scope) -> Any:
            if name in scope:
                return scope[name]
            if default is None:
                raise NotSimulatedError(f"{line}: {name!r} is not known", fix=SIMULATE_BY_LAUNCHER)
            return default(scope)

        return run

    _of_qualified_identifier = _of_identifier

    def _of_unary_expression(self, node: Any) -> Run:
        sign, value = text_of(node.child_by_field_name("operator")), self._value(node.child_by_field_name("argument"))
        operations: dict[str, Callable[[Any], Any]] = {
            "-": lambda v: -v,
            "+": lambda v: v,
            "!": lambda v: not v,
            "~": lambda v: ~v,
        }
        if sign not in operations:
            raise self._not_simulated(node, f"the operator {sign}")
        return lambda scope: operations[sign](value(scope))

    def _of_binary_expression(self, node: Any) -> Run:
        sign = text_of(node.child_by_field_name("operator"))
        left, right = (self._value(node.child_by_field_name(side)) for side in ("left", "right"))
        if sign in ("&&", "and"):
            return lambda scope: bool(left(scope)) and bool(right(scope))
        if sign in ("||", "or"):
            return lambda scope: bool(left(scope)) or bool(right(scope))
        return lambda scope: self._guarded(node, binary, sign, left(scope), right(scope))

    def _of_conditional_expression(self, node: Any) -> Run:
        parts = [self._value(node.child_by_field_name(n)) for n in ("condition", "consequence", "alternative")]
        return lambda scope: parts[1](scope) if parts[0](scope) else parts[2](scope)

    def _of_assignment_expression(self, node: Any) -> Run:
        target, value = node.child_by_field_name("left"), self._value(node.child_by_field_name("right"))
        sign, name = text_of(node.child_by_field_name("operator")).removesuffix("="), text_of(target)
        if target.type != "identifier":
            raise self._not_simulated(node, "an assignment to more than a variable")

        def run(scope: Scope) -> Any:
            new = value(scope)
            scope[name] = self._guarded(node, binary, sign, scope[name], new) if sign else new
            return scope[name]

        return run

    def _of_update_expression(self, node: Any) -> Run:
        name, step = text_of(node.child_by_field_name("argument")), 1 if "++" in text_of(node) else -1
        return lambda scope: scope.__setitem__(name, scope[name] + step)

    def _of_initializer_list(self, node: Any) -> Run:
        values = [self._value(child) for child in node.named_children]
        return lambda scope: tuple(value(scope) for value in values)

    def _of_subscript_expression(self, node: Any) -> Run:
        whole = self._value(node.child_by_field_name("argument"))
        (index,) = (self._value(c) for c in node.child_by_field_name("indices").named_children)
        return lambda scope: whole(scope)[index(scope)]

    def _of_sizeof_expression(self, node: Any) -> Run:
        type_node = node.child_by_field_name("type") or node.child_by_field_name("value").named_children[0]
        name = plain_type(text_of(type_node))

        def run(scope: Scope) -> int:
            dtype = next((d for d, cpp in CPP_TYPES.items() if cpp == scope.get(f"type {name}", name)), None)
            if dtype is None:
                raise self._not_simulated(node, f"the size of {name}")
            return dtype.itemsize

        return run

    def _of_cast_expression(self, node: Any) -> Run:
        return self._cast(
            text_of(node.child_by_field_name("type")), self._value(node.child_by_field_name("value")), node
        )

    def _cast(self, type_text: str, value: Run, node: Any) -> Run:
        name = plain_type(type_text)
        if name.endswith("*"):
            pointee = name[:-1].strip()
            return lambda scope: as_pointer_to(value(scope), scope.get(f"type {pointee}", pointee))
        if name not in NUMBERS:
            raise self._not_simulated(node, f"a cast to {name}")
        return lambda scope: self._converted(value(scope), name, node)

    def _of_field_expression(self, node: Any) -> Run:
        whole, field = self._value(node.child_by_field_name("argument")), text_of(node.child_by_field_name("field"))

        def run(scope: Scope) -> int:
            value = whole(scope)
            if not isinstance(value, Dim3) or field not in "xyz":
                raise self._not_simulated(node, f"the field {field}")
            return value.field(field)

        return run

    # --- calls ---

    def _of_call_expression(self, node: Any) -> Run:
        called, listed = node.child_by_field_name("function"), node.child_by_field_name("arguments")
        arguments = [child for child in listed.named_children if child.type != "comment"]
        configuration = next((child for child in node.children if child.type == "kernel_call_syntax"), None)
        if configuration is not None:
            return self._launch(node, called, configuration.named_children, arguments)
        if called.type == "field_expression":
            return self._method(called, arguments)
        text = text_of(called)
        name, _, templated = text.partition("<")
        bare = name.rpartition("::")[2].strip()
        if bare in ("static_cast", "reinterpret_cast", "const_cast"):
            return self._cast(templated.rpartition(">")[0], self._value(arguments[0]), node)
        if bare in _CHECKS:
            return self._check(node, arguments)
        if bare == "AT_ERROR":
            return self._error(node)
        if bare in NO_EFFECT:
            return lambda scope: 0
        if _DISPATCH.fullmatch(bare):
            return self._dispatch(node, bare, arguments)
        return self._call(node, bare, arguments)

    def _of_primitive_type(self, node: Any) -> Run:
        raise self._not_simulated(node, "a type as a value")

    def _call(self, node: Any, name: str, arguments: Sequence[Any]) -> Run:
        macro = next((m for m in self.module.source.parsed.macros if m.name == name and m.parameters), None)
        if macro is not None:
            return self._macro(node, macro, arguments)
        values = [self._value(argument) for argument in arguments]
        if name in NUMBERS:
            return self._cast(name, values[0], node)
        if name == "dim3":
            return lambda scope: Dim3(*(int(value(scope)) for value in values))
        function = self.function(name) if name in self.own_names else FUNCTIONS.get(name)
        if function is None:
            raise self._not_simulated(node, f"a call of {name}")
        return lambda scope: self._guarded(node, function, *(value(scope) for value in values))

    def _method(self, called: Any, arguments: Sequence[Any]) -> Run:
        whole, member = self._value(called.child_by_field_name("argument")), called.child_by_field_name("field")
        name, _, templated = text_of(member).partition("<")
        if name.strip() not in METHODS:
            raise self._not_simulated(called, f"the method {name}")
        method, values = METHODS[name.strip()], [self._value(argument) for argument in arguments]
        type_name = plain_type(templated.rpartition(">")[0])

        def run(scope: Scope) -> Any:
            types = [scope.get(f"type {type_name}", type_name)] if type_name else []
            return self._guarded(called, method, whole(scope), *types, *(value(scope) for value in values))

        return run

    def _check(self, node: Any, arguments: Sequence[Any]) -> Run:
        condition = self._value(arguments[0])
        text = f"{self._where(node)}: {text_of(node)}"

        def run(scope: Scope) -> None:
            if not condition(scope):
                raise RuntimeError(text)

        return run

    def _error(self, node: Any) -> Run:
        text = f"{self._where(node)}: {text_of(node)}"

        def run(scope: Scope) -> None:
            raise RuntimeError(text)

        return run

    def _macro(self, node: Any, macro: Any, arguments: Sequence[Any]) -> Run:
        names, body = [n.strip() for n in macro.parameters.strip("()").split(",")], self._body_of(macro)
        if "..." in names or len(names) != len(arguments):
            raise self._not_simulated(node, f"the macro {macro.name}")
        for name, argument in zip(names, map(text_of, arguments), strict=True):
            body = re.sub(rf"#\s*{name}\b", lambda _, a=argument: f'"{a}"', body)  # type: ignore[misc]
            body = re.sub(rf"\b{name}\b", lambda _, a=argument: a, body)  # type: ignore[misc]
        if body.strip().rstrip(";").endswith(")") and not body.lstrip().startswith("do"):
            return self.statement(parsed(f"{body.strip().rstrip(';')};", node))
        raise self._not_simulated(node, f"the macro {macro.name}")

    def _body_of(self, macro: Any) -> str:
        """The text of a macro, with its literals."""
        text = self.module.source.text[macro.begin : macro.end].replace("\\\n", " ")
        text = _COMMENT.sub(" ", text)
        return text.partition(macro.name)[2].strip().removeprefix(macro.parameters)

    def _parsed_macro(self, macro: Any, node: Any) -> Any:
        found = parsed_expression(self._body_of(macro), node)
        if found is None:
            raise self._not_simulated(node, f"the macro {text_of(node)}")
        return found

    def _dispatch(self, node: Any, macro: str, arguments: Sequence[Any]) -> Run:
        name_at = next((i for i, a in enumerate(arguments) if a.type == "string_literal"), None)
        bodies = [found for a in arguments if (found := inner_of(a, "lambda_expression")) is not None]
        dtypes = dispatched_dtypes(" ".join([macro, *map(text_of, arguments)]) if macro.startswith("THO") else macro)
        if name_at is None or name_at == 0 or len(bodies) != 1 or dtypes is None:
            raise self._not_simulated(node, macro)
        chosen = self._value(arguments[name_at - 1])
        others = [a for a in (*arguments[: name_at - 1], *arguments[name_at + 1 :]) if "identifier" in a.type]
        more = [self._value(a) for a in others]
        body = self.statement(bodies[0].child_by_field_name("body"))

        def run(scope: Scope) -> Any:
            dtype = chosen(scope)
            if dtype not in dtypes | {value(scope) for value in more}:
                raise RuntimeError(f"{self._where(node)}: {macro} has no {dtype}")
            before = scope.get("type scalar_t")
            scope["type scalar_t"] = CPP_TYPES[dtype]
            try:
                body(scope)
            except Returned as returned:
                return returned.value
            finally:
                scope["type scalar_t"] = before
            return None

        return run

    def _launch(self, node: Any, called: Any, configuration: Sequence[Any], arguments: Sequence[Any]) -> Run:
        text = text_of(called)
        bare = text.partition("<")[0]
        if "<" not in text and self.module.source.defining(bare).is_template(bare.rpartition("::")[2]):
            raise self._not_simulated(node, f"the launch of the template {bare} without its arguments")
        places = [self._value(part) for part in configuration[:3]]
        values = [self._value(argument) for argument in arguments]

        def run(scope: Scope) -> None:
            kernel = self.module[_with_types(text, scope)]
            launch = tuple(place(scope) for place in places)
            passed = [value(scope) for value in values]
            if 0 in launch[0] if isinstance(launch[0], tuple) else launch[0] == 0:
                raise LaunchError(
                    f"{self._where(node)}: a grid must have blocks, got {launch[0]}",
                    fix="return before the launch where there is nothing to do: a GPU refuses an empty grid",
                )
            parameters = simulated_kernel(self.module.source, kernel.name).parameters
            kernel[launch](*map(_implicitly, passed, parameters) if len(passed) == len(parameters) else passed)

        return run

    def _converted(self, value: Any, type_name: str, node: Any) -> Any:
        is_number = isinstance(value, int | float) and not isinstance(value, torch.Tensor)
        return self._guarded(node, convert, value, type_name) if is_number else value

    def _guarded(self, node: Any, function: Callable[..., Any], *values: Any) -> Any:
        try:
            return function(*values)
        except (ValueError, TypeError, IndexError) as error:
            raise RuntimeError(f"{self._where(node)}: {text_of(node)}: {error}") from error

    def _where(self, node: Any) -> str:
        return f"{self.module.source.name}:{node.start_point[0] + 1}"

    def _not_simulated(self, node: Any, what: str) -> NotSimulatedError:
        where = self._where(node) if node is not None else self.module.source.name
        return NotSimulatedError(
            f"{where}: a simulated host function must only compute sizes, allocate and launch, got {what}",
            fix=SIMULATE_BY_LAUNCHER,
        )


def _with_types(text: str, scope: Scope) -> str:
    """A kernel's name with the types and numbers that its template arguments stand for."""

    def written(found: re.Match[str]) -> str:
        name = found[0]
        if f"type {name}" in scope:
            return str(scope[f"type {name}"])
        value = scope.get(name)
        return str(value).lower() if isinstance(value, int) else name

    name, opening, arguments = text.partition("<")
    return name + opening + re.sub(r"\b[A-Za-z_]\w*\b", written, arguments) if opening else name


def _implicitly(value: Any, parameter: Parameter) -> Any:
    """A number as C++ converts it to a parameter's type."""
    if not isinstance(value, int | float):
        return value
    kinds = {"floating": float, "integer": int, "unsigned": int, "bool": bool}
    return kinds[parameter.kind](value) if parameter.kind in kinds else value
