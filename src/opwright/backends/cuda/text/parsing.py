"""What a CUDA C++ source declares, from its syntax tree: kernels, variables, and the functions for the host.

tree-sitter parses without a preprocessor and without headers, and goes on after an error: docs/cuda.md says why that is
wanted here. What depends on types, on macros or on templates is asked of the compilers.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import tree_sitter
import tree_sitter_cuda
from tree_sitter import Node

from opwright.backends.c_text import blank_out, closing_bracket, enclosing_scopes
from opwright.backends.cuda.text.kernel_heads import KernelHead, kernel_heads

__all__ = ["Declarations", "Function", "declarations", "globally_named", "is_template", "qualified_names"]

_SCOPES = frozenset(
    {
        "translation_unit", "namespace_definition", "declaration_list", "linkage_specification", "template_declaration",
        "preproc_if", "preproc_ifdef", "preproc_else", "preproc_elif", "preproc_elifdef", "ERROR",
    }
)  # fmt: skip


# Definitions of macros, of which the grammar takes parts for code; alignments, at places that it does not know.
_UNPARSED = re.compile(
    r"^[ \t]*#[ \t]*define\b(?:\\\n|[^\n])*|\b(?:__align__|alignas)\s*\([^()]*(?:\([^()]*\)[^()]*)*\)", re.MULTILINE
)


@dataclass(frozen=True)
class Function:
    """A function definition outside of classes: its name, what is written before its parameters, and its place."""

    name: str
    head: str
    begin: int
    end: int


@dataclass(frozen=True)
class Declarations:
    """What a source declares, in its order.

    Attributes:
        kernels: the names of its ``__global__`` functions; of overloads and templates once.
        variables: its ``__device__`` and ``__managed__`` variables that are not const.
        types: the element types of its ``__device__``, ``__managed__`` and ``__constant__`` variables.
        functions: the functions that it defines outside of classes, kernels included.
    """

    kernels: tuple[str, ...]
    variables: tuple[str, ...]
    functions: tuple[Function, ...]
    types: Mapping[str, str]


@functools.lru_cache(maxsize=256)
def declarations(text: str) -> Declarations:
    """What a source declares, as far as that can be known without a preprocessor."""
    code = _plain(text)
    root = tree_sitter.Parser(tree_sitter.Language(tree_sitter_cuda.language())).parse(code.encode()).root_node
    nodes = list(_top_level(root))
    functions = tuple(
        _function(node, code) for node in nodes if node.type == "function_definition" and _declarator(node) is not None
    )
    variables = [name for node in nodes if node.type == "declaration" for name in _device_variables(node, code)]
    heads = kernel_heads(blank_out(text))  # also those in the bodies of macros
    kernels = tuple(dict.fromkeys(head.name for head in heads))
    types = dict(pair for node in nodes if node.type == "declaration" for pair in _types(node, code))
    return Declarations(kernels, tuple(dict.fromkeys(variables)), functions, types)


@functools.lru_cache(maxsize=256)
def qualified_names(text: str, kernel: str) -> tuple[str, ...]:
    """The full names of the kernels that are called so; of an overloaded one, once for each overload."""
    code = blank_out(text)
    heads = [head for head in kernel_heads(code) if head.name == kernel and _has_body(code, head)]
    return tuple("::".join([*enclosing_scopes(code, head.at), kernel]) for head in heads)


def _has_body(code: str, head: KernelHead) -> bool:
    closing = closing_bracket(code, head.opening)
    return closing is not None and re.compile(r"[^;{}]*\{").match(code, closing) is not None


def globally_named(text: str, kernel: str) -> str:
    """A kernel, or an instance of one, by a name that no other thing has, if the source's own name of it is known: a
    namespace that the source uses whole may have the same one."""
    name = kernel.strip(" &")
    bare = name.split("<")[0].strip()
    return f"::{name}" if bare in qualified_names(text, bare.split("::")[-1]) else kernel


def is_template(text: str, kernel: str) -> bool:
    """Whether a kernel is a template, as far as that stands in the text."""
    code = blank_out(text)
    return any(head.name == kernel and head.is_template(code) for head in kernel_heads(code))


def _plain(text: str) -> str:
    """The code in ASCII, so that offsets of bytes are offsets of characters, without what confuses the grammar."""
    code = blank_out(text).encode("ascii", "replace").decode()
    return _UNPARSED.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), code)


def _top_level(node: Node) -> Iterator[Node]:
    """The nodes outside of functions and classes."""
    for child in node.named_children:
        if child.type in _SCOPES:
            yield from _top_level(child)
        else:
            yield child


def _declarator(node: Node) -> Node | None:
    """The declarator of a function: its name and its parameters."""
    current = node.child_by_field_name("declarator")
    while current is not None and current.type != "function_declarator":
        current = current.child_by_field_name("declarator") or next(
            (c for c in current.named_children if c.type.endswith("declarator")), None
        )
    return current


def _function(node: Node, code: str) -> Function:
    declarator = _declarator(node)
    assert declarator is not None
    whole = node.parent if node.parent is not None and node.parent.type == "template_declaration" else node
    name = declarator.child_by_field_name("declarator")
    bare = code[name.start_byte : name.end_byte] if name is not None else ""
    return Function(bare, code[node.start_byte : declarator.start_byte], whole.start_byte, whole.end_byte)


def _device_variables(node: Node, code: str) -> list[str]:
    declarators = node.children_by_field_name("declarator")
    names = [name for name in (_name_of(declarator, code) for declarator in declarators) if name]
    head = code[node.start_byte : declarators[0].start_byte] if names else ""
    if not re.search(r"\b__(?:device|managed)__\b", head) or re.search(r"\b(?:const|constexpr|__constant__)\b", head):
        return []
    return names


def _types(node: Node, code: str) -> list[tuple[str, str]]:
    """The variables of a declaration in device memory, each with the type of its elements."""
    declarators = node.children_by_field_name("declarator")
    kind = node.child_by_field_name("type")
    if kind is None or not declarators:
        return []
    head = code[node.start_byte : declarators[0].start_byte]
    if not re.search(r"\b__(?:device|managed|constant)__\b", head):
        return []
    written = " ".join(code[kind.start_byte : kind.end_byte].split())
    found = [(_name_of(d, code), code[d.start_byte : d.end_byte]) for d in declarators]
    return [(name, written + "*" * re.split(r"[\[=]", text)[0].count("*")) for name, text in found if name]


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
