"""The device code of whole ``.cu`` files: the text without host code, every line in its place.

Published files hold kernels, the functions that launch them, and bindings. The compilers of kernels (NVRTC, and the
simulator) take device code only. So of a source and its own headers, those items are kept that the kernels
name, directly or through others; of these, functions without an execution space are left out.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence

from kernelsim.text.c_text import closing_bracket, split_commas
from kernelsim.text.execution_spaces import (
    HOST_HEADER,
    HOST_NAMESPACES,
    HOST_WORDS,
    is_explicit_instance,
    is_for_host,
)
from kernelsim.text.items import IDENTIFIER, Item
from kernelsim.text.members import (
    device_members,
    host_members,
    members_of,
    named_by_the_device,
    undefined_functions,
)
from kernelsim.text.parsed_source import Edits, Include, ParsedSource, blanked

__all__ = ["device_sources"]

_Macros = Mapping[str, str]
_BINDING = re.compile(r"^[ \t]*(?:PYBIND11_MODULE|TORCH_LIBRARY\w*|STABLE_TORCH_LIBRARY\w*)\s*\(", re.MULTILINE)
_STATIC = re.compile(r"\bstatic\b")
# Directives that stay where an item goes.
_KEPT_DIRECTIVE = re.compile(r"(?:if|else|elif|endif|undef|define|include|pragma)\w*")
# Libraries of device code, whose headers go with the code that names them.
_LIBRARIES = {
    "thrust": re.compile(r"\bthrust\b"),
    "cub": re.compile(r"\bcub\b"),
    "curand": re.compile(r"\bcurand\w*"),
}
# More than this is a library, all of which is for kernels; without host code, more than the second one.
_MOST_TEXT = 4_000_000
_MOST_TEXT_OF_ONE = 500_000
_INSTANCE_OF_MACRO = re.compile(r"(?:\([^()]*\))?(?:\s|\\\r?\n)*(?:extern\s+)?template\b(?!\s*<)")


@functools.lru_cache(maxsize=256)
def device_sources(sources: tuple[ParsedSource, ...], kernels: tuple[str, ...]) -> tuple[ParsedSource, ...]:
    """A source and its own headers, with host code and what the kernels do not need replaced by spaces; the same ones
    if they contain no host code.

    Args:
        kernels: those that are wanted, by name or as an instance of a template.
    """
    if sum(len(source.text) for source in sources) > _MOST_TEXT:
        return sources
    macros = _macros(sources)
    is_whole = any(map(_is_whole_file, sources))
    if not is_whole and not _has_host_items(sources, kernels, macros):
        return _without_host_members(sources, macros)
    kept = [_without_bindings(source, macros) for source in sources]
    items = _items(kept, macros)
    # Without a word of the host, what a kernel names may be for it by an option, or is a mistake that NVRTC reports.
    needed = _needed([item for of in items for item in of], kept, kernels, macros, hosts_too=not is_whole)
    left = [
        source.without(span for item in of if item not in needed for span in _between_directives(source, item))
        for source, of in zip(kept, items, strict=True)
    ]
    left = _without_members(left, [[i for i in of if i in needed] for of in items], macros, all_of_them=is_whole)
    named = [source.without(source.includes).code for source in left]
    unused = tuple(library for library, names in _LIBRARIES.items() if not any(map(names.search, named)))
    return tuple(source.without(i for i in source.includes if i.name.startswith(unused)) for source in left)


def _macros(sources: Sequence[ParsedSource]) -> dict[str, str]:
    """The macros by name. One that several branches define, such as one for the host, has all their bodies."""
    bodies: dict[str, str] = {}
    for macro in (macro for source in sources for macro in source.macros):
        body = macro.parameters + macro.body
        bodies[macro.name] = f"{bodies[macro.name]} {body}" if macro.name in bodies else body
    return bodies


def _is_whole_file(source: ParsedSource) -> bool:
    return bool(HOST_WORDS.search(source.code) or _BINDING.search(source.code) or any(_includes_for_host(source)))


def _has_host_items(sources: Sequence[ParsedSource], kernels: Sequence[str], macros: _Macros) -> bool:
    """Whether there are functions, their declarations or variables for the host, which no kernel needs."""
    if sum(len(source.text) for source in sources) > _MOST_TEXT_OF_ONE:
        return False
    items = [item for of in _items(sources, macros) for item in of]
    for_host = [item for item in items if is_for_host(item, macros) and not is_explicit_instance(item)]
    return bool(for_host) and not _needed(items, sources, kernels, macros, hosts_too=True).issuperset(for_host)


def _between_directives(source: ParsedSource, item: Item) -> list[tuple[int, int]]:
    """The parts of an item between directives, which stay."""
    spans, position = [], item.begin
    for directive in source.directives:
        if position <= directive.begin < item.end and _KEPT_DIRECTIVE.fullmatch(directive.name):
            spans.append((position, directive.begin))
            position = directive.end
    return [*spans, (position, item.end)]


def _without_bindings(source: ParsedSource, macros: _Macros) -> ParsedSource:
    for_host = [macro for macro in source.macros if HOST_WORDS.search(macro.parameters + macro.body)]
    left = source.without([*_includes_for_host(source), *for_host])
    return left.without(_bindings(left.code, macros))


def _includes_for_host(source: ParsedSource) -> list[Include]:
    return [include for include in source.includes if HOST_HEADER.fullmatch(include.name)]


def _bindings(code: str, macros: _Macros) -> list[tuple[int, int]]:
    """The blocks that bind functions to Python, and the uses of macros that make functions for the host."""
    for_host = [name for name, body in macros.items() if HOST_WORDS.search(body) and "(" in body[:1]]
    names = "|".join(map(re.escape, for_host))
    uses = list(re.finditer(rf"^[ \t]*(?:{names})[ \t]*\(", code, re.MULTILINE)) if names else []
    spans = []
    for found in (*_BINDING.finditer(code), *uses):
        closing = closing_bracket(code, found.end() - 1)
        if closing is None:
            continue
        after = re.compile(r"\s*([{;])").match(code, closing + 1)
        if after and after[1] == "{":
            closing = closing_bracket(code, after.end() - 1) or closing
        elif after:
            closing = after.end() - 1
        spans.append((found.start(), closing + 1))
    return spans


# --- what the kernels need ---


def _items(sources: Sequence[ParsedSource], macros: _Macros) -> list[list[Item]]:
    """The items of each source. A function's definition is for the device if its declaration is."""
    without = {key for s in sources for item in s.items if item.kind == "function" and (key := _key(item))}
    declared = without & _declared_for_device(sources, macros)
    return [
        [_as_the_device_sees(_for_device(i) if _key(i) in declared else i, source, macros) for i in source.items]
        for source in sources
    ]


def _as_the_device_sees(item: Item, source: ParsedSource, macros: _Macros) -> Item:
    """A class without what only its members for the host mention."""
    if item.kind != "class":
        return item
    members = host_members(item, source.statements, lambda member: is_for_host(member, macros))
    hosts = [(member.begin, member.end) for member in members]
    if not hosts:
        return item
    left = blanked(source.statements, hosts)[item.begin : item.end]
    return dataclasses.replace(item, mentions=item.mentions & frozenset(IDENTIFIER.findall(left)))


def _for_device(item: Item) -> Item:
    return dataclasses.replace(item, head=f"__device__ {item.head}") if item.kind == "function" else item


def _key(item: Item) -> tuple[str, int] | None:
    """A function's name and the number of its parameters."""
    names = IDENTIFIER.findall(item.signature.before) if item.signature is not None else []
    return (names[-1], len(split_commas(item.signature.parameters))) if names and item.signature is not None else None


def _declared_for_device(sources: Sequence[ParsedSource], macros: _Macros) -> set[tuple[str, int]]:
    """The functions that are declared for the device, also in classes, and not defined so: others are overloads."""
    items = [(source, item) for source in sources for item in source.items]
    functions = [item for _, item in items if item.kind == "function" or item.declares_function]
    if any("::" in item.signature.before for item in functions if item.signature is not None):
        of_classes = [members_of(item, source.statements)[0] for source, item in items]
        functions += [member for members in of_classes for member in members if member.kind == "statement"]
    for_device = [item for item in functions if not is_for_host(item, macros)]
    defined = {_key(item) for item in for_device if item.kind == "function"}
    return {key for item in for_device if (key := _key(item)) and key not in defined}


def _needed(
    items: Sequence[Item], sources: Sequence[ParsedSource], kernels: Sequence[str], macros: _Macros, *, hosts_too: bool
) -> set[Item]:
    """The items that the kernels name, directly or through other items and macros.

    Args:
        hosts_too: whether what has no execution space is needed, too, if nothing else has its name.
    """
    by_name: dict[str, list[Item]] = {}
    for item in items:
        for name in item.names:
            by_name.setdefault(name, []).append(item)
    bodies: dict[str, set[str]] = {}
    for macro in (macro for source in sources for macro in source.macros):
        mentioned = set(IDENTIFIER.findall(macro.body)) - set(IDENTIFIER.findall(macro.parameters))
        bodies.setdefault(macro.name, set()).update(mentioned)
    # Of a template's instance, its arguments as well.
    waiting = [name for kernel in kernels for name in re.findall(r"[A-Za-z_]\w*", kernel)]
    needed: set[Item] = set()
    for item in items:
        if _is_always_kept(item, macros):
            needed.add(item)
            waiting += item.mentions
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        waiting += bodies.get(name, ())
        of_name = by_name.get(name, [])
        chosen = [item for item in of_name if not is_for_host(item, macros)]
        if not chosen and hosts_too:
            chosen = [item for item in of_name if not is_explicit_instance(item)]
        for item in chosen:
            if item not in needed:
                needed.add(item)
                waiting += item.mentions
    return needed


def _is_always_kept(item: Item, macros: _Macros) -> bool:
    """Operators, which are called without their name; uses of macros, which may define anything."""
    if item.kind == "macro use":
        bodies = [macros[name] for name in _first_name(item) if name in macros]
        return any(not HOST_WORDS.search(body) and not _INSTANCE_OF_MACRO.match(body) for body in bodies)
    if item.kind == "function" or item.declares_function:
        return re.search(r"\boperator\b", item.head) is not None and not is_for_host(item, macros)
    return re.match(rf"\s*using\s+namespace\b(?!\s+{HOST_NAMESPACES}\s*$)", item.head) is not None


def _first_name(item: Item) -> list[str]:
    return IDENTIFIER.findall(item.head)[:1]


# --- member functions for the host ---


def _without_host_members(sources: tuple[ParsedSource, ...], macros: _Macros) -> tuple[ParsedSource, ...]:
    """Sources whose host code is in classes only, if there is any."""
    if sum(len(source.text) for source in sources) > _MOST_TEXT_OF_ONE:
        return sources
    return tuple(_without_members(sources, _items(sources, macros), macros, all_of_them=False))


def _without_members(
    sources: Sequence[ParsedSource], items: Sequence[Sequence[Item]], macros: _Macros, *, all_of_them: bool
) -> list[ParsedSource]:
    """The sources without the host's members of classes. Those that are kept for their types are the device's.

    Args:
        all_of_them: also those that device code calls, which NVRTC would report.
    """

    def for_host(item: Item) -> bool:
        return is_for_host(item, macros)

    classes = [
        [(item, source.statements) for item in of if item.kind == "class"]
        for source, of in zip(sources, items, strict=True)
    ]
    cut = [[member for one in of for member in host_members(*one, for_host)] for of in classes]
    if not all_of_them and any(cut):
        left = [blanked(source.code, [(m.begin, m.end) for m in of]) for source, of in zip(sources, cut, strict=True)]
        names = {n for of in items for i in of if i.kind == "function" and not for_host(i) for n in i.names}
        of_device = frozenset(names).union(*(device_members(*one, for_host) for of in classes for one in of))
        cut = [[m for m in of if not named_by_the_device(m, left, of_device)] for of in cut]
    marks = [[at for one in of for at in undefined_functions(*one, for_host)] for of in classes]
    return [
        _marked(source.without((m.begin, m.end) for m in of), places)
        for source, of, places in zip(sources, cut, marks, strict=True)
    ]


def _marked(source: ParsedSource, places: Sequence[int]) -> ParsedSource:
    """The source with the execution space of the device before the static functions at these places."""
    edits = Edits(source)
    for place in places:
        edits.insert(next(_STATIC.finditer(source.code, place)).start(), "__device__ ")
    return edits.source()
