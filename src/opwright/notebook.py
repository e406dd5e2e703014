"""The cell magic ``%%opwright cuda|cpp|triton``: a kernel in a cell of a notebook, attached and checked.

It is there after ``%load_ext opwright``.
"""

from __future__ import annotations

import argparse
import hashlib
import shlex
from pathlib import Path
from typing import Any, NoReturn

from opwright.backends.build_tools import build_tools
from opwright.errors import OpwrightError

__all__ = ["load_ipython_extension", "run_cell"]

_SUFFIXES = {"cuda": ".cu", "cpp": ".cpp", "triton": ".py"}


class _Arguments(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise OpwrightError(
            f"%%opwright must be called as {' '.join(self.format_usage().split()[1:])}, got: {message}",
            fix="name a language and an operator of the notebook: %%opwright cuda saxpy",
        )


def _parser() -> _Arguments:
    parser = _Arguments(prog="%%opwright", add_help=False)
    parser.add_argument("language", choices=[*_SUFFIXES])
    parser.add_argument("operator")
    parser.add_argument("--name", help="the kernel's name; by default, the language")
    parser.add_argument("--entry", help="the function in the cell; by default, the operator's name")
    parser.add_argument("--device")
    parser.add_argument("--level", default="quick")
    parser.add_argument("--check", action="append", default=[])
    return parser


def run_cell(line: str, cell: str, names: dict[str, Any]) -> Any:
    """Attach the kernel of a cell to an operator, and check it.

    Args:
        line: what follows ``%%opwright``.
        names: the notebook's.

    Returns:
        The report of ``ow.check``.

    Raises:
        OpwrightError: the line is wrong, there is no such operator, or the kernel cannot be attached.
    """
    from opwright.checks.run import check
    from opwright.runtime.op import Op

    given = _parser().parse_args(shlex.split(line))
    operator = names.get(given.operator)
    if not isinstance(operator, Op):
        known = [name for name, value in names.items() if isinstance(value, Op)]
        raise OpwrightError(
            f"the operator must be one of the notebook, {', '.join(known) or 'which has none'}, got {given.operator!r}",
            fix="define it with @ow.op in a cell before this one",
        )
    name = given.name or given.language
    file = _written(given.language, operator.contract.name, cell)
    getattr(operator, given.language)(str(file), name=name, entry=given.entry or operator.contract.name)
    return check(operator, kernels=[name], device=given.device, level=given.level, checks=given.check)


def _written(language: str, operator: str, cell: str) -> Path:
    """The cell in a file of the cache folder, where compilers and workers find it. Another text is another file."""
    folder = build_tools().cache.root / "cells"
    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(cell.encode()).hexdigest()[:12]
    file = folder / f"{operator}_{digest}{_SUFFIXES[language]}"
    file.write_text(cell)
    return file


def load_ipython_extension(ipython: Any) -> None:
    """Register the magic; IPython calls it for ``%load_ext opwright``."""
    from IPython.core.error import UsageError
    from IPython.display import HTML

    from opwright.report.html import notebook as as_html

    def opwright(line: str, cell: str) -> Any:
        try:
            return HTML(as_html(run_cell(line, cell, ipython.user_ns)))  # type: ignore[no-untyped-call,unused-ignore]
        except OpwrightError as error:
            raise UsageError(str(error)) from None

    ipython.register_magic_function(opwright, magic_kind="cell", magic_name="opwright")
