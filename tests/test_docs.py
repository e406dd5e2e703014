"""The documents agree with the repository: tables of files, links, commands."""

import re

import pytest
from typer.testing import CliRunner

from opwright.cli import app
from tests import REPOSITORY
from tests.architecture import DOCUMENT, with_tables

DOCUMENTS = sorted({*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/*.md"), *REPOSITORY.glob("benchmarks/*.md")})


def test_the_tables_of_files_follow_from_the_source():
    text = DOCUMENT.read_text()
    assert text == with_tables(text), "run: python -m tests.architecture"


def test_files_in_the_pictures_of_the_architecture_exist():
    pictures = "".join(re.findall(r"(?s)```\n(.*?)```", DOCUMENT.read_text()))
    named = re.findall(r"[\w/]+\.py\b", pictures)
    assert len(named) > 30
    files = [f.as_posix() for f in (REPOSITORY / "src" / "opwright").rglob("*.py")]
    assert [n for n in named if not any(f.endswith(f"/{n}") for f in files)] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.relative_to(REPOSITORY).as_posix())
def test_links_lead_somewhere(document):
    text = re.sub(r"(?s)```.*?```|`[^`\n]*`", "", document.read_text())
    links = re.findall(r"\]\((?!\w+:)([^)#]+)", text)
    assert [link for link in links if not (document.parent / link).exists()] == []


def test_commands_in_the_readme_exist():
    text = (REPOSITORY / "README.md").read_text()
    blocks = "".join(text.split("```")[1::2])
    shown = {*re.findall(r"(?m)(?:^|&& )opwright (\w+)", blocks), *re.findall(r"[^`]`opwright (\w+)", text)}
    assert len(shown) >= 5
    for command in shown:
        assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0, command


def test_the_readme_is_short():
    assert len((REPOSITORY / "README.md").read_text().splitlines()) <= 110


def test_the_page_on_contracts_runs():
    blocks = re.findall(r"(?s)```python\n(.*?)```", (REPOSITORY / "docs" / "contracts.md").read_text())
    assert len(blocks) > 6
    scope: dict[str, object] = {"__name__": "contracts"}
    for block in blocks:
        exec(compile(block, "contracts.md", "exec"), scope)
