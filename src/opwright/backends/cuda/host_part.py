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

from opwright.backends.cuda.host_expressions import Returned, Scope
from opwright.backends.cuda.host_statements import Statements
from opwright.backends.cuda.host_syntax import inner_of, leaf_of, text_of
from opwright.backends.cuda.module import CudaModule
from opwright.backends.simulation import syntax_tree

__all__ = ["HostPart"]


@dataclass
class HostPart(Statements):
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
            scope: Scope = {}
            for name, value, type_name in zip(names, values, types, strict=True):
                self._declare(scope, name, value, type_name, node)
            try:
                body(scope)
            except Returned as returned:
                return returned.value
            return None

        return call
