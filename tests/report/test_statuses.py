"""Every status has a look of its own, with and without colour, and can be read in light and dark mode."""

import re
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.style import Style

from opwright.report import statuses
from opwright.report.statuses import GROUPED, LOOKS, ONE_BY_ONE, count_statuses, rank
from opwright.results import Status

STYLESHEET = Path(statuses.__file__).with_name("templates") / "page.css.jinja"


def test_every_status_has_a_look():
    assert list(LOOKS) == list(Status)
    assert {*ONE_BY_ONE, *GROUPED, Status.PASS, Status.REFUSED} == set(Status)


@pytest.mark.parametrize("what", ["word", "meaning", "mark", "style", "emoji"])
def test_no_two_statuses_look_alike(what):
    assert len({getattr(look, what) for look in LOOKS.values()}) == len(Status)


def test_marks_take_one_cell_of_a_terminal_and_styles_are_known():
    for look in LOOKS.values():
        assert cell_len(look.mark) == len(look.mark) == 1
        assert Style.parse(look.style)


def test_lists_begin_with_the_worst_and_end_with_what_cannot_run():
    assert count_statuses(["refused", "pass", "warning", "thin", "inconclusive", "fail", "pass"]) == {
        "fail": 1, "inconclusive": 1, "thin": 1, "warning": 1, "pass": 2, "refused": 1,
    }  # fmt: skip
    assert list(count_statuses([Status.REFUSED, Status.PASS, Status.FAIL])) == [
        Status.FAIL, Status.PASS, Status.REFUSED,
    ]  # fmt: skip
    assert rank(Status.FAIL) < rank(Status.INCONCLUSIVE) < rank(Status.THIN) < rank(Status.WARNING)
    assert rank(Status.WARNING) < rank(Status.PASS) < rank(Status.REFUSED)


def test_the_documentation_has_the_same_marks_and_meanings():
    lines = (Path(__file__).parents[2] / "docs" / "checking.md").read_text().splitlines()
    rows = [tuple(cell.strip() for cell in line.split("|")[1:4]) for line in lines if line.startswith("|")]
    documented = [row for row in rows if row[0].lower() in list(Status)]
    assert documented == [(status.upper(), look.mark, look.meaning) for status, look in LOOKS.items()]


# -- the page's colours -----------------------------------------------------------------------------------------


def colours(mode):
    """Variable → colour of the page in a mode."""
    light, dark = (dict(re.findall(r"--([\w-]+): (#\w+)", block)) for block in ROOTS.findall(STYLESHEET.read_text()))
    return {**light, **(dark if mode == "dark" else {})}


ROOTS = re.compile(r":root \{(.*?)\}", re.DOTALL)


def tones(status):
    """The variables that a status uses for text and background."""
    rule = re.search(rf"^\.{status} \{{ --tone: var\(--([\w-]+)\); --tone-soft: var\(--([\w-]+)\); \}}",
                     STYLESHEET.read_text(), re.MULTILINE)  # fmt: skip
    assert rule, f"{status} has no colours"
    return rule.groups()


def luminance(colour):
    digits = colour[1:] if len(colour) == 7 else "".join(2 * c for c in colour[1:])
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for c in (int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4))
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    """The contrast ratio of WCAG 2.2."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_contrast_is_computed_as_wcag_does():
    assert contrast("#fff", "#000000") == pytest.approx(21)
    assert contrast("#777", "#fff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize("status", Status)
def test_the_page_has_readable_colours(status, mode):
    known = colours(mode)
    text, soft = (known[name] for name in tones(status))
    grounds = {"badge": soft, **{name: known[name] for name in ("ground", "card", "soft")}}
    poor = {name: round(contrast(text, ground), 2) for name, ground in grounds.items() if contrast(text, ground) < 4.5}
    assert not poor
