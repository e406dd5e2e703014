"""Extensions that Python code compiles with torch's ``load_inline`` and ``load``, in the simulator.

Host functions that only compute sizes, allocate and launch become functions in Python (``host``). Anything else
is refused with its line.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch.utils.cpp_extension as published

from opwright.backends.cuda.host.part import HostPart
from opwright.backends.cuda.module import CudaModule
from opwright.backends.simulation import CudaSource, with_cutlass
from opwright.errors import KernelError, NotSimulatedError

__all__ = ["simulated_extensions"]

_LOCAL = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"[^\n]*$', re.MULTILINE)
_BOUND = re.compile(r"\bm\s*\.\s*def\s*\(\s*\"(\w+)\"\s*,\s*&?\s*([\w:]+)")


@contextlib.contextmanager
def simulated_extensions() -> Iterator[None]:
    """A block in which ``torch.utils.cpp_extension`` makes modules whose CUDA kernels the simulator runs. Extensions
    without CUDA are compiled as they are."""
    before = published.load_inline, published.load
    published.load_inline, published.load = _load_inline, _load
    try:
        yield
    finally:
        published.load_inline, published.load = before


_native_inline, _native_load = published.load_inline, published.load


def _load_inline(*args: Any, **options: Any) -> Any:
    given = inspect.signature(_native_inline).bind(*args, **options).arguments
    cuda = _texts(given.get("cuda_sources"))
    if not cuda:
        return _native_inline(*args, **options)  # type: ignore[no-untyped-call]
    text = "\n".join((*cuda, *_texts(given["cpp_sources"])))
    return _simulated(given["name"], text, given.get("functions"), given.get("extra_cuda_cflags") or ())


def _load(*args: Any, **options: Any) -> Any:
    given = inspect.signature(_native_load).bind(*args, **options).arguments
    sources = given["sources"]
    files = [Path(f) for f in ([sources] if isinstance(sources, str | Path) else sources)]
    if not any(f.suffix in (".cu", ".cuh") for f in files):
        return _native_load(*args, **options)
    text = _with_headers(sorted(files, key=lambda f: f.suffix not in (".cu", ".cuh")))
    return _simulated(given["name"], text, None, given.get("extra_cuda_cflags") or ())


def _simulated(name: str, text: str, functions: Any, flags: Sequence[str]) -> types.SimpleNamespace:
    """A module with the functions that an extension binds.

    Raises:
        NotSimulatedError: one of them does more than to launch, or none is bound.
    """
    bound: Mapping[str, str] = {}
    if isinstance(functions, str | Sequence | Mapping):
        listed = [functions] if isinstance(functions, str) else list(functions)
        bound = {function: function for function in listed}
    if not bound:
        bound = dict(_BOUND.findall(text))
    if not bound:
        raise NotSimulatedError(f"the extension {name!r} binds no function", fix="name them with functions=")
    try:
        source = with_cutlass(CudaSource(text, None, tuple(flag for flag in flags if flag)))
        part = HostPart(CudaModule(source, needs_kernels=False))  # it may do no more than to call cuBLAS
    except KernelError as error:
        raise NotSimulatedError(f"the extension {name!r}: {error.message}", fix="use a GPU") from None
    return types.SimpleNamespace(**{own: part.function(function) for own, function in bound.items()})


def _with_headers(files: Sequence[Path]) -> str:
    """The texts of files, one after the other; a header beside one is in the place of its first ``#include "…"``."""
    seen = set[Path]()

    def text_of(file: Path) -> str:
        seen.add(file)
        return _LOCAL.sub(lambda found: included(found, file), file.read_text())

    def included(found: re.Match[str], file: Path) -> str:
        header = (file.parent / found.group(1)).resolve()
        if not header.is_file():
            return found.group(0)
        return "" if header in seen else text_of(header)

    return "\n".join(text_of(file.resolve()) for file in files)


def _texts(sources: Any) -> list[str]:
    return [sources] if isinstance(sources, str) else list(sources or ())
