"""Rewrites a source on ATen's tensors for torch's stable ABI, from its syntax tree. What has no counterpart stays as it
is, and is named with its line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field

from tree_sitter import Node

from opwright.port import names
from opwright.port.kinds import Kinds, base_name, text_of
from opwright.port.schemas import advice, is_method, is_operator, why_not

__all__ = ["Rewriter", "Rewritten"]

_ATEN_HEADER = re.compile(r"(?:ATen|torch|c10|caffe2|pybind11|THC|TH)/")
_ATOMICS = re.compile(r"(?:THC/THCAtomics|ATen/cuda/Atomic)\.cuh")
_STABLE_HEADER = re.compile(r"torch/(?:csrc/(?:stable|inductor)|headeronly)/")
_PYTHON = re.compile(r"\bPy(?:Init_|Object|Module|MODINIT)\w*")


@dataclass
class Rewritten:
    """A rewritten source.

    Attributes:
        replaced: the lines on which each name was replaced, by (name, what took its place).
        remaining: what has no counterpart, as (line, what).
        operators: ATen's operators that it calls.
    """

    replaced: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    remaining: list[tuple[int, str]] = field(default_factory=list)
    operators: set[str] = field(default_factory=set)


class Rewriter:
    """Rewrites the nodes of one source.

    Args:
        headers: the names of the user's own headers that are rewritten, too, and their new names.
        macros: the names of macros that the user's own files define.
    """

    # Stands for the include of opwright's header, whose name is known last.
    INCLUDE = "#include <opwright>"

    def __init__(self, kinds: Kinds, headers: Mapping[str, str], macros: Set[str] = frozenset()) -> None:
        self.result = Rewritten()
        self._kinds, self._headers, self._macros = kinds, headers, macros
        self._opened: set[str] = set()  # namespaces of ATen that `using namespace` opens
        self._handlers: dict[str, Callable[[Node], str | None]] = {
            "preproc_include": self._including,
            "preproc_function_def": self._macro,
            "preproc_def": self._macro,
            "using_declaration": self._using,
            "qualified_identifier": self._qualified,
            "identifier": self._plain,
            "type_identifier": self._plain,
            "call_expression": self._call,
            "subscript_expression": self._subscript,
            "expression_statement": self._assignment,
            "linkage_specification": self._linkage,
            "ERROR": self._unreadable,
        }

    def text(self, node: Node) -> str:
        """A node's text, rewritten."""
        handler = self._handlers.get(node.type)
        made = handler(node) if handler is not None else None
        return made if made is not None else self._children(node)

    def quietly(self, node: Node) -> str:
        """Like ``text``, for what is written a second time."""
        kept, self.result = self.result, Rewritten()
        try:
            return self.text(node)
        finally:
            self.result = kept

    def _children(self, node: Node) -> str:
        if not node.children:
            return text_of(node)
        whole = node.text or b""
        parts, position = [], node.start_byte
        for child in node.children:
            parts.append(whole[position - node.start_byte : child.start_byte - node.start_byte].decode())
            parts.append(self.text(child))
            position = child.end_byte
        return "".join([*parts, whole[position - node.start_byte :].decode()])

    def _note(self, node: Node, what: str) -> None:
        self.result.remaining.append((node.start_point[0] + 1, what))

    def _replace(self, node: Node, before: str, after: str) -> str:
        self.result.replaced.setdefault((before, after), []).append(node.start_point[0] + 1)
        return after

    # -- directives -------------------------------------------------------------------------------------------------

    def _including(self, node: Node) -> str | None:
        path = text_of(node.child_by_field_name("path")).strip('"<>')
        if path in self._headers:
            return f'#include "{self._replace(node, path, self._headers[path])}"\n'
        if _ATOMICS.fullmatch(path):
            return f"#include <{self._replace(node, path, 'opwright/atomics.cuh')}>\n"
        if path == "Python.h" or (_ATEN_HEADER.match(path) and not _STABLE_HEADER.match(path)):
            self._replace(node, f"<{path}>", "<opwright/ops.h>")
            return f"{self.INCLUDE}\n"
        return None

    def _macro(self, node: Node) -> str:
        """The body of a macro is no syntax tree: names are replaced in its text."""
        body = node.child_by_field_name("value")
        if body is None:
            return text_of(node)
        head = (node.text or b"")[: body.start_byte - node.start_byte].decode()
        tail = (node.text or b"")[body.end_byte - node.start_byte :].decode()

        def replaced(found: re.Match[str]) -> str:
            written = found[0]
            after = names.MACROS.get(written) or self._mapped(re.sub(r"\s", "", written)) or written
            if after != written:
                return self._replace(node, written, after)
            if "::" in written and written.split("::")[0] in names.ROOTS and "headeronly" not in written:
                self._note(node, f"{written} in a macro has no counterpart")
            elif written.startswith("AT_DISPATCH_") and written in names.DISPATCH:
                self._note(node, f"{written} in a macro: write THO_DISPATCH_V2")
            return written

        text = re.sub(r"\.\s*(?:type|options)\(\)\s*\.is_cuda\(\)", ".is_cuda()", text_of(body))
        text = re.sub(r"\b(?:AT_ERROR|TORCH_CHECK_NOT_IMPLEMENTED_FAIL)\s*\(", "TORCH_CHECK(false, ", text)
        return head + re.sub(r'"(?:\\.|[^"\\])*"|\w+(?:\s*::\s*\w+)*', replaced, text) + tail

    def _using(self, node: Node) -> str | None:
        written = re.sub(r"\s+", " ", text_of(node)).rstrip("; ").removeprefix("using ")
        name = written.removeprefix("namespace ")
        if name.split("::")[0] not in names.ROOTS or name.startswith(("torch::stable", "torch::headeronly")):
            return None
        after = self._mapped(name)
        if not written.startswith("namespace "):
            return f"using {self._replace(node, name, after)};" if after and "::" in after else None
        self._opened.add(name)
        return self._replace(node, f"using {written};", "using torch::stable::Tensor;")

    def _linkage(self, node: Node) -> str | None:
        if not re.search(r"\bPyInit_\w+|\bPyMODINIT_FUNC\b", text_of(node)):
            return None
        self._note_left_out(node)
        return "\n" * text_of(node).count("\n")

    def _note_left_out(self, node: Node) -> None:
        self._replace(node, "PyInit_…", "(left out: opwright loads the library)")

    def _unreadable(self, node: Node) -> str | None:
        if re.search(r"\b(?:at|torch|c10)\s*::", text_of(node)):
            self._note(node, "could not be read: the compiler has to tell whether more is to be done here")
        return None

    # -- names ------------------------------------------------------------------------------------------------------

    def _mapped(self, name: str) -> str:
        """The stable form of a name such as at::ScalarType::Half; "" if it has none, or is not ATen's."""
        parts = name.split("::")
        if parts[0] not in names.ROOTS or len(parts) < 2 or parts[1] in ("stable", "headeronly"):
            return ""
        if parts[1] == "indexing":
            return ""
        for length in range(len(parts) - 1, 0, -1):
            bare = "::".join(parts[1 : 1 + length])
            for table in (names.TYPES, names.CONSTANTS, names.TEMPLATES):
                if bare in table:
                    return "::".join([table[bare], *parts[1 + length :]])
        return ""

    def _qualified(self, node: Node) -> str | None:
        """A name with its namespace, and perhaps with template arguments at its end."""
        parts, last = _parts(node)
        if parts[0] not in names.ROOTS or (len(parts) > 1 and parts[1] in ("stable", "headeronly")):
            return None
        name = "::".join(parts)
        arguments = (
            last.child_by_field_name("arguments") if last.type in ("template_type", "template_function") else None
        )
        if arguments is not None and parts[-1] in names.PACKED:
            index = names.PACKED[parts[-1]]
            return self._replace(node, name, names.TEMPLATES["GenericPackedTensorAccessor"]) + self._packed(
                arguments, index
            )
        after = self._mapped(name)
        if not after:
            self._note(node, f"{name} has no counterpart in torch's stable ABI{advice(name)}")
            return None
        return self._replace(node, name, after) + (self.text(arguments) if arguments is not None else "")

    def _packed(self, arguments: Node, index: str) -> str:
        given = [self.text(child) for child in arguments.named_children]
        if len(given) == 2:
            given.append(names.TYPES["DefaultPtrTraits"])
        return f"<{', '.join([*given, index])}>"

    def _plain(self, node: Node) -> str | None:
        """A name without a namespace: of a macro, or of one that `using namespace` has opened."""
        written = text_of(node)
        if self._opened and (written in names.TYPES or written in names.CONSTANTS) and written != "Tensor":
            after = names.TYPES.get(written) or names.CONSTANTS[written]
            return self._replace(node, written, after)
        if written in names.MACROS and (node.parent is None or node.parent.type != "call_expression"):
            return self._replace(node, written, names.MACROS[written])
        return None

    # -- calls ------------------------------------------------------------------------------------------------------

    def _call(self, node: Node) -> str | None:
        function, arguments = node.child_by_field_name("function"), node.child_by_field_name("arguments")
        if function is None or arguments is None:
            return None
        if function.type == "identifier":
            return self._call_of_macro(node, text_of(function), arguments)
        if function.type == "qualified_identifier":
            return self._call_of_function(node, function, arguments)
        if function.type == "field_expression":
            return self._method(node, function, arguments)
        return None

    def _call_of_macro(self, node: Node, name: str, arguments: Node) -> str | None:
        if name in names.MACROS:
            return self._replace(node, name, names.MACROS[name]) + self.text(arguments)
        if name == "device_of" and name not in self._kinds.functions:  # found by the type of its argument
            return self._replace(node, name, "opwright::device_of") + self.text(arguments)
        if name in names.FAILURES:
            given = ", ".join(self._given(arguments))
            return f"{self._replace(node, name, 'STD_TORCH_CHECK')}(false, {given})"
        if name in names.DISPATCH:
            return self._dispatch(node, name, arguments)
        if name.startswith(("AT_DISPATCH_", "TORCH_WARN", "TORCH_CHECK_")) and name not in self._macros:
            self._note(node, f"{name} has no counterpart in torch's stable ABI")
        if self._opened and name not in self._kinds.functions and is_operator(name) and name not in ("min", "max"):
            return self._operator(node, name, self._given(arguments))
        return None

    def _given(self, arguments: Node) -> list[str]:
        return [self.text(a) for a in arguments.named_children if a.type != "comment"]

    def _dispatch(self, node: Node, name: str, arguments: Node) -> str | None:
        types, more = names.DISPATCH[name]
        given = self._given(arguments)
        if len(given) < more + 3:
            self._note(node, f"{name} with {len(given)} arguments could not be read")
            return None
        kind, title, body = given[more], given[more + 1], ", ".join(given[more + 2 :])
        body = body if body.startswith("(") else f"({body})"
        after = self._replace(node, name, "THO_DISPATCH_V2")
        return f"{after}({kind}, {title}, AT_WRAP({body}), {', '.join([*types, *given[:more]])})"

    def _call_of_function(self, node: Node, function: Node, arguments: Node) -> str | None:
        parts, last = _parts(function)
        name, bare = "::".join(parts), "::".join(parts[1:])
        if parts[0] not in names.ROOTS or parts[1] in ("stable", "headeronly"):
            return None
        if self._mapped(name):  # a constructor
            return None
        if names.FUNCTIONS.get(bare):
            return self._replace(node, name, names.FUNCTIONS[bare]) + self.text(arguments)
        if len(parts) == 2 and last.type == "identifier" and is_operator(bare):
            return self._operator(node, bare, self._given(arguments), name)
        return None  # its name is noted

    def _operator(self, node: Node, name: str, given: list[str], written: str = "") -> str | None:
        reason = why_not(name)
        if reason:
            self._note(node, reason)
            return None
        self.result.operators.add(name)
        after = self._replace(node, written or name, f"opwright::aten::{name}")
        return f"{after}({', '.join(given)})"

    def _method(self, node: Node, function: Node, arguments: Node) -> str | None:
        field_node, receiver = function.child_by_field_name("field"), function.child_by_field_name("argument")
        name = base_name(field_node)
        if receiver is None or field_node is None:
            return None
        number = _NUMBER_OF.get(name) or re.sub(r"^[^<]*|\s", "", text_of(field_node)).strip("<>") * (name == "to")
        if number and (element := _item(receiver)) is not None and self._kinds.of(element) == "tensor":
            return f"{self._replace(node, 'Tensor::item', 'opwright::item')}<{number}>({self.text(element)})"
        kind = self._kinds.of_receiver(function)
        if kind == "stream" and name == "stream":
            return self.text(receiver)
        if name == "is_cuda" and receiver.type == "call_expression":
            inner = receiver.child_by_field_name("function")
            if inner is not None and base_name(inner.child_by_field_name("field")) in ("type", "options"):
                return f"{self.text(_required(inner.child_by_field_name('argument')))}.is_cuda()"
        if kind != "tensor":
            return None
        given = self._given(arguments)
        if name in names.KEPT_METHODS:
            if name == "is_contiguous" and given:
                self._note(node, "is_contiguous with a memory format has no counterpart in torch's stable ABI")
            return None
        return self._method_of_tensor(node, name, field_node, receiver, given)

    def _method_of_tensor(
        self, node: Node, name: str, field_node: Node, receiver: Node, given: list[str]
    ) -> str | None:
        written, on = f"Tensor::{name}", self.text(receiver)
        templates = field_node.child_by_field_name("arguments")
        types = self.text(templates) if templates is not None else ""
        arrow = "->" if "->" in text_of(node.child_by_field_name("function"))[len(text_of(receiver)) :][:4] else "."
        if name in names.METHODS and not given:
            after = names.METHODS[name]
            if constant := re.fullmatch(r"<\s*(?:const\s+(.*\S)|(.*\S)\s+const)\s*>", types, re.DOTALL):
                after, types = "const_data_ptr", f"<{constant[1] or constant[2]}>"
            return f"{on}{arrow}{self._replace(node, written, after)}{types}()"
        if arrow == "->":
            on = f"(*{on})"
        if name in names.AS_FUNCTIONS:
            if name == "item" and not types:
                self._note(node, "item() without a type: write opwright::item<double>(x)")
                return None
            return f"{self._replace(node, written, names.AS_FUNCTIONS[name])}{types}({', '.join([on, *given])})"
        if name == "contiguous" and not given:
            return f"{self._replace(node, written, 'opwright::contiguous')}({on})"
        if not is_method(name):
            self._note(node, f"{written} has no counterpart in torch's stable ABI")
            return None
        return self._operator(node, name, [on, *given], written)

    # -- elements ---------------------------------------------------------------------------------------------------

    def _subscript(self, node: Node) -> str | None:
        receiver, indices = node.child_by_field_name("argument"), node.child_by_field_name("indices")
        if receiver is None or indices is None or self._kinds.of(receiver) != "tensor":
            return None
        index = ", ".join(self.text(child) for child in indices.named_children)
        return f"{self._replace(node, 'Tensor[i]', 'opwright::at')}({self.text(receiver)}, {index})"

    def _assignment(self, node: Node) -> str | None:
        """x[i] = y writes into x in ATen; of stable tensors, it would only change what x[i] is called."""
        inner = node.named_children[0] if node.named_children else None
        if inner is None or inner.type != "assignment_expression":
            return None
        left, right = inner.child_by_field_name("left"), inner.child_by_field_name("right")
        operator = text_of(inner.child_by_field_name("operator"))
        if left is None or right is None or operator != "=" or left.type != "subscript_expression":
            return None
        if self._kinds.of(left.child_by_field_name("argument")) != "tensor":
            return None
        after = self._replace(node, "Tensor[i] =", "opwright::write")
        return f"{after}({self.text(left)}, {self.text(right)});"


def _parts(node: Node) -> tuple[list[str], Node]:
    """The names of a qualified one, without template arguments, and the node of the last."""
    parts: list[str] = []
    current = node
    while current.type == "qualified_identifier":
        scope, name = current.child_by_field_name("scope"), current.child_by_field_name("name")
        parts.append(base_name(scope))
        if name is None:
            break
        current = name
    return [*parts, base_name(current)], current


# The methods of a Scalar that x.item() gives.
_NUMBER_OF = {"toInt": "int", "toLong": "int64_t", "toFloat": "float", "toDouble": "double", "toBool": "bool"}


def _item(node: Node) -> Node | None:
    """The tensor of which a call of item() without a type takes the element."""
    function = node.child_by_field_name("function") if node.type == "call_expression" else None
    if (
        function is None
        or function.type != "field_expression"
        or text_of(function.child_by_field_name("field")) != "item"
    ):
        return None
    return function.child_by_field_name("argument")


def _required(node: Node | None) -> Node:
    assert node is not None
    return node
