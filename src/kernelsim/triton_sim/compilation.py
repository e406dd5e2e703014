"""Compiles a Triton kernel for the CPU: arguments → TTIR → C++ → a shared object in the artifact cache."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelsim.errors import NotSimulatedError
from kernelsim.host import Host, Key
from kernelsim.triton_sim.from_ttir.writer import Site
from kernelsim.triton_sim.frontend import Specialised
from kernelsim.triton_sim.translation import Translated, translate

__all__ = ["Compiled", "compile_kernel"]

# Triton's frontend keeps state, and Python 3.11's parser fails where threads parse at the same time.
_COMPILING = threading.Lock()
_COMPILED: dict[tuple[Any, ...], Compiled] = {}
_INCLUDE = Path(__file__).parent / "include"
# Signed integers wrap, as on a GPU. No fast-math: infinities and NaN are values as others.
_FLAGS = (
    *("-std=c++17", "-O2", "-march=native", "-fPIC", "-shared", "-pthread", "-fwrapv", "-fno-strict-aliasing"),
    *("-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden", "-w"),
)
# Kernels need nothing of the C++ library, and are linked faster without it.
_WITHOUT_CPP = ("-fno-exceptions", "-fno-rtti", "-nodefaultlibs")
_LIBRARIES = ("-lm", "-lc", "-lgcc")
# A checked kernel is compiled anew after each edit, for each size and dtype, and mostly runs on small cases: with -O1
# the first took two thirds of the time by hand, the second up to 1.3 times as long (products of matrices: 2.4 times).
_FASTER_TO_COMPILE = "-O1"


# Programs that may wait for each other run at the same time, as on a GPU, up to so many.
_MOST_WAITING = 1024


@dataclass(frozen=True)
class Compiled:
    """A compiled kernel: its shared object, and the places in its source that may have findings."""

    name: str
    library: ctypes.CDLL
    programs: Any
    sites: tuple[Site, ...]
    parameters: tuple[str, ...]
    waits: bool

    @functools.cached_property
    def stored(self) -> frozenset[int] | None:
        """The parameters through which the kernel stores; None if that is not known of a store."""
        sources = frozenset(site.source for site in self.sites if site.writes)
        return sources if all(source >= 0 for source in sources) else None

    def run(self, request: Any, arguments: Any, order: int | None, total: int, cores: int) -> None:
        """Run all programs; the request gets their findings."""
        threads = min(total, _MOST_WAITING) if self.waits else cores
        self.library.kernelsim_begin(request)
        enter, kernel = self.library.kernelsim_enter, self.library.kernelsim_kernel
        self.programs(
            enter, kernel, arguments, ctypes.c_uint64(total), ctypes.c_void_p(order), ctypes.c_uint32(threads)
        )


def compile_kernel(function: Any, specialised: Specialised, host: Host, *, checked: bool) -> Compiled:
    """Compile a jitted function for these arguments, or take it from the cache.

    Raises:
        NotSimulatedError: no C++ compiler, no such Triton, or an operation that the simulator does not have.
        KernelError: Triton's frontend refuses the kernel.
    """
    # Triton's frontend takes tens of milliseconds. ``cache_key`` is of the source of all that a kernel calls, and of
    # the globals that it read; a constant by its text as well, since 1 == True and 0.0 == -0.0.
    constants = tuple((name, type(value), repr(value)) for name, value in specialised.constants.items())
    types, options = tuple(specialised.signature.items()), tuple(map(repr, sorted(specialised.options.items())))
    key = (function, function.cache_key, types, constants, options, checked, host)
    with _COMPILING:
        if key not in _COMPILED:
            _COMPILED[key] = _compile(function.__name__, translate(function, specialised, host), checked, host)
        return _COMPILED[key]


def _compile(name: str, translated: Translated, checked: bool, host: Host) -> Compiled:
    generated = translated.generated
    flags = [*_WITHOUT_CPP, *(["-DCHECKED"] if checked else [])]
    if checked and "tt.dot" not in translated.ttir:
        flags.append(_FASTER_TO_COMPILE)
    files = {"kernel.cpp": generated.text, "kernel.ttir": translated.ttir}
    kernel = _library(f"{'checked' if checked else 'fast'}.{name}", files, host, flags, _LIBRARIES)
    return Compiled(name, kernel, _programs(host), tuple(generated.sites), tuple(generated.parameters), generated.waits)


@functools.cache
def _programs(host: Host) -> Any:
    text = (_INCLUDE / "kernelsim_programs.cpp").read_text()
    return _library("programs", {"kernel.cpp": text}, host).kernelsim_run


def _library(
    name: str, files: Mapping[str, str], host: Host, more_flags: Sequence[str] = (), libraries: Sequence[str] = ()
) -> ctypes.CDLL:
    """The shared object of ``kernel.cpp``; the other files are there to be read."""
    compiler = host.compiler
    if compiler is None:
        raise NotSimulatedError(f"{name}: there is no C++ compiler", fix="install g++ (apt install g++), or set CXX")
    flags = [*_FLAGS, *more_flags]
    header = (_INCLUDE / "kernelsim_triton.h").read_text()
    key = Key(
        name=f"triton-simulator.{name}",
        parts=(
            *(("source", files["kernel.cpp"]), ("header", header), ("flags", " ".join((*flags, *libraries)))),
            *(("processor", host.processor), *host.key_parts(compiler, ())),
        ),
    )

    def build(folder: Path) -> None:
        for file, text in files.items():
            (folder / file).write_text(text)
        command = [compiler.path, *flags, f"-I{_INCLUDE}", "kernel.cpp", "-o", "kernel.so", *libraries]
        host.run(command, name, target="the Triton simulator", folder=folder)

    return ctypes.CDLL(str(host.get_or_build(key, build) / "kernel.so"))
