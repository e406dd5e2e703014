"""Writes the other files of a package: its ``__init__``, its metadata, and the manifest."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from opwright.contract.dtypes import short
from opwright.languages import LANGUAGES
from opwright.package.kernels import LeftOut, ShippedKernel
from opwright.package.shipped.manifest import FORMAT
from opwright.package.sources import SourceModule, public_names
from opwright.results import Crossover
from opwright.runtime.op import Op

__all__ = ["init_text", "licence_text", "manifest_text", "pyproject_text", "readme_text", "setup_text"]


def init_text(version: str, public: Sequence[SourceModule], operators: Sequence[Op]) -> str:
    """The package's ``__init__``: every operator, and the other public names of the selected modules."""
    shown = ", ".join(o.contract.qualname for o in operators)
    taken: dict[str, list[str]] = {}
    for module in public:
        mine = [o for o in operators if o.contract.module == module.name and _has_own_name(o)]
        names = {*(public_names(module.text) or ()), *(o.contract.name for o in mine)}
        taken[module.shipped] = sorted(names.difference(*taken.values()))
    imports = "".join(f"from {module} import {', '.join(names)}\n" for module, names in taken.items() if names)
    listed = ", ".join(f'"{name}"' for name in sorted(name for names in taken.values() for name in names))
    return f'"""PyTorch operators: {shown}."""\n\n{imports}\n__all__ = [{listed}]\n__version__ = "{version}"\n'


def _has_own_name(operator: Op) -> bool:
    """Whether the operator's variable in its module has the operator's own name."""
    return operator.contract.function.__name__ == operator.contract.name


def manifest_text(operators: Iterable[Op], kernels: Iterable[ShippedKernel | LeftOut]) -> str:
    """The manifest, which the shipped operators read when they are imported (``shipped/manifest.py``)."""
    shipped = [k for k in kernels if isinstance(k, ShippedKernel)]
    record = {
        "format": FORMAT,
        "languages": sorted(LANGUAGES),
        "operators": {
            o.contract.qualname: {
                "schema": o.contract.schema,
                "kernels": {k.spec.name: k.record for k in shipped if k.operator is o},
                "tuning": [_table(each) for each in o._shipped_tuning()],
            }
            for o in operators
        },
    }
    return json.dumps(record, indent=2) + "\n"


def _table(table: Crossover) -> dict[str, Any]:
    ranges = [{"below": each.below, "kernel": each.kernel} for each in table.ranges]
    return {"device": table.device_name, "dtype": table.dtype, "measured": table.measured, "ranges": ranges}


def pyproject_text(package: str, version: str, operators: Sequence[Op], needed: list[str], extra: bool) -> str:
    """The metadata. It states no licence: that is the user's decision (``licence_text``)."""
    shown = ", ".join(o.contract.qualname for o in operators)
    triton = '\n[project.optional-dependencies]\ntriton = ["triton>=3.4"]\n' if extra else ""
    return f"""\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{package}"
version = "{version}"
description = "PyTorch operators: {shown}"
readme = "README.md"
requires-python = ">=3.11"
dependencies = {json.dumps(needed)}
{triton}
[tool.setuptools.packages.find]
include = ["{package}", "{package}.*"]

[tool.setuptools.package-data]
"*" = ["*.json", "*.so", "LICENSE", "py.typed"]
"""


def licence_text(expression: str, files: Sequence[str]) -> str:
    """The lines of the metadata that state the licence, as far as the package's author names one."""
    stated = f"license = {json.dumps(expression)}\n" if expression else ""
    return stated + (f"license-files = {json.dumps(list(files))}\n" if files else "")


def setup_text(platform_tag: str, python: str = "") -> str:
    """The setup.py of a package with libraries: its wheel is for one kind of machine, and any Python.

    Args:
        python: the tag of the only Python whose interface the libraries use, such as cp311.
    """
    tags = (python, python, platform_tag) if python else ("py3", "none", platform_tag)
    return f'''\
"""The tag of the wheel, which setuptools takes from code only: libraries for one kind of machine."""

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel


class WithLibraries(Distribution):
    def has_ext_modules(self):
        return True


class WheelWithLibraries(bdist_wheel):
    def get_tag(self):
        return {", ".join(f'"{tag}"' for tag in tags)}


setup(distclass=WithLibraries, cmdclass={{"bdist_wheel": WheelWithLibraries}})
'''


def readme_text(package: str, operators: Sequence[Op], kernels: Sequence[ShippedKernel | LeftOut]) -> str:
    """The package's description: its operators, the kernels of each, and where each can run."""
    lines = [f"# {package}", "", "PyTorch operators. Where no kernel is applicable, the reference runs.", ""]
    for operator in operators:
        mine = [k for k in kernels if isinstance(k, ShippedKernel) and k.operator is operator]
        lines += [f"## `{operator.contract.qualname}{operator.contract.schema}`", ""]
        lines += ["| kernel | language | devices | dtypes | in C++ programs |", "|---|---|---|---|---|"] if mine else []
        lines += [_row(kernel) for kernel in mine]
        lines += [] if mine else ["No kernel: the reference runs."]
        tuned_on = dict.fromkeys(table.device_name for table in operator._shipped_tuning())
        lines += ["", f"The fastest kernel by size was measured on: {', '.join(tuned_on)}."] if tuned_on else []
        missing = [k for k in kernels if isinstance(k, LeftOut) and k.qualname == operator.contract.qualname]
        lines += ["", *(f"Left out: {k.kernel} ({k.language}), as {k.why}." for k in missing)] if missing else []
        lines.append("")
    return "\n".join(lines)


def _row(kernel: ShippedKernel) -> str:
    spec = kernel.spec
    dtypes = "all" if spec.dtypes is None else ", ".join(map(short, spec.dtypes))
    if kernel.library is None:
        native = "no: it is Python"
    else:
        native = "yes" if spec.when is None else "no: it has a condition in Python"
    return f"| {spec.name} | {spec.backend} | {', '.join(spec.devices)} | {dtypes} | {native} |"
