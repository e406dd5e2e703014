"""Each kind of finding is explained, with an example and what to do."""

import functools
import re

import pytest
from typer.testing import CliRunner

from kernelsim.cuda_sim.findings import KINDS
from kernelsim.triton_sim.simulate import _KINDS, _OVERFLOW
from opwright.checks.scheduling.verdict import LOST
from opwright.checks.table import CHECKS
from opwright.cli import app
from opwright.report.explanations import explained_kind, explanation, kinds
from tests import REPOSITORY


def test_every_finding_is_explained_and_nothing_else():
    of_simulators = {*KINDS.values(), *_KINDS.values(), _OVERFLOW}
    sources = "".join(file.read_text() for file in (REPOSITORY / "src/opwright/checks").rglob("*.py"))
    of_no_check = {*re.findall(r'Finding\("([^"]+)"', sources), LOST}
    assert {"build", LOST} <= of_no_check
    assert LOST not in of_simulators
    assert set(kinds()) == set(CHECKS) | of_no_check | of_simulators


@pytest.mark.parametrize("kind", kinds())
def test_an_explanation_has_a_meaning_an_example_and_a_repair(kind):
    assert re.fullmatch(r"(?s)[A-Z`][^\n]*\.\n```\n[^`]+\n```\n- .*", explanation(kind))


@pytest.mark.parametrize("kind", kinds())
def test_the_example_is_in_words_of_the_code(kind):
    """Numbers and names in it differ from run to run; the other words are those of a text of the code."""
    example = re.findall(r"(?s)```\n(.*?)\n```", explanation(kind))[0]
    words = re.findall(r"[a-z]{4,}", re.sub(r"'[^']*'|\[[^\]]*\]|\([^)]*\)|\w*[A-Z\d]\w*", " ", example))
    assert {word for word in words if word not in _words()} == set()


@functools.cache
def _words():
    files = (f for f in (REPOSITORY / "src").rglob("*") if f.suffix in (".py", ".cpp") and "planted" not in f.parts)
    texts = (text for file in files for text in re.findall(r'"([^"\n]*)"', file.read_text()))
    return {word for text in texts for word in re.findall(r"[a-z]{4,}", text)}


def test_the_command_prints_one_and_lists_all():
    shown = CliRunner().invoke(app, ["explain", "Far Rows"])
    assert shown.exit_code == 0
    assert "64 bits" in shown.output
    assert "far rows" in CliRunner().invoke(app, ["explain"]).output


def test_an_unknown_kind_is_refused_with_the_nearest_one():
    error = CliRunner().invoke(app, ["explain", "valeus"]).exception
    assert str(error) == "KIND must be a check or a kind of finding, got 'valeus'\n  → opwright explain 'values'"


@pytest.mark.parametrize(
    ("check", "message", "kind"),
    [
        ("values", "1 of 33 elements differ", "values"),
        ("values", "SimulatorError: 1 finding\nadd.cu:3: out-of-bounds: reads 4 bytes", "out-of-bounds"),
        ("values", "add.cu:3: error: 'y' was not declared", "values"),
        ("build", "add.cpp:3: error: 'y' was not declared", "build"),
        ("load kernel", "it ended its process", None),
    ],
)
def test_a_finding_has_the_nearest_kind(check, message, kind):
    assert explained_kind(check, message) == kind
