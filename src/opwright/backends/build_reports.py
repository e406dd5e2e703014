"""The reports of compilers, linkers and assemblers on what they have read."""

from __future__ import annotations

import functools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

__all__ = ["assembler_lists_files", "linked_files", "linker_has_dependency_file", "names_in_rules"]

_TIME_LIMIT_S = 60


def names_in_rules(report: Path) -> Iterator[str]:
    """The prerequisites of the rules that a compiler wrote for make: ``a.o: a.cpp dir/with\\ blank.h``."""
    text = report.read_text(errors="surrogateescape").replace("\\\n", " ")
    for line in text.splitlines():
        for name in re.findall(r"(?:\\[ #]|\$\$|[^\s])+", line.partition(": ")[2]):
            yield name.replace("\\ ", " ").replace("\\#", "#").replace("$$", "$")


def linked_files(report: Path) -> list[str]:
    """The same of a linker, which writes one name a line, as it is."""
    lines = report.read_text(errors="surrogateescape").split("\n\n")[0].split(" \\\n")
    return [line.strip() for line in lines[1:]]


@functools.cache
def linker_has_dependency_file(driver: str) -> bool:
    try:
        done = subprocess.run(
            [driver, "-Wl,--help"], capture_output=True, text=True, timeout=_TIME_LIMIT_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return "--dependency-file" in done.stdout


@functools.cache
def assembler_lists_files(driver: str) -> bool:
    try:
        done = subprocess.run(
            [driver, "-Wa,--help", "-c", "-x", "assembler", "/dev/null", "-o", "/dev/null"],
            capture_output=True, text=True, timeout=_TIME_LIMIT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return False
    return "--MD FILE" in done.stdout
