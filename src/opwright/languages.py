"""The table of the languages in which kernels are written: one line each."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LANGUAGES", "Language", "title_of"]


@dataclass(frozen=True)
class Language:
    """One language.

    Attributes:
        title: as reports name it.
        backend: where its ``Backend`` is, as ``module:class`` in ``opwright.backends``; imported when it is first asked
            for, so that a missing language costs nothing.
        syntax: the name of its syntax for highlighting.
    """

    title: str
    backend: str
    syntax: str = "python"


LANGUAGES: dict[str, Language] = {
    "python": Language("Python", "python:PythonBackend"),
    "triton": Language("Triton", "triton.backend:TritonBackend"),
    "cuda": Language("CUDA", "cuda.backend:CudaBackend", "cuda"),
    "cpp": Language("C++", "native.cpp:CppBackend", "cpp"),
    "mojo": Language("Mojo", "mojo.backend:MojoBackend", "mojo"),
    "max": Language("MAX", "mojo.max:MaxBackend", "mojo"),
    "numpy": Language("NumPy", "numpy.backend:NumpyBackend"),
    "numba": Language("Numba", "numba.backend:NumbaBackend"),
}


def title_of(name: str) -> str:
    """A language as reports name it: the name itself, if it is not in the table."""
    return LANGUAGES[name].title if name in LANGUAGES else name
