"""Runs the Mojo compiler: compiles a generated entry and the source it imports to a library or PTX; cached."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opwright.backends.build_tools import BuildTools
from opwright.backends.compiler import does_not_compile, first_of, run_compiler
from opwright.backends.mojo.source import ENTRY, modules_imported
from opwright.cache import ArtifactKey
from opwright.contract.fingerprint import digest
from opwright.errors import CompileError, KernelRefusedError
from opwright.machine import Compiler

__all__ = ["INSTALL", "MojoUnit", "build", "is_gpu"]

INSTALL = "pip install 'opwright[mojo]'"
_GPU_TRIPLE = "nvptx64-nvidia-cuda"


@dataclass(frozen=True)
class MojoUnit:
    """The inputs of one artifact.

    Attributes:
        of: operator, kernel and parameters, for messages.
        source: the user's file, which the entry imports.
        entry: the generated text.
        target: ``cpu``, or a GPU architecture such as ``sm_90``.
        flags: the user's flags for the Mojo compiler.
    """

    of: str
    source: Path
    entry: str
    target: str
    flags: tuple[str, ...] = ()

    @property
    def sources_digest(self) -> str:
        """A digest of everything that is compiled, independent of target and compiler."""
        texts = [part for label, text in self.texts() for part in (label, text)]
        return digest(*texts, *self.flags)

    def texts(self) -> Iterator[tuple[str, str]]:
        """Every text that is compiled, with its name."""
        yield f"{ENTRY}.mojo", self.entry
        yield self.source.name, self.source.read_text()
        for module in modules_imported(self.source):
            yield str(module.relative_to(self.source.parent)), module.read_text()


def is_gpu(target: str) -> bool:
    """Whether a target is a GPU architecture."""
    return target.startswith("sm_")


def build(unit: MojoUnit, tools: BuildTools) -> Path:
    """The library (for a CPU) or the PTX of a unit, compiled now or taken from the cache.

    Raises:
        CompileError: with file, line, column, the source line and a caret.
        KernelRefusedError: Mojo is not installed.
    """
    compiler = tools.machine.mojo
    if compiler is None:
        raise KernelRefusedError(f"{unit.of}: Mojo is not installed", fix=INSTALL)
    name = f"{ENTRY}.ptx" if is_gpu(unit.target) else f"{ENTRY}.so"
    folder = tools.cache.get_or_build(
        _key(unit, compiler, tools.machine.cpu + tools.machine.cpu_flags),
        lambda folder: _compile(unit, compiler, folder / name),
        on_build=lambda: tools.notify(f"compiling {unit.of} with {compiler.version}; cached for next time"),
        on_wait=lambda: tools.notify(f"waiting: another process compiles {unit.of}"),
    )
    return folder / name


def _key(unit: MojoUnit, compiler: Compiler, cpu: str) -> ArtifactKey:
    return ArtifactKey(
        name=f"mojo.{unit.source.stem}",
        parts=(
            *unit.texts(),
            ("flags", " ".join(unit.flags)),
            ("compiler", f"{compiler.path} {compiler.version}"),  # the path: a library finds Mojo's own beside it
            ("target", unit.target),
            ("cpu", "" if is_gpu(unit.target) else cpu),
        ),
    )


def _compile(unit: MojoUnit, compiler: Compiler, output: Path) -> None:
    entry = output.parent / f"{ENTRY}.mojo"
    # Copied, not found through -I: Mojo finds no module in a folder that is a package itself (__init__.mojo).
    for name, text in unit.texts():
        (output.parent / name).parent.mkdir(parents=True, exist_ok=True)
        (output.parent / name).write_text(text)
    if is_gpu(unit.target):
        # One job: with more, a file with several exports ends in "could not emit assembly" (Mojo 1.2.0).
        target = ["--emit", "asm", "--target-triple", _GPU_TRIPLE, "--target-cpu", unit.target, "-j", "1"]
    else:
        target = ["--emit", "shared-lib"]
    command = [compiler.path, "build", str(entry), "-o", str(output), *target]
    what = f"{unit.of}: {unit.source.name}"
    try:
        log = run_compiler(
            [*command, *unit.flags, "--diagnostic-format", "json"], what,
            target=unit.target, environment={**os.environ, "MODULAR_TELEMETRY_ENABLED": "0"},
        )  # fmt: skip
    except CompileError as error:
        raise _explained(error, what, unit.target, output.parent) from None
    if not output.is_file():
        raise _explained(CompileError(does_not_compile(what, unit.target), log=log), what, unit.target, output.parent)


@dataclass(frozen=True)
class _Message:
    kind: str
    text: str
    file: Path | None
    line: int
    column: int
    source_line: str
    length: int

    def shown(self, folder: Path) -> str:
        """The message as a compiler prints it: place, message, source line and caret."""
        if self.file is None:
            return f"{self.kind}: {self.text}"
        generated = " (generated: how the operator calls it)" if self.file.stem == ENTRY else ""
        name = self.file.relative_to(folder) if self.file.is_relative_to(folder) else self.file.name
        place = f"{name}:{self.line}:{self.column}{generated}: {self.kind}: {self.text}"
        caret = " " * (self.column - 1) + "^" + "~" * max(self.length - 1, 0)
        return f"{place}\n{self.source_line}\n{caret}" if self.source_line else place


def _explained(error: CompileError, what: str, target: str, folder: Path) -> CompileError:
    """The error with Mojo's JSON messages in the format of other compilers."""
    groups = _grouped(list(_messages(error.log)))
    if not groups:
        return error
    shown = ["\n".join(message.shown(folder) for message in group) for group in groups[:3]]
    fix = error.fix
    if lacks_library := re.search(r"unable to locate module '(max|layout|extensibility)'", error.log):
        fix = f"{INSTALL} brings the module {lacks_library[1]!r}"
    return CompileError(f"{does_not_compile(what, target)}\n{first_of(shown, len(groups))}", log=error.log, fix=fix)


def _grouped(messages: Sequence[_Message]) -> list[list[_Message]]:
    """Each error with a place, and its notes; the last note of a failed instantiation is the cause."""
    groups: list[list[_Message]] = []
    for message in messages:
        if message.kind == "error" and message.file is not None:
            groups.append([message])
        elif message.kind == "note" and groups and message.file is not None:
            groups[-1].append(message)
    return [[g[0], *g[-2:]] if len(g) > 3 else g for g in groups]


def _messages(log: str) -> Iterator[_Message]:
    for line in log.splitlines():
        if not line.startswith("{"):
            continue
        try:
            record: dict[str, Any] = json.loads(line)
        except ValueError:
            continue  # other output; the whole log is in the exception
        where = record.get("diagnostic") or {}
        place, ranges = where.get("location") or {}, where.get("ranges") or []
        column = place.get("column", 0)  # counted from 0 here, from 1 in Mojo's text output
        length = next((r["end"] - r["start"] for r in ranges if r.get("start") == column), 1)
        file = Path(where["file"]) if where.get("file") else None
        yield _Message(
            record.get("kind", ""), record.get("message", ""), file, place.get("line", 0), column + 1,
            where.get("text", ""), length,
        )  # fmt: skip
