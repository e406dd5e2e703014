"""One text of CUDA C++ with what is read from it, and edits of it. Each part is computed once, and has the positions of
the text.

A lexer finds comments and literals, and tree-sitter parses what is left. tree-sitter's own tokens are not as good. Its
grammar has none in the bodies of macros. After an error, it takes literals for code, or code for literals. Compared on
13,716 sources (torch, CUDA, CUTLASS, our tests): 8,338 have an error in their tree. Of 9,631, only the lexer found all
comments and literals in directives. Another 60 differ elsewhere, and 59 of these have an error.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import tree_sitter
import tree_sitter_cuda

from kernelsim.text.c_text import closing_bracket, enclosing_scopes, split_commas
from kernelsim.text.items import Item, items_of
from kernelsim.text.kernel_heads import KernelHead, kernel_heads
from kernelsim.text.variables import Variable, variables_of

__all__ = ["Directive", "Edits", "Include", "Macro", "ParsedSource", "blank", "blanked", "parsed", "syntax_tree"]

_INCLUDE = re.compile(r'^([ \t]*#[ \t]*include[ \t]*)[<"]([^">\n]+)[>"]', re.MULTILINE)
# A comment, a literal, or a number. Numbers are matched because a quote in a number (1'000) opens no literal.
_TOKEN = re.compile(
    r"""
    //(?:\\\n|[^\n])* | /\*.*?(?:\*/|\Z)                                                            # comment
    | \b(?:u8|[uUL])?R"(?P<mark>[^\s()\\]{0,16})\(.*?(?:\)(?P=mark)"|\Z)                             # raw string
    | "(?:\\.|[^"\\\n])*" | (?:\b(?:u8|[uUL]))?'(?:\\.|[^'\\\n])+'                                # string, character
    | (?P<number>(?<!\w)\.?\d(?:[eEpP][+-]|'?\w|\.)*)
    """,
    re.DOTALL | re.VERBOSE,
)
_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(\w*)((?:\\\r?\n|[^\n])*)", re.MULTILINE)
_MACRO = re.compile(r"[ \t]+(\w+)(\([^()\n]*\))?(.*)", re.DOTALL)
_NOT_NEWLINE = re.compile(r"[^\n]")
# Alignments, which the grammar does not know at each place.
_ALIGNMENT = re.compile(r"\b(?:__align__|alignas)\s*\([^()]*(?:\([^()]*\)[^()]*)*\)")
_LINKAGE = re.compile(r"\bextern {3}(?=\s*\{)")  # extern "C" without its literal


class Directive(NamedTuple):
    """A line of the preprocessor with those that continue it: its span, its name, and the code after the name."""

    begin: int
    end: int
    name: str
    rest: str


class Include(NamedTuple):
    """An ``#include``: its span up to the end of the header's name, where ``<`` or the quote is, and the name."""

    begin: int
    end: int
    opening: int
    name: str
    in_quotes: bool


class Macro(NamedTuple):
    """A definition of a macro: its span, its name, its parameters with their brackets ("" if it has none), its body."""

    begin: int
    end: int
    name: str
    parameters: str
    body: str


@dataclass(frozen=True)
class ParsedSource:
    """One text. Parsing needs no preprocessor and no headers, and goes on after an error (docs/cuda.md).

    Args:
        precomputed: what ``lexed`` is, of a source that is made from another one.
    """

    text: str
    precomputed: str | None = field(default=None, repr=False, compare=False)

    @cached_property
    def lexed(self) -> str:
        """The text with comments and literals replaced by spaces, also the newlines in them."""
        return _without_tokens(self.text) if self.precomputed is None else self.precomputed

    @cached_property
    def code(self) -> str:
        """The text with comments and literals replaced by spaces. The remaining code keeps its positions."""
        ends = itertools.accumulate(len(line) + 1 for line in self.text.split("\n"))
        return "\n".join(self.lexed[begin : end - 1] for begin, end in itertools.pairwise([0, *ends]))

    @cached_property
    def directives(self) -> tuple[Directive, ...]:
        """In order. A directive does not end within a comment."""
        return tuple(Directive(*found.span(), found[1], found[2]) for found in _DIRECTIVE.finditer(self.lexed))

    @cached_property
    def statements(self) -> str:
        """The code with directives replaced by spaces."""
        return blanked(self.code, self.directives)

    @cached_property
    def includes(self) -> tuple[Include, ...]:
        """The ``#include`` lines outside of comments and literals."""
        lines = list(_INCLUDE.finditer(self.text))
        if not lines:
            return ()
        # After its includes, a library's header may have much text that nothing else reads.
        code = self.precomputed or _without_tokens(self.text[: lines[-1].end()])
        return tuple(
            Include(*line.span(), line.end(1), line[2], line[0].endswith('"'))
            for line in lines
            if "#" in code[line.start() : line.end(1)]
        )

    @cached_property
    def macros(self) -> tuple[Macro, ...]:
        return tuple(
            Macro(directive.begin, directive.end, found[1], found[2] or "", found[3])
            for directive in self.directives
            if directive.name == "define" and (found := _MACRO.match(directive.rest))
        )

    @cached_property
    def items(self) -> tuple[Item, ...]:
        """The functions, classes and statements outside of functions, in order, those in namespaces too."""
        return tuple(items_of(self.statements))

    @cached_property
    def variables(self) -> dict[str, Variable]:
        """The variables in device memory by name."""
        # In ASCII, offsets of bytes are offsets of characters.
        code = blanked(self.statements, (found.span() for found in _ALIGNMENT.finditer(self.statements)))
        code = _LINKAGE.sub("namespace", code.encode("ascii", "replace").decode())
        return {variable.name: variable for variable in variables_of(syntax_tree(code), code)}

    @cached_property
    def kernel_heads(self) -> tuple[KernelHead, ...]:
        """The definitions and declarations of kernels, also those in macros, of which there is no tree."""
        return tuple(kernel_heads(self.code))

    @cached_property
    def kernels(self) -> tuple[str, ...]:
        """The names of the ``__global__`` functions, in order; of overloads and templates once."""
        return tuple(dict.fromkeys(head.name for head in self.kernel_heads))

    def is_template(self, kernel: str) -> bool:
        """Whether a kernel is a template, as far as that stands in the text."""
        return any(head.name == kernel and head.is_template(self.code) for head in self.kernel_heads)

    def qualified_names(self, kernel: str) -> tuple[str, ...]:
        """The full names of the kernels that are called so; of an overloaded one, once for each overload."""
        heads = [head for head in self.kernel_heads if head.name == kernel and self._has_body(head)]
        return tuple("::".join([*enclosing_scopes(self.code, head.at), kernel]) for head in heads)

    def parameter_names(self, kernel: str, count: int) -> tuple[str, ...]:
        """The names of a kernel's parameters; empty if they are not known: the kernel is in a header, or a macro writes
        them, or there are several of its name.

        Args:
            kernel: its name, with namespaces and template arguments.
            count: how many parameters it has.
        """
        name = re.sub(r"<.*", "", kernel, flags=re.DOTALL).rpartition("::")[2].strip()
        heads = [head for head in self.kernel_heads if head.name == name and self._has_body(head)]
        closing = closing_bracket(self.code, heads[0].opening) if len(heads) == 1 else None
        if closing is None:
            return ()
        listed = split_commas(self.code[heads[0].opening + 1 : closing])
        found = [re.search(r"(\w+)\s*(\[[^\]]*\]\s*)*(=.*)?$", text.strip(), re.DOTALL) for text in listed]
        names = tuple(match[1] for match in found if match is not None)
        return names if len(names) == len(listed) == count else ()

    def _has_body(self, head: KernelHead) -> bool:
        closing = closing_bracket(self.code, head.opening)
        return closing is not None and re.compile(r"[^;{}]*\{").match(self.code, closing) is not None

    def globally_named(self, kernel: str) -> str:
        """A kernel, or an instance of one, by a name that no other thing has, if the source's own name of it is known:
        a namespace that the source uses whole may have the same one."""
        name = kernel.strip(" &")
        bare = name.split("<")[0].strip()
        return f"::{name}" if bare in self.qualified_names(bare.split("::")[-1]) else kernel

    def has_directive(self, begin: int, end: int) -> bool:
        """Whether a part of a directive is in a span."""
        return any(directive.begin < end and begin < directive.end for directive in self.directives)

    def line(self, position: int) -> int:
        """The number of a line, from 1."""
        return self.text.count("\n", 0, position) + 1

    def without(self, spans: Iterable[tuple[Any, ...]]) -> ParsedSource:
        """The source with spaces in place of spans, which take whole tokens."""
        cut = list(spans)
        return ParsedSource(blanked(self.text, cut), blanked(self.lexed, cut)) if cut else self


@functools.lru_cache(maxsize=512)
def parsed(text: str) -> ParsedSource:
    """The source of a text; the same one for the same text."""
    return ParsedSource(text)


@functools.lru_cache(maxsize=16)
def syntax_tree(text: str) -> tree_sitter.Node:
    """The root of a text's tree, by tree-sitter's grammar of CUDA."""
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_cuda.language())).parse(text.encode()).root_node


class Edits:
    """Replacements in a source, which are applied at once: all positions are those of the source.

    An edit that begins within another one is left out; of those that begin at one place, the longest stays.
    """

    def __init__(self, source: ParsedSource, edits: Iterable[tuple[int, int, str]] = ()) -> None:
        self._source = source
        self._edits = list(edits)

    def replace(self, begin: int, end: int, new: str) -> None:
        """Replace a span. If it has more lines than what replaces it, these follow as empty ones."""
        self._edits.append((begin, end, new))

    def insert(self, position: int, new: str) -> None:
        self._edits.append((position, position, new))

    def text(self) -> str:
        """The text after the edits."""
        return self._applied_to(self._source.text)

    def source(self) -> ParsedSource:
        """The source after edits that replace whole tokens by none, so that nothing is to be scanned again."""
        return ParsedSource(self.text(), self._applied_to(self._source.lexed)) if self._edits else self._source

    def _applied_to(self, text: str) -> str:
        parts, position = list[str](), 0
        for begin, end, new in sorted(self._edits, key=lambda edit: (edit[0], edit[0] < edit[1], -edit[1], edit[2])):
            if begin < position:
                continue
            old = self._source.text[begin:end]
            newline = "\\\n" if "\\\n" in old else "\n"  # within a macro's definition
            parts += [text[position:begin], new, newline * (old.count("\n") - new.count("\n"))]
            position = end
        return "".join([*parts, text[position:]])


def blank(text: str) -> str:
    """Spaces in place of a text; its lines stay."""
    return _NOT_NEWLINE.sub(" ", text)


def blanked(text: str, spans: Iterable[tuple[Any, ...]]) -> str:
    """The text with spaces in place of spans, which begin and end with the first two values of each."""
    parts, position = list[str](), 0
    for begin, end, *_ in sorted(spans):
        begin = max(begin, position)
        if begin < end:
            parts += [text[position:begin], blank(text[begin:end])]
            position = end
    return "".join([*parts, text[position:]])


def _without_tokens(text: str) -> str:
    return _TOKEN.sub(lambda found: found[0] if found["number"] else " " * len(found[0]), text)
