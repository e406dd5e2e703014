"""``opwright package --ci github``: the workflow that builds, tests and publishes a package."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from opwright.errors import CheckError

__all__ = ["TORCH_VERSIONS", "write_workflow"]

# The releases of torch with which a package is tested; of a package on ATen, for each of which a wheel is built.
TORCH_VERSIONS = ("2.11", "2.12", "2.13", "2.14", "2.15")
# Those with which it is tested; and for each of which a wheel is built, if a source uses Python's own interface.
_TESTED_PYTHONS, _PYTHONS = ("3.11", "3.13"), ("3.11", "3.12", "3.13")
_FILE = Path(".github", "workflows", "package.yml")


def write_workflow(
    folder: Path,
    command: str,
    name: str,
    *,
    holds_for_one_torch: bool,
    has_libraries: bool,
    force: bool,
    holds_for_one_python: bool = False,
) -> Path:
    """Write the workflow into a repository's folder.

    Args:
        command: how ``opwright package`` was called, without its program.
        holds_for_one_torch: build a wheel for each release of torch.
        holds_for_one_python: build a wheel for each Python.

    Raises:
        CheckError: there is such a file.
    """
    file = folder / _FILE
    if file.exists() and not force:
        raise CheckError(f"{file} exists", fix="move it away, or replace it with --force")
    file.parent.mkdir(parents=True, exist_ok=True)
    machines = ["ubuntu-24.04", "ubuntu-24.04-arm"] if has_libraries else ["ubuntu-24.04"]
    file.write_text(_workflow(command, name, machines, holds_for_one_torch, holds_for_one_python))
    return file


def _workflow(
    command: str, name: str, machines: list[str], holds_for_one_torch: bool, holds_for_one_python: bool
) -> str:
    builds = TORCH_VERSIONS if holds_for_one_torch else TORCH_VERSIONS[-1:]
    pythons = _PYTHONS if holds_for_one_python else ("3.12",)
    tested_pythons = _PYTHONS if holds_for_one_python else _TESTED_PYTHONS
    tested = TORCH_VERSIONS if holds_for_one_torch else (TORCH_VERSIONS[0], TORCH_VERSIONS[-1])
    artifact = "wheel-${{ matrix.machine }}" + "-torch${{ matrix.torch }}" * holds_for_one_torch
    artifact += "-python${{ matrix.python }}" * holds_for_one_python
    module = shlex.quote(shlex.split(command)[0])
    publish = _publish(holds_for_one_torch)
    return f"""\
# Written by opwright package --ci github. It builds {name} for each kind of machine, tests the wheels with the oldest
# and the newest torch, and publishes them when a version is tagged.
name: package
on:
  push:
    tags: ["v*"]
  pull_request:
  workflow_dispatch:
permissions:
  contents: read
jobs:
  build:
    runs-on: ${{{{ matrix.machine }}}}
    strategy:
      matrix:
        machine: [{", ".join(machines)}]
        torch: [{", ".join(f'"{v}"' for v in builds)}]
        python: [{", ".join(f'"{v}"' for v in pythons)}]
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: ${{{{ matrix.python }}}}
      - run: pip install "torch==${{{{ matrix.torch }}}}.*" --index-url https://download.pytorch.org/whl/cpu
      - run: pip install "opwright[package]"
      - run: {_yaml(f"opwright check {module}")}
      - run: {_yaml(f"opwright package {command} --wheel --force")}
      - uses: actions/upload-artifact@v4
        with:
          name: {artifact}
          path: "**/dist/*.whl"
  test:
    needs: build
    runs-on: ${{{{ matrix.machine }}}}
    strategy:
      matrix:
        machine: [{", ".join(machines)}]
        torch: [{", ".join(f'"{v}"' for v in tested)}]
        python: [{", ".join(f'"{v}"' for v in tested_pythons)}]
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: ${{{{ matrix.python }}}}
      - uses: actions/download-artifact@v4
        with:
          name: {artifact}
          path: wheels
      - run: pip install "torch==${{{{ matrix.torch }}}}.*" --index-url https://download.pytorch.org/whl/cpu
      - run: pip install $(find wheels -name "*.whl") pytest
      - run: python -c "import {name}; print({name}.__version__, {name}.__all__)"
      - run: if [ -d tests ]; then pytest tests; fi
{publish}"""


def _yaml(text: str) -> str:
    """A text as it may stand in YAML: in quotes, where what the author typed would end it or begin a comment."""
    is_plain = text.isprintable() and not (": " in text or " #" in text or text.endswith(":"))
    return text if is_plain else json.dumps(text)


def _publish(holds_for_one_torch: bool) -> str:
    if holds_for_one_torch:  # their versions name torch's release, which PyPI does not take
        return """\
  publish:
    if: startsWith(github.ref, 'refs/tags/v')
    needs: test
    runs-on: ubuntu-24.04
    permissions:
      contents: write
    steps:
      - uses: actions/download-artifact@v4
        with:
          path: dist
          merge-multiple: true
      - run: gh release create "$GITHUB_REF_NAME" $(find dist -name "*.whl") --generate-notes
        env:
          GH_REPO: ${{ github.repository }}
          GH_TOKEN: ${{ github.token }}
"""
    return """\
  publish:
    if: startsWith(github.ref, 'refs/tags/v')
    needs: test
    runs-on: ubuntu-24.04
    environment: pypi
    permissions:
      id-token: write  # trusted publishing: PyPI knows this workflow, and there is no password
    steps:
      - uses: actions/download-artifact@v4
        with:
          path: downloaded
          merge-multiple: true
      - run: mkdir dist && find downloaded -name "*.whl" -exec mv {} dist/ \\;
      - uses: pypa/gh-action-pypi-publish@release/v1
"""
