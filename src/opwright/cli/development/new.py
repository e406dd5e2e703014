"""``opwright new``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["new"]

_DEFAULT = ("cpp", "cuda", "triton")


def new(
    folder: Annotated[Path, typer.Argument(help="The folder, with the name of the package: my_kernels.")],
    language: Annotated[
        list[str] | None,
        typer.Option(help="A kernel in this language: cpp, cuda, triton, numpy or python (repeatable)."),
    ] = None,
) -> None:
    """Write a new package: one operator, a kernel in each language, tests, docs, and a workflow for GitHub."""
    from opwright.scaffold.write import write_package

    written = write_package(folder, list(dict.fromkeys(language or _DEFAULT)))
    for file in written:
        print(file)
    print(f"\ncd {folder} && pip install -e '.[test]' && pytest")
