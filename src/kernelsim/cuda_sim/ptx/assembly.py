"""Inline PTX as C++: ``asm`` statements with common instructions are translated, others are refused by name.

A statement becomes one expression in its place. Registers are variables with the bits of a value.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from kernelsim.cuda_sim.ptx.instruction import NotTranslatedError, Registers
from kernelsim.cuda_sim.ptx.statement import is_declaration, label, statement
from kernelsim.text.c_text import closing_bracket

__all__ = ["Assembly", "assemblies"]

_ASM = re.compile(r"\b(?:asm|__asm__|__asm)\b\s*(?:(?:volatile|__volatile__|__volatile)\b\s*)?\(")
_CONDITION = re.compile(r"^[ \t]*#[ \t]*(ifdef|ifndef|if|elif|else|endif)\b(?:\\\n|[^\n])*", re.MULTILINE)
_CONSTRAINTS = {
    "r": "uint32_t", "l": "uint64_t", "h": "uint16_t", "f": "float", "d": "double", "n": "uint64_t", "b": "uint32_t",
    "q": "unsigned __int128",
}  # fmt: skip


@dataclass(frozen=True)
class Assembly:
    """An ``asm`` statement: its place, and its translation or the reason why there is none."""

    begin: int
    end: int
    code: str
    instruction: str = ""
    why: str = ""


def assemblies(text: str, code: str) -> Iterator[Assembly]:
    """The ``asm`` statements of a source.

    Args:
        code: the same text without comments and literals.

    Returns:
        Their translations, in one line each; in several if conditions of the preprocessor are in a statement, and in no
        more than it has.
    """
    for found in _ASM.finditer(code):
        closing = closing_bracket(code, found.end() - 1)
        if closing is None:
            continue
        begin, end = found.start(), closing + 1
        try:
            translation = _of_each_branch(text[found.end() : closing], code[found.end() : closing])
            if translation.count("\n") > code.count("\n", begin, end):
                raise NotTranslatedError("asm", "conditions of the preprocessor in it need more lines than it has")
            yield Assembly(begin, end, translation)
        except NotTranslatedError as error:
            yield Assembly(begin, end, "", error.instruction, error.why)


@dataclass
class _Operand:
    constraint: str
    expression: str
    name: str = ""
    variable: str = ""

    @property
    def kind(self) -> str:
        return _CONSTRAINTS[self.constraint.lstrip("=+&")]


@dataclass
class _Statement:
    template: str
    outputs: list[_Operand] = field(default_factory=list)
    inputs: list[_Operand] = field(default_factory=list)


def _of_each_branch(text: str, code: str) -> str:
    """The translations of a statement, within the preprocessor's conditions that are in it."""
    condition = _condition(code)
    if condition is None:
        return re.sub(r"\s*\n\s*", " ", _translated(text, code))
    begin, end = condition[0].start(), condition[-1].end()
    result = ""
    for directive, following in itertools.pairwise(condition):
        inside = slice(directive.end(), following.start())
        branch = text[:begin] + text[inside] + text[end:], code[:begin] + code[inside] + code[end:]
        result += f"\n{' '.join(directive[0].replace(chr(92), ' ').split())}\n{_of_each_branch(*branch)}"
    if not any(directive[1] == "else" for directive in condition):
        result += f"\n#else\n{_of_each_branch(text[:begin] + text[end:], code[:begin] + code[end:])}"
    return f"{result}\n#endif\n"


def _condition(code: str) -> list[re.Match[str]] | None:
    """The directives of the first condition of the preprocessor that is not in another one."""
    depth, found = 0, []
    for directive in _CONDITION.finditer(code):
        depth += directive[1].startswith("if")
        if depth == 1:
            found.append(directive)
        depth -= directive[1] == "endif"
        if depth == 0:
            return found if found[0][1].startswith("if") else None
    return None


def _translated(text: str, code: str) -> str:
    parsed = _parsed(text.replace("\\\n", "  "), code.replace("\\\n", "  "))
    operands = [*parsed.outputs, *parsed.inputs]
    registers: Registers = {}
    before, after = [], []
    # What the statement leaves behind is still written to its operands: they are these variables, and not copies.
    is_asynchronous = "wgmma.mma_async" in parsed.template
    instructions = list(_instructions(parsed.template))
    for number, operand in enumerate(operands):
        operand.variable = f"kernelsim_{number}"
        for name in (f"%{number}", *([f"%[{operand.name}]"] if operand.name else [])):
            registers[name] = (operand.variable, operand.kind)
        if operand.constraint.startswith("+") and is_asynchronous:
            before.append(f"auto& {operand.variable} = {operand.expression};")
            continue
        if operand.constraint.startswith("+") and not instructions:
            continue  # it only keeps the compiler from moving what uses the register
        if operand.constraint.startswith("="):
            before.append(f"{operand.kind} {operand.variable}{{}};")
        else:
            before.append(
                f"{operand.kind} {operand.variable} = kernelsim::ptx::operand<{operand.kind}>({operand.expression});"
            )
        if operand.constraint[0] in "=+":
            after.append(f"kernelsim::ptx::assign({operand.expression}, {operand.variable});")
    declared: list[str] = []
    lines: list[str] = []
    labels: list[str] = []
    for one in instructions:
        while found := label(one):
            labels.append(found[0])
            lines.append(f"{found[0]}:;")
            one = found[1].lstrip("{} ")
        # Declarations come first: C++ has no jump over one.
        (declared if is_declaration(one) else lines).append(statement(one, registers) if one else "")
    local = [f"__label__ {', '.join(labels)};"] if labels else []  # the statement may be inlined several times
    return f"({{ {' '.join([*local, *before, *declared, *lines, *after])} }})"


def _parsed(text: str, code: str) -> _Statement:
    parts = [""]
    depth, codes = 0, [""]
    for letter, plain in zip(text, code, strict=True):
        depth += (plain in "([{") - (plain in ")]}")
        if plain == ":" and depth == 0:
            parts.append("")
            codes.append("")
        else:
            parts[-1] += letter
            codes[-1] += plain
    if codes[0].strip():
        raise NotTranslatedError("asm", f"its text is made by a macro ({' '.join(codes[0].split())})")
    literals = re.findall(r'R"(\w*)\((.*?)\)\1"|"((?:\\.|[^"\\])*)"', parts[0], re.DOTALL)
    template = "".join(
        raw or re.sub(r"\\([nt\"\\])", lambda m: {"n": "\n", "t": "\t"}.get(m[1], m[1]), plain)
        for _, raw, plain in literals
    )
    operands = [_operands(part, plain) for part, plain in zip(parts[1:3], codes[1:3], strict=True)]
    return _Statement(template, *operands)


def _operands(text: str, code: str) -> list[_Operand]:
    found, depth, begin = [], 0, 0
    for position, letter in enumerate([*code, ","]):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            piece = text[begin:position].strip()
            begin = position + 1
            if not piece:
                continue
            operand = re.fullmatch(r'(?:\[\s*(\w+)\s*\]\s*)?"([^"]+)"\s*\((.*)\)', piece, re.DOTALL)
            if operand is None or operand[2].strip("=+& ") not in _CONSTRAINTS:
                raise NotTranslatedError("asm", f"its operand {piece} is not one of CUDA's")
            found.append(_Operand(operand[2].replace(" ", ""), operand[3], operand[1] or ""))
    return found


def _instructions(template: str) -> Iterator[str]:
    """The statements of a PTX text, without comments and the braces of its scopes."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", template, flags=re.DOTALL).replace("%=", "").replace("%%", "%")
    for piece in text.split(";"):
        one = " ".join(piece.split())
        while one[:1] in ("{", "}"):
            one = one[1:].lstrip()
        if one:
            yield one
