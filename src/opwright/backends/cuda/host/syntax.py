"""What the nodes of a host function's syntax tree say: names, types, inner nodes."""

from __future__ import annotations

import re
from typing import Any

from opwright.backends.simulation import syntax_tree

__all__ = ["inner_of", "leaf_of", "parsed", "parsed_expression", "plain_type", "text_of"]


def text_of(node: Any) -> str:
    return str(node.text.decode())


def parsed(statements: str, place: Any) -> Any | None:
    """The tree of statements, in the line of a node that stands for them; None if the text is something else."""
    before = "\n" * int(place.start_point[0])
    tree = syntax_tree(f"{before}void f() {{ {statements} }}")
    is_one = len(tree.named_children) == 1 and not tree.has_error
    return tree.named_children[0].child_by_field_name("body") if is_one else None


def parsed_expression(text: str, place: Any) -> Any | None:
    """The tree of one expression, in the line of a node; None if the text is more than one, or none."""
    body = parsed(f"{text};", place)
    if body is None or len(body.named_children) != 1 or body.named_children[0].type != "expression_statement":
        return None
    return body.named_children[0].named_children[0]


def inner_of(node: Any, kind: str) -> Any:
    """The first node of a kind in a tree."""
    waiting = [node]
    while waiting:
        current = waiting.pop(0)
        if current.type == kind:
            return current
        waiting += current.named_children
    return None


def leaf_of(node: Any) -> Any:
    """The name that a declarator declares."""
    while node.type != "identifier":
        node = node.child_by_field_name("declarator") or node.named_children[-1]
    return node


def plain_type(text: str) -> str:
    text = re.sub(r"\b(?:const|constexpr|static|__restrict__|typename)\b|&", " ", text)
    return re.sub(r"\s*\*", "*", " ".join(text.split()))
