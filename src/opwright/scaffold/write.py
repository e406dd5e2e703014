"""Writes the files of a new package from templates."""

from __future__ import annotations

import keyword
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from opwright.errors import CheckError

__all__ = ["KERNELS", "write_package"]

# The file of each language's kernel; "" if the kernel is in the operator's file.
KERNELS = {"cpp": "saxpy.cpp", "cuda": "saxpy.cu", "triton": "saxpy_triton.py", "python": "", "numpy": ""}
_TEMPLATES = Path(__file__).parent / "templates"
_FILES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "docs/index.md": "docs.md",
    "src/{name}/__init__.py": "init.py",
    "src/{name}/saxpy.py": "saxpy.py",
    "tests/test_saxpy.py": "test_saxpy.py",
    ".github/workflows/check.yml": "check.yml",
    ".gitignore": "gitignore",
}


def write_package(folder: Path, languages: Sequence[str]) -> list[Path]:
    """Write a package into a new folder, whose name is the package's.

    Args:
        languages: keys of ``KERNELS``.

    Returns:
        The files.

    Raises:
        CheckError: the name is no name of a module, the folder has files, or a language is unknown.
    """
    name = folder.name.replace("-", "_")
    if not name.isidentifier() or keyword.iskeyword(name):
        raise CheckError(
            f"the package must have the name of a Python module, got {folder.name!r}", fix="name it as my_kernels"
        )
    if unknown := [language for language in languages if language not in KERNELS]:
        raise CheckError(f"--language must be one of {', '.join(KERNELS)}, got {unknown[0]!r}", fix="name one of them")
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise CheckError(f"the folder must be new or empty, got {folder}", fix="name another folder")
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES), undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True,
        lstrip_blocks=True, autoescape=False,
    )  # fmt: skip
    files = {path.format(name=name): template for path, template in _FILES.items()}
    for language in languages:
        if KERNELS[language]:
            files[f"src/{name}/{KERNELS[language]}"] = KERNELS[language]
    written = []
    for path, template in files.items():
        text = environment.get_template(f"{template}.jinja").render(name=name, languages=languages, files=KERNELS)
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.rstrip() + "\n")
        written.append(file)
    return written
