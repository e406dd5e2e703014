"""The table of the languages in which kernels are written: one line each. Other packages may add some."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from opwright.entry_points import Extensible

__all__ = ["LANGUAGES", "Language", "title_of"]


@dataclass(frozen=True)
class Language:
    """One language.

    Attributes:
        title: as reports name it.
        backend: where its ``Backend`` is, as ``module:class`` in ``opwright.backends``, or in any module for a language
            that another package adds; imported when it is first asked for, so that a missing language costs nothing.
        syntax: the name of its syntax for highlighting.
    """

    title: str
    backend: str
    syntax: str = "python"


_OWN = {
    "python": Language("Python", "python:PythonBackend"),
    "triton": Language("Triton", "triton.backend:TritonBackend"),
    "cuda": Language("CUDA", "cuda.backend:CudaBackend", "cuda"),
    "cpp": Language("C++", "native.cpp:CppBackend", "cpp"),
    "mojo": Language("Mojo", "mojo.backend:MojoBackend", "mojo"),
    "max": Language("MAX", "mojo.max:MaxBackend", "mojo"),
    "numpy": Language("NumPy", "numpy.backend:NumpyBackend"),
    "numba": Language("Numba", "numba.backend:NumbaBackend"),
}


def _read(name: str, language: Any) -> tuple[str, Language]:
    if not isinstance(language, Language) or ":" not in language.backend:
        raise TypeError(f"it must be an opwright.languages.Language with a backend 'module:class', got {language!r}")
    if not name.isidentifier():
        raise ValueError(f"its name must be an identifier, got {name!r}")
    return name, language


LANGUAGES = Extensible(_OWN, "opwright.languages", _read)


def title_of(name: str) -> str:
    """A language as reports name it: the name itself, if it is not in the table."""
    return LANGUAGES[name].title if name in LANGUAGES else name
