"""``opwright port``: rewrites a source beside itself, compiles the result, and compares it with the original."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from opwright.backends.build_tools import build_tools
from opwright.backends.native.registrations import registrations
from opwright.backends.simulation import syntax_tree
from opwright.errors import TargetError
from opwright.port.comparing import compare_kernels
from opwright.port.compiling import Compilation, compile_file
from opwright.port.files import MARK, OPERATORS_MARK, Unit, place, units
from opwright.port.host import host_forms
from opwright.port.kinds import Kinds
from opwright.port.rewrite import Rewriter, Rewritten
from opwright.port.schemas import wrappers
from opwright.results.port import Compared, Mapped, PortedFile, PortReport, Remaining

__all__ = ["port"]

_SUFFIXES = (".cpp", ".cc", ".cxx", ".cu")
_ENTRY_ADVICE = "opwright registers the operator"


def port(
    source: Path,
    *,
    include: Sequence[Path] = (),
    options: Sequence[str] = (),
    target: str | None = None,
    entry: str | None = None,
    check: bool = True,
    on_step: Callable[[str], None] = lambda text: None,
) -> PortReport:
    """Rewrite a source on ATen's tensors for torch's stable ABI. The original is not changed.

    Args:
        include: folders of the user's own headers, besides the source's.
        options: compiler flags.
        target: operators to which the original is attached with ``abi="aten"``: the new kernel is compared with it on
            the same arguments, and checked against the reference.
        entry: the host function, if the target has no kernel of this source yet.
        check: with a target, also run ``opwright check`` on both kernels.

    Returns:
        What was replaced, what remains to be done by hand, and what compiler, comparison and checks say.

    Raises:
        TargetError: no such source, a file of another origin where the result would be, or a target without a kernel.
    """
    if not source.is_file():
        raise TargetError(
            f"the source must be a file that exists, got {str(source)!r}", fix="name a C++ or CUDA source"
        )
    if source.suffix not in _SUFFIXES:
        raise TargetError(
            f"the source must be a {' or '.join(_SUFFIXES)} file, got {source.name}",
            fix="headers are rewritten with it",
        )
    if re.search(r"\.stable$", source.stem):
        raise TargetError(f"{source.name} is a result of opwright port", fix="name the original")
    found = units(source, include)
    places = {unit.file: place(unit.file) for unit in found}
    for unit in found:
        place(unit.file, "_ops.h")
    files: list[PortedFile] = []
    remaining: list[Remaining] = []
    operators: set[str] = set()
    functions: dict[str, str] = {}
    macros = {name for unit in found for name in re.findall(r"(?m)^\s*#\s*define\s+(\w+)", unit.text)}
    for unit in found:
        on_step(f"rewriting {unit.file.name}")
        rewritten, ported = _port_file(unit, places, functions, macros, is_source=unit is found[-1])
        remaining += [Remaining(unit.file.name, line, what) for line, what in rewritten.remaining]
        operators |= rewritten.operators
        files.append(ported)
    on_step(f"compiling {places[found[-1].file].name}")
    own = {made.name for made in places.values()}
    compiled = compile_file(places[found[-1].file], build_tools().machine, include, options, own)
    remaining += compiled.errors
    report = PortReport(
        tuple(files), tuple(sorted(operators)), tuple(dict.fromkeys(remaining)), _compiled(compiled),
        compiled.not_tried, compiled.seconds,
    )  # fmt: skip
    if target is None or compiled.errors or compiled.not_tried:
        return report
    forms = {name: form for file in files for name, form in file.wrapped.items()}
    return _compared(report, target, source.resolve(), places[found[-1].file], forms, entry, include, check, on_step)


def _port_file(
    unit: Unit, places: dict[Path, Path], functions: dict[str, str], macros: set[str], *, is_source: bool
) -> tuple[Rewritten, PortedFile]:
    """Rewrite one file and write the result beside it."""
    text, left_out = _without_registrations(unit)
    made = places[unit.file]
    headers = {name: _renamed(name, places[header]) for name, header in unit.headers.items()}
    root = syntax_tree(text)
    kinds = Kinds(root, functions)
    functions |= kinds.functions
    writer = Rewriter(kinds, headers, macros)
    body = writer.text(root)
    forms = list(host_forms(root, writer.quietly)) if is_source else []
    for form in forms:
        if form.problem:
            writer.result.remaining.append((form.line, form.problem))
    body += "".join(form.text for form in forms)
    own = _own_operators(made, writer.result.operators)
    first = f'#include "{own.name}"' if own is not None else "#include <opwright/ops.h>"
    body = body.replace(Rewriter.INCLUDE, first, 1).replace(f"{Rewriter.INCLUDE}\n", "\n")
    if first not in body and (own is not None or is_source):
        body = f"{first}\n{body}"
    digest = hashlib.sha256(unit.text.encode()).hexdigest()[:12]
    made.write_text(f"{MARK}{unit.file.name} ({digest}).\n{body}")
    mapped = tuple(Mapped(*key, tuple(lines)) for key, lines in writer.result.replaced.items())
    wrapped = {form.function: form.name for form in forms if form.text}
    lines = (_lines(unit.text), _lines(body))
    return writer.result, PortedFile(str(unit.file), str(made), lines, mapped, tuple(left_out), wrapped)


def _renamed(name: str, made: Path) -> str:
    return str(Path(name).with_name(made.name))


def _lines(text: str) -> int:
    return sum(bool(line.strip()) for line in text.splitlines())


def _without_registrations(unit: Unit) -> tuple[str, list[Remaining]]:
    """The text without the blocks that register operators; line numbers stay."""
    text = unit.text
    left_out: list[Remaining] = []
    for block in reversed(list(registrations(unit.text))):
        text = text[: block.begin] + re.sub(r"[^\n]", "", text[block.begin : block.end]) + text[block.end :]
        left_out.insert(0, Remaining(unit.file.name, block.line, f"{block.title} is left out: {_ENTRY_ADVICE}"))
    return text, left_out


def _own_operators(made: Path, operators: set[str]) -> Path | None:
    """Write the header with the operators that a file calls beyond <opwright/ops.h>; None if there are none."""
    declared = {name: text for name in sorted(operators) if (text := wrappers(name))}
    file = made.with_name(f"{made.stem}_ops.h")
    if not declared:
        file.unlink(missing_ok=True)
        return None
    parts = [f"{OPERATORS_MARK}{made.name} calls.\n#pragma once\n#include <opwright/ops.h>\n"]
    for name, functions in declared.items():
        guard = f"OPWRIGHT_ATEN_{name}"
        body = "\n".join(functions)
        parts.append(
            f"#ifndef {guard}\n#define {guard}\nnamespace opwright::aten {{\nnamespace {{\n{body}\n}}  // namespace\n"
            f"}}  // namespace opwright::aten\n#endif\n"
        )
    file.write_text("\n".join(parts))
    return file


def _compiled(compiled: Compilation) -> bool | None:
    return None if compiled.not_tried else not compiled.errors


def _compared(
    report: PortReport, target: str, source: Path, made: Path, forms: dict[str, str], entry: str | None,
    include: Sequence[Path], check: bool, on_step: Callable[[str], None],
) -> PortReport:  # fmt: skip
    """The report with what the new kernels give beside the original ones."""
    from dataclasses import replace

    from opwright.checks.run import check as run_check
    from opwright.port.attached import attached

    pairs = attached(target, source, made, forms, entry, include)
    compared: list[Compared] = []
    for pair in pairs:
        on_step(f"comparing {pair.original} and {pair.ported} of {pair.operator.contract.qualname}")
        compared.append(compare_kernels(pair.operator, pair.original, pair.ported))
    report = replace(report, compared=tuple(compared))
    if not check:
        return report
    on_step("checking")
    kernels = [f"{p.operator.contract.qualname}:{name}" for p in pairs for name in (p.original, p.ported)]
    return replace(report, checked=run_check(*(p.operator for p in pairs), kernels=kernels))
