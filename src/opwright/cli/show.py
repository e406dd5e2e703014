"""``opwright show``, ``opwright report`` and ``opwright doctor``."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from opwright.cli.common import Html, Json, console
from opwright.errors import CheckError

__all__ = ["What", "doctor", "report", "show"]


class What(StrEnum):
    """The views of ``opwright show``."""

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


def show(
    targets: Annotated[
        list[str],
        typer.Argument(
            help="A file or a module, one operator of it (saxpy.py:saxpy), or a .cu file.", metavar="TARGET..."
        ),
    ],
    what: Annotated[What, typer.Option(help="What to show.")] = What.schema,
    kernel: Annotated[list[str] | None, typer.Option(help="Only this kernel (repeatable).")] = None,
    arch: Annotated[str, typer.Option(help="The GPU architecture (default: this machine's, else sm_90).")] = "",
    instance: Annotated[
        list[str] | None, typer.Option(help="Of a .cu file: a template to instantiate (repeatable).")
    ] = None,
    dynamic: Annotated[bool, typer.Option("--dynamic", help="Inductor's code for dynamic sizes.")] = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write to FILE.")] = None,
    diff: Annotated[
        tuple[str, str] | None, typer.Option(metavar="A B", help="Two kernels (or reference), side by side.")
    ] = None,
    before: Annotated[
        Path | None, typer.Option(metavar="FILE", help="An earlier output of -o, side by side with the current one.")
    ] = None,
    json: Json = None,
) -> None:
    """Show an operator's schema and parts, or a kernel's source and compiled code.

    The kernel called reference is the reference itself.
    """
    from opwright.report.files import read_text, refuse_unwritable, write_json, write_text
    from opwright.report.terminal.console import paged
    from opwright.report.terminal.show import show_text
    from opwright.report.terminal.side_by_side import side_by_side
    from opwright.runtime.inspect.show import all_of, views_of

    refuse_unwritable(json, output)
    if what in (What.schema, What.parts):
        _show_schemas(targets, kernel or (), json, output)
        return
    out = console()
    views = list(
        views_of(targets, what.value, list(diff) if diff else kernel or [], arch, tuple(instance or ()), dynamic)
    )
    if diff is not None:
        views = [side_by_side(all_of(views, diff[0]), all_of(views, diff[1]), out.width)]
    elif before is not None:
        now = "\n".join(shown.text.rstrip() for _, shown in views)
        views = [side_by_side((before.name, read_text(before)), ("now", now), out.width)]
    if output is not None:
        write_text("\n".join(f"{s.text.rstrip()}\n" for _, s in views), output)
    else:
        with paged(out, sum(s.text.count("\n") for _, s in views)):
            for title, shown in views:
                show_text(out, title, shown)
    if json is not None:
        records = [{"of": t, "what": what.value, "arch": arch, "title": s.title, "text": s.text} for t, s in views]
        write_json({"schema": "opwright.show/1", "shown": records}, json)


def _show_schemas(targets: list[str], kernels: Sequence[str], json: Path | None, output: Path | None) -> None:
    from opwright.report.files import write_json, write_text
    from opwright.report.terminal.show import show_parts
    from opwright.runtime.inspect.show import refuse_unknown
    from opwright.runtime.targets import load_target

    out, records = console(**({"record": True, "file": io.StringIO()} if output is not None else {})), []
    for operator in (o for target in targets for o in load_target(target)):
        refuse_unknown(operator, kernels)
        parts = operator.parts
        show_parts(out, operator.contract.qualname, operator.contract.schema, parts.values())
        out.print()
        records.append(
            {
                "op": operator.contract.qualname,
                "schema": operator.contract.schema,
                "parts": [dataclasses.asdict(p) for p in parts.values()],
                "kernels": {k.name: k.backend for k in operator.kernels.values()},
            }
        )
    if output is not None:
        write_text(out.export_text(), output)
    if json is not None:
        write_json({"schema": "opwright.show/1", "operators": records}, json)


def report(
    files: Annotated[
        list[Path], typer.Argument(help="Records written by --json (check, judge and bench).", metavar="FILE...")
    ],
    html: Html = None,
    markdown: Annotated[Path | None, typer.Option(help="Write a comment for a pull request to this file.")] = None,
    pictures: Annotated[Path | None, typer.Option(help="Write the plots as SVG and PNG into this folder.")] = None,
) -> None:
    """Make one self-contained page, a Markdown comment, or plots from records."""
    from opwright.report import html as page
    from opwright.report import markdown as comment
    from opwright.report.files import read_json, write_text

    records = [read_json(file, ["opwright.check/3", "opwright.judge/1", "opwright.bench/2"]) for file in files]
    if html is None and markdown is None and pictures is None:
        raise CheckError(
            "an output must be chosen, got none", fix="add --html FILE, --markdown FILE or --pictures FOLDER"
        )
    if html is not None:
        write_text(page.render(records), html)
    if markdown is not None:
        write_text(comment.render(records), markdown)
    if pictures is not None:
        from opwright.report.pictures.figures import save

        for file in save(records, pictures):
            print(file)


def doctor(
    json: Json = None,
    build: Annotated[
        bool, typer.Option("--build", help="Compile the extension of fast calls, once for this torch and Python.")
    ] = False,
) -> None:
    """List what this machine can run, why it cannot run the rest, and what this torch lacks."""
    from opwright.backends import get_backend
    from opwright.internals.lookup import problems
    from opwright.languages import LANGUAGES
    from opwright.machine import this_machine
    from opwright.report.files import write_json
    from opwright.report.terminal.doctor import show_doctor
    from opwright.results import Accepted
    from opwright.runtime.extensions import load_extensions, probe_fast_calls

    if build:
        load_extensions(build=True)
    machine, fast_calls = this_machine(), probe_fast_calls()
    probes = {name: get_backend(name).available(machine) for name in LANGUAGES}
    missing = [str(problem) for problem in problems()]
    show_doctor(console(), {**machine.to_json(), "cache": str(machine.cache_dir)}, probes, fast_calls, missing)
    if json is not None:
        backends = {n: {"accepted": isinstance(p, Accepted), **dataclasses.asdict(p)} for n, p in probes.items()}
        record = {
            "schema": "opwright.doctor/1",
            "machine": machine.to_json(),
            "backends": backends,
            "fast_calls": {"accepted": isinstance(fast_calls, Accepted), **dataclasses.asdict(fast_calls)},
            "lacks": missing,
        }
        write_json(record, json)
