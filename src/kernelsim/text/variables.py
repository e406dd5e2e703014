"""The variables in device memory that a CUDA C++ source declares, from its syntax tree."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

__all__ = ["Variable", "variables_of"]

_SCOPES = frozenset({
    "translation_unit", "namespace_definition", "declaration_list", "linkage_specification", "template_declaration",
    "ERROR",
})  # fmt: skip
_IN_DEVICE_MEMORY = re.compile(r"\b__(?:device|managed|constant)__\b")
_READ_ONLY = re.compile(r"\b(?:const|constexpr|__constant__)\b")


@dataclass(frozen=True)
class Variable:
    """A ``__device__``, ``__managed__`` or ``__constant__`` variable: its name, and the type of its elements.

    Attributes:
        is_writable: whether kernels may write it.
    """

    name: str
    type: str
    is_writable: bool


def variables_of(root: Node, code: str) -> Iterator[Variable]:
    """The variables in device memory outside of functions and classes, in their order.

    Args:
        code: in ASCII, without comments, literals and directives; the tree is of this text.
    """
    for node in _top_level(root):
        declarators = node.children_by_field_name("declarator") if node.type == "declaration" else []
        head = code[node.start_byte : declarators[0].start_byte] if declarators else ""
        kind = node.child_by_field_name("type")
        if kind is None or not _IN_DEVICE_MEMORY.search(head):
            continue
        written = " ".join(code[kind.start_byte : kind.end_byte].split())
        for declarator in declarators:
            pointers = re.split(r"[\[=]", code[declarator.start_byte : declarator.end_byte])[0].count("*")
            if name := _name_of(declarator, code):
                yield Variable(name, written + "*" * pointers, not _READ_ONLY.search(head))


def _top_level(node: Node) -> Iterator[Node]:
    """The nodes outside of functions and classes."""
    for child in node.named_children:
        if child.type in _SCOPES:
            yield from _top_level(child)
        else:
            yield child


def _name_of(declarator: Node, code: str) -> str | None:
    """The name of a variable; None for a function's declaration."""
    current: Node | None = declarator
    while current is not None and current.type != "identifier":
        if current.type == "function_declarator" or "operator" in current.type:
            return None
        current = current.child_by_field_name("declarator") or next(
            (c for c in current.named_children if c.type == "identifier" or c.type.endswith("declarator")), None
        )
    return code[current.start_byte : current.end_byte] if current is not None else None
