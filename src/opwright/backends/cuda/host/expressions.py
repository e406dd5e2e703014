"""The expressions of simulated host functions, each as a function in Python."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from opwright.backends.cuda.host.addresses import DeviceProperties
from opwright.backends.cuda.host.functions import CONSTANTS
from opwright.backends.cuda.host.syntax import parsed_expression, plain_type, text_of
from opwright.backends.cuda.host.values import (
    Dim3,
    KernelName,
    Pointer,
    binary,
    convert,
    dtype_of_type,
    element,
    size_of_type,
    with_types,
)
from opwright.backends.cuda.module import CudaModule
from opwright.errors import NotSimulatedError, OpwrightError

__all__ = ["INSTANCE", "NUMBERS", "REFERENCE", "SIMULATE_BY_LAUNCHER", "Expressions", "Returned", "Run", "Scope"]

SIMULATE_BY_LAUNCHER = "write a launcher in Python around ow.cuda_module(file), which is simulated"
NUMBERS = frozenset({
    "int", "long", "long long", "short", "unsigned", "unsigned int", "unsigned long", "unsigned long long", "float",
    "double", "bool", "int64_t", "int32_t", "uint32_t", "uint64_t", "size_t", "int16_t", "int8_t", "uint8_t", "uint",
    "uintptr_t", "intptr_t",
})  # fmt: skip
_NAMESPACE = re.compile(r"^(?:::)?(?:(?:at|torch|c10|std|headeronly|stable)::)+")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)

# What a scope has for the type of a reference that is not constant.
REFERENCE = "&"
# Where a scope of a template has its arguments.
INSTANCE = "instance"

Scope = dict[str, Any]
Run = Callable[[Scope], Any]


class Returned(Exception):  # no error
    def __init__(self, value: Any) -> None:
        self.value = value


class Expressions:
    """What statements consist of, but for calls. ``HostPart`` has the functions of the file."""

    module: CudaModule
    # The variables that are lambdas.
    lambdas: set[str]

    @property
    def aliases(self) -> dict[str, str]:
        """The types that ``using`` and ``typedef`` name in the file."""
        raise NotImplementedError

    @property
    def type_names(self) -> frozenset[str]:
        """The names of template parameters and of types in functions: a scope has what they stand for."""
        raise NotImplementedError

    @property
    def constants(self) -> dict[str, Any]:
        """The declarators of the file's constants, by name."""
        raise NotImplementedError

    @property
    def own_names(self) -> frozenset[str]:
        """The names of the file's host functions."""
        raise NotImplementedError

    def own_call(self, name: str, templated: Sequence[str], node: Any) -> Callable[[Scope], Callable[..., Any]]:
        """A function of the file with its template arguments, in the scope of a call."""
        raise NotImplementedError

    def statement(self, node: Any) -> Run:
        raise NotImplementedError

    # --- expressions ---

    def _translated(self, prefix: str, node: Any) -> Run:
        """What the method for the node's type makes of it."""
        handler = getattr(self, f"{prefix}_{node.type}", None)
        if handler is None:
            raise self._not_simulated(node, f"a {node.type.replace('_', ' ')}")
        run: Run = handler(node)
        return run

    def _value(self, node: Any) -> Run:
        return self._translated("_of", node)

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
        if self.is_kernel(name):
            return lambda scope: scope.get(name, KernelName(text_of(node)))
        known_as = _NAMESPACE.sub("", text_of(node))
        if known_as in CONSTANTS and name not in self.constants:
            return lambda scope: scope.get(name, CONSTANTS[known_as])
        known = self.constants.get(name)
        default = self._value(known.child_by_field_name("value")) if known is not None else None
        macro = self._macro_called(name, node, has_parameters=False)
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

    def is_kernel(self, name: str) -> bool:
        return name in self.module.source.kernels

    def _of_template_function(self, node: Any) -> Run:
        """A kernel as a value."""
        text = text_of(node)
        if not self.is_kernel(text.partition("<")[0]):
            raise self._not_simulated(node, "a template function")
        return lambda scope: KernelName(with_types(text, scope))

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
        sign = text_of(node.child_by_field_name("operator")).removesuffix("=")
        before, assign = self._value(target), self._assignment(target)

        def run(scope: Scope) -> Any:
            new = value(scope)
            return assign(scope, self._guarded(node, binary, sign, before(scope), new) if sign else new)

        return run

    def _of_update_expression(self, node: Any) -> Run:
        target, step = node.child_by_field_name("argument"), 1 if "++" in text_of(node) else -1
        before, assign = self._value(target), self._assignment(target)
        is_prefix = node.children[0].type in ("++", "--")

        def run(scope: Scope) -> Any:
            old = before(scope)
            new = assign(scope, self._guarded(node, binary, "+", old, step))
            return new if is_prefix else old

        return run

    def _assignment(self, target: Any) -> Callable[[Scope, Any], Any]:
        """Assigns to a variable, an element of a vector, or a field of a ``dim3``."""
        if target.type == "subscript_expression":
            whole, index = self._parts_of_subscript(target)

            def assign_element(scope: Scope, new: Any) -> Any:
                values, at = whole(scope), index(scope)
                if not isinstance(values, list) or not 0 <= at < len(values) or type(values[at]) is not type(new):
                    raise self._not_simulated(target, "an assignment to this element")
                values[at] = new
                return new

            return assign_element
        owner = target.child_by_field_name("argument") if target.type == "field_expression" else target
        if owner.type != "identifier":
            raise self._not_simulated(target, "an assignment to more than a variable")
        name = text_of(owner)
        field = text_of(target.child_by_field_name("field")) if owner is not target else ""

        def assign(scope: Scope, new: Any) -> Any:
            declared = scope.get(f"declared {name}", "auto")
            if declared == REFERENCE:
                raise self._not_simulated(target, "an assignment through a reference")
            if field and not (isinstance(scope.get(name), Dim3) and field in "xyz"):
                raise self._not_simulated(target, f"an assignment to the field {field}")
            new = list(new) if isinstance(new, list) else new  # a vector is copied
            scope[name] = scope[name].replaced(field, int(new)) if field else self._converted(new, declared, target)
            if f"kept {name}" in scope:
                scope[f"kept {name}"][name] = scope[name]
            return scope[name]

        return assign

    def _of_initializer_list(self, node: Any) -> Run:
        values = [self._value(child) for child in node.named_children]
        return lambda scope: tuple(value(scope) for value in values)

    def _of_compound_literal_expression(self, node: Any) -> Run:
        name, values = text_of(node.child_by_field_name("type")), self._value(node.child_by_field_name("value"))
        if name == "dim3":
            return lambda scope: Dim3(*map(int, values(scope)))
        if re.fullmatch(r"std::vector<int64_t>|(?:at|c10|torch)::IntArrayRef", name):
            return lambda scope: list(values(scope))
        raise self._not_simulated(node, f"a {name} from a list")

    def _of_subscript_expression(self, node: Any) -> Run:
        whole, index = self._parts_of_subscript(node)
        return lambda scope: self._guarded(node, element, whole(scope), index(scope))

    def _parts_of_subscript(self, node: Any) -> tuple[Run, Run]:
        (index,) = (self._value(c) for c in node.child_by_field_name("indices").named_children)
        return self._value(node.child_by_field_name("argument")), index

    def _of_sizeof_expression(self, node: Any) -> Run:
        type_node = node.child_by_field_name("type") or node.child_by_field_name("value").named_children[0]
        name = plain_type(text_of(type_node))
        name = self.aliases.get(name, name)

        def run(scope: Scope) -> int:
            size = size_of_type(scope.get(f"type {name}", name))
            if size is None:
                raise self._not_simulated(node, f"the size of {name}")
            return size

        return run

    def _of_cast_expression(self, node: Any) -> Run:
        return self._cast(
            text_of(node.child_by_field_name("type")), self._value(node.child_by_field_name("value")), node
        )

    def _cast(self, type_text: str, value: Run, node: Any) -> Run:
        name = plain_type(type_text)
        if name.endswith("*"):
            pointee = name[:-1].strip()
            pointee = self.aliases.get(pointee, pointee)
            return lambda scope: self._as_pointer(value(scope), scope.get(f"type {pointee}", pointee), node)
        name = self.aliases.get(name, name)
        if name not in NUMBERS | self.type_names and dtype_of_type(name) is None:
            raise self._not_simulated(node, f"a cast to {name}")

        def run(scope: Scope) -> Any:
            given, type_name = value(scope), scope.get(f"type {name}", name)
            if type_name in self.type_names:
                raise self._not_simulated(node, f"a cast to {type_name}")
            return self._converted(given.address if isinstance(given, Pointer) else given, type_name, node)

        return run

    def _as_pointer(self, value: Any, type_name: str, node: Any) -> Pointer | None:
        if value is None or value == 0:
            return None
        if not isinstance(value, Pointer):
            raise self._not_simulated(node, "a pointer from a number")
        return value.to(type_name)

    def _of_field_expression(self, node: Any) -> Run:
        whole, field = self._value(node.child_by_field_name("argument")), text_of(node.child_by_field_name("field"))

        def run(scope: Scope) -> int:
            value = whole(scope)
            if not isinstance(value, Dim3 | DeviceProperties):
                raise self._not_simulated(node, f"the field {field}")
            try:
                return value.field(field)
            except ValueError:
                raise self._not_simulated(node, f"the field {field}") from None

        return run

    def _macro_called(self, name: str, node: Any, has_parameters: bool) -> Any:
        found = [m for m in self.module.source.parsed.macros if m.name == name and bool(m.parameters) == has_parameters]
        if len({self._body_of(m) for m in found}) > 1:
            raise self._not_simulated(node, f"the macro {name}, which has several definitions")
        return found[0] if found else None

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

    def _converted(self, value: Any, type_name: str, node: Any) -> Any:
        is_number = isinstance(value, int | float) and not isinstance(value, torch.Tensor)
        return self._guarded(node, convert, value, type_name) if is_number else value

    def _guarded(self, node: Any, function: Callable[..., Any], *values: Any) -> Any:
        """What a function returns. C++ would compile no other types, so that those are what is not simulated."""
        try:
            return function(*values)
        except OpwrightError:
            raise
        except (TypeError, AttributeError, KeyError) as error:
            raise self._not_simulated(node, f"{text_of(node)} ({error})") from error
        except (ValueError, IndexError) as error:
            raise RuntimeError(f"{self._where(node)}: {text_of(node)}: {error}") from error

    def _where(self, node: Any) -> str:
        return f"{self.module.source.name}:{node.start_point[0] + 1}"

    def _not_simulated(self, node: Any, what: str) -> NotSimulatedError:
        where = self._where(node) if node is not None else self.module.source.name
        return NotSimulatedError(
            f"{where}: a simulated host function must only compute sizes, allocate and launch, got {what}",
            fix=SIMULATE_BY_LAUNCHER,
        )
