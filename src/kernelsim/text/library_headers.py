"""Where NVIDIA's headers for kernels are, which pip packages bring: of cuRAND, of CuTe and CUTLASS. Both compilers of
kernels read them."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
import re
from collections.abc import Iterator
from pathlib import Path

from kernelsim.text.includes import find_header
from kernelsim.text.options import parse_options
from kernelsim.text.source import CudaSource

__all__ = ["CURAND_HEADER", "CUTLASS_HEADER", "curand_folder", "cutlass_folder", "with_cutlass"]

CURAND_HEADER = "curand_kernel.h"
CUTLASS_HEADER = re.compile(r"(?:cute|cutlass)/.*")


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


@functools.cache
def cutlass_folder() -> Path | None:
    """The include folder of the package ``nvidia-cutlass``; None if it is not installed."""
    library = importlib.util.find_spec("cutlass_library")
    places = (library.submodule_search_locations or ()) if library is not None else ()
    folders = (Path(place) / "source" / "include" for place in places)
    return next((folder for folder in folders if folder.is_dir()), None)


def with_cutlass(source: CudaSource) -> CudaSource:
    """The source, with the package's folder among its options if it, or a header of its own, includes what no other
    folder has."""
    if (folder := cutlass_folder()) is None:
        return source
    folders = parse_options(source.options).include_folders
    is_missing = any(
        CUTLASS_HEADER.fullmatch(include.name) and find_header(include.name, path, folders) is None
        for path, text in [(source.path, source.parsed), *source.headers().items()]
        for include in text.includes
    )
    return dataclasses.replace(source, options=(*source.options, "-I", str(folder))) if is_missing else source
