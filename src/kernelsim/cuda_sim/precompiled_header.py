"""The simulator's header, precompiled: most of a kernel's compilation would be reading it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernelsim.host import Compiler, Host, Key

__all__ = ["included_by", "precompiled_header"]

_INCLUDED = "included.txt"


def precompiled_header(
    header: Path, compiler: Compiler, flags: Sequence[str], texts: Sequence[tuple[str, str]], host: Host
) -> Path:
    """A folder for g++'s ``-I``, before the header's own. If the header there does not fit, g++ takes the other.

    Args:
        flags: all of the later compilation that may change what the header means.
        texts: the headers, as parts of a key.

    Raises:
        CompileError: it does not compile.
    """

    def build(folder: Path) -> Any:
        watch = host.watch(compiler)
        made = ["-x", "c++-header", str(header), "-o", f"{header.name}.gch"]
        command = [compiler.path, *flags, *watch.compile_flags, *made]
        host.run(command, header.name, target="the simulator", folder=folder, environment=watch.environment)
        (folder / _INCLUDED).write_text("\n".join(watch.included()))
        return watch.read_files(
            flags, base=header.parent, built_in=folder, folder=folder, installed=[header.parent], linked=False
        )

    parts = (("flags", " ".join(flags)), *host.key_parts(compiler, ()), *texts)
    return host.get_or_build(Key("simulator.precompiled", parts, base=header.parent), build)


def included_by(folder: Path) -> list[Path]:
    """The headers within a precompiled one. A compilation with it does not report them."""
    return [Path(line) for line in (folder / _INCLUDED).read_text().splitlines()]
