"""``opwright bench`` and ``opwright tune``."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from opwright.cli.common import FAILED, NOTHING_RAN, PASSED, Html, Json, Targets, console, refuse_files, write_records
from opwright.cli.sweep import Ray, Resume, say, sweep
from opwright.errors import CheckError
from opwright.sweep.events import Events

__all__ = ["bench", "tune"]

Device = Annotated[str | None, typer.Option(help="cpu or cuda (default: the GPU, if there is one).")]
Size = Annotated[
    list[str] | None, typer.Option(help="Sizes of a dim: n=1024,4096. Every combination is timed (repeatable).")
]
Dtype = Annotated[list[str] | None, typer.Option(help="Only this dtype, such as float16 (repeatable).")]
Iters = Annotated[int | None, typer.Option(min=2, help="Take exactly this many samples.")]


class Direction(StrEnum):
    """Which pass is timed."""

    forward = "forward"
    backward = "backward"


def bench(
    targets: Targets,
    kernel: Annotated[list[str] | None, typer.Option(help="Only this kernel (repeatable).")] = None,
    device: Device = None,
    size: Size = None,
    dtype: Dtype = None,
    direction: Annotated[list[Direction] | None, typer.Option(help="Only this pass (repeatable).")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One size, fewer samples, no torch.compile.")] = False,
    iters: Iters = None,
    baseline: Annotated[
        Path | None, typer.Option(help="A file that an earlier --json has written, to compare with.")
    ] = None,
    fail_on_slower: Annotated[
        str | None,
        typer.Option(help="With --baseline: exit with 1 if a kernel is slower by more than this, such as 3%."),
    ] = None,
    inputs: Annotated[Path | None, typer.Option(help="Time recorded calls only: a file of ow.capture.")] = None,
    ray: Ray = None,
    resume: Resume = None,
    no_limits: Annotated[
        bool, typer.Option("--no-limits", help="Leave out the machine's limits, whose first measurement takes long.")
    ] = False,
    calls: Annotated[
        bool, typer.Option("--calls", help="Time the host's part of a call instead, for each way to call.")
    ] = False,
    json: Json = None,
    html: Html = None,
) -> None:
    """Time every kernel and the reference, eager and compiled, beside the machine's roofline limits."""
    if calls:
        _refuse_with_calls(
            html=html, iters=iters, baseline=baseline, fail_on_slower=fail_on_slower, direction=direction,
            ray=ray, resume=resume, no_limits=no_limits or None, inputs=inputs,
        )  # fmt: skip
        _bench_calls(targets, kernel, device, size, dtype, quick=quick, json=json)
    from opwright.report.files import read_json
    from opwright.report.terminal.bench import show_bench, show_regressions
    from opwright.report.terminal.progress import TaskLine
    from opwright.timing.analysis.regression import on_other_devices, slower_than
    from opwright.timing.run import bench as run_bench

    refuse_files(json, html)
    allowed = _percent(fail_on_slower)
    before = read_json(baseline, ["opwright.bench/2"]) if baseline is not None else None
    with sweep(ray, resume, checks=False) as where, TaskLine(console(stderr=True)) as line:
        report = run_bench(
            *targets,
            kernels=kernel,
            device=device,
            sizes=dict(parse_size(text) for text in size or ()),
            dtypes=dtype or (),
            directions=[d.value for d in direction or Direction],
            quick=quick,
            iters=iters,
            limits=not no_limits,
            inputs=inputs,
            events=Events(step=line.on_message, resumed=say),
            **where.options(),
        )
    show_bench(console(), report)
    write_records(report.to_json(), json, html)
    regressions = slower_than(before, report, allowed) if before is not None else []
    for text in on_other_devices(before, report) if before is not None else ():
        print(f"opwright: {text}", file=sys.stderr)
    show_regressions(console(), regressions)
    if not report.measurements:
        raise typer.Exit(FAILED if report.errors else NOTHING_RAN)
    raise typer.Exit(FAILED if report.errors or regressions else PASSED)


def _refuse_with_calls(**options: object) -> None:
    for name, value in options.items():
        if value is not None:
            option = f"--{name.replace('_', '-')}"
            raise CheckError(
                f"{option} must be left out with --calls, got {value}", fix=f"leave out {option}, or --calls"
            )


def _bench_calls(
    targets: list[str], kernels: list[str] | None, device: str | None, size: list[str] | None, dtype: list[str] | None,
    *, quick: bool, json: Path | None,
) -> NoReturn:  # fmt: skip
    from opwright.report.terminal.calls import show_calls
    from opwright.report.terminal.progress import TaskLine
    from opwright.timing.run import bench

    refuse_files(json, None)
    sizes = dict(parse_size(text) for text in size or ())
    with TaskLine(console(stderr=True)) as line:
        report = bench(
            *targets, calls=True, kernels=kernels, device=device, sizes=sizes, dtypes=dtype or (), quick=quick,
            events=Events(step=line.on_message),
        )  # fmt: skip
    show_calls(console(), report)
    write_records(report.to_json(), json, None)
    raise typer.Exit(FAILED if report.errors else PASSED if report.operators else NOTHING_RAN)


def tune(
    targets: Targets,
    device: Device = None,
    size: Size = None,
    dtype: Dtype = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer sizes and samples.")] = False,
    iters: Iters = None,
    ray: Ray = None,
    resume: Resume = None,
    clear: Annotated[bool, typer.Option("--clear", help="Remove earlier results; measure nothing.")] = False,
    export: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also add the tables to FILE, for op.use_tuning.")
    ] = None,
    json: Json = None,
    html: Html = None,
) -> None:
    """Measure which kernel is fastest at which size. Later calls on this machine use it."""
    from opwright.report.terminal.bench import show_bench
    from opwright.report.terminal.progress import TaskLine
    from opwright.timing.tune import tune as run_tune

    refuse_files(json, html)
    with sweep(ray, resume, checks=False) as where, TaskLine(console(stderr=True)) as line:
        report = run_tune(
            *targets,
            device=device,
            sizes=dict(parse_size(text) for text in size or ()),
            dtypes=dtype or (),
            quick=quick,
            iters=iters,
            clear=clear,
            export=export,
            events=Events(step=line.on_message, resumed=say),
            **where.options(),
        )
    show_bench(console(), report)
    write_records(report.to_json(), json, html)
    if not clear and not report.crossovers:
        print("opwright: nothing was stored: no operator has two kernels that can be compared here", file=sys.stderr)
        raise typer.Exit(FAILED if report.errors else NOTHING_RAN)
    raise typer.Exit(FAILED if report.errors else PASSED)


def parse_size(text: str) -> tuple[str, list[int | tuple[int, ...]]]:
    """``n=1024,64x1024`` as what ``ow.bench`` takes: sizes of one dim, with ``x`` between the axes of a ``*n`` dim."""
    name, _, sizes = text.partition("=")
    try:
        return name, [_one_size(part) for part in sizes.split(",")]
    except ValueError:
        raise CheckError(
            f"--size must be name=size,size, got {text!r}",
            fix="write it like --size n=1024,4096, or --size n=64x1024 for two axes of a *n dim",
        ) from None


def _one_size(text: str) -> int | tuple[int, ...]:
    axes = [int(axis) for axis in text.split("x")]
    return tuple(axes) if len(axes) > 1 else axes[0]


def _percent(text: str | None) -> float:
    try:
        return float((text or "0").rstrip("%")) / 100
    except ValueError:
        raise CheckError(f"--fail-on-slower must be a percentage, got {text!r}", fix="write it like 3%") from None
