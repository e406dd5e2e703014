"""The instructions of a cubin, as NVIDIA's disassembler writes them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from opwright.errors import KernelRefusedError

__all__ = ["disassemble"]


def disassemble(cubin: Path, symbol: str) -> str:
    """The SASS of one kernel.

    Raises:
        KernelRefusedError: nvdisasm is not installed.
    """
    done = subprocess.run([_nvdisasm(), "-c", str(cubin)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise KernelRefusedError(f"nvdisasm cannot read {cubin.name}: {done.stderr.strip()}", fix="update it")
    sections = re.split(r"(?m)^//-+ \.text\.(\S+)\s+-+.*$", done.stdout)
    texts = dict(zip(sections[1::2], sections[2::2], strict=True))
    return texts.get(symbol, done.stdout).strip("\n")


def _nvdisasm() -> str:
    try:
        from cuda.pathfinder import find_nvidia_binary_utility

        found = find_nvidia_binary_utility("nvdisasm")
    except ImportError:
        found = None
    path = found or shutil.which("nvdisasm")
    if path is None:
        raise KernelRefusedError(
            "nvdisasm is not installed", fix="pip install 'opwright[cuda]', or nvidia-cuda-nvdisasm"
        )
    return str(path)
