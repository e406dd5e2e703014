"""Packages made and installed once for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.package.shipping import ALL, SOURCES, install, opwright


@pytest.fixture(scope="session")
def trig(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The gallery's sine and cosine, installed from the folder."""
    made = tmp_path_factory.mktemp("trig")
    opwright("package", "opwright.gallery.trig", "--name", "my_ops", "--out", made / "project", *ALL)
    return install(made / "project", made / "site")


@pytest.fixture(scope="session")
def mixed_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the package of sources/mixed.py, with its wheel."""
    made = tmp_path_factory.mktemp("mixed")
    command = ["package", SOURCES / "mixed.py", "--name", "mixed_ops", "--out", made / "project", "--wheel", *ALL]
    (made / "output").write_text(opwright(*command))
    return made / "project"


@pytest.fixture(scope="session")
def mixed(mixed_project: Path) -> Path:
    """The same, installed from the wheel."""
    return install(next((mixed_project / "dist").glob("*.whl")), mixed_project.parent / "site")


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Operators that write their arguments, installed from a wheel."""
    made = tmp_path_factory.mktemp("written")
    opwright("package", SOURCES / "written.py", "--name", "written_ops", "--out", made / "project", "--wheel")
    return install(next((made / "project" / "dist").glob("*.whl")), made / "site")
