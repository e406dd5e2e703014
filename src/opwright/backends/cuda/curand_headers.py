"""Where NVIDIA's headers of cuRAND's functions for kernels are. Both compilers of kernels read them."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["CURAND_HEADER", "curand_folder"]

CURAND_HEADER = "curand_kernel.h"


@functools.cache
def curand_folder() -> Path | None:
    """The folder with ``curand_kernel.h``: of a pip package, else of a toolkit; None if there is none."""
    return next((folder for folder in _candidates() if (folder / CURAND_HEADER).is_file()), None)


def _candidates() -> Iterator[Path]:
    nvidia = importlib.util.find_spec("nvidia")
    for package in (nvidia.submodule_search_locations or ()) if nvidia else ():
        yield from sorted(Path(package).glob("cu[0-9]*/include"), reverse=True)  # CUDA 13 and later: one folder for all
        yield Path(package) / "curand" / "include"  # CUDA 12
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield Path(os.environ[variable]) / "include"
    yield Path("/usr/local/cuda/include")
