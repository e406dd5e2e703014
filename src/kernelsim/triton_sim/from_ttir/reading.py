"""Reads the text of a TTIR module into functions, blocks and operations, with the source line of each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ["NAME", "Block", "Function", "Operation", "Type", "parse_type", "read_module"]

_LOCATION = re.compile(r' loc\((?:[^()"]|"[^"]*"|\((?:[^()"]|"[^"]*"|\([^()]*\))*\))*\)')
_DEFINED = re.compile(r"^(#loc\d*) = loc\((.*)\)$")
NAME = r"%[\w$.\-]+(?:#\d+)?"


# Of a value; and as ``tt.make_tensor_descriptor`` prints it.
_DESCRIPTOR = re.compile(r"(?:!tt\.tensordesc)?<(?:tensor<)?((?:\d+x)+)[su]?(\w+)[^>]*>?>")


@dataclass(frozen=True)
class Type:
    """A scalar (without shape) or a tensor. The element of a pointer type is ``ptr`` followed by what it points to; of
    a descriptor it is ``desc`` and the type of its elements, and the shape is that of its tiles."""

    shape: tuple[int, ...]
    element: str
    is_tensor: bool

    @property
    def size(self) -> int:
        total = 1
        for length in self.shape:
            total *= length
        return total


@dataclass
class Block:
    """Operations in order; ``label`` and ``arguments`` if the block has a header."""

    label: str = ""
    arguments: list[tuple[str, Type]] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    reachable: bool = True


@dataclass
class Operation:
    """One operation. ``text`` is what stands between its name and its types."""

    name: str
    results: list[str]
    text: str
    types: str
    attributes: str
    location: tuple[str, int]
    regions: list[list[Block]] = field(default_factory=list)
    # Triton's message, for an operation on integers that must not overflow.
    overflow: str | None = None

    @property
    def operands(self) -> list[str]:
        return re.findall(NAME, re.sub(r'"[^"]*"', "", self.text))

    def attribute(self, name: str) -> str | None:
        found = re.search(rf"\b{name} = (\"[^\"]*\"|array<[^>]*>|[^,}}>\s]+)", self.attributes)
        return found[1].strip('"') if found else None

    @property
    def waits(self) -> bool:
        """Whether it is a loop that may wait for another program: it asks for a value again and again."""
        return self.name == "scf.while" and any(map(_asks, self.nested()))

    def nested(self) -> Iterator[Operation]:
        """The operations in its regions, and in theirs."""
        for region in self.regions:
            for block in region:
                for op in block.operations:
                    yield op
                    yield from op.nested()


def _asks(op: Operation) -> bool:
    is_volatile = op.name == "tt.load" and "isVolatile = true" in f"{op.text} {op.attributes}"
    return is_volatile or op.name.startswith("tt.atomic")


@dataclass
class Function:
    """A function of the module: the kernel itself, or one that it calls."""

    name: str
    public: bool
    arguments: list[tuple[str, Type]]
    results: list[Type]
    blocks: list[Block]


def parse_type(text: str) -> Type:
    """``tensor<4x8x!tt.ptr<f32>>``: the shape (4, 8) of ``ptr f32``."""
    text = text.strip()
    shape: list[int] = []
    is_tensor = text.startswith("tensor<")
    if is_tensor:
        text = text[len("tensor<") : -1]
        while found := re.match(r"(\d+)x", text):
            shape.append(int(found[1]))
            text = text[found.end() :]
    if found := _DESCRIPTOR.fullmatch(text):
        return Type(_numbers(found[1]), f"desc {found[2]}", is_tensor=False)
    pointer = re.fullmatch(r"!tt\.ptr<(.*)>", text)
    return Type(tuple(shape), f"ptr {pointer[1].split(',')[0]}" if pointer else text, is_tensor)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)))


def split_types(text: str) -> list[Type]:
    """The types of a list such as ``(i32, tensor<4xf32>)``, with or without parentheses."""
    text = text.strip()
    if text.startswith("(") and text.endswith(")"):
        text = text[1:-1]
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "<([{") - (letter in ">)]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [parse_type(part) for part in parts if part.strip()]


def read_module(text: str) -> list[Function]:
    """The functions of a module, as ``str(module)`` prints it with locations."""
    return _Reader(text).functions()


class _Reader:
    def __init__(self, text: str) -> None:
        found = (_DEFINED.match(line) for line in text.splitlines())
        self.defined = {match[1]: match[2] for match in found if match}
        self.lines = [line.strip() for line in text.splitlines() if not line.startswith("#loc")]
        self.at = 0

    def functions(self) -> list[Function]:
        found = []
        while self.at < len(self.lines):
            line = self.lines[self.at]
            self.at += 1
            if line.startswith("tt.func"):
                found.append(self.function(line))
        return found

    def function(self, line: str) -> Function:
        head = _LOCATION.sub("", line)
        name = re.search(r'@(?:"([^"]+)"|([\w.$]+))', head)
        assert name is not None
        start = head.index("(", name.end())
        end = _closing(head, start)
        after = re.sub(r" attributes \{.*", "", head[end + 1 :]).removesuffix("{").strip()
        results = split_types(after.removeprefix("->")) if after.startswith("->") else []
        arguments = _arguments(head[start + 1 : end])
        return Function(name[1] or name[2], " public " in head, arguments, results, self.blocks())

    def blocks(self) -> list[Block]:
        """The blocks up to the line that closes the region; that line is left for the caller."""
        blocks = [Block()]
        while not self.lines[self.at].startswith("}"):
            line = self.lines[self.at]
            self.at += 1
            if header := re.match(r"(\^\w+)(?:\((.*)\))?:", _LOCATION.sub("", line)):
                block = Block(header[1], _arguments(header[2] or ""), reachable="no predecessors" not in line)
                blocks = blocks if blocks[0].operations else []
                blocks.append(block)
            elif line:
                blocks[-1].operations.append(self.operation(line))
        return blocks

    def operation(self, line: str) -> Operation:
        regions, whole = [], line
        while whole.endswith("{"):
            regions.append(self.blocks())
            closing = self.lines[self.at]
            self.at += 1
            line = f"{line.rstrip('({ ')} {closing.lstrip('})')}" if not closing.endswith("{") else line
            whole = closing
        location = self.location(whole)
        made = _operation(_LOCATION.sub("", line), location)
        made.regions = regions
        return made

    def location(self, line: str) -> tuple[str, int]:
        found = list(_LOCATION.finditer(line))
        return self.resolve(found[-1][0][5:-1]) if found else ("", 0)

    def resolve(self, text: str) -> tuple[str, int]:
        if place := re.search(r'"([^"]*)":(\d+):\d+', text):
            return place[1], int(place[2])
        for name in re.findall(r"#loc\d*", text):
            place_found = self.resolve(self.defined.get(name, ""))
            if place_found[1]:
                return place_found
        return "", 0


def _operation(line: str, location: tuple[str, int]) -> Operation:
    results: list[str] = []
    if found := re.match(rf"((?:{NAME}(?::\d+)?(?:, )?)+) = ", line):
        for part in found[1].split(", "):
            name, _, count = part.partition(":")
            results += [f"{name}#{i}" for i in range(int(count))] if count else [name]
        line = line[found.end() :]
    head = re.match(r'"?([\w.]+)"?', line)
    assert head is not None
    rest = line[head.end() :]
    attributes = "".join(_attributes(rest))
    for part in _attributes(rest):
        rest = rest.replace(part, "")
    text, _, types = _outside_strings(rest)
    if head[1].startswith("scf.for"):
        before, arrow, after = text.partition(" -> ")
        text, types = before, after if arrow else ""
    elif not types:  # of an operation that takes no values, or of scf.if
        text, arrow, types = text.partition(" -> ")
    return Operation(head[1], results, text.strip(), types.strip(), attributes, location)


def _outside_strings(text: str) -> tuple[str, str, str]:
    hidden = re.sub(r'"[^"]*"', lambda found: "_" * len(found[0]), text)
    at = hidden.find(" : ") if not hidden.lstrip().startswith(": ") else hidden.find(": ") - 1
    return (text, "", "") if at < 0 else (text[:at], " : ", text[at + 3 :])


def _attributes(text: str) -> Iterator[str]:
    at = 0
    while (start := text.find("{", at)) >= 0:
        end = _closing(text, start)
        before = "<" if text[start - 1 : start] == "<" else ""
        yield f"{before}{text[start : end + 1]}{'>' if before else ''}"
        at = end + 1


def _closing(text: str, start: int) -> int:
    depth, quoted = 0, False
    for i in range(start, len(text)):
        quoted ^= text[i] == '"'
        if not quoted:
            depth += (text[i] in "({[") - (text[i] in ")}]")
            if depth == 0:
                return i
    return len(text) - 1


def _arguments(text: str) -> list[tuple[str, Type]]:
    without = re.sub(r" \{[^{}]*\}", "", text)
    names = re.findall(rf"({NAME}): ", without)
    types = split_types(re.sub(rf"{NAME}: ", "", without))
    return list(zip(names, types, strict=True))
