"""How long the simulator's checked builds of kernels take: those of the gallery, and of ``cuda_simulator.cu``.

Usage: cuda_compilations.py [FILE] [--rounds N]

Each kernel is compiled in a cache that has the simulator's own parts (the runtime, the precompiled header), and not the
kernel: by the clock, and as processor time with the compiler's processes. The least of all rounds counts. FILE gets the
record.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import records
import torch

HERE = Path(__file__).parent
GALLERY = HERE.parent / "src" / "opwright" / "gallery"
# The instances of templates that are measured.
INSTANCES = {
    "add": "add<float, 4, 4>", "conv1d": "conv1d<float>", "conv1d_taps": "conv1d_taps<float>",
    "lltm_forward": "lltm_forward<float, 4>", "lltm_backward": "lltm_backward<float, 4, float>",
    "lltm_small_forward": "lltm_small_forward<float>", "lltm_small_backward": "lltm_small_backward<float>",
    "lltm_forward_accessors": "lltm_forward_accessors<float>",
    "lltm_backward_accessors": "lltm_backward_accessors<float, float>",
}  # fmt: skip


def used() -> float:
    """Seconds of processors that this process and its children have used."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in spent)


def sources() -> dict[str, Path]:
    """The files, by their names in the record."""
    files = [*sorted(GALLERY.rglob("*.cu")), HERE / "cuda_simulator.cu"]
    return {str(file.relative_to(HERE.parent)): file for file in files if "torch/csrc/stable" not in file.read_text()}


def compilations(file: Path, rounds: int) -> dict[str, dict[str, float]]:
    """The seconds of each kernel of a file; of templates, of one instance."""
    from kernelsim.cuda_sim.compilation import compile_kernel
    from kernelsim.text.source import CudaSource
    from opwright.backends.build_tools import build_tools
    from opwright.backends.simulation import host
    from opwright.errors import OpwrightError

    source = CudaSource(file.read_text(), file)
    taken: dict[str, dict[str, float]] = {}
    for name in (INSTANCES.get(kernel, kernel) for kernel in source.parsed.kernels):
        rows = []
        for number in range(rounds + 1):
            began, before = time.perf_counter(), used()
            changed = replace(source, text=f"{source.text}// {number} {time.time_ns()}\n")
            try:
                compile_kernel(changed, name, host(build_tools()), checked=True)
            except OpwrightError as error:
                print(f"{file.name}: {name} is left out: {str(error).partition(chr(10))[0][:100]}")
                break
            rows.append((time.perf_counter() - began, used() - before))
        else:
            clock, processor = (min(column) for column in zip(*rows[1:], strict=True))  # the first one warms up
            taken[name] = {"seconds": clock, "seconds of processors": processor}
            print(file.name, name, records.rounded(taken[name]), flush=True)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["OPWRIGHT_CACHE_DIR"] = folder
        from opwright.machine import this_machine

        found: dict[str, Any] = {name: compilations(file, options.rounds) for name, file in sources().items()}
        every = [kernel for kernels in found.values() for kernel in kernels.values()]
        for what in ("seconds", "seconds of processors"):
            longest = max(kernel[what] for kernel in every)
            print(f"{len(every)} kernels; the longest takes {longest:.3f} {what}")
        if options.file:
            record = {"machine": this_machine().to_json(), "torch": torch.__version__, "rounds": options.rounds}
            records.write(options.file, {**record, "files": found})


if __name__ == "__main__":
    main()
