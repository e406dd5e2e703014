"""Every number of a page is computed from the code (``claims.py``), or stands in a record that its section cites.

Not seen are numbers in words, except where ``claims.py`` has them. A record with many values may have a number by
chance.
"""

from __future__ import annotations

import functools
import importlib
import re
from importlib.util import find_spec

import pytest
from typer.main import get_command

from kernelsim import command as kernelsim_command
from opwright.checks.check import LEVELS
from opwright.cli import app
from opwright.report.statuses import LOOKS
from opwright.results import Status
from tests import REPOSITORY
from tests.claims import DEFINITIONS, claims
from tests.numbers import in_records, numbers, plain, sections

pytest.importorskip("numba")  # the page on NumPy states limits of its backend

# Pages of the simulators follow with these; of others, every number counts.
_OWN_NUMBERS = ("docs/simulator.md", "docs/triton-on-a-cpu.md")
PAGES = [
    *(f.name for f in sorted(REPOSITORY.glob("*.md"))),
    *(f"docs/{f.name}" for f in sorted(REPOSITORY.glob("docs/*.md"))),
    "src/opwright/fast_path/README.md",
]
_computed = functools.cache(claims)


@functools.cache
def text_of(page: str) -> str:
    return (REPOSITORY / page).read_text()


def test_what_is_claimed_is_what_the_code_and_the_records_say():
    stale = [c for c in _computed() if plain(c.text) not in plain(text_of(c.page))]
    assert stale == []


@pytest.mark.parametrize("page", PAGES)
def test_every_number_has_a_claim_or_a_record(page):
    known = [*(c.text for c in _computed() if c.page == page), *DEFINITIONS.get(page, ())]
    open_numbers = []
    for section in sections(text_of(page)):
        if page in _OWN_NUMBERS and not section.records:
            continue
        text = plain_with_rows(section.text)
        for each in sorted(known, key=len, reverse=True):
            text = text.replace(plain(each), " ")
        for paragraph in text.split("\n"):
            if page not in _OWN_NUMBERS or "benchmarks/results/" in paragraph:
                open_numbers += [n.around for n in numbers(paragraph) if not in_records(n, section.records)]
    assert open_numbers == []


def plain_with_rows(text: str) -> str:
    """Paragraphs in one line each, so that claims are found across the ends of lines; headings stay lines."""
    return "\n".join(plain(part) for part in re.split(r"\n\s*\n|\n(?=#|\d+\. )", text))


def test_definitions_are_in_their_pages():
    assert [t for page, texts in DEFINITIONS.items() for t in texts if plain(t) not in plain(text_of(page))] == []


def test_the_table_of_verdicts_is_that_of_the_reports():
    table = text_of("docs/checking.md").partition("| verdict | mark |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in row.split("|")[1:4]] for row in table.splitlines()[2:]]
    assert rows == [[status.name, LOOKS[status].mark, LOOKS[status].meaning] for status in Status]


def test_levels_are_those_of_the_code():
    table = text_of("docs/checking.md").partition("| level |")[2].partition("\n\n")[0]
    assert tuple(re.findall(r"--level (\w+)", table)) == LEVELS


@pytest.mark.parametrize("page", PAGES)
def test_files_that_a_page_names_exist(page):
    text = re.sub(r"(?s)```.*?```", "", text_of(page))
    paths = set(re.findall(r"`([\w.-]+(?:/[\w.-]+)+/?)`", text))
    names = set(re.findall(r"`([\w-]+\.(?:py|cu|cuh|h|cpp|mojo|sh|txt|toml|json))`", text))
    folders = (REPOSITORY, REPOSITORY / "src" / "opwright", (REPOSITORY / page).parent)
    files = [f.as_posix() for root in ("src", "tests", "benchmarks", "docs") for f in (REPOSITORY / root).rglob("*")]
    missing = [
        name
        for name in sorted((paths | names) - _ELSEWHERE)
        if not any((folder / name).exists() for folder in folders)
        and not any(file.endswith(f"/{name.rstrip('/')}") for file in files)
    ]
    assert missing == []


# Files of packages that opwright writes, of the cache, of torch, of others' sources; and a method that is like a file.
_ELSEWHERE = {
    ".dist-info/opwright-audit.json", ".dist-info/sboms", ".github/workflows/package.yml", "native/libmy_ops.so",
    "FOLDER/kernels/build/VARIANT/", "kernels.cuh", "metadata.json", "op.mojo", "seconds-of-units.json",
    "torchlpc/_C.py",
}  # fmt: skip


def options() -> dict[str, set[str]]:
    """The options of each command, by its name; under an empty name, those of all."""
    group = get_command(app)
    found: dict[str, set[str]] = {"": set()}
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        found[name] = {option for p in command.params for option in (*p.opts, *p.secondary_opts)}
        found[""] |= found[name]
    of_kernelsim = {option for action in kernelsim_command._parser()._actions for option in action.option_strings}
    found[""] |= {*of_kernelsim, "--kernelsim-orders"}
    return found


@pytest.mark.parametrize("page", PAGES)
def test_options_that_a_page_names_exist(page):
    known, text = options(), text_of(page)
    wrong = []
    for command, rest in re.findall(r"(?m)(?:^|[`&] ?)opwright (\w+)([^`\n]*)", text):
        if command in known:
            given = re.findall(r"(?<![\w-])--[a-z][\w-]*", rest.partition("#")[0])
            wrong += [f"{command} {option}" for option in given if option not in known[command]]
    prose = re.sub(r"(?s)```.*?```", "", text)
    alone = set(re.findall(r"`(--[a-z][\w-]*)", prose))
    assert wrong == []
    assert sorted(alone - known[""] - _OPTIONS_OF_OTHERS) == []


# Options of compilers, of pytest, of the benchmarks' scripts.
_OPTIONS_OF_OTHERS = {"--trace", "--fmad", "--use_fast_math"}


def test_variables_that_pages_name_are_read():
    source = "".join(f.read_text() for f in (REPOSITORY / "src").rglob("*") if f.suffix in (".py", ".h", ".cpp"))
    named = {name for page in PAGES for name in re.findall(r"\bOPWRIGHT_\w+", text_of(page))}
    assert sorted(name for name in named if name not in source) == []


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(("short", "package"), [("ow", "opwright"), ("kernelsim", "kernelsim")])
def test_names_of_the_interfaces_exist(page, short, package):
    face, text = importlib.import_module(package), re.sub(r"\]\([^)]*\)", "", text_of(page))  # without links
    named = set(re.findall(rf"(?<![\w/]){short}\.([A-Za-z_]\w*)", text))
    assert sorted(n for n in named if not hasattr(face, n) and find_spec(f"{package}.{n}") is None) == []


def test_schemas_of_records_are_those_of_the_code():
    source = "".join(f.read_text() for f in (REPOSITORY / "src").rglob("*.py"))
    named = {name for page in PAGES for name in re.findall(r"opwright\.\w+/\d+", text_of(page))}
    assert sorted(name for name in named if f'"{name}"' not in source) == []


def test_modules_that_pages_run_exist():
    wrong = []
    for page in PAGES:
        for module in re.findall(r"python -m ((?:tests|opwright)[\w.]*)", text_of(page)):
            path = module.replace(".", "/")
            files = (f"{root}{path}{end}" for root in ("", "src/") for end in (".py", "/__main__.py"))
            if not any((REPOSITORY / file).exists() for file in files):
                wrong.append(f"{page}: {module}")
    assert wrong == []


def test_extras_that_pages_name_exist():
    text = (REPOSITORY / "pyproject.toml").read_text()
    extras = set(re.findall(r"(?m)^([\w-]+) = \[", text.partition("[project.optional-dependencies]")[2]))
    sources = [*PAGES, *(f.relative_to(REPOSITORY).as_posix() for f in (REPOSITORY / "src").rglob("*.py"))]
    groups = [group for page in sources for group in re.findall(r"opwright\[([\w,-]+)\]'", text_of(page))]
    named = {extra for group in groups for extra in group.split(",")}
    assert sorted(named - extras) == []
