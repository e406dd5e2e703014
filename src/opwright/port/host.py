"""Forms of host functions that torch's stable ABI can call: int64_t, double, tensors by value, tuples."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tree_sitter import Node

from opwright.port.kinds import base_name, of_type, text_of

__all__ = ["HostForm", "host_forms"]

_INTEGERS = frozenset({
    "int", "long", "short", "unsigned", "unsignedint", "size_t", "int32_t", "uint32_t", "uint64_t", "int16_t",
    "longlong", "std::size_t",
})  # fmt: skip
_FINE = re.compile(
    r"(?:std::)?(?:int64_t|double|bool|string)|(?:(?:std|c10|at|torch)::)?(?:optional|vector)<(?:int64_t|double|bool)>"
    r"|(?:std|c10|at|torch)::optional<std::string>|(?:at|c10|torch)::(?:ScalarType|Device|IntArrayRef|Dtype)"
)
_TENSOR = "torch::stable::Tensor"


@dataclass(frozen=True)
class HostForm:
    """A form of a host function.

    Attributes:
        name: of the form, with its namespaces.
        text: its definition; "" if it cannot be made.
        problem: why it cannot be made; "" if it can.
    """

    function: str
    name: str
    text: str
    line: int
    problem: str = ""


def host_forms(root: Node, rewritten: Callable[[Node], str]) -> Iterator[HostForm]:
    """A form for each host function on tensors whose types torch's stable ABI does not pass.

    Args:
        rewritten: the text of a node in the new file.
    """
    for node, namespaces in _functions(root, ()):
        declarator = _function_declarator(node)
        if declarator is None or _is_not_called(node, text_of(node)[: declarator.start_byte - node.start_byte]):
            continue
        parameters = declarator.child_by_field_name("parameters")
        given = [p for p in parameters.named_children if "parameter_declaration" in p.type] if parameters else []
        returned = text_of(node.child_by_field_name("type"))
        is_host = any("Tensor" in text_of(p.child_by_field_name("type")) for p in given) or of_type(returned)
        if not is_host:
            continue
        made = _form(node, declarator, given, namespaces, rewritten)
        if made is not None:
            yield made


def _form(
    node: Node, declarator: Node, given: list[Node], namespaces: tuple[str, ...], rewritten: Callable[[Node], str]
) -> HostForm | None:
    name, line = base_name(declarator.child_by_field_name("declarator")), node.start_point[0] + 1
    written, passed, problems, changed = [], [], [], False
    for i, parameter in enumerate(given):
        one = _parameter(parameter, i, rewritten)
        written.append(one.written)
        passed.append(one.passed)
        changed = changed or one.is_changed
        if one.problem:
            problems.append(f"its parameter {one.name!r} is {one.problem}")
    result, call = _returned(node, declarator, f"{name}({', '.join(passed)})", rewritten)
    if not result:
        problems.append(call)
    elif not changed and call == f"{name}({', '.join(passed)})" and not problems:
        return None
    qualified = "::".join([*filter(None, namespaces), f"{name}_stable"])
    if problems:
        return HostForm(
            name, qualified, "", line, f"{name}() cannot be called through torch's stable ABI: {problems[0]}"
        )
    body = f"{result} {name}_stable({', '.join(written)}) {{\n  {'return ' * (result != 'void')}{call};\n}}"
    opened = "".join(f"namespace {each}{' ' * bool(each)}{{\n" for each in namespaces)
    text = f"\n// {name} in types that torch's stable ABI passes.\n{opened}{body}\n{'}' * len(namespaces)}\n"
    return HostForm(name, qualified, text, line)


@dataclass(frozen=True)
class _Parameter:
    name: str
    written: str
    passed: str
    is_changed: bool = False
    problem: str = ""


def _parameter(node: Node, position: int, rewritten: Callable[[Node], str]) -> _Parameter:
    kind = node.child_by_field_name("type")
    declarator = node.child_by_field_name("declarator")
    name = re.sub(r"[^\w]", "", text_of(declarator)) or f"argument{position}"
    bare = re.sub(r"\bconst\b|\s", "", text_of(kind))
    is_reference = "&" in text_of(declarator)
    is_constant = any(text_of(c) == "const" for c in node.children)
    if bare in _INTEGERS:
        return _Parameter(name, f"int64_t {name}", f"opwright::narrowed<{text_of(kind)}>({name})", True)
    if bare == "float":
        return _Parameter(name, f"double {name}", f"static_cast<float>({name})", True)
    of = of_type(bare)
    if "*" in text_of(declarator) or not (of in ("tensor", "tensors", "optional") or _FINE.fullmatch(bare)):
        return _Parameter(name, "", "", problem=f"{text_of(kind)}{'*' * ('*' in text_of(declarator))}")
    assert kind is not None
    return _Parameter(name, f"{rewritten(kind)} {name}", name, is_changed=is_reference and not is_constant)


def _returned(node: Node, declarator: Node, call: str, rewritten: Callable[[Node], str]) -> tuple[str, str]:
    """The type that the form returns and its expression; "" and the problem if there is none."""
    kind = node.child_by_field_name("type")
    written = text_of(kind)
    trailing = next((c for c in declarator.named_children if c.type == "trailing_return_type"), None)
    if trailing is not None:
        kind, written = trailing.named_children[0], text_of(trailing.named_children[0])
    bare = re.sub(r"\bconst\b|\s", "", written)
    if bare == "void":
        return "void", call
    assert kind is not None
    match of_type(written):
        case "tensor":
            return _TENSOR, call if "&" not in text_of(node.child_by_field_name("declarator"))[
                :1
            ] else f"{_TENSOR}({call})"
        case "tuple" if re.fullmatch(r"std::(?:tuple|pair)<(?:(?:at|torch)::Tensor,?)+>", bare):
            return rewritten(kind), call
        case "tensors":
            counts = {len(r.named_children) * (r.type == "initializer_list") for r in _returned_lists(node)}
            if len(counts) == 1 and (count := counts.pop()):
                result = f"std::tuple<{', '.join([_TENSOR] * count)}>"
                return result, f"opwright::as_tuple({call}, std::make_index_sequence<{count}>())"
            return "", f"it returns {written}, and how many tensors that are is not written in its return statements"
    inner = re.fullmatch(
        r"std::tuple<((?:(?:std|c10|at|torch)::optional<(?:at|torch)::Tensor>,?|(?:at|torch)::Tensor,?)+)>", bare
    )
    if inner is not None:
        result = f"std::tuple<{', '.join([_TENSOR] * len(inner[1].rstrip(',').split(',')))}>"
        return result, f"opwright::all_required({call})"
    return "", f"it returns {written}"


def _returned_lists(node: Node) -> Iterator[Node]:
    """What a function returns in its statements: lists of results, or other expressions."""
    for child in node.named_children:
        if child.type == "return_statement" and child.named_children:
            yield child.named_children[0]
        elif child.type != "lambda_expression":
            yield from _returned_lists(child)


def _functions(node: Node, namespaces: tuple[str, ...]) -> Iterator[tuple[Node, tuple[str, ...]]]:
    for child in node.named_children:
        if child.type == "namespace_definition":
            body = child.child_by_field_name("body")
            name = text_of(child.child_by_field_name("name"))
            if body is not None:
                inner = tuple(p for p in re.split(r"\s*::\s*", name) if p)
                yield from _functions(body, (*namespaces, *inner) if inner else (*namespaces, ""))
        elif child.type in ("preproc_if", "preproc_ifdef", "preproc_else", "declaration_list", "linkage_specification"):
            yield from _functions(child, namespaces)
        elif child.type == "function_definition":
            yield child, namespaces


def _function_declarator(node: Node) -> Node | None:
    current = node.child_by_field_name("declarator")
    while current is not None and current.type != "function_declarator":
        current = current.named_children[-1] if current.named_children else None
    return current


def _is_not_called(node: Node, head: str) -> bool:
    """Whether a function is a helper of its file, or runs on a GPU."""
    return bool(re.search(r"\b(?:static|inline|__global__|__device__|__forceinline__)\b", head))
