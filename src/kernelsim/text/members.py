"""The host's member functions in classes that kernels use: which of them are left out, so that NVRTC takes the rest."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kernelsim.text.c_text import closing_bracket
from kernelsim.text.items import IDENTIFIER, Item, items_of

__all__ = ["HostMember", "device_members", "host_members", "members_of", "named_by_the_device", "undefined_functions"]

# What stands before a member of a class, and counts for those after it too.
_ACCESS = re.compile(r"(?:\s*(?:public|private|protected)\s*:)*")
# Member functions that change what their class is.
_CHANGES_CLASS = re.compile(r"\b(?:virtual|override|final)\b|=\s*(?:default|delete)\s*$")
# A parameter or a part of a name, after the name of a class: these construct nothing.
_NOT_CONSTRUCTED = (
    r"(?:\s*<[^<>;]*>)?(?:\s*::|\s*(?:const\b\s*)?[&*]*\s*(?:__restrict__\s*)?\w*\s*(?:\[[^\]]*\]\s*)?[,)>])"
)
_IsForHost = Callable[[Item], bool]


@dataclass(frozen=True)
class HostMember:
    """A member function without an execution space: its name (a constructor's is its class's), and its place."""

    name: str
    of_class: str
    begin: int
    end: int

    @property
    def makes_the_class(self) -> bool:
        """Whether it is a constructor or the destructor, which are called without their name."""
        return self.name == self.of_class


def members_of(item: Item, code: str) -> tuple[list[Item], int]:
    """The members of a class, and the place in the source that theirs count from."""
    opening = code.find("{", item.begin, item.end) if item.kind == "class" else -1
    closing = closing_bracket(code, opening) if opening >= 0 else None
    return (items_of(code[opening + 1 : closing]) if closing is not None else [], opening + 1)


def host_members(item: Item, code: str, is_for_host: _IsForHost) -> Iterator[HostMember]:
    """The functions for the host among the members of a class, and of the classes in it."""
    kept = set(undefined_functions(item, code, is_for_host))
    for member, offset in _functions(item, code):
        begin = member.begin + offset + len(_ACCESS.match(member.head)[0])  # type: ignore[index]
        is_function = member.kind == "function" or member.declares_function
        if begin in kept or not is_function or not is_for_host(member) or _CHANGES_CLASS.search(member.head):
            continue
        yield HostMember(_name(member), _class_around(item, code, begin), begin, member.end + offset)


def undefined_functions(item: Item, code: str, is_for_host: _IsForHost) -> Iterator[int]:
    """Where static functions of a class begin that have no body, and that the class names.

    It asks for their types only, as in ``sizeof(test<T>(0))``, and NVRTC takes their declarations for the host's.
    """
    declared = [
        (member, offset)
        for member, offset in _functions(item, code)
        if member.kind == "statement" and not member.has_body and re.search(r"\bstatic\b", member.head)
    ]
    times = Counter(_name(member) for member, _ in declared)
    inside = Counter(IDENTIFIER.findall(code[item.begin : item.end])) if declared else Counter()
    for member, offset in declared:
        if inside[_name(member)] > times[_name(member)] and is_for_host(dataclasses.replace(member, kind="function")):
            yield member.begin + offset + len(_ACCESS.match(member.head)[0])  # type: ignore[index]


def device_members(item: Item, code: str, is_for_host: _IsForHost) -> frozenset[str]:
    """The names of the members for the device of a class."""
    return frozenset(_name(member) for member, _ in _functions(item, code) if not is_for_host(member))


def named_by_the_device(member: HostMember, codes: Sequence[str], device_names: frozenset[str]) -> bool:
    """Whether device code calls a function for the host: a mistake, which NVRTC reports.

    Args:
        codes: what is left, without the host's members.
        device_names: of functions and members for the device: one of these is meant.
    """
    if member.name == "operator" or member.name in device_names:
        return False
    if member.makes_the_class:
        pattern = rf"(?<![~\w])\b{re.escape(member.name)}\b(?!{_NOT_CONSTRUCTED})"
        heads = rf"\b(?:struct|class|union)\b[^;{{}}()]*?\b{re.escape(member.name)}\b"
        return any(re.search(pattern, re.sub(heads, " ", code)) for code in codes)
    return any(re.search(rf"\b{re.escape(member.name)}\s*(?:<[^;{{}}]*?>\s*)?\(", code) for code in codes)


def _functions(item: Item, code: str) -> Iterator[tuple[Item, int]]:
    """The members of a class, and of those in it, that may be functions, with the place that theirs count from."""
    inside, offset = members_of(item, code)
    for member in inside:
        if member.kind == "class":
            for inner, further in _functions(member, code[offset : item.end]):
                yield inner, offset + further
        elif member.signature is not None:
            yield member, offset


def _name(member: Item) -> str:
    before = member.signature.before if member.signature is not None else member.head
    return "operator" if re.search(r"\boperator\b", before) else (IDENTIFIER.findall(before) or [""])[-1]


def _class_around(item: Item, code: str, position: int) -> str:
    """The name of the innermost class around a place in another one."""
    inside, offset = members_of(item, code)
    for member in inside:
        if member.kind == "class" and member.begin + offset <= position < member.end + offset:
            return _class_around(member, code[offset : item.end], position - offset)
    head = re.split(r"(?<!:):(?!:)", re.sub(r"<[^<>]*>", " ", item.head))[0]
    names = [name for name in IDENTIFIER.findall(head) if name != "final"]
    return names[-1] if names else ""
