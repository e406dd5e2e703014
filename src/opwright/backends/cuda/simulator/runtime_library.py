"""The simulator's runtime: C++ that is compiled once, and linked into every kernel."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from opwright.backends.build_tools import BuildTools
from opwright.backends.compiler import run_compiler
from opwright.backends.compiler_inputs import key_parts
from opwright.backends.cuda.text.torch_names import HEADERS, TORCH_NAMES
from opwright.cache import ArtifactKey
from opwright.machine import Compiler

__all__ = ["INCLUDE", "SIMULATOR_HEADERS", "SLOT", "STACKS", "UNGUARDED", "UNITS", "runtime", "runtime_texts"]

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
SIMULATOR_HEADERS = "opwright-simulator"  # the folder of the simulator's headers, in debug information
# Some systems compile with this by default. It takes the simulator's writes by an offset from one thread-local variable
# into another for overflows, and ends the process; the checked build examines accesses itself.
UNGUARDED = "-U_FORTIFY_SOURCE"


def runtime_texts() -> tuple[tuple[str, str], ...]:
    files = sorted(path for part in ("include", "runtime") for path in (_FOLDER / part).rglob("*") if path.is_file())
    return tuple((path.name, path.read_text()) for path in (*files, HEADERS / TORCH_NAMES))


def runtime(compiler: Compiler, tools: BuildTools) -> Path:
    """The folder of the runtime's object files and of the libraries for all kernels, compiled when first needed."""

    def build(folder: Path) -> None:
        flags = ["-std=c++17", "-O2", UNGUARDED, "-g1", "-fPIC", "-fvisibility=hidden", "-pthread", f"-I{INCLUDE}"]
        flags += ["-ffunction-sections", "-fdata-sections", f"-ffile-prefix-map={_FOLDER}={SIMULATOR_HEADERS}"]
        sources = _FOLDER / "runtime"

        def compile_(source: str, made: Sequence[str]) -> None:
            run_compiler(
                [compiler.path, *flags, source, "-o", *made], f"the simulator's {Path(source).name}", folder=folder
            )

        for unit, names in UNITS.items():
            (folder / f"{unit}.cpp").write_text("".join(f'#include "{sources / name}.cpp"\n' for name in names))
        objects = [(f"{unit}.cpp", (f"{unit}.o", "-c")) for unit in UNITS]
        libraries = [(f"{sources / name}.cpp", (f"{name}.so", "-shared")) for name in (STACKS, SLOT)]
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            list(pool.map(compile_, *zip(*objects, *libraries, strict=True)))

    key = ArtifactKey("simulator.runtime", (*key_parts(compiler, ()), *runtime_texts()))
    return tools.cache.get_or_build(key, build, on_build=lambda: tools.notify("compiling the simulator's runtime"))
