"""The documents agree with the repository: layers, files, links, commands."""

import html
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import opwright as ow
from opwright.cli import app
from tests import REPOSITORY
from tests.architecture import DOCUMENT, files, layers_described, layers_there, summary
from tests.check_table import PAGE, with_tables
from tests.report.terminal.test_demo import make_story, shown
from tests.test_imports import LAYERS

FOLDERS = ("*.md", "docs/**/*.md", "benchmarks/*.md", "src/opwright/**/*.md")
SITE = REPOSITORY / "docs"
EXAMPLES = sorted(page for folder in ("api", "guides") for page in (SITE / folder).glob("*.md") if page.stem != "index")
DOCUMENTS = sorted({f for folder in FOLDERS for f in REPOSITORY.glob(folder) if "auto_tutorials" not in f.parts})


def test_the_table_of_layers_has_every_folder_in_the_order_of_the_import_rules():
    described = layers_described(DOCUMENT.read_text())
    assert set(described) == layers_there()
    assert [layer.rstrip("/") for layer in described] == list(LAYERS)


def test_every_file_has_a_docstring():
    assert [f.as_posix() for f in files() if not summary(f)] == []


def test_the_page_on_architecture_is_short():
    assert len(DOCUMENT.read_text().splitlines()) <= 250


def test_the_tables_of_checks_layouts_and_values_are_those_of_the_code():
    text = PAGE.read_text()
    assert text == with_tables(text), "run: python -m tests.check_table"


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


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.relative_to(REPOSITORY).as_posix())
def test_links_lead_to_headings(document):
    text = re.sub(r"(?s)```.*?```|`[^`\n]*`", "", document.read_text())
    links = re.findall(r"\]\((?!\w+:)([^)#]*)#([^)]+)\)", text)
    targets = [(document.parent / file if file else document, heading) for file, heading in links]
    assert [(file.name, heading) for file, heading in targets if heading not in headings(file)] == []


def headings(document):
    """The names of a page's headings in links, as GitHub makes them."""
    titles = re.findall(r"(?m)^#+ (.*)$", re.sub(r"(?s)```.*?```", "", document.read_text()))
    words = (re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", title).lower() for title in titles)
    return {re.sub(r"[^\w\- ]", "", text).replace(" ", "-") for text in words}


def test_the_changelog_is_short():
    assert len((REPOSITORY / "CHANGELOG.md").read_text().splitlines()) <= 60


def test_commands_in_the_readme_exist():
    text = (REPOSITORY / "README.md").read_text()
    blocks = "".join(text.split("```")[1::2])
    shown = {*re.findall(r"(?m)(?:^|&& )opwright (\w+)", blocks), *re.findall(r"[^`]`opwright (\w+)", text)}
    assert len(shown) >= 5
    for command in shown:
        assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0, command


def test_the_readme_is_short():
    assert len((REPOSITORY / "README.md").read_text().splitlines()) <= 110


def run_blocks(page, scope, folder):
    """Run a page's blocks of Python one after the other, as if they were a file of this folder, beside its C++."""
    blocks = re.findall(r"(?s)```python\n(.*?)```", page.read_text())
    for name, text in re.findall(r"(?s)```cpp\n// (\S+)\n(.*?)```", page.read_text()):
        (folder / name).write_text(text)
    for number, block in enumerate(blocks):
        file = folder / f"{page.stem}_{number}.py"
        file.write_text(block)  # kernels in Python have a source, as in a file
        exec(compile(block, file, "exec"), scope)
    return len(blocks)


def test_the_page_on_contracts_runs(tmp_path):
    assert run_blocks(REPOSITORY / "docs" / "contracts.md", {"__name__": "contracts"}, tmp_path) > 6


# Each runs a few checks, which take some seconds.
@pytest.mark.slow
@pytest.mark.parametrize("page", EXAMPLES, ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {"__name__": f"{page.parent.name}_{page.stem}".replace("-", "_")}
    run_blocks(page.parent / "index.md", scope, tmp_path)
    assert run_blocks(page, scope, tmp_path)


TUTORIALS = sorted((SITE / "tutorials").glob("*.py"))
# What each needs, by the number in its name.
TOOLS = {
    "1": ("mojo", "max", "compiler"),
    "2": ("triton", "compiler"),
    "3": ("compiler",),
    "4": ("compiler",),
    "5": ("compiler",),
    "6": ("triton", "compiler"),
    "7": ("triton",),
    "8": ("compiler",),
}


def with_its_tools(tutorial):
    marks = [getattr(pytest.mark, tool) for tool in TOOLS[tutorial.stem[0]]]
    return pytest.param(tutorial, id=tutorial.stem, marks=marks)


# Each is a page's whole program, for up to a minute. CI runs them when it builds the site.
@pytest.mark.exhaustive
@pytest.mark.parametrize("tutorial", [with_its_tools(tutorial) for tutorial in TUTORIALS])
def test_tutorials_run(tutorial, tmp_path):
    activated = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    run = subprocess.run([sys.executable, tutorial], cwd=tmp_path, env=activated, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert list(tmp_path.iterdir()) == []  # all files are in folders that are gone by now


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda t: t.stem)
def test_tutorials_say_what_the_reader_can_do_and_needs_and_link_three_pages(tutorial):
    text = re.sub(r"(?m)^# ?", "", tutorial.read_text())
    assert "\n\nAfter this tutorial you can " in text
    (extras,) = re.findall(r"``pip install -e (?:\.|'\.\[([\w,]+)\]')``", text)
    extras_of = {"triton": "triton", "mojo": "mojo", "max": "max"}  # by the marks of their tests
    assert {extras_of[tool] for tool in TOOLS[tutorial.stem[0]] if tool in extras_of} <= set(extras.split(","))
    assert ("matplotlib" in text) == ("report" in extras)
    pages = re.findall(r":doc:`/([^`]+)`", text.split("Next\n----\n")[1])
    assert len(pages) == 3
    assert [page for page in pages if not (SITE / f"{page}.md").exists()] == []


def test_each_public_name_is_in_the_reference_with_an_example():
    pages = [page.read_text() for page in EXAMPLES if page.parent.name == "api"]
    described = set(re.findall(r"(?m)^\.\. (?:auto\w+|py:data):: opwright\.(\w+)", "".join(pages)))
    assert set(ow.__all__) - described == {"__version__"}
    examples = "".join(re.findall(r"(?s)```python\n(.*?)```", "".join(pages)))
    assert {name for name in described if not re.search(rf"\bow\.{name}\b", examples)} == set()


PICTURES = SITE / "pictures"
MADE = sorted(picture.stem for picture in PICTURES.glob("*.svg"))


@pytest.fixture(scope="module")
def maker():
    """What docs/make_pictures.py defines."""
    return SimpleNamespace(**runpy.run_path(str(SITE / "make_pictures.py")))


def texts_of(svg):
    """The texts of a picture, without spaces and the times of checks."""
    texts = (html.unescape(text) for text in re.findall(r"<text[^>]*>([^<]*)</text>", svg))
    return re.sub(r"\s", "", re.sub(r"\b[\d.]+\s(?=s\b)", "", "".join(texts)))


# A check in a simulator takes some seconds.
@pytest.mark.parametrize(
    "name",
    ["bench", "times", "roofline", *(pytest.param(name, marks=pytest.mark.slow) for name in ("finding", "check"))],
)
def test_a_picture_is_what_its_command_shows(name, maker):
    assert texts_of((PICTURES / f"{name}.svg").read_text()) == texts_of(maker.picture(name))


def test_the_picture_of_the_demo_has_its_parts(maker):
    parts = [line for line in shown(make_story(missing=())).splitlines()[1:] if re.match(r"[A-Z✗]", line)]
    assert len(parts) >= 4
    drawn = texts_of((PICTURES / "demo.svg").read_text())
    places = [drawn.find(texts_of(f"<text>{part.partition(':')[0]}</text>")) for part in parts]
    assert -1 not in places, dict(zip(parts, places, strict=True))
    assert places == sorted(places)


@pytest.mark.parametrize("name", MADE)
def test_a_picture_is_small_and_shown_on_a_page(name):
    assert (PICTURES / f"{name}.svg").stat().st_size <= 60_000
    assert [page.name for page in DOCUMENTS if f"pictures/{name}.svg" in page.read_text()] != []


def test_every_page_is_in_the_site_once():
    pages = {page.relative_to(SITE).with_suffix("").as_posix() for page in SITE.rglob("*.md")} - {"index"}
    pages = {page for page in pages if not page.startswith(("tutorials/", "auto_tutorials/"))}
    listed = [
        (page.parent.relative_to(SITE) / name).as_posix()
        for page in SITE.rglob("*.md")
        for toctree in re.findall(r"(?s)```\{toctree\}\n(.*?)```", page.read_text())
        for name in toctree.split("\n")
        if name and not name.startswith((":", "auto_"))
    ]
    assert sorted(listed) == sorted(pages)
