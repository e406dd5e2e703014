"""The options of compilers and linkers as those get them: response files opened, wrappers such as -Wl removed."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator

__all__ = ["expanded", "library_folders", "library_names", "pieces", "program_folders", "split", "values"]

# Options whose next one is for another program, and the same with a value: -Wl,-T,script  -Xcompiler=-include,a.h
_FOR_ANOTHER = re.compile(
    r"-X(?:compiler|linker|preprocessor|assembler|archive|nvlink|ptxas|clang)|"
    r"--?(?:compiler|linker|archive|nvlink|ptxas)-options"
)
_WRAPPER = re.compile(rf"-W[alp],|(?:{_FOR_ANOTHER.pattern})=")
_DEEPEST = 8  # response files that name themselves


def expanded(options: Iterable[str], here: str = "", depth: int = 0) -> Iterator[str]:
    """The options, with those in files that options name (``@file``, nvcc's ``--options-file``) after them. Of a list
    for another program (``-Wl,-T,script``), the list and each of its parts.

    Args:
        here: the working folder of the compiler.
    """
    before = ""
    for given in options:
        if _FOR_ANOTHER.fullmatch(given):
            continue
        option = _WRAPPER.sub("", given, count=1)
        yield option
        if "," in option:
            yield from expanded(option.split(","), here, depth)
        name = option.partition("=")[2] if option.startswith(("-optf=", "--options-file=")) else option.lstrip("@")
        path = os.path.join(here, name)
        if (name != option or before in ("-optf", "--options-file")) and depth < _DEEPEST and os.path.isfile(path):
            yield from expanded(split(_text(path)), here, depth + 1)
        before = option


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def split(text: str) -> list[str]:
    """The options in a text, as a shell or a compiler splits it."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def pieces(options: Iterable[str]) -> Iterator[str]:
    """Every part of an option that may be a path: ``-Idir``, ``@flags.txt``, ``-specs=file``, ``-fplugin=a.so``."""
    for option in options:
        yield from {option, option[1:], option[2:], *re.split("[=,]", option)} - {""}


def values(flags: Iterable[str], *names: str) -> Iterator[str]:
    """The values of an option, however they are joined to it.

    Args:
        names: the option, and its other names.
    """
    before = ""
    for flag in flags:
        joined = next((name for name in names if flag.startswith(name if name[1] != "-" else f"{name}=")), "")
        if before in names:
            yield flag
        elif joined and flag != joined:
            yield flag[len(joined) :].removeprefix("=")
        before = flag


def library_folders(flags: Iterable[str]) -> list[str]:
    """The folders in which options and variables let the linker look for libraries."""
    return [*values(flags, "--library-path", "-L"), *_paths("LIBRARY_PATH")]


def library_names(flags: Iterable[str]) -> Iterator[str]:
    """The files for which ``-l`` lets the linker look."""
    for name in values(flags, "--library", "-l"):
        yield from [name[1:]] if name.startswith(":") else [f"lib{name}.so", f"lib{name}.a"]


def program_folders(flags: Iterable[str]) -> list[str]:
    """The folders in which options and variables let the compiler look for its own programs first."""
    return [*values(flags, "-B"), *_paths("COMPILER_PATH")]


def _paths(variable: str) -> list[str]:
    return [path or "." for path in os.environ[variable].split(":")] if os.environ.get(variable) else []
