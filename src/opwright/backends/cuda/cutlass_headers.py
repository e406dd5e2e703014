"""Where the headers of CuTe and CUTLASS are, which a pip package brings. Both compilers of kernels read them."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import re
from pathlib import Path

from opwright.backends.c_text import INCLUDE, find_header, source_text
from opwright.backends.cuda.options import parse_options
from opwright.backends.cuda.source import CudaSource

__all__ = ["CUTLASS_HEADER", "cutlass_folder", "with_cutlass"]

CUTLASS_HEADER = re.compile(r"(?:cute|cutlass)/.*")


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
    texts = [(source.text, source.path), *((source_text(header), header) for header in source.headers())]
    missing = (
        line[2]
        for text, path in texts
        for line in INCLUDE.finditer(text)
        if CUTLASS_HEADER.fullmatch(line[2]) and find_header(line[2], path, folders) is None
    )
    if next(missing, None) is None:
        return source
    return dataclasses.replace(source, options=(*source.options, "-I", str(folder)))
