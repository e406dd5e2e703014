"""The C++ of a kernel for some arguments: from the cache, if nothing has changed that Triton's frontend depends on.

The frontend takes some ten milliseconds for each combination of types and constants, of which a check has a hundred.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import json
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelsim.errors import NotSimulatedError
from kernelsim.host import Host, Key, KeyParts
from kernelsim.triton_sim.from_ttir.generation import Generated, generate
from kernelsim.triton_sim.from_ttir.reading import read_module
from kernelsim.triton_sim.from_ttir.writer import Site
from kernelsim.triton_sim.frontend import Specialised, stated_options, ttir
from kernelsim.triton_sim.internals import parsed_options
from kernelsim.triton_sim.values_read import PLAIN, values_read

__all__ = ["Translated", "translate"]


@dataclass(frozen=True)
class Translated:
    """What a kernel was made into: Triton's intermediate code, and C++."""

    ttir: str
    generated: Generated


def translate(function: Any, specialised: Specialised, host: Host) -> Translated:
    """Translate a jitted function for these arguments.

    Raises:
        NotSimulatedError: no such Triton, or an operation that the simulator does not have.
        KernelError: Triton's frontend refuses the kernel.
    """
    parts = _all_that_decides(function, specialised, host)
    if parts is None:
        return _translated(function, specialised, host)
    new: list[Translated] = []

    def build(folder: Path) -> None:
        new.append(_translated(function, specialised, host))
        (folder / "kernel.json").write_text(_written(new[0]))

    key = Key(f"triton-simulator.translated.{function.__name__}", parts)
    folder = host.get_or_build(key, build)
    found = new[0] if new else _read((folder / "kernel.json").read_text())
    return found or _translated(function, specialised, host)


def _translated(function: Any, specialised: Specialised, host: Host) -> Translated:
    text = ttir(function, specialised, host)
    return Translated(text, _generated(function.__name__, text))


def _generated(name: str, ttir: str) -> Generated:
    try:
        return generate(read_module(ttir))
    except (
        KeyError,
        IndexError,
        AttributeError,
        StopIteration,
    ) as error:  # the text has another form than what is read
        raise NotSimulatedError(
            f"{name}: the Triton simulator cannot read what Triton made of it: {type(error).__name__}: {error}",
            fix="check this kernel in the interpreter, or on a GPU",
        ) from error


def _all_that_decides(function: Any, specialised: Specialised, host: Host) -> KeyParts | None:
    """What a translation depends on, besides the files of other functions that the kernel calls; None if not all of it
    can be told."""
    file = inspect.getsourcefile(function.fn) or ""
    constants = specialised.constants.items()
    triton, options = _digest_of_triton(), parsed_options(stated_options(specialised), host)
    # Constants whose text does not say all of them, such as functions, are translated each time.
    if not (Path(file).is_file() and triton and options) or any(type(value) not in PLAIN for _, value in constants):
        return None
    if (read := values_read(function)) is None:
        return None
    settings = [*sorted((n, v) for n, v in os.environ.items() if n.startswith(("TRITON_", "MLIR_"))), _knobs()]
    return (
        # Of the source of all that a kernel calls, and of what it reads.
        *(("function", function.cache_key), ("file", file), ("source", _digest_of([Path(file)])), ("values", read)),
        ("types", repr([*specialised.signature.items()])),
        # Since 1 == True and 0.0 == -0.0, by its type and text.
        ("constants", repr([(name, type(value).__name__, repr(value)) for name, value in constants])),
        *(("options", options), ("settings", repr(settings)), ("Triton", triton), ("simulator", _digest_of_ours())),
    )


def _knobs() -> list[str]:
    """Settings that the frontend reads, which a program may have set in place of the environment's."""
    knobs = getattr(sys.modules.get("triton"), "knobs", None)
    return [repr(getattr(knobs, group, None) and vars(getattr(knobs, group))) for group in ("language", "compilation")]


def _written(translated: Translated) -> str:
    files = set(re.findall(r'loc\("([^"]+)":\d+', translated.ttir))  # of the kernel, and of functions that it calls
    read = {file: _digest_of([Path(file)]) for file in files}
    return json.dumps({"ttir": translated.ttir, "generated": dataclasses.asdict(translated.generated), "files": read})


def _read(text: str) -> Translated | None:
    """What ``_written`` wrote; None if a file has changed since from which Triton has read."""
    record = json.loads(text)
    if any(_digest_of([Path(file)]) != digest for file, digest in record["files"].items()):
        return None
    generated = record["generated"]
    sites = [Site(**site) for site in generated.pop("sites")]
    return Translated(record["ttir"], Generated(**generated, sites=sites))


def _digest_of(files: Iterable[Path]) -> str:
    """Of the contents of files; of those that are not there, nothing."""
    found = hashlib.sha256()
    for file in files:
        data = file.read_bytes() if file.is_file() else b""
        found.update(b"%d:%b" % (len(data), data))
    return found.hexdigest()


@functools.cache
def _digest_of_ours() -> str:
    return _digest_of(sorted(Path(__file__).parent.rglob("*.py")))


@functools.cache
def _digest_of_triton() -> str:
    """Of the frontend: its Python, and when its compiled part was written; "" if it is not where it should be."""
    file = getattr(sys.modules.get("triton"), "__file__", None)
    library = getattr(sys.modules.get("triton._C.libtriton"), "__file__", None)
    if file is None or library is None:
        return ""
    sources = sorted(Path(file).parent.glob("[clr]*/*.py"))  # compiler, language and runtime
    status = os.stat(library)
    return f"{_digest_of(sources)} {status.st_size} {status.st_mtime_ns}"
