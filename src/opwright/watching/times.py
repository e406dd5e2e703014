"""Times of kernels, measured by ``opwright bench`` in a process of its own: a fork of the daemon does not time."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["times_of"]


def times_of(targets: Sequence[str], kernels: Sequence[str], device: str | None) -> Mapping[str, Mapping[str, float]]:
    """Microseconds by kernel and case, of one size, cold; none for kernels that were not timed."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "times.json"
        command = [sys.executable, "-m", "opwright", "bench", *targets, "--quick", "--no-limits", "--json", str(file)]
        for name in dict.fromkeys(kernel.rpartition(":")[2] for kernel in kernels):
            command += ["--kernel", name]
        command += ["--direction", "forward", *(["--device", device] if device in ("cpu", "cuda") else [])]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        if not file.is_file():
            return {}
        measurements = json.loads(file.read_text())["measurements"]
    found: dict[str, dict[str, float]] = {}
    for each in measurements:
        name = f"{each['op']}:{each['kernel']}"
        if name in kernels and each["cache"] == "cold":
            case = " ".join(f"{key}={_size_text(value)}" for key, value in each["case"].items() if value)
            found.setdefault(name, {})[case] = round((each["gpu_us"] or each["host_us"])["median"], 3)
    return found


def _size_text(size: object) -> str:
    return "x".join(map(str, size)) if isinstance(size, list) else str(size)
