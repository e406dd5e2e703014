"""What an expression of a source is, as far as its syntax tree tells: a tensor, a list of them, something else.

C++ would have to be compiled to know every type. Here the declarations of a function, of its parameters and of the
functions beside it are read, which is enough for most host functions; the compiler finds the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from opwright.port.names import ROOTS, UNIQUE
from opwright.port.schemas import kind_returned

__all__ = ["Kinds", "base_name", "of_type", "text_of"]

_TENSOR = re.compile(r"(?:(?:at|torch|c10)::)?(?:autograd::)?Tensor")
_ELEMENTS = {"tensors": "tensor", "tuple": "tensor", "optional": "tensor"}
_FUNCTIONS = ("function_definition", "lambda_expression")
_NOT_TENSORS = frozenset({"size", "sizes", "stride", "strides", "dim", "numel", "item", "data_ptr", "device", "dtype"})


def text_of(node: Node | None) -> str:
    """The text of a node; "" for none."""
    return (node.text or b"").decode() if node is not None else ""


def of_type(written: str) -> str:
    """What a type stands for: "tensor", "tensors", "optional", "tuple", "options", "stream", or ""."""
    bare = re.sub(r"\b(?:const|static|inline|constexpr)\b|[&*]|\s", "", written)
    if _TENSOR.fullmatch(bare):
        return "tensor"
    if re.fullmatch(r"(?:\w+::)*TensorOptions", bare):
        return "options"
    if re.fullmatch(r"(?:\w+::)*CUDAStream", bare):
        return "stream"
    if re.fullmatch(r"(?:\w+::)*TensorList", bare):
        return "tensors"
    inner = re.fullmatch(r"(?:\w+::)*(optional|vector|ArrayRef|array|tuple|pair)<(.*)>", bare)
    if inner is None or "Tensor" not in inner[2] or "<" in inner[2]:
        return ""
    return {"optional": "optional", "tuple": "tuple", "pair": "tuple"}.get(inner[1], "tensors")


class Kinds:
    """The kinds of a source's expressions.

    Args:
        root: of its syntax tree.
        functions: what functions of other files return, by name.
    """

    def __init__(self, root: Node, functions: dict[str, str] | None = None) -> None:
        self.functions = {**(functions or {}), **dict(_functions(root))}
        self._tables: dict[int, dict[str, str]] = {}
        self._unique: dict[int, set[str]] = {}
        self._globals = self._table(root, nested=False)

    def of(self, node: Node | None) -> str:
        """The kind of an expression."""
        if node is None:
            return ""
        match node.type:
            case "identifier" | "field_identifier":
                return self._name(node)
            case "call_expression":
                return self._call(node)
            case "subscript_expression":
                kind = self.of(node.child_by_field_name("argument"))
                return "tensor" if kind == "tensor" else _ELEMENTS.get(kind, "") if kind == "tensors" else ""
            case "parenthesized_expression" | "argument_list" | "initializer_list":
                return self.of(node.named_children[0]) if len(node.named_children) == 1 else ""
            case "binary_expression":
                sides = (self.of(node.child_by_field_name(side)) for side in ("left", "right"))
                return "tensor" if "tensor" in sides else ""
            case "unary_expression":
                return self.of(node.child_by_field_name("argument"))
            case "pointer_expression":
                kind = self.of(node.child_by_field_name("argument"))
                return "tensor" if kind in ("optional", "tensor") and text_of(node).startswith("*") else ""
            case "conditional_expression":
                ways = {self.of(node.child_by_field_name(way)) for way in ("consequence", "alternative")}
                return ways.pop() if len(ways) == 1 else ""
            case "assignment_expression":
                return self.of(node.child_by_field_name("left"))
            case "field_expression":
                return self._name(node.child_by_field_name("field"))
            case "compound_literal_expression":
                return of_type(text_of(node.child_by_field_name("type")))
        return ""

    def _call(self, node: Node) -> str:
        function, arguments = node.child_by_field_name("function"), node.child_by_field_name("arguments")
        assert function is not None
        given = [] if arguments is None else [a for a in arguments.named_children if a.type != "comment"]
        if function.type == "field_expression":
            receiver = self.of_receiver(function)
            is_tensor = bool(given) and self.of(given[0]) == "tensor"
            return self._method(receiver, base_name(function.child_by_field_name("field")), len(given), is_tensor)
        name = text_of(function)
        plain = base_name(function)
        if re.match(r"std::get\s*<", name) or name in ("std::move", "std::forward"):
            kind = self.of(given[0]) if given else ""
            return kind if name == "std::move" else _ELEMENTS.get(kind, "")
        if plain == "getCurrentCUDAStream":
            return "stream"
        root = name.split("::")[0].strip()
        if root in ROOTS and "::" in name:
            if plain in ("from_blob", "tensor"):
                return "tensor"
            two = len(given) > 1 and self.of(given[1]) == "tensor"
            return of_type(name) or kind_returned(plain, len(given), of_two_tensors=two)
        return self.functions.get(plain, "") or of_type(name)

    def of_receiver(self, function: Node) -> str:
        """The kind of what a method is called on. What has a method that only tensors have is a tensor."""
        receiver = function.child_by_field_name("argument")
        kind = self.of(receiver)
        if kind or receiver is None:
            return kind
        if receiver.type == "identifier" and self._is_used_as_tensor(receiver):
            return "tensor"
        return "tensor" if base_name(function.child_by_field_name("field")) in UNIQUE - {"device", "dim"} else ""

    def _is_used_as_tensor(self, receiver: Node) -> bool:
        """Whether a name that is declared elsewhere (a parameter of a macro, a member) has a tensor's methods."""
        scope = _enclosing(receiver)
        if scope is None or text_of(receiver) in self._lookup(receiver):
            return False
        if scope.id not in self._unique:
            self._unique[scope.id] = {
                text_of(n.child_by_field_name("argument"))
                for n in _walk(scope)
                if n.type == "field_expression" and base_name(n.child_by_field_name("field")) in UNIQUE
            }
        return text_of(receiver) in self._unique[scope.id]

    def _method(self, receiver: str, name: str, given: int, of_tensor: bool) -> str:
        if receiver == "options":
            return "options"
        if receiver in ("optional", "tensors") and name in ("value", "value_or", "at", "front", "back"):
            return "tensor"
        if receiver != "tensor" or name in _NOT_TENSORS:
            return ""
        if name == "options":
            return "options"
        if name in ("to", "toType", "cpu", "cuda", "contiguous", "clone"):
            return "tensor"
        return kind_returned(name, given + 1, of_two_tensors=of_tensor)

    def _name(self, node: Node | None) -> str:
        name = text_of(node)
        return self._lookup(node).get(name, "") if node is not None else ""

    def _lookup(self, node: Node) -> dict[str, str]:
        """The names that are visible at a node, with their kinds."""
        tables = [self._globals]
        scope = _enclosing(node)
        while scope is not None:
            if scope.id not in self._tables:
                self._tables[scope.id] = {}  # while it is made, names of it are looked up outside
                self._tables[scope.id] = self._table(scope, nested=False)
            tables.insert(1, self._tables[scope.id])
            scope = _enclosing(scope.parent) if scope.parent is not None else None
        return {name: kind for table in tables for name, kind in table.items()}

    def _table(self, scope: Node, *, nested: bool) -> dict[str, str]:
        found: dict[str, str] = {}
        for node in _walk(scope, into=() if not nested else _FUNCTIONS):
            for name, kind in self._declared(node):
                found[name] = kind if found.get(name, kind) == kind else ""
                if scope.type in _FUNCTIONS:
                    self._tables[scope.id] = found
        return found

    def _declared(self, node: Node) -> Iterator[tuple[str, str]]:
        if node.type not in (
            "declaration", "parameter_declaration", "optional_parameter_declaration", "field_declaration",
            "for_range_loop",
        ):  # fmt: skip
            return
        written = text_of(node.child_by_field_name("type"))
        for declarator in node.children_by_field_name("declarator"):
            value = declarator.child_by_field_name("value")
            if node.type == "for_range_loop":
                value = node.child_by_field_name("right")
            names = list(_names(declarator))
            if written == "auto" or written.startswith("decltype"):
                kind = self.of(value)
                kind = _ELEMENTS.get(kind, kind) if len(names) > 1 or node.type == "for_range_loop" else kind
            else:
                kind = of_type(written)
            for name in names:
                yield name, kind


def _functions(root: Node) -> Iterator[tuple[str, str]]:
    for node in _walk(root, into=("function_definition",)):
        if node.type in ("function_definition", "declaration", "field_declaration"):
            declarator = node.child_by_field_name("declarator")
            while declarator is not None and declarator.type in ("reference_declarator", "pointer_declarator"):
                declarator = declarator.named_children[-1]
            if declarator is not None and declarator.type == "function_declarator":
                kind = of_type(text_of(node.child_by_field_name("type")))
                if kind:
                    yield base_name(declarator.child_by_field_name("declarator")), kind


def base_name(node: Node | None) -> str:
    """The last part of a name, without namespaces and template arguments."""
    return re.sub(r"\s*<.*", "", text_of(node), flags=re.DOTALL).rpartition("::")[2].strip()


def _names(declarator: Node) -> Iterator[str]:
    if declarator.type in ("identifier", "field_identifier"):
        yield text_of(declarator)
    elif declarator.type == "structured_binding_declarator":
        yield from (text_of(child) for child in declarator.named_children)
    elif declarator.type != "function_declarator":
        value = declarator.child_by_field_name("value")
        for child in declarator.named_children:
            if value is None or child.id != value.id:
                yield from _names(child)


def _enclosing(node: Node | None) -> Node | None:
    """The function around a node."""
    while node is not None and node.type not in _FUNCTIONS:
        node = node.parent
    return node


def _walk(node: Node, into: tuple[str, ...] = ()) -> Iterator[Node]:
    """A node and all below it, in order, not into functions within it."""
    yield node
    for child in node.named_children:
        if child.type not in _FUNCTIONS or child.type in into:
            yield from _walk(child, into)
