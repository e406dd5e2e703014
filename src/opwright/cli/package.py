"""``opwright prebuild`` and ``opwright package``."""

from __future__ import annotations

import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from opwright.cli.common import NOTHING_RAN, PASSED, Targets

__all__ = ["package", "prebuild"]


class Layout(StrEnum):
    """A second form of a package."""

    kernels = "kernels"


class Host(StrEnum):
    """Where a package's workflow runs."""

    github = "github"


def prebuild(
    targets: Targets,
    kernel: Annotated[list[str] | None, typer.Option(help="Only this kernel (repeatable).")] = None,
    arch: Annotated[
        list[str] | None, typer.Option(help="A GPU architecture, such as sm_90 (repeatable; default: sm_80, sm_90).")
    ] = None,
    case: Annotated[
        list[str] | None, typer.Option(help="Sizes, if parameters depend on them: n=8 m=4 (repeatable).")
    ] = None,
) -> None:
    """Compile Mojo kernels to PTX in the folder that their prebuilt= names, for every dtype."""
    from opwright.package.prebuild import prebuild as write
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


def package(
    target: Annotated[str, typer.Argument(help="A file or a module with operators.", metavar="TARGET")],
    name: Annotated[str, typer.Option(help="The package's name, for import and for pip.")],
    out: Annotated[Path, typer.Option(help="The folder to write.", metavar="FOLDER")],
    include: Annotated[
        list[str] | None, typer.Option(help="Another module of the same folder to include (repeatable).")
    ] = None,
    version: Annotated[str, typer.Option(help="The package's version.")] = "0.1.0",
    march: Annotated[
        str | None, typer.Option(help="The processors for which C++ is built (default: x86-64-v3, or armv8-a).")
    ] = None,
    wheel: Annotated[bool, typer.Option("--wheel", help="Also build a wheel, into FOLDER/dist.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier package.")] = False,
    allow_missing: Annotated[
        list[str] | None,
        typer.Option(
            help="Leave out kernels of this language that cannot be packaged, or all (repeatable).", metavar="LANGUAGE"
        ),
    ] = None,
    license: Annotated[str, typer.Option(help="The package's licence, an SPDX expression such as MIT.")] = "",
    license_file: Annotated[
        list[Path] | None,
        typer.Option(
            help="A file with the licence's text (repeatable; default: LICENSE and the like beside the module)."
        ),
    ] = None,
    layout: Annotated[
        Layout | None,
        typer.Option(help="kernels: also write FOLDER/kernels, which Hugging Face's kernels library loads."),
    ] = None,
    ci: Annotated[
        Host | None,
        typer.Option(help="github: also write .github/workflows/package.yml here, which builds and tests wheels."),
    ] = None,
) -> None:
    """Write a Python package of a module's operators. Its users need neither opwright nor a compiler."""
    from opwright.package.ci import write_workflow
    from opwright.package.report import show_packaged
    from opwright.package.write import make_package

    made = make_package(
        target, name, out, include=include or (), version=version, march=march, wheel=wheel, force=force,
        allow_missing=allow_missing or (), license=license, license_files=license_file or (),
        kernels_layout=layout is not None,
    )  # fmt: skip
    show_packaged(made)
    if ci is not None:
        given: list[object] = [target, "--name", name, "--out", out, "--version", version]
        options = {"--include": include, "--allow-missing": allow_missing, "--license-file": license_file}
        given += [part for option, values in options.items() for value in values or () for part in (option, value)]
        given += [part for option, value in {"--march": march, "--license": license}.items() if value
                  for part in (option, value)]  # fmt: skip
        native = any(k.library for k in made.shipped)
        one = any(k.holds_for_one_torch for k in made.shipped)
        file = write_workflow(
            Path.cwd(), shlex.join(map(str, given)), name, has_libraries=native, force=force, holds_for_one_torch=one,
            holds_for_one_python=any(k.holds_for_one_python for k in made.shipped),
        )  # fmt: skip
        print(file)
