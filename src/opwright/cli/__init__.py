"""The command line: arguments and exit codes. Everything else is imported when a command runs.

Exit codes: 0 passed; 1 something failed; 2 the contract or the call is wrong; 3 nothing could run; 4 nothing failed,
but something did not end in time; 130 interrupted.
"""

from __future__ import annotations

import gc
import io
import sys
import traceback
from typing import Annotated, NoReturn

import typer

import opwright
from opwright.cli.check import check
from opwright.cli.common import FAILED, INTERRUPTED, PASSED, WRONG_CALL
from opwright.cli.daemon import daemon
from opwright.cli.demo import demo
from opwright.cli.development.new import new
from opwright.cli.development.watch import watch
from opwright.cli.explain import explain
from opwright.cli.judge import judge
from opwright.cli.package import package, prebuild
from opwright.cli.port import port
from opwright.cli.selftest import selftest
from opwright.cli.show import doctor, report, show
from opwright.cli.sweep import Group
from opwright.cli.timing import bench, tune
from opwright.errors import OpwrightError
from opwright.workers.supervised_command import run_supervised

__all__ = ["app", "read_arguments_once", "run"]

app = typer.Typer(
    cls=Group,
    name="opwright",
    help="One operator, any kernel: verify it, time it, ship it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 passed, 1 something failed, 2 the contract or the call is wrong, 3 nothing could run, "
    "4 nothing failed, but something did not end in time, 130 interrupted.",
)
# In the order of ``opwright --help``.
for command in (
    new,
    check,
    watch,
    judge,
    explain,
    demo,
    bench,
    tune,
    selftest,
    daemon,
    report,
    doctor,
    prebuild,
    package,
    port,
    show,
):
    app.command()(command)


def _version(requested: bool) -> None:
    if requested:
        print(f"opwright {opwright.__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def read_arguments_once() -> None:
    """Import what typer imports only when it reads arguments, for forks of this process."""
    group = typer.main.get_command(app)
    assert isinstance(group, Group)  # as the app says
    context = group.make_context("opwright", ["check"], resilient_parsing=True)
    chosen = group.get_command(context, "check")
    assert chosen is not None
    chosen.make_context("check", ["a.py"], parent=context, resilient_parsing=True)


# Ray ends whoever uses it when its own processes on this machine are gone.
_RAY = (
    "Ray, whose processes on this machine are gone, or by a file that it imported.\n"
    "  → repeat the command; with --resume FILE, it goes on from what is finished"
)


def run() -> NoReturn:
    """Run the command line in a process of its own (see ``supervise.py``)."""
    is_on_ray = any(argument.split("=")[0] == "--ray" for argument in sys.argv)
    run_supervised(_run, FAILED, INTERRUPTED, _RAY if is_on_ray else "a file that it imported")


def _run() -> int:
    """The exit code of the command line. opwright's own errors are shown without a traceback."""
    gc.set_threshold(50_000, 20, 50)  # torch's modules are some million objects, among which there is no garbage
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names and paths may hold what the terminal's encoding does not
            stream.reconfigure(errors="backslashreplace")
    try:
        app(standalone_mode=True)
    except OpwrightError as error:
        print(f"opwright: {error}", file=sys.stderr)
        return WRONG_CALL
    except KeyboardInterrupt:  # another is said where the command is known (``Group``)
        print("opwright: interrupted before the command began", file=sys.stderr)
        return INTERRUPTED
    except SystemExit as leaving:  # how typer ends a command
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except Exception:
        traceback.print_exc()
        return FAILED
    return PASSED
