"""The simulator's header, precompiled: most of a kernel's compilation would be reading it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from opwright.backends.build_tools import BuildTools
from opwright.backends.compiler import run_compiler
from opwright.backends.compiler_inputs import BuildWatch, key_parts
from opwright.cache import ArtifactKey
from opwright.machine import Compiler
from opwright.read_files import ReadFiles

__all__ = ["included_by", "precompiled_header"]

_INCLUDED = "included.txt"


def precompiled_header(
    header: Path, compiler: Compiler, flags: Sequence[str], texts: Sequence[tuple[str, str]], tools: BuildTools
) -> Path:
    """A folder for g++'s ``-I``, before the header's own. If the header there does not fit, g++ takes the other.

    Args:
        flags: all of the later compilation that may change what the header means.
        texts: the headers, as parts of a key.

    Raises:
        CompileError: it does not compile.
    """

    def build(folder: Path) -> ReadFiles:
        watch = BuildWatch(compiler)
        made = ["-x", "c++-header", str(header), "-o", f"{header.name}.gch"]
        command = [compiler.path, *flags, *watch.compile_flags, *made]
        run_compiler(command, header.name, target="the simulator", folder=folder, environment=watch.environment)
        (folder / _INCLUDED).write_text("\n".join(watch.included()))
        return watch.read_files(
            flags, base=header.parent, built_in=folder, folder=folder, installed=[header.parent], linked=False
        )

    parts = (("flags", " ".join(flags)), *key_parts(compiler, ()), *texts)
    return tools.cache.get_or_build(ArtifactKey("simulator.precompiled", parts, base=header.parent), build)


def included_by(folder: Path) -> list[Path]:
    """The headers within a precompiled one. A compilation with it does not report them."""
    return [Path(line) for line in (folder / _INCLUDED).read_text().splitlines()]
