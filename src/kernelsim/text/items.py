"""Splits CUDA C++ into its items: the functions, classes, variables and other declarations outside of functions.

A scan of brackets and semicolons, and no grammar: it has to find the ends of what it does not understand, such as a
function for the host with a launch in it, or a macro that stands for a function.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kernelsim.text.c_text import closing_bracket

__all__ = ["IDENTIFIER", "Item", "items_of", "template_parameters"]

IDENTIFIER = re.compile(r"\b[A-Za-z_]\w*\b")
_SCOPE = re.compile(r"\b(?:inline\s+)?namespace\b[\w\s:]*$|\bextern\s*$")
_CLASS = re.compile(r"\b(struct|class|union|enum)\b")
# The use of a macro that stands alone in its line, as a binding or the definition of several functions does.
_MACRO_USE = re.compile(r"[ \t]*([A-Z][A-Z0-9_]+)[ \t]*\(")
_KEYWORDS = frozenset({
    "struct", "class", "union", "enum", "template", "typename", "typedef", "using", "namespace", "final", "const",
    "constexpr", "static", "inline", "extern", "public", "private", "protected", "void", "bool", "char", "short",
    "int", "long", "float", "double", "unsigned", "signed", "auto", "if", "else", "for", "while", "do", "return",
    "operator", "sizeof", "this", "true", "false", "__global__", "__device__", "__host__", "__shared__",
    "__restrict__", "__forceinline__",
})  # fmt: skip
# Words before parentheses or brackets that are no parameters; operators, whose names may be parentheses.
_NO_PARAMETERS = re.compile(
    r"\b(?:alignas|__align__|alignof|sizeof|decltype|typeof|explicit|noexcept|__launch_bounds__|__attribute__"
    r"|__declspec)\s*(?=\()|\[(?=\[)"
)
_OPERATOR = re.compile(r"\boperator\b\s*(?:\(\s*\)|\[\s*\]|[^\w\s(]+)?")
# Declarations that are no function's, and variables of the device.
_NO_FUNCTION = re.compile(
    r"\b(?:using|typedef|namespace|friend|static_assert|template|__constant__|__shared__|__managed__)\b"
)
_ACCESS = r"(?:\s*(?:public|private|protected)\s*:)*"
# Parameters that are surely some: none, or the first one begins with a type; "A * b" may be a product.
_TYPE = r"(?:bool|char|short|int|long|float|double|unsigned|signed|auto|const|volatile|struct|typename)\b(?!\s*\()"
_NAMED_TYPE = r"[A-Za-z_]\w*(?:\s*::\s*\w+)*(?:\s*<.*>)?"
_PARAMETERS = re.compile(
    rf"\s*(?:(?:void\s*)?$|{_TYPE}|{_NAMED_TYPE}(?:\s+|\s*\.\.\.\s*)[A-Za-z_]|{_NAMED_TYPE}\s*[*&]+\s*(?:,|$))",
    re.DOTALL,
)
_PARAMETERS_OR_PRODUCT = re.compile(rf"\s*{_NAMED_TYPE}\s*[*&]+\s*\w", re.DOTALL)
# What follows the parameters of a function, and of no macro before a variable.
_NESTED = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
_AFTER_PARAMETERS = re.compile(
    rf"(?:\s*(?:const|volatile|override|final|&&?|=\s*(?:0|default|delete)|(?:noexcept|throw|__attribute__)\s*(?:{_NESTED})?))*"
    r"\s*(?:(?:->|requires\b).*)?",
    re.DOTALL,
)
# Names before parentheses, and the classes that members are defined in.
_FUNCTION_NAME = re.compile(r"\b(\w+)\s*(?:<[^<>;]*>\s*)?\(|\b(\w+)\s*(?:<[^<>;]*>\s*)?::")


@dataclass(frozen=True)
class Signature:
    """The parts of what may be a function's declaration: before its parameters, they, and what follows them. Without
    the parameters of templates, their arguments, and other parentheses before the parameters."""

    before: str
    parameters: str
    after: str

    @property
    def is_function(self) -> bool:
        """Whether it is surely a function's, rather than a variable's with a value in parentheses, or of a macro."""
        before = re.sub(_ACCESS, "", self.before, count=1)
        if re.fullmatch(r"\s*\w+\s*", before) or re.search(r"(?<!:):(?!:)", before):  # may be a macro's; a bit field
            return False
        if _NO_FUNCTION.search(before) or not _AFTER_PARAMETERS.fullmatch(self.after):
            return False
        is_const = re.search(r"\bconst\b", self.before) is not None
        return bool(
            _PARAMETERS.match(self.parameters) or (not is_const and _PARAMETERS_OR_PRODUCT.match(self.parameters))
        )

    @property
    def is_deduction_guide(self) -> bool:
        """Whether it says which class template's instance its arguments make."""
        return re.fullmatch(r"\s*\w+\s*", self.before) is not None and self.after.lstrip().startswith("->")


@dataclass(frozen=True)
class Item:
    """One item.

    Attributes:
        kind: ``function``, ``class``, ``statement`` (a variable, an alias, a function's declaration) or ``macro use``.
        names: what it may define. More than it does define is no harm: it is kept for any of them.
        mentions: every identifier in it.
        head: the code before its body, or all of it.
        begin: the place of its first character that is not blank.
        has_body: whether there are braces in it.
        signature: of what has parameters.
    """

    kind: str
    names: frozenset[str]
    mentions: frozenset[str]
    head: str
    begin: int
    end: int
    has_body: bool
    signature: Signature | None

    @property
    def declares_function(self) -> bool:
        """Whether it surely declares a function without its body."""
        is_statement = self.kind == "statement" and not self.has_body
        return is_statement and self.signature is not None and self.signature.is_function


def items_of(code: str) -> list[Item]:
    """The items of a source in order, those in namespaces too.

    Args:
        code: without comments, literals and directives.
    """
    return list(_items(code, 0, len(code)))


def _items(code: str, begin: int, end: int) -> Iterator[Item]:
    position = begin
    while True:
        position = _skip_blank(code, position, end)
        if position >= end:
            return
        use = _MACRO_USE.match(code, position)
        if use and (after := _alone(code, use.end() - 1, end)):
            yield _item("macro use", code, position, after, code[position:after])
            position = after
            continue
        stop = _end_of_head(code, position, end)
        if code[stop : stop + 1] == "{" and _SCOPE.search(code[position:stop]):
            closing = closing_bracket(code, stop) or end
            yield from _items(code, stop + 1, min(closing, end))
            position = closing + 1
        elif code[stop : stop + 1] == "{":
            item = _with_body(code, position, stop, end)
            yield item
            position = item.end
        else:
            if stop > position:
                yield _item("statement", code, position, min(stop + 1, end), code[position:stop])
            position = stop + 1


def _skip_blank(code: str, position: int, end: int) -> int:
    while position < end and (code[position].isspace() or code[position] in ";}"):
        position += 1
    return position


def _alone(code: str, opening: int, end: int) -> int | None:
    """The end of a macro's use, if nothing that continues it follows in its line."""
    closing = closing_bracket(code, opening)
    if closing is None or closing >= end:
        return None
    rest = code[closing + 1 : end].split("\n", 1)[0].strip()
    following = code[closing + 1 : end].lstrip()[:1]
    return closing + 1 if rest in ("", ";") and following not in ("{", ":") else None


def _end_of_head(code: str, position: int, end: int) -> int:
    """Where the next semicolon or opening brace outside of brackets is."""
    while position < end:
        letter = code[position]
        if letter in ";{":
            return position
        if letter in "([":
            position = closing_bracket(code, position) or end
        position += 1
    return end


def _with_body(code: str, begin: int, opening: int, end: int) -> Item:
    """A function, which ends with its body; a class or an initialised variable, which ends with a semicolon."""
    closing = closing_bracket(code, opening)
    after = end if closing is None else closing + 1
    head = code[begin:opening]
    if _is_function(head):
        return _item("function", code, begin, min(_end_of_function(code, after, end), end), head)
    stop = _end_of_head(code, after, end)
    while code[stop : stop + 1] == "{":
        stop = _end_of_head(code, (closing_bracket(code, stop) or end) + 1, end)
    kind = "class" if _CLASS.search(head) and "=" not in _bare(head) else "statement"
    return _item(kind, code, begin, min(stop + 1, end), head)


def _end_of_function(code: str, after: int, end: int) -> int:
    """The end of a function, after the end of its first braces: those of a constructor may initialise a member."""
    while re.compile(r"\s*[{,.]").match(code, after, end):
        opening = _end_of_head(code, after, end)
        closing = closing_bracket(code, opening) if code[opening : opening + 1] == "{" else None
        if closing is None:
            return after
        after = closing + 1
    return after


def _named_class(head: str) -> str:
    """The head of a class without its template's parameters, its arguments and its bases."""
    head = re.split(r"(?<!:):(?!:)", _bare(head))[0]
    while (shorter := re.sub(r"<[^<>]*>", " ", head)) != head:
        head = shorter
    return head


def _bare(head: str) -> str:
    """The head without template parameters and without what stands in parentheses."""
    head = _without_template_parameters(head)
    while (shorter := re.sub(r"\((?:[^()]|\(\))+\)", "()", head)) != head:
        head = shorter
    return re.sub(r"\b(?:__align__|alignas|__attribute__|__launch_bounds__)\s*\(\)", "", head)


def _after_angles(head: str, position: int) -> int:
    """The position after the bracket that closes the one before ``position``. Those in parentheses are comparisons."""
    depth, parentheses = 1, 0
    while position < len(head) and depth:
        letter = head[position]
        parentheses += (letter == "(") - (letter == ")")
        if parentheses == 0 and not head.startswith("->", position - 1):
            depth += (letter == "<") - (letter == ">")
        position += 1
    return position


def _signature(head: str) -> Signature | None:
    """The parts of a declaration; None if it has no parentheses that can be a function's parameters."""
    code = _without_template_parameters(head)
    before, position = "", 0
    while position < len(code):
        if skipped := _NO_PARAMETERS.match(code, position):
            position = (closing_bracket(code, skipped.end()) or len(code)) + (2 if skipped[0] == "[" else 1)
            before += " "
        elif name := _OPERATOR.match(code, position):
            before, position = before + name[0], name.end()
        elif code[position] == "<":
            before, position = before + " ", _after_angles(code, position + 1)
        elif code[position] == "(":
            closing = closing_bracket(code, position)
            return Signature(before, code[position + 1 : closing], code[closing + 1 :]) if closing is not None else None
        elif code[position] in "=[":  # a variable's value or size
            return None
        else:
            before, position = before + code[position], position + 1
    return None


def _without_template_parameters(head: str) -> str:
    while found := re.search(r"\btemplate\s*<", head):
        head = f"{head[: found.start()]} {head[_after_angles(head, found.end()) :]}"
    return head


def template_parameters(head: str) -> frozenset[str]:
    """The identifiers in the lists of parameters of a template."""
    found, position = set[str](), 0
    while opening := re.compile(r"\btemplate\s*<").search(head, position):
        position = _after_angles(head, opening.end())
        found |= set(IDENTIFIER.findall(head[opening.end() : position]))
    return frozenset(found)


def _is_function(head: str) -> bool:
    bare = re.sub(r"\boperator\s*[=!<>+*/%&|^-]+", "operator ", _bare(head))
    return "()" in bare and "=" not in re.sub(r"[=!<>]=", "", bare)  # comparisons in a template's arguments


def _item(kind: str, code: str, begin: int, end: int, head: str) -> Item:
    text = code[begin:end]
    mentions = frozenset(IDENTIFIER.findall(text)) - _KEYWORDS
    signature = _signature(head) if kind in ("function", "statement") else None
    names = _names(kind, head, text, mentions)
    if kind == "statement" and "{" not in text and signature is not None and signature.is_function:
        names = frozenset(IDENTIFIER.findall(signature.before)[-1:])
    return Item(kind, names, mentions, head, begin, end, "{" in text, signature)


def _names(kind: str, head: str, text: str, mentions: frozenset[str]) -> frozenset[str]:
    if kind == "macro use":
        return mentions
    if kind == "class":
        after = text[text.rfind("}") + 1 :] if "}" in text else ""
        members = text if re.search(r"\benum\b", head) else ""
        return frozenset(IDENTIFIER.findall(f"{_named_class(head)} {after} {members}")) - _KEYWORDS
    if kind == "function":
        classes = IDENTIFIER.findall(_named_class(head)) if _CLASS.search(head) else []
        return frozenset(name for pair in _FUNCTION_NAME.findall(head) for name in pair if name) | frozenset(classes)
    if found := re.match(r"\s*(?:template\s*<.*?>\s*)?using\s+(\w+)\s*=", head, re.DOTALL):
        return frozenset({found[1]})
    if re.match(r"\s*(?:typedef|using)\b", head):
        pointers = re.findall(r"\(\s*(?:\w+\s*::\s*)*\*\s*(\w+)\s*\)", head)  # to functions, or members of a class
        return frozenset(pointers or IDENTIFIER.findall(text)[-1:])
    return frozenset(re.findall(r"\b([A-Za-z_]\w*)\s*(?=[=\[;,({:]|$)", text))
