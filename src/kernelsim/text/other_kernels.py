"""A source with the bodies of some kernels only: what the others call need not be read, checked and instantiated."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from kernelsim.text.c_text import closing_bracket
from kernelsim.text.parsed_source import Edits, ParsedSource, blank

__all__ = ["with_one_kernel"]

_ATTRIBUTES = re.compile(r"(?:\s|\b__\w+__(?:\s*\((?:[^()]|\([^()]*\))*\))?)*")


def with_one_kernel(sources: Sequence[ParsedSource], expression: str) -> list[ParsedSource]:
    """The sources with declarations in place of other kernels, every line in its place.

    A kernel stays if anything else names it, or if directives are in its body, which may decide where it ends.

    Args:
        expression: a kernel, or an instance of one; what its template arguments name stays too.
    """
    kept = {*re.findall(r"\w+", expression), *_named_elsewhere(sources)}
    return [_declared_only(source, kept) for source in sources]


def _named_elsewhere(sources: Sequence[ParsedSource]) -> set[str]:
    """The kernels that more than their definitions and declarations name."""
    heads = Counter(head.name for source in sources for head in source.kernel_heads)
    words = Counter(word for source in sources if heads for word in re.findall(r"\w+", source.code))
    return {name for name, count in heads.items() if words[name] > count}


def _declared_only(source: ParsedSource, kept: set[str]) -> ParsedSource:
    """The source without the bodies of kernels, but for those that are kept."""
    edits = Edits(source)
    for begin, end in _bodies(source, kept):
        edits.replace(begin, end, f";{blank(source.text[begin + 1 : end])}")
    return edits.source()


def _bodies(source: ParsedSource, kept: set[str]) -> Iterator[tuple[int, int]]:
    """The bodies of the other kernels that are defined outside of macros and whose end is certain."""
    code = source.code
    for head in source.kernel_heads:
        parameters = closing_bracket(code, head.opening)
        after = _ATTRIBUTES.match(code, parameters + 1) if parameters is not None else None
        if head.name in kept or after is None or code[after.end() : after.end() + 1] != "{":
            continue
        end = closing_bracket(code, after.end())
        if end is not None and not source.has_directive(head.begin, end):
            yield after.end(), end + 1
