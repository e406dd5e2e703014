"""The page in a browser: its script runs, hostile text does not, and a reader opens, sorts and filters."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape

import pytest

from opwright.report import html
from tests.report.sample_judged import make_judged
from tests.report.sample_records import HOSTILE, every_status, hostile_records, make_bench, make_check, many_verdicts

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on the PATH")

# A reader's actions and the page's contents after them, written into the page's title.
DRIVE = """
const shown = (id) => [...document.querySelectorAll(`#${id} tbody`)].filter((t) => t.checkVisibility())
  .map((t) => t.querySelector("strong").textContent);
const click = (what) => { const e = document.querySelector(what); e.click(); return e; };
const header = (id, name) => [...document.querySelectorAll(`#${id} thead button`)].find((b) => b.textContent === name);
const search = (id, text) => {
  const box = document.querySelector(`#${id} input`); box.value = text; box.dispatchEvent(new Event("input"));
};
const seen = {};
seen.start = shown("verdicts");
seen.failure = document.querySelector("#v1").checkVisibility();
seen.closed = document.querySelector("#v2").checkVisibility();
click("#verdicts .pass .opener"); seen.opened = document.querySelector("#v2").checkVisibility();
seen.expanded = document.querySelector("#verdicts .pass .opener").getAttribute("aria-expanded");
header("verdicts", "operator and kernel").click(); seen.by_name = shown("verdicts");
header("verdicts", "operator and kernel").click(); seen.by_name_down = shown("verdicts");
seen.sorted = header("verdicts", "operator and kernel").parentElement.getAttribute("aria-sort");
click("#verdicts .chip[data-status=refused]"); seen.refused = shown("verdicts");
search("verdicts", "nothing like it"); seen.none = shown("verdicts");
seen.none_left = document.querySelector("#verdicts .none-left").checkVisibility();
click("#verdicts .chip[data-status='']"); search("verdicts", "GALLERY trit"); seen.found = shown("verdicts");
search("times", "backward 16384x16384"); header("times", "warm").click(); seen.fastest = shown("times");
click("#times .chip[data-status=slower]"); seen.slower = shown("times");
const copied = click("#v1 [data-copy]"); seen.copied = copied.dataset.copy.slice(0, 14);
document.title = JSON.stringify(seen);
"""


DRIVE_FOLDED = """
const shown = () => [...document.querySelectorAll("#verdicts tbody")].filter((t) => t.checkVisibility()).length;
const seen = { folded: shown(), failure: document.querySelector("#v1").checkVisibility() };
const box = document.querySelector("#verdicts input");
if (HOW === "search") { box.value = "right_7"; box.dispatchEvent(new Event("input")); }
else document.querySelector("[data-unfold]").click();
seen.unfolded = shown();
seen.button = document.querySelector("[data-unfold]").checkVisibility();
document.title = JSON.stringify(seen);
"""


def browse(page, file):
    """The page after its scripts ran, and what the browser logged meanwhile."""
    file.write_text(page)
    done = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
            "--disable-dev-shm-usage", f"--user-data-dir={file.parent / 'profile'}", "--enable-logging=stderr",
            "--virtual-time-budget=3000", "--window-size=1280,900", "--dump-dom", file.as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.slow
@in_a_browser
def test_the_page_logs_no_error_and_its_script_runs(tmp_path):
    shown, console = browse(html.render([make_check(), make_bench()]), tmp_path / "page.html")
    assert console == []
    assert re.search(r'<html[^>]*class="js"', shown)


@pytest.mark.slow
@in_a_browser
def test_hostile_text_does_not_run_in_a_browser(tmp_path):
    shown, console = browse(html.render(hostile_records(), title=HOSTILE), tmp_path / "page.html")
    assert console == []
    assert "<img" not in shown
    assert re.search(r'<html[^>]*class="js"', shown)


@pytest.mark.slow
@in_a_browser
def test_the_policy_stops_a_script_that_got_in(tmp_path):
    page = html.render([make_check()]).replace("</body>", "<script>document.title = 'owned'</script></body>")
    shown, console = browse(page, tmp_path / "page.html")
    assert "<title>owned" not in shown
    assert any("Content Security Policy" in line for line in console)


@pytest.mark.slow
@in_a_browser
def test_a_reader_opens_sorts_and_filters(tmp_path):
    page = html.render([make_check(), make_bench()])
    # The policy would rightly stop the test's own script.
    page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    shown, console = browse(page.replace("</body>", f"<script>{DRIVE}</script></body>"), tmp_path / "page.html")
    assert console == []
    output = json.loads(re.search(r"<title>(.*?)</title>", shown)[1])
    assert output == {
        "start": ["forgets_tail", "triton", "mojo"],
        "failure": True,
        "closed": False,
        "opened": True,
        "expanded": "true",
        "by_name": ["forgets_tail", "mojo", "triton"],
        "by_name_down": ["triton", "mojo", "forgets_tail"],
        "sorted": "descending",
        "refused": ["mojo"],
        "none": [],
        "none_left": True,
        "found": ["triton", "forgets_tail"],
        "fastest": ["cuda_vec4", "triton_autotuned", "triton", "torch.compile", "reference"],
        "slower": [],
        "copied": "opwright check",
    }


DRIVE_STATUSES = """
const seen = {};
for (const status of ["fail", "inconclusive", "thin", "warning", "pass", "refused"]) {
  document.querySelector(`#verdicts .chip[data-status=${status}]`).click();
  seen[status] = [...document.querySelectorAll("#verdicts tbody")].filter((t) => t.checkVisibility())
    .map((t) => t.querySelector("strong").textContent);
}
document.title = JSON.stringify(seen);
"""


@pytest.mark.slow
@in_a_browser
def test_each_status_has_a_filter(tmp_path):
    page = html.render([make_check(*every_status())])
    page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    shown, console = browse(
        page.replace("</body>", f"<script>{DRIVE_STATUSES}</script></body>"), tmp_path / "page.html"
    )
    assert console == []
    assert json.loads(re.search(r"<title>(.*?)</title>", shown)[1]) == {
        "fail": ["forgets_tail"], "inconclusive": ["cpp"], "thin": ["tiled"], "warning": ["vec4", "triton"],
        "pass": ["triton"], "refused": ["mojo"],
    }  # fmt: skip


@pytest.mark.slow
@in_a_browser
@pytest.mark.parametrize(("how", "unfolded"), [("button", 61), ("search", 1)])
def test_what_failed_is_never_folded_and_the_rest_unfolds(tmp_path, how, unfolded):
    page = html.render([make_check(*many_verdicts())])
    page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    script = f"<script>const HOW = '{how}'; {DRIVE_FOLDED}</script></body>"
    shown, console = browse(page.replace("</body>", script), tmp_path / "page.html")
    assert console == []
    output = json.loads(re.search(r"<title>(.*?)</title>", shown)[1])
    assert output == {"folded": 1, "failure": True, "unfolded": unfolded, "button": False}


DRIVE_JUDGED = """
const rows = () => [...document.querySelectorAll("#candidates .rows tbody")].filter((t) => t.checkVisibility());
const names = () => rows().slice(0, 2).map((t) => t.querySelector("strong").textContent.replace("_kernel.py", ""));
const choose = (key, value) => {
  const select = document.querySelector(`[data-filter=${key}]`);
  select.value = value; select.dispatchEvent(new Event("change"));
};
const buttons = [...document.querySelectorAll("#candidates .rows thead button")];
const header = (name) => buttons.find((b) => b.textContent === name);
const chip = (status) => document.querySelector(`#candidates .chip[data-status="${status}"]`).click();
const box = document.querySelector("#candidates input");
const search = (text) => { box.value = text; box.dispatchEvent(new Event("input")); };
const seen = { all: rows().length, closed: document.querySelector("#c1").checkVisibility() };
document.querySelector("#candidates .opener").click();
seen.opened = document.querySelector("#c1").innerText;
choose("kinds", "cheats"); seen.cheats = rows().length;
choose("said", "wrong"); seen.cheats_called_wrong = rows().length;
choose("kinds", "values"); seen.wrong = rows().length;
choose("said", ""); choose("kinds", "own work"); seen.own_work = rows().length;
choose("kinds", ""); chip("pass"); seen.passed = rows().length;
search("problem_31_"); seen.found = names();
search("1_Softmax nowhere"); seen.none = document.querySelector("#candidates .none-left").checkVisibility();
search(""); header("time").click(); seen.fastest = names();
header("time").click(); seen.slowest = names();
document.title = JSON.stringify(seen);
"""


@pytest.mark.slow
@in_a_browser
def test_a_reader_filters_and_opens_500_judged_candidates(tmp_path):
    page = html.render([make_judged(500).to_json()])
    page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    shown, console = browse(page.replace("</body>", f"<script>{DRIVE_JUDGED}</script></body>"), tmp_path / "page.html")
    assert console == []
    seen = json.loads(unescape(re.search(r"<title>(.*?)</title>", shown, re.DOTALL)[1]))
    opened = seen.pop("opened")
    for text in (
        "smallest failing case",
        "batch_size=1 dim=3",
        "wrong, as recorded",
        'Float32[Tensor, "batch_size dim"]',
    ):
        assert text in opened
    assert seen == {
        "all": 501, "closed": False, "cheats": 71, "cheats_called_wrong": 0, "wrong": 72, "own_work": 71, "passed": 144,
        "found": ["mine/level_1_problem_31_sample_2"], "none": True,
        "fastest": ["mine/level_1_problem_0_sample_0", "mine/level_1_problem_25_sample_0"],
        "slowest": ["mine/level_1_problem_12_sample_1", "mine/level_1_problem_37_sample_1"],
    }  # fmt: skip
