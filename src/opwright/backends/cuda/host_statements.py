"""The statements of simulated host functions, and the types of their variables."""

from __future__ import annotations

import re
from typing import Any

from opwright.backends.cuda.host_calls import Calls
from opwright.backends.cuda.host_expressions import NUMBERS, Returned, Run, Scope
from opwright.backends.cuda.host_syntax import leaf_of, parsed_expression, plain_type, text_of
from opwright.backends.cuda.host_values import Dim3, type_of

__all__ = ["Statements"]

_TYPES = NUMBERS | {"auto", "Tensor", "dim3", "cudaStream_t", "cudaError_t", "CUDAStream", "ScalarType", "IntArrayRef"}
_GUARDS = frozenset({"CUDAGuard", "OptionalCUDAGuard", "DeviceGuard", "OptionalDeviceGuard"})


class Statements(Calls):
    """What a function consists of."""

    def statement(self, node: Any) -> Run:
        handler = getattr(self, f"_on_{node.type}", None)
        if handler is None:
            raise self._not_simulated(node, f"a {node.type.replace('_', ' ')}")
        run: Run = handler(node)
        return run

    def _on_compound_statement(self, node: Any) -> Run:
        parts = [self.statement(child) for child in node.named_children if child.type != "comment"]
        declarations = [child for child in node.named_children if child.type == "declaration"]
        own = {text_of(leaf_of(d)) for one in declarations for d in one.children_by_field_name("declarator")}

        def run(scope: Scope) -> None:
            hidden = [key for name in own for key in (name, f"declared {name}")]
            outer = {key: scope.pop(key) for key in hidden if key in scope}
            try:
                for part in parts:
                    part(scope)
            finally:
                for key in hidden:
                    scope.pop(key, None)
                scope.update(outer)

        return run

    def _on_expression_statement(self, node: Any) -> Run:
        return self._value(node.named_children[0]) if node.named_children else lambda scope: None

    def _on_return_statement(self, node: Any) -> Run:
        value = self._value(node.named_children[0]) if node.named_children else lambda scope: None

        def run(scope: Scope) -> None:
            raise Returned(value(scope))

        return run

    def _on_throw_statement(self, node: Any) -> Run:
        text = text_of(node)

        def run(scope: Scope) -> None:
            raise RuntimeError(text)

        return run

    def _on_if_statement(self, node: Any) -> Run:
        clause = node.child_by_field_name("condition")
        first = clause.child_by_field_name("initializer")
        begin = self.statement(first.named_children[0]) if first is not None else lambda scope: None
        condition = self._value(clause.child_by_field_name("value"))
        then, other = node.child_by_field_name("consequence"), node.child_by_field_name("alternative")
        yes = self.statement(then)
        no = self.statement(other.named_children[-1]) if other is not None else lambda scope: None

        def run(scope: Scope) -> None:
            begin(scope)
            (yes if condition(scope) else no)(scope)

        return run

    def _on_for_statement(self, node: Any) -> Run:
        parts = [node.child_by_field_name(name) for name in ("initializer", "condition", "update", "body")]
        if any(part is None for part in parts):
            raise self._not_simulated(node, "a loop without an end")
        begin = self.statement(parts[0])
        condition, update = self._value(parts[1]), self._value(parts[2])
        body = self.statement(parts[3])

        def run(scope: Scope) -> None:
            begin(scope)
            while condition(scope):
                body(scope)
                update(scope)

        return run

    def _on_while_statement(self, node: Any) -> Run:
        condition = self._value(node.child_by_field_name("condition").child_by_field_name("value"))
        body = self.statement(node.child_by_field_name("body"))

        def run(scope: Scope) -> None:
            while condition(scope):
                body(scope)

        return run

    def _on_declaration(self, node: Any) -> Run:
        type_name, parts = self._type(node), list[Run]()
        for declarator in node.children_by_field_name("declarator"):
            parts.append(self._declared(declarator, type_name))

        def run(scope: Scope) -> None:
            for part in parts:
                part(scope)

        return run

    def _declared(self, declarator: Any, type_name: str) -> Run:
        name = text_of(leaf_of(declarator))
        value = declarator.child_by_field_name("value") if declarator.type == "init_declarator" else None
        if type_name in _GUARDS:
            return lambda scope: None
        if type_name == "dim3" and (value is None or value.type in ("argument_list", "initializer_list")):
            numbers = [self._value(child) for child in self._numbers_of(declarator, value)]
            return lambda scope: scope.__setitem__(name, Dim3(*(int(n(scope)) for n in numbers)))
        if value is None and declarator.type != "function_declarator":
            return lambda scope: self._declare(scope, name, None, type_name, declarator)
        if value is None or value.type == "argument_list":
            raise self._not_simulated(declarator, f"a {type_name} with a constructor's arguments")
        made = self._value(value)
        return lambda scope: self._declare(scope, name, made(scope), type_name, declarator)

    def _declare(self, scope: Scope, name: str, value: Any, type_name: str, node: Any) -> None:
        """A variable. Later values are converted to its type, too."""
        scope[name] = self._converted(value, type_name, node)
        scope[f"declared {name}"] = type_of(value) if type_name == "auto" else type_name

    def _numbers_of(self, declarator: Any, value: Any) -> list[Any]:
        """The arguments of a ``dim3``. To the parser, ``dim3 block(TILE, TILE)`` declares a function."""
        if value is None and declarator.type == "function_declarator":
            listed = text_of(declarator.child_by_field_name("parameters"))
            call = parsed_expression(f"dim3{listed}", declarator)
            value = call.child_by_field_name("arguments") if call is not None else None
            if value is None:
                raise self._not_simulated(declarator, f"a declaration of dim3{listed}")
        return [child for child in value.named_children if child.type != "comment"] if value is not None else []

    def _type(self, node: Any) -> str:
        name = plain_type(text_of(node.child_by_field_name("type")))
        short = name.rpartition("::")[2] if "<" not in name else name
        if (
            short in _TYPES
            or short in _GUARDS
            or re.fullmatch(r"(?:std|c10|torch|at)::(?:optional|vector|tuple)<.*>", name)
        ):
            return short
        raise self._not_simulated(node, f"a variable of type {name}")
