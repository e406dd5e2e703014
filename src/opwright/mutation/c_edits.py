"""The edits of C++ and CUDA C++, by tree-sitter's grammar of CUDA, which needs no header to read a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tree_sitter import Node

from opwright.backends.simulation import syntax_tree
from opwright.mutation.edits import Edit, distinct
from opwright.mutation.words import ARITHMETIC, BITWISE, BOUNDS, FUNCTIONS, LOGIC, number_edits

__all__ = ["edits_of", "functions_of"]

_TYPES = {
    "double": "float", "int64_t": "int32_t", "uint64_t": "uint32_t", "size_t": "unsigned", "int32_t": "int8_t",
    "long": "int", "ptrdiff_t": "int",
}  # fmt: skip
# Types, preprocessor lines, text and what is said to the compiler are left as they are.
_LEFT_AS_IS = frozenset({
    "comment", "string_literal", "raw_string_literal", "char_literal", "static_assert_declaration", "preproc_call",
    "preproc_directive", "preproc_include", "preproc_def", "preproc_function_def", "template_argument_list",
    "template_parameter_list", "attribute_specifier", "attribute_declaration", "throw_statement", "parameter_list",
    "trailing_return_type", "launch_bounds",
})  # fmt: skip
_BARRIERS = frozenset({"__syncthreads", "__syncwarp", "sync"})


def functions_of(text: str) -> dict[str, list[tuple[int, int]]]:
    """The bodies of the functions that a text defines, as offsets, by name. A member has the name of its class, too."""
    found: dict[str, list[tuple[int, int]]] = {}
    source = text.encode()

    def walk(node: Node, inside: tuple[str, ...]) -> None:
        if node.type in ("struct_specifier", "class_specifier") and (name := node.child_by_field_name("name")):
            inside = (*inside, _text(name))
        if node.type == "function_definition" and (body := node.child_by_field_name("body")) is not None:
            span = (_characters(source, node.start_byte), _characters(source, body.end_byte))
            for known in {_declared(node.child_by_field_name("declarator")), *inside} - {""}:
                found.setdefault(known, []).append(span)
        for child in node.children:
            walk(child, inside)

    walk(syntax_tree(text), ())
    return found


def edits_of(spans: Sequence[tuple[int, int]], text: str) -> list[Edit]:
    """All edits in some parts of a text (offsets), in its order."""
    source = text.encode()
    raw = _edits(syntax_tree(text))
    made = (
        Edit(_characters(source, edit.start), _characters(source, edit.end), edit.new, edit.operator) for edit in raw
    )
    return distinct((e for e in made if any(start <= e.start and e.end <= end for start, end in spans)), text)


def _text(node: Node) -> str:
    return (node.text or b"").decode()


def _characters(source: bytes, offset: int) -> int:
    return len(source[:offset].decode(errors="replace"))


def _declared(node: Any) -> str:
    """The name that a declarator declares."""
    while node is not None and node.type not in ("identifier", "field_identifier", "operator_name"):
        inner = node.child_by_field_name("declarator") or node.child_by_field_name("name")
        node = inner if inner is not None else (node.named_children[-1] if node.named_children else None)
    return "" if node is None else _text(node)


def _edits(node: Node) -> Iterator[Edit]:
    """The edits of a node, and of all in it, with offsets in bytes."""
    if node.type in _LEFT_AS_IS or _only_checks(node):
        return
    yield from _of_node(node)
    for child in node.children:
        yield from _edits(child)


def _only_checks(node: Node) -> bool:
    """Whether a statement only refuses wrong arguments: ``STD_TORCH_CHECK(...)``, ``assert(...)``."""
    if (
        node.type != "expression_statement"
        or not node.named_children
        or node.named_children[0].type != "call_expression"
    ):
        return False
    name = _called(node.named_children[0])
    return name.endswith("_CHECK") or name in ("assert", "printf", "__builtin_assume", "CHECK")


def _called(call: Node) -> str:
    """The last name of a called function."""
    function = call.child_by_field_name("function")
    if function is None:
        return ""
    return _text(function).split("<")[0].rpartition("::")[2].rpartition(".")[2].rpartition("->")[2].strip()


def _of_node(node: Node) -> Iterator[Edit]:
    match node.type:
        case "binary_expression":
            yield from _binary(node)
        case "assignment_expression":
            yield from _assignment(node)
        case "unary_expression":
            operand = node.child_by_field_name("argument")
            if operand is not None and node.children[0].type in ("-", "!", "~"):
                yield _replace(node, _text(operand), "sign or negation")
        case "number_literal":
            yield from (_replace(node, new, "constant") for new in number_edits(_text(node)))
        case "true" | "false":
            yield _replace(node, "false" if node.type == "true" else "true", "constant")
        case "if_statement" | "conditional_expression":
            yield from _condition(node)
        case "subscript_expression":
            yield from _index(node)
        case "call_expression":
            yield from _call(node)
        case "expression_statement":
            yield from _statement(node)
        case "declaration":
            yield from _declared_type(node)


def _replace(node: Node, new: str, operator: str) -> Edit:
    lost = _text(node).count("\n") - new.count("\n")
    return Edit(node.start_byte, node.end_byte, new + "\n" * lost, operator)


def _binary(node: Node) -> Iterator[Edit]:
    operator = node.child_by_field_name("operator")
    if operator is None:
        return
    old = operator.type
    for new in BOUNDS.get(old, ()):
        yield _replace(operator, new, "bound")
    for table, kind in ((ARITHMETIC, "arithmetic"), (BITWISE, "mask or bits"), (LOGIC, "logic")):
        if old in table:
            yield _replace(operator, table[old], kind)


def _assignment(node: Node) -> Iterator[Edit]:
    operator = node.child_by_field_name("operator")
    old = operator.type.removesuffix("=") if operator is not None else ""
    new = ARITHMETIC.get(old) or BITWISE.get(old)
    if operator is not None and new is not None:
        yield _replace(operator, f"{new}=", "arithmetic")


def _condition(node: Node) -> Iterator[Edit]:
    clause = node.child_by_field_name("condition")
    value = clause.child_by_field_name("value") if clause is not None and node.type == "if_statement" else clause
    is_constexpr = any(child.type == "constexpr" for child in node.children)
    if value is not None and value.type != "declaration" and not is_constexpr:
        yield _replace(value, f"!({_text(value)})", "condition negated")


def _index(node: Node) -> Iterator[Edit]:
    indices = node.child_by_field_name("indices")
    for index in indices.named_children if indices is not None else ():
        if index.type not in ("number_literal", "string_literal"):
            yield _replace(index, f"({_text(index)}) + 1", "index")


def _call(node: Node) -> Iterator[Edit]:
    function, name = node.child_by_field_name("function"), _called(node)
    if function is None or name not in FUNCTIONS or "<" in _text(function):
        return
    yield _replace(function, _text(function).removesuffix(name) + FUNCTIONS[name], "function")


def _statement(node: Node) -> Iterator[Edit]:
    """A statement that writes, calls or waits is left out. The step of a loop is no statement of its own."""
    inner = node.named_children[0] if node.named_children else None
    if inner is None or inner.type not in ("assignment_expression", "call_expression", "update_expression"):
        return
    is_barrier = inner.type == "call_expression" and _called(inner) in _BARRIERS
    yield _replace(node, ";", "barrier removed" if is_barrier else "statement removed")


def _declared_type(node: Node) -> Iterator[Edit]:
    declared = node.child_by_field_name("type")
    name = _text(declared) if declared is not None else ""
    new = _TYPES.get(name.removeprefix("std::"))
    if declared is not None and new is not None:
        yield _replace(declared, new, "dtype")
