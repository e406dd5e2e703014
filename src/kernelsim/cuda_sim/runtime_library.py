"""The simulator's runtime: C++ that is compiled once, and linked into every kernel."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kernelsim.host import Compiler, Host, Key
from kernelsim.text.torch_names import HEADERS, TORCH_NAMES

__all__ = [
    "INCLUDE",
    "SIMULATOR_HEADERS",
    "SLOT",
    "STACKS",
    "UNGUARDED",
    "UNITS",
    "header_text",
    "runtime",
    "runtime_texts",
]

_FOLDER = Path(__file__).parent
INCLUDE = _FOLDER / "include"
# Compiled as a few units, not file by file: most of a file's time goes into headers that the others read too.
UNITS = {
    "launching": ("launch", "suspicions", "attempt", "shadow", "scheduler", "waiting", "calls", "copies"),
    "checking": ("checker", "releases", "hooks", "cluster", "cluster_calls", "cluster_checks"),
    "asynchronous": (
        *("mbarrier", "agents", "bulk", "named_barriers", "cluster_copies"),
        *("reductions", "warpgroup", "accumulators", "matrix"),
    ),
}
STACKS, SLOT = "stack_pool", "thread_slot"  # libraries of their own: one for all kernels of a process
SIMULATOR_HEADERS = "kernelsim-headers"  # the folder of the simulator's headers, in debug information
# Some systems compile with this by default. It takes the simulator's writes by an offset from one thread-local variable
# into another for overflows, and ends the process; the checked build examines accesses itself.
UNGUARDED = "-U_FORTIFY_SOURCE"


def header_text(name: str) -> str:
    """The text of a header of the simulator's, such as one of torch's that another compiler lacks as well."""
    return (INCLUDE / name).read_text()


def runtime_texts() -> tuple[tuple[str, str], ...]:
    files = sorted(path for part in ("include", "runtime") for path in (_FOLDER / part).rglob("*") if path.is_file())
    return tuple((path.name, path.read_text()) for path in (*files, HEADERS / TORCH_NAMES))


def runtime(compiler: Compiler, host: Host) -> Path:
    """The folder of the runtime's object files and of the libraries for all kernels, compiled when first needed."""

    def build(folder: Path) -> None:
        flags = ["-std=c++17", "-O2", UNGUARDED, "-g1", "-fPIC", "-fvisibility=hidden", "-pthread", f"-I{INCLUDE}"]
        flags += ["-ffunction-sections", "-fdata-sections", f"-ffile-prefix-map={_FOLDER}={SIMULATOR_HEADERS}"]
        sources = _FOLDER / "runtime"

        def compile_(source: str, made: Sequence[str]) -> None:
            host.run(
                [compiler.path, *flags, source, "-o", *made], f"the simulator's {Path(source).name}", folder=folder
            )

        for unit, names in UNITS.items():
            (folder / f"{unit}.cpp").write_text("".join(f'#include "{sources / name}.cpp"\n' for name in names))
        objects = [(f"{unit}.cpp", (f"{unit}.o", "-c")) for unit in UNITS]
        libraries = [(f"{sources / name}.cpp", (f"{name}.so", "-shared")) for name in (STACKS, SLOT)]
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            list(pool.map(compile_, *zip(*objects, *libraries, strict=True)))

    key = Key("simulator.runtime", (*host.key_parts(compiler, ()), *runtime_texts()))
    return host.get_or_build(key, build, on_build=lambda: host.notify("compiling the simulator's runtime"))
