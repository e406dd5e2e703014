"""The command line: arguments and exit codes. Everything else is imported when a command runs.

Exit codes: 0 all passed; 1 something failed; 2 the contract or the call is wrong; 3 nothing could run.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import opwright
from opwright.errors import CheckError, OpwrightError, TargetError

if TYPE_CHECKING:
    from rich.console import Console

    from opwright.results import CheckReport

__all__ = ["app", "main"]

app = typer.Typer(
    name="opwright",
    help="One operator, any kernel: prove it, time it, ship it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 all passed, 1 something failed, 2 the contract or the call is wrong, 3 nothing could run.",
)

PASSED, FAILED, WRONG_CALL, NOTHING_RAN = 0, 1, 2, 3


class Level(StrEnum):
    """How thorough a check is."""

    quick = "quick"
    full = "full"


class What(StrEnum):
    """What ``opwright show`` can show."""

    schema = "schema"
    parts = "parts"
    source = "source"
    inductor = "inductor"
    triton = "triton"
    ttir = "ttir"
    ttgir = "ttgir"
    llir = "llir"
    asm = "asm"
    ptx = "ptx"
    sass = "sass"
    resources = "resources"


Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the records to FILE.")]
Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Also write a report page to FILE.")]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"opwright {opwright.__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def check(
    targets: Annotated[
        list[str], typer.Argument(help="A file, a module, or either with :operator.", metavar="TARGET...")
    ],
    kernel: Annotated[list[str] | None, typer.Option(help="Only this kernel (repeatable).")] = None,
    device: Annotated[str | None, typer.Option(help="Only this type of device: cpu, cuda or cpu-sim.")] = None,
    level: Annotated[Level, typer.Option(help="full: more sizes and layouts, and Inductor.")] = Level.quick,
    only: Annotated[list[str] | None, typer.Option(help="Only this family of checks (repeatable).")] = None,
    case: Annotated[str, typer.Option(help="Only this case, as a failure names it.")] = "",
    require: Annotated[
        list[str] | None, typer.Option(help="A backend whose refusal is a failure (repeatable).")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds after which a step counts as hung.")] = 60.0,
    jobs: Annotated[int | None, typer.Option(help="Kernels checked at a time.")] = None,
    json: Json = None,
    html: Html = None,
) -> None:
    """Prove every kernel of an operator against its meaning."""
    report = _run_check(
        targets,
        json,
        html,
        kernels=kernel,
        device=device,
        level=level.value,
        checks=only or (),
        case=case,
        require=require or (),
        timeout=timeout,
        jobs=jobs,
    )
    raise typer.Exit(_exit_code(report))


@app.command()
def demo(
    operators: Annotated[
        list[str] | None, typer.Argument(help="Gallery operators (default: all).", metavar="[NAME...]")
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Gradients, streams, opcheck and torch.compile too: minutes.")
    ] = False,
    json: Json = None,
    html: Html = None,
) -> None:
    """Check the gallery's values on whatever this machine has, and show what was found.

    Named operators that have something of their own to show (conv1d) show it first.
    """
    import importlib

    from opwright import gallery

    modules = {module.rpartition(".")[2]: module for module in gallery.OPERATORS}
    unknown = [name for name in operators or () if name not in modules]
    if unknown:
        raise TargetError(f"the gallery has no {unknown[0]!r}", fix=f"it has {', '.join(modules)}")
    chosen = [modules[name] for name in operators or modules]
    own = [getattr(importlib.import_module(modules[name]), "demo", None) for name in operators or ()]
    agreed = False not in [demonstrate() for demonstrate in own if demonstrate is not None]
    report = _run_check(
        chosen, json, html, reference=True, checks=() if full else ("values", "metadata", "inputs unchanged")
    )
    raise typer.Exit(_exit_code(report) if agreed else FAILED)


class Direction(StrEnum):
    """Which pass is timed."""

    forward = "forward"
    backward = "backward"


@app.command()
def bench(
    targets: Annotated[
        list[str], typer.Argument(help="A file, a module, or either with :operator.", metavar="TARGET...")
    ],
    kernel: Annotated[list[str] | None, typer.Option(help="Only this kernel (repeatable).")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda (default: the GPU where there is one).")] = None,
    size: Annotated[
        list[str] | None, typer.Option(help="Sizes of a dim, as n=1024,4096; every combination is timed (repeatable).")
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Such as float16 (repeatable).")] = None,
    direction: Annotated[list[Direction] | None, typer.Option(help="Only this pass (repeatable).")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One size, fewer samples, eager alone beside it.")] = False,
    iters: Annotated[int | None, typer.Option(min=2, help="Exactly so many samples, no stop rule.")] = None,
    baseline: Annotated[Path | None, typer.Option(help="An earlier --json to compare with.")] = None,
    fail_on_slower: Annotated[
        str | None, typer.Option(help="With --baseline: exit 1 if slower by more, as 3%.")
    ] = None,
    json: Json = None,
    html: Html = None,
) -> None:
    """Time every kernel beside the meaning, eager and compiled, against the machine's limits."""
    from opwright.report.records import read_json, refuse_unwritable
    from opwright.report.terminal import TaskLine, show_bench, show_regressions
    from opwright.timing.regression import slower_than
    from opwright.timing.run import bench as run_bench

    refuse_unwritable(json, html)
    allowed = _percent(fail_on_slower)
    before = read_json(baseline, ["opwright.bench/1"]) if baseline is not None else None
    with TaskLine(_console(stderr=True)) as line:
        report = run_bench(
            *targets,
            kernels=kernel,
            device=device,
            sizes=dict(_size(text) for text in size or ()),
            dtypes=dtype or (),
            directions=[d.value for d in direction or Direction],
            quick=quick,
            iters=iters,
            progress=line.say,
        )
    show_bench(_console(), report)
    _write(report.to_json(), json, html)
    regressions = slower_than(before, report, allowed) if before is not None else []
    show_regressions(_console(), regressions)
    if not report.measurements:
        raise typer.Exit(FAILED if report.errors else NOTHING_RAN)
    raise typer.Exit(FAILED if report.errors or regressions else PASSED)


@app.command()
def tune(
    targets: Annotated[
        list[str], typer.Argument(help="A file, a module, or either with :operator.", metavar="TARGET...")
    ],
    device: Annotated[str | None, typer.Option(help="cpu or cuda (default: the GPU where there is one).")] = None,
    size: Annotated[
        list[str] | None, typer.Option(help="Sizes of a dim, as n=1024,4096; every combination is timed (repeatable).")
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Such as float16 (repeatable).")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer sizes and samples.")] = False,
    iters: Annotated[int | None, typer.Option(min=2, help="Exactly so many samples, no stop rule.")] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Forget what was tuned; measure nothing.")] = False,
    json: Json = None,
    html: Html = None,
) -> None:
    """Measure which kernel is the fastest at which sizes; calls on this machine follow that from now on."""
    from opwright.report.records import refuse_unwritable
    from opwright.report.terminal import TaskLine, show_bench
    from opwright.timing.tune import tune as run_tune

    refuse_unwritable(json, html)
    with TaskLine(_console(stderr=True)) as line:
        report = run_tune(
            *targets,
            device=device,
            sizes=dict(_size(text) for text in size or ()),
            dtypes=dtype or (),
            quick=quick,
            iters=iters,
            clear=clear,
            progress=line.say,
        )
    show_bench(_console(), report)
    _write(report.to_json(), json, html)
    if not clear and not report.crossovers:
        print("opwright: nothing was kept: no operator has two kernels that could be compared here", file=sys.stderr)
        raise typer.Exit(FAILED if report.errors else NOTHING_RAN)
    raise typer.Exit(FAILED if report.errors else PASSED)


def _size(text: str) -> tuple[str, list[int]]:
    name, _, listed = text.partition("=")
    try:
        return name, [int(part) for part in listed.split(",")]
    except ValueError:
        raise CheckError(f"--size {text!r} is not name=size,size", fix="write it like --size n=1024,4096") from None


def _percent(text: str | None) -> float:
    try:
        return float((text or "0").rstrip("%")) / 100
    except ValueError:
        raise CheckError(f"--fail-on-slower {text!r} is not a percentage", fix="write it like 3%") from None


@app.command()
def report(
    files: Annotated[
        list[Path], typer.Argument(help="Records that --json wrote (check and bench).", metavar="FILE...")
    ],
    html: Html = None,
    markdown: Annotated[Path | None, typer.Option(help="Write a comment for a pull request to this file.")] = None,
    pictures: Annotated[Path | None, typer.Option(help="Write the plots as SVG and PNG into this folder.")] = None,
) -> None:
    """Turn records into one self-contained page, a Markdown comment, or pictures."""
    from opwright.report import html as page
    from opwright.report import markdown as comment
    from opwright.report.records import read_json, write_text

    records = [read_json(file, ["opwright.check/1", "opwright.bench/1"]) for file in files]
    if html is None and markdown is None and pictures is None:
        raise CheckError("nothing was asked for", fix="add --html FILE, --markdown FILE or --pictures FOLDER")
    if html is not None:
        write_text(page.render(records), html)
    if markdown is not None:
        write_text(comment.render(records), markdown)
    if pictures is not None:
        from opwright.report.pictures import save

        for file in save(records, pictures):
            print(file)


@app.command()
def doctor(json: Json = None) -> None:
    """Say what this machine can run, and why not the rest."""
    import dataclasses

    from opwright.backends import BACKENDS, get_backend
    from opwright.machine import this_machine
    from opwright.report.records import write_json
    from opwright.report.terminal import show_doctor
    from opwright.results import Accepted

    machine = this_machine()
    probes = {name: get_backend(name).available(machine) for name in BACKENDS}
    show_doctor(_console(), {**machine.to_json(), "cache": str(machine.cache_dir)}, probes)
    if json is not None:
        backends = {n: {"accepted": isinstance(p, Accepted), **dataclasses.asdict(p)} for n, p in probes.items()}
        write_json({"schema": "opwright.doctor/1", "machine": machine.to_json(), "backends": backends}, json)


@app.command()
def prebuild(
    targets: Annotated[
        list[str], typer.Argument(help="A file, a module, or either with :operator.", metavar="TARGET...")
    ],
    kernel: Annotated[list[str] | None, typer.Option(help="Only this kernel (repeatable).")] = None,
    arch: Annotated[list[str] | None, typer.Option(help="Such as sm_90 (repeatable; default: sm_80, sm_90).")] = None,
    case: Annotated[
        list[str] | None, typer.Option(help="Sizes, where parameters follow from them: n=8 m=4 (repeatable).")
    ] = None,
) -> None:
    """Compile the Mojo GPU kernels that name a folder for PTX, for every dtype, and write the PTX there."""
    from opwright.runtime.prebuild import prebuild as write
    from opwright.runtime.targets import load_target

    written = [
        file
        for target in targets
        for operator in load_target(target)
        for file in write(operator, kernel, arch or ["sm_80", "sm_90"], case or [""])
    ]
    for path in written:
        print(path)
    raise typer.Exit(PASSED if written else NOTHING_RAN)


@app.command()
def package(
    target: Annotated[str, typer.Argument(help="A file or a module with operators.", metavar="TARGET")],
    name: Annotated[str, typer.Option(help="What the package is called, in import and for pip.")],
    out: Annotated[Path, typer.Option(help="The folder to write.", metavar="FOLDER")],
    include: Annotated[
        list[str] | None, typer.Option(help="A module beside the operators' to ship as well (repeatable).")
    ] = None,
    version: Annotated[str, typer.Option(help="The package's version.")] = "0.1.0",
    march: Annotated[
        str | None, typer.Option(help="The processors that C++ is built for (default: x86-64-v3, or armv8-a).")
    ] = None,
    wheel: Annotated[bool, typer.Option("--wheel", help="Also build a wheel, into FOLDER/dist.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Write in place of an earlier package.")] = False,
) -> None:
    """Ship a module's operators as a Python package that loads without opwright, and needs no compiler."""
    from opwright.package.report import show_packaged
    from opwright.package.write import make_package

    made = make_package(
        target, name, out, include=include or (), version=version, march=march, wheel=wheel, force=force
    )
    show_packaged(made)


@app.command()
def show(
    targets: Annotated[
        list[str],
        typer.Argument(help="A file, a module, or either with :operator; or a .cu file.", metavar="TARGET..."),
    ],
    what: Annotated[What, typer.Option(help="What to show.")] = What.schema,
    kernel: Annotated[list[str] | None, typer.Option(help="Only this kernel (repeatable).")] = None,
    arch: Annotated[str, typer.Option(help="The GPU architecture (default: this machine's, else sm_90).")] = "",
    instance: Annotated[
        list[str] | None, typer.Option(help="Of a .cu file: a template to instantiate (repeatable).")
    ] = None,
    dynamic: Annotated[bool, typer.Option("--dynamic", help="Inductor's code once sizes have changed.")] = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write to FILE.")] = None,
    diff: Annotated[
        tuple[str, str] | None, typer.Option(metavar="A B", help="Two kernels (or reference), side by side.")
    ] = None,
    before: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What -o wrote earlier, beside what there is now.")
    ] = None,
    json: Json = None,
) -> None:
    """Show an operator's schema and parts, or a kernel's source and what compilers make of it.

    The kernel called reference is the meaning itself.
    """
    from opwright.report.records import read_text, refuse_unwritable, write_json, write_text
    from opwright.report.sides import side_by_side
    from opwright.report.terminal import paged, show_text
    from opwright.runtime.show import all_of, views_of

    refuse_unwritable(json, output)
    if what in (What.schema, What.parts):
        _show_schemas(targets, json, output)
        return
    console = _console()
    views = list(
        views_of(targets, what.value, list(diff) if diff else kernel or [], arch, tuple(instance or ()), dynamic)
    )
    if diff is not None:
        views = [side_by_side(all_of(views, diff[0]), all_of(views, diff[1]), console.width)]
    elif before is not None:
        now = "\n".join(shown.text.rstrip() for _, shown in views)
        views = [side_by_side((before.name, read_text(before)), ("now", now), console.width)]
    if output is not None:
        write_text("\n".join(f"{s.text.rstrip()}\n" for _, s in views), output)
    else:
        with paged(console, sum(s.text.count("\n") for _, s in views)):
            for title, shown in views:
                show_text(console, title, shown)
    if json is not None:
        records = [{"of": t, "what": what.value, "arch": arch, "title": s.title, "text": s.text} for t, s in views]
        write_json({"schema": "opwright.show/1", "shown": records}, json)


def _show_schemas(targets: list[str], json: Path | None, output: Path | None) -> None:
    import dataclasses

    from opwright.report.records import write_json, write_text
    from opwright.report.terminal import show_parts
    from opwright.runtime.targets import load_target

    console, records = _console(**({"record": True, "file": io.StringIO()} if output is not None else {})), []
    for operator in (o for target in targets for o in load_target(target)):
        parts = operator.parts
        show_parts(console, operator.contract.qualname, operator.contract.schema, parts.values())
        console.print()
        records.append(
            {
                "op": operator.contract.qualname,
                "schema": operator.contract.schema,
                "parts": [dataclasses.asdict(p) for p in parts.values()],
                "kernels": {k.name: k.backend for k in operator.kernels.values()},
            }
        )
    if output is not None:
        write_text(console.export_text(), output)
    if json is not None:
        write_json({"schema": "opwright.show/1", "operators": records}, json)


def _run_check(targets: Sequence[str], json: Path | None, html: Path | None, **options: Any) -> CheckReport:
    from opwright.report.records import refuse_unwritable
    from opwright.report.terminal import CheckProgress, show_check

    refuse_unwritable(json, html)
    console = _console()
    with CheckProgress(_console(stderr=True)) as progress:
        from opwright.checks.run import check as run_check

        report = run_check(*targets, progress=progress.step, on_verdict=progress.done, **options)
    show_check(console, report)
    _write(report.to_json(), json, html)
    return report


def _write(record: dict[str, Any], json: Path | None, html: Path | None) -> None:
    from opwright.report.records import write_json, write_text

    if json is not None:
        write_json(record, json)
    if html is not None:
        from opwright.report.html import render

        write_text(render([record]), html)


def _exit_code(report: CheckReport) -> int:
    if any(v.status == "fail" for v in report.verdicts):
        return FAILED
    return PASSED if report.ran_anything else NOTHING_RAN


def _console(**options: Any) -> Console:
    from opwright.report.terminal import make_console

    return make_console(**options)


def main() -> None:
    """Run the command line. Our own errors are shown as they are, without a traceback."""
    try:
        app(standalone_mode=True)
    except OpwrightError as error:
        print(f"opwright: {error}", file=sys.stderr)
        sys.exit(WRONG_CALL)
    except KeyboardInterrupt:
        print("opwright: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
