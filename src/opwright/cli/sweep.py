"""The options of commands that may run on a cluster, and be taken up again: ``--ray`` and ``--resume``."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core
from rich.markup import escape

from opwright.cli.common import INTERRUPTED, console

if TYPE_CHECKING:
    from opwright.cluster import RayCluster

__all__ = ["Group", "Ray", "Resume", "Sweep", "sweep"]

_LOCAL = "local"
_ADDRESS = re.compile(r"auto|local|ray://.+|[\w.\[\]-]+:\d+")

Ray = Annotated[
    str | None,
    typer.Option(
        metavar="[ADDRESS]", help="Run on a Ray cluster: host:port or auto. Without an address, start one here."
    ),
]
Resume = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Save each result in FILE at once. Results that are in FILE are not computed again."
    ),
]


class Group(typer.core.TyperGroup):
    """The commands; ``--ray`` may stand without an address. One that is interrupted says so: click would not."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _with_address(args))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupted:
            usual = f"opwright {ctx.invoked_subcommand} has not finished; files that it has written stay"
            say(str(interrupted) or f"interrupted: {usual}")
            raise typer.Exit(INTERRUPTED) from None


def _with_address(arguments: Sequence[str]) -> list[str]:
    """The arguments, in which each ``--ray`` has an address: what follows it may be a target or an option."""
    following = [*arguments[1:], ""]
    return [
        f"--ray={_LOCAL}" if argument == "--ray" and not _ADDRESS.fullmatch(after) else argument
        for argument, after in zip(arguments, following, strict=True)
    ]


@dataclass(frozen=True)
class Sweep:
    """Where a command's work runs, and the file of what is finished."""

    executor: RayCluster | None
    resume: Path | None

    def options(self) -> dict[str, Any]:
        """The arguments for ``ow.check`` and the other functions with an executor."""
        return {"executor": self.executor, "resume": self.resume}


@contextlib.contextmanager
def sweep(ray: str | None, resume: Path | None, jobs: int | None = None, *, checks: bool = True) -> Iterator[Sweep]:
    """The cluster that ``--ray`` names, while the command runs. What differs between its machines is printed.

    Args:
        checks: whether the command checks kernels.
    """
    if ray is None:
        yield Sweep(None, resume)
        return
    from opwright.cluster import RayCluster

    with RayCluster("" if ray == _LOCAL else ray, jobs=jobs, checks=checks) as cluster:
        for difference in cluster.differences:
            console(stderr=True).print(f"[yellow]the cluster:[/] {escape(difference)}")
        yield Sweep(cluster, resume)


def say(text: str) -> None:
    console(stderr=True).print(f"opwright: {text}", markup=False, highlight=False, soft_wrap=True)
