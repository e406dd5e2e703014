"""Host functions of ``.cu`` files in the simulator: those that compute sizes, allocate tensors and launch kernels.

tree-sitter's tree of a function becomes Python functions, one for each node. A node, type or name that is not known is
refused with its line, before anything runs: what is simulated is never a guess.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from opwright.backends.cuda.host.expressions import INSTANCE, Run, Scope
from opwright.backends.cuda.host.statements import Statements
from opwright.backends.cuda.host.syntax import inner_of, leaf_of, parsed_expression, plain_type, text_of
from opwright.backends.cuda.module import CudaModule
from opwright.backends.simulation import syntax_tree
from opwright.errors import NotSimulatedError

__all__ = ["HostPart"]


# What definitions stand in, but for conditions of the preprocessor: which of them hold is not known.
_OUTSIDE = frozenset({
    "translation_unit", "namespace_definition", "declaration_list", "linkage_specification", "template_declaration",
})  # fmt: skip
_NAME_OF_ALIAS = {"alias_declaration": "name", "type_definition": "declarator"}


@dataclass
class _Function:
    """A function of the file.

    Args:
        parameters: those of its template, as nodes.
        in_scope: gives the function in a scope that has what its template parameters stand for.
    """

    parameters: list[Any]
    in_scope: Callable[[Scope], Callable[..., Any]] = field(init=False)


@dataclass
class HostPart(Statements):
    """The host code of one file, whose kernels are those of ``module``."""

    module: CudaModule
    lambdas: set[str] = field(default_factory=set)
    shared_bytes: dict[str, int] = field(default_factory=dict)
    _functions: dict[str, _Function] = field(default_factory=dict)

    def function(self, name: str) -> Callable[..., Any]:
        """A host function as one in Python, on CPU tensors.

        Raises:
            NotSimulatedError: it does more than to launch; the message has the line.
        """
        in_scope = self.own_call(name.rpartition("::")[2], (), None)
        return lambda *values: in_scope({})(*values)

    def own_call(self, name: str, templated: Sequence[str], node: Any) -> Callable[[Scope], Callable[..., Any]]:
        own = self._function(name)
        if len(templated) != len(own.parameters):
            raise self._not_simulated(node, f"a call of the template {name} without all of its arguments")
        values = [
            self._template_value(p, text.strip(), node) for p, text in zip(own.parameters, templated, strict=True)
        ]

        def in_scope(scope: Scope) -> Callable[..., Any]:
            bound = tuple(value(scope) for value in values)
            return own.in_scope({**dict(bound), INSTANCE: bound})

        return in_scope

    def _template_value(self, parameter: Any, text: str, node: Any) -> Run:
        """What a scope of the function has of a template argument: the type or the number that it stands for."""
        if parameter.type == "type_parameter_declaration":
            name, given = text_of(parameter.named_children[0]), plain_type(text)
            given = self.aliases.get(given, given)
            return lambda scope: (f"type {name}", scope.get(f"type {given}", given))
        expression = parsed_expression(text, node)
        if parameter.type != "parameter_declaration" or expression is None:
            raise self._not_simulated(node, f"the template argument {text}")
        number, name = self._value(expression), text_of(leaf_of(parameter.child_by_field_name("declarator")))
        return lambda scope: (name, number(scope))

    def _function(self, name: str) -> _Function:
        if name in self._functions:
            return self._functions[name]
        found = [node for node in self._definitions if self._name_of(node) == name]
        if len(found) != 1:
            raise self._not_simulated(None, f"{len(found) or 'no'} functions are called {name!r}")
        (node,) = found
        template = node.parent if node.parent is not None and node.parent.type == "template_declaration" else None
        listed = template.child_by_field_name("parameters").named_children if template is not None else ()
        own = self._functions[name] = _Function([p for p in listed if p.type != "comment"])
        declarator = inner_of(node.child_by_field_name("declarator"), "function_declarator")
        try:
            own.in_scope = self.callable_of(
                declarator.child_by_field_name("parameters"), node.child_by_field_name("body"), node
            )
        except NotSimulatedError:
            del self._functions[name]
            raise
        return own

    @functools.cached_property
    def _definitions(self) -> list[Any]:
        """The functions that the host runs, of templates too."""
        found = [node for node in self._outside_of_functions() if node.type == "function_definition"]
        return [node for node in found if _runs_on_host(text_of(node).partition("(")[0])]

    def _outside_of_functions(self) -> Iterator[Any]:
        waiting = [syntax_tree(self.module.source.text)]
        while waiting:
            node = waiting.pop()
            yield node
            if node.type in _OUTSIDE:
                waiting += node.children

    @functools.cached_property
    def aliases(self) -> dict[str, str]:
        found = [node for node in self._outside_of_functions() if node.type in ("alias_declaration", "type_definition")]
        known: dict[str, set[str]] = {}
        for node in found:
            name = text_of(node.child_by_field_name(_NAME_OF_ALIAS[node.type]))
            known.setdefault(name, set()).add(plain_type(text_of(node.child_by_field_name("type"))))
        return {name: types.pop() for name, types in known.items() if len(types) == 1}

    @functools.cached_property
    def type_names(self) -> frozenset[str]:
        names, waiting = {"scalar_t"}, [syntax_tree(self.module.source.text)]
        while waiting:
            node = waiting.pop()
            if node.type == "type_parameter_declaration" and node.named_children:
                names.add(text_of(node.named_children[0]))
            elif node.type == "alias_declaration":
                names.add(text_of(node.child_by_field_name("name")))
            waiting += node.children
        return frozenset(names - self.aliases.keys())

    @functools.cached_property
    def constants(self) -> dict[str, Any]:
        """The constants of the file, by name: the nodes of their values. Those of a name have to be alike."""
        known: dict[str, list[Any]] = {}
        for node in self._outside_of_functions():
            if node.type == "declaration" and re.match(r"(?:static\s+|inline\s+)*const", text_of(node)):
                for declarator in node.children_by_field_name("declarator"):
                    if declarator.type == "init_declarator":
                        known.setdefault(text_of(declarator.child_by_field_name("declarator")), []).append(declarator)
        return {name: found[0] for name, found in known.items() if len(set(map(text_of, found))) == 1}

    @functools.cached_property
    def own_names(self) -> frozenset[str]:
        return frozenset(map(self._name_of, self._definitions))

    def _name_of(self, node: Any) -> str:
        declarator = inner_of(node.child_by_field_name("declarator"), "function_declarator")
        name = declarator.child_by_field_name("declarator") if declarator is not None else None
        return text_of(name).rpartition("::")[2] if name is not None else ""


def _runs_on_host(begin: str) -> bool:
    return "__global__" not in begin and ("__device__" not in begin or "__host__" in begin)
