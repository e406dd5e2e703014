"""Host functions of ``.cu`` files in the simulator: those that compute sizes, allocate tensors and launch kernels.

tree-sitter's tree of a function becomes Python functions, one for each node. A node, type or name that is not known is
refused with its line, before anything runs: what is simulated is never a guess.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from opwright.backends.cuda.host_expressions import NUMBERS, Expressions, Returned, Run, Scope
from opwright.backends.cuda.host_syntax import inner_of, leaf_of, parsed_expression, plain_type, text_of
from opwright.backends.cuda.host_values import Dim3
from opwright.backends.cuda.module import CudaModule
from opwright.backends.simulation import syntax_tree

__all__ = ["HostPart"]

_TYPES = NUMBERS | {"auto", "Tensor", "dim3", "cudaStream_t", "cudaError_t", "CUDAStream", "ScalarType", "IntArrayRef"}
_GUARDS = frozenset({"CUDAGuard", "OptionalCUDAGuard", "DeviceGuard", "OptionalDeviceGuard"})


@dataclass
class HostPart(Expressions):
    """The host code of one file, whose kernels are those of ``module``."""

    module: CudaModule
    _functions: dict[str, Callable[..., Any]] = field(default_factory=dict)

    def function(self, name: str) -> Callable[..., Any]:
        """A host function as one in Python, on CPU tensors.

        Raises:
            NotSimulatedError: it does more than to launch; the message has the line.
        """
        bare = name.rpartition("::")[2]
        if bare not in self._functions:
            found = [node for node in self._definitions if self._name_of(node) == bare]
            if len(found) != 1:
                raise self._not_simulated(None, f"{len(found) or 'no'} functions are called {bare!r}")
            self._functions[bare] = lambda *values: run(*values)  # for one that calls itself
            run = self._function(found[0])
            self._functions[bare] = run
        return self._functions[bare]

    @functools.cached_property
    def _definitions(self) -> list[Any]:
        nodes, waiting = list[Any](), [syntax_tree(self.module.source.text)]
        while waiting:
            node = waiting.pop()
            if node.type == "function_definition":
                nodes.append(node)
            elif node.type in ("translation_unit", "namespace_definition", "declaration_list", "linkage_specification"):
                waiting += node.children
        return [node for node in nodes if "__global__" not in text_of(node).partition("(")[0]]

    @functools.cached_property
    def constants(self) -> dict[str, Any]:
        """The constants of the file, by name: the nodes of their values."""
        found = dict[str, Any]()
        waiting = [syntax_tree(self.module.source.text)]
        while waiting:
            node = waiting.pop()
            if node.type == "declaration" and re.match(r"(?:static\s+|inline\s+)*const", text_of(node)):
                for declarator in node.children_by_field_name("declarator"):
                    if declarator.type == "init_declarator":
                        found[text_of(declarator.child_by_field_name("declarator"))] = declarator
            elif node.type in ("translation_unit", "namespace_definition", "declaration_list"):
                waiting += node.children
        return found

    @functools.cached_property
    def own_names(self) -> frozenset[str]:
        return frozenset(map(self._name_of, self._definitions))

    def _name_of(self, node: Any) -> str:
        declarator = inner_of(node.child_by_field_name("declarator"), "function_declarator")
        name = declarator.child_by_field_name("declarator") if declarator is not None else None
        return text_of(name).rpartition("::")[2] if name is not None else ""

    def _function(self, node: Any) -> Callable[..., Any]:
        declarator = inner_of(node.child_by_field_name("declarator"), "function_declarator")
        parameters = [p for p in declarator.child_by_field_name("parameters").named_children if p.type != "comment"]
        names, types = [], []
        for parameter in parameters:
            if parameter.type != "parameter_declaration":
                raise self._not_simulated(parameter, "a parameter with a default")
            types.append(self._type(parameter))
            names.append(text_of(leaf_of(parameter.child_by_field_name("declarator"))))
        body = self.statement(node.child_by_field_name("body"))

        def call(*values: Any) -> Any:
            scope = {n: self._converted(v, t, node) for n, v, t in zip(names, values, types, strict=True)}
            try:
                body(scope)
            except Returned as returned:
                return returned.value
            return None

        return call

    # --- statements ---

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
            outer = {name: scope.pop(name) for name in own if name in scope}
            try:
                for part in parts:
                    part(scope)
            finally:
                for name in own:
                    scope.pop(name, None)
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
            return lambda scope: scope.__setitem__(name, None)
        if value is None or value.type == "argument_list":
            raise self._not_simulated(declarator, f"a {type_name} with a constructor's arguments")
        made = self._value(value)
        return lambda scope: scope.__setitem__(name, self._converted(made(scope), type_name, declarator))

    def _numbers_of(self, declarator: Any, value: Any) -> list[Any]:
        """The arguments of a ``dim3``. To the parser, ``dim3 block(TILE, TILE)`` declares a function."""
        if value is None and declarator.type == "function_declarator":
            listed = text_of(declarator.child_by_field_name("parameters"))
            call = parsed_expression(f"dim3{listed}", declarator)
            value = call.child_by_field_name("arguments") if call is not None else None
            if value is None:
                raise self._not_simulated(declarator, f"a declaration of dim3{listed}")
        return [child for child in value.named_children if child.type != "comment"] if value is not None else []

    # --- types ---

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
