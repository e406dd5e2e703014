"""The command line: exit codes, tables, records, errors."""

import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from typer.testing import CliRunner

from opwright.cli import app
from opwright.cli.common import exit_code
from opwright.cli.sweep import _with_address
from opwright.cli.timing import parse_size
from opwright.errors import CheckError
from opwright.results import CheckReport, Status
from tests.report.sample_records import MACHINE, every_status, make_verdict
from tests.sampled import quick
from tests.warm import run_module

RIGHT = """
    import torch
    from jaxtyping import Float
    from torch import Tensor
    import opwright as ow

    @ow.op("clitest::double")
    def double(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return 2 * x

    @double.python(name="sum")
    def _(x):
        return (x + x).contiguous()
"""
WRONG = (
    RIGHT
    + """
    @double.python(name="wrong_tail")
    def _(x):
        out = (x + x).contiguous()
        if out.numel() % 4:
            out.view(-1)[-1] = 0
        return out
"""
)


def opwright(*arguments, cwd=None, **environment):
    return run_module("opwright", *arguments, cwd=cwd, env={"COLUMNS": "100", **environment})


@pytest.fixture
def script(tmp_path):
    def write(text, name="double_op.py"):
        (tmp_path / name).write_text(textwrap.dedent(text))
        return name

    return write


def test_help_answers_without_torch():
    run = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "opwright", "--help"], capture_output=True, text=True, check=True
    )
    assert not [line for line in run.stderr.splitlines() if line.split("|")[-1].strip() in ("torch", "triton", "numpy")]
    assert "Exit codes" in run.stdout
    assert "4 nothing failed" in " ".join(run.stdout.split())


def test_a_right_operator_exits_0_and_its_record_matches_the_table(script, tmp_path):
    run = opwright("check", script(RIGHT), "--json", "out.json", cwd=tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
    record = json.loads((tmp_path / "out.json").read_text())
    assert record["schema"] == "opwright.check/3"
    assert {"torch", "cpu", "cores", "python"} <= record["machine"].keys()
    (verdict,) = record["verdicts"]
    assert (verdict["op"], verdict["kernel"], verdict["backend"], verdict["device"]) == (
        "clitest::double", "sum", "python", "cpu",
    )  # fmt: skip
    assert verdict["status"] == "pass"
    assert verdict["parts"]["fake"] == "derived"
    assert {f["check"] for f in verdict["findings"]} >= {"values", "gradients", "torch.compile"}
    assert "clitest::double" in run.stdout
    assert "1 passed" in run.stdout


def test_another_file_than_pythons_is_refused(tmp_path):
    (tmp_path / "kernel.cu").write_text("__global__ void kernel() {}")
    run = opwright("check", "kernel.cu", cwd=tmp_path)
    assert run.returncode == 2
    assert "a target must be a .py file or a module, got 'kernel.cu'" in run.stderr
    assert "name the .py file that defines the operator" in run.stderr


def test_a_wrong_kernel_exits_1_and_the_printed_command_repeats_the_failure(script, tmp_path):
    run = opwright("check", script(WRONG), "--kernel", "wrong_tail", "--check", "values", cwd=tmp_path)
    assert run.returncode == 1, run.stdout + run.stderr
    assert "smallest failing case: n=- dtype=float32 layout=contiguous" in run.stdout
    assert "expected" in run.stdout
    again = next(line for line in run.stdout.splitlines() if "again:" in line).split("opwright ", 1)[1]
    import shlex

    repeated = opwright(*shlex.split(again), cwd=tmp_path)
    assert repeated.returncode == 1
    assert "n=- dtype=float32" in repeated.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    quick(
        [
            (["check", "nowhere.py"], "a target must be a file that exists, or a module, got 'nowhere.py'"),
            (["check", "no_such_module"], "a target must be a .py file or a module, got 'no_such_module'"),
            (["check", "double_op.py:triple"], "the operator must be one of double, got 'triple'"),
            (["check", "double_op.py", "--kernel", "cuda"], "the kernel must be one of reference, sum, got 'cuda'"),
            (
                ["check", "double_op.py", "--kernel", "reference", "--kernel", "cuda"],
                "the kernel must be one of reference, sum, got 'cuda'",
            ),
            (["check", "double_op.py", "--check", "speed"], "got 'speed'"),
            (["check", "double_op.py", "--case", "m=5"], "a part must be one of n, dtype, layout"),
            (
                ["check", "double_op.py", "--case", "n=five"],
                "numbers with x between, got 'five'",
            ),
            (["check", "double_op.py", "--device", "gpu"], "device must be cpu, cuda or cpu-sim, got 'gpu'"),
            (
                ["show", "double_op.py", "--kernel", "cuda"],
                "the kernel must be one of ['sum', 'reference'], got 'cuda'",
            ),
            (["demo", "softmax"], "got 'softmax'"),
        ],
        0,
        3,
        6,
    ),
)
def test_a_wrong_call_exits_2_and_lists_what_there_is(script, tmp_path, arguments, message):
    script(RIGHT)
    run = opwright(*arguments, cwd=tmp_path)
    assert run.returncode == 2, run.stdout + run.stderr
    assert message in run.stderr
    assert "→" in run.stderr
    assert "Traceback" not in run.stderr


def test_a_contract_error_in_the_file_exits_2_and_is_shown_as_it_is(script, tmp_path):
    run = opwright("check", script(RIGHT.replace('x: Float[Tensor, "*n"]', "x")), cwd=tmp_path)
    assert run.returncode == 2
    assert "argument 'x' must have an annotation" in run.stderr


def test_a_file_that_does_not_import_exits_2_and_names_the_cause(script, tmp_path):
    run = opwright("check", script("import torch\n1 / 0\n"), cwd=tmp_path)
    assert run.returncode == 2
    assert "ZeroDivisionError" in run.stderr


NOWHERE = (
    RIGHT.split("    @double.python")[0]
    + """
    @double.python(name="gpu_only", devices=["cuda"])
    def _(x):
        return x + x
"""
)


def test_a_kernel_that_can_run_nowhere_here_exits_3_and_1_if_it_is_required(script, tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU, so the kernel can run")
    name = script(NOWHERE)
    run = opwright("check", name, cwd=tmp_path)
    assert run.returncode == 3, run.stdout + run.stderr
    assert "cannot run here" in run.stdout
    assert "written for cuda, not for cpu" in run.stdout or "no CUDA GPU" in run.stdout
    required = opwright("check", name, "--require", "python", cwd=tmp_path)
    assert required.returncode == 1
    assert "required, but" in required.stdout


# -- exit codes of statuses that a right or wrong kernel has seldom ---------------------------------------------


def report_of(*statuses):
    return CheckReport({}, tuple(make_verdict(kernel=s.value, status=s, reason=f"it is {s}") for s in statuses))


PASS, THIN, WARNING, INCONCLUSIVE, FAIL, REFUSED = (
    Status.PASS, Status.THIN, Status.WARNING, Status.INCONCLUSIVE, Status.FAIL, Status.REFUSED,
)  # fmt: skip


@pytest.mark.parametrize(
    ("statuses", "code", "strict_code"),
    [
        ([PASS], 0, 0),
        ([PASS, REFUSED], 0, 0),
        ([PASS, WARNING], 0, 1),
        ([THIN], 0, 1),
        ([WARNING, REFUSED], 0, 1),
        ([PASS, INCONCLUSIVE], 4, 4),
        ([INCONCLUSIVE, THIN], 4, 1),
        ([INCONCLUSIVE, REFUSED], 4, 4),
        ([FAIL, INCONCLUSIVE, WARNING, THIN, PASS], 1, 1),
        ([FAIL], 1, 1),
        ([REFUSED], 3, 3),
        ([], 3, 3),
    ],
)
def test_the_exit_code_follows_from_the_statuses(statuses, code, strict_code):
    assert exit_code(report_of(*statuses)) == code
    assert exit_code(report_of(*statuses), strict=True) == strict_code


@pytest.mark.parametrize(
    "statuses", [[PASS, WARNING], [THIN], [INCONCLUSIVE, WARNING], [FAIL, WARNING], [PASS], [REFUSED]]
)
def test_the_exit_code_agrees_with_the_report(statuses):
    report = report_of(*statuses)
    assert report.passed == (exit_code(report) == 0)
    assert report.strictly_passed == (exit_code(report, strict=True) == 0)


@pytest.fixture
def checked(monkeypatch):
    """A function that runs ``opwright check`` as if it had found these verdicts."""
    from opwright.checks import run

    def check(verdicts, *options):
        monkeypatch.setattr(run, "check", lambda *targets, **settings: CheckReport(MACHINE, tuple(verdicts)))
        return CliRunner().invoke(app, ["check", "x.py", *options], env={"COLUMNS": "100"})

    return check


def test_warnings_exit_0_and_the_last_line_says_what_strict_would_do(checked):
    done = checked(report_of(THIN, THIN, WARNING, PASS))
    assert done.exit_code == 0, done.output
    assert done.stdout.endswith("\n2 thin, 1 with warnings: --strict counts them as failures\n")


def test_strict_counts_warnings_as_failures(checked):
    done = checked(report_of(WARNING, PASS), "--strict")
    assert done.exit_code == 1, done.output
    assert done.stdout.endswith("\n1 with warnings: it counts as a failure, because of --strict\n")
    right = checked(report_of(PASS), "--strict")
    assert right.exit_code == 0, right.output
    assert "--strict" not in right.stdout


def test_what_did_not_end_exits_4_with_its_command(checked):
    done = checked([v for v in every_status() if v.status is not FAIL])
    assert done.exit_code == 4, done.output
    assert "again: opwright check add.py:sin --kernel cpp --check 'gradients'" in done.stdout
    assert checked(every_status()).exit_code == 1, "a failure is worse"


def test_verbose_shows_how_many_cases_each_check_ran(checked):
    line = "      ✓ torch.compile  2 of 2 cases; fullgraph, static and dynamic\n"
    assert line in checked(every_status(), "-v").stdout
    assert line not in checked(every_status()).stdout


def test_the_record_of_a_check_has_coverage_and_remedies(checked, tmp_path):
    checked(every_status(), "--json", str(tmp_path / "out.json"), "--html", str(tmp_path / "out.html"))
    thin = next(v for v in json.loads((tmp_path / "out.json").read_text())["verdicts"] if v["status"] == "thin")
    assert thin["findings"][0]["coverage"] == {"run": 12, "generated": 164}
    assert thin["findings"][0]["remedy"].startswith("State sizes")
    assert "12 <span" in (tmp_path / "out.html").read_text()


def test_doctor_names_every_language_and_writes_a_record(tmp_path):
    from opwright.languages import LANGUAGES

    run = opwright("doctor", "--json", "doctor.json", cwd=tmp_path, CXX="/no/such/compiler", PATH="/nonexistent")
    assert run.returncode == 0, run.stderr
    record = json.loads((tmp_path / "doctor.json").read_text())
    assert set(record["backends"]) == set(LANGUAGES)
    assert record["backends"]["cpp"]["accepted"] is False
    assert "apt install g++" in record["backends"]["cpp"]["remedy"]
    assert "not available" in run.stdout


def test_show_prints_the_schema_and_where_each_part_comes_from(script, tmp_path):
    run = opwright("show", script(RIGHT), "--what", "schema", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "clitest::double(Tensor x) -> Tensor" in run.stdout
    assert "derived" in run.stdout


@pytest.mark.slow
def test_colours_are_left_out_where_no_color_asks_for_it(script, tmp_path):
    run = opwright("show", script(RIGHT), cwd=tmp_path, FORCE_COLOR="1", NO_COLOR="1")
    assert "\x1b[3" not in run.stdout
    assert "\x1b[3" in opwright("show", "double_op.py", cwd=tmp_path, FORCE_COLOR="1", NO_COLOR="").stdout


def test_a_json_file_that_cannot_be_written_is_an_error_that_names_it(script, tmp_path):
    run = opwright("check", script(RIGHT), "--check", "metadata", "--json", "no/such/folder/x.json", cwd=tmp_path)
    assert run.returncode == 2
    assert "cannot write no/such/folder/x.json" in run.stderr


@pytest.mark.slow
def test_the_demo_checks_the_gallery_and_passes(tmp_path):
    run = opwright("demo", "add", "trig", "outer_sum", "--json", "demo.json", cwd=tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
    record = json.loads((tmp_path / "demo.json").read_text())
    assert len({v["op"] for v in record["verdicts"]}) >= 4
    assert not [v for v in record["verdicts"] if v["status"] == "fail"]


@pytest.mark.slow  # several commands
def test_records_become_a_page_and_a_comment(script, tmp_path):
    check = opwright(
        "check", script(WRONG), "--check", "values", "--json", "check.json", "--html", "check.html", cwd=tmp_path
    )
    assert check.returncode == 1, check.stderr
    assert "clitest::double" in (tmp_path / "check.html").read_text()
    run = opwright("report", "check.json", "--html", "out.html", "--markdown", "out.md", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    for text in ((tmp_path / "out.html").read_text(), (tmp_path / "out.md").read_text()):
        assert "wrong_tail" in text
    (tmp_path / "other.json").write_text('{"schema": "something/1"}')
    assert "something/1" in opwright("report", "other.json", "--html", "x.html", cwd=tmp_path).stderr
    assert "an output must be chosen, got none" in opwright("report", "check.json", cwd=tmp_path).stderr


def test_a_report_shows_itself_in_a_notebook():
    import opwright as ow
    from opwright.results import Verdict

    assert ow.check is not None
    shown = CheckReport({}, (Verdict("a::b", "<k>", "cpp", "cpu", Status.FAIL),))._repr_html_()
    assert "a::b" in shown
    assert "&lt;k&gt;" in shown
    assert "<k>" not in shown


# Each starts two commands. Each command and each option is among those that run by default.
@pytest.mark.parametrize(
    ("command", "option"), quick([*itertools.product(["check", "bench", "tune"], ["--json", "--html"])], 0, 3, 4)
)
def test_a_file_that_cannot_be_written_is_refused_before_the_work(script, tmp_path, command, option):
    name = script("raise SystemExit('the operator was loaded')")
    run = opwright(command, name, option, "nowhere/out", cwd=tmp_path)
    assert run.returncode == 2, run.stdout + run.stderr
    assert "cannot write nowhere/out: No such file or directory" in run.stderr
    assert "was loaded" not in run.stderr
    folder = opwright(command, name, option, ".", cwd=tmp_path)
    assert folder.returncode == 2
    assert "must be a file, got the folder" in folder.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == [name]


@pytest.mark.slow
def test_a_record_does_not_replace_a_file_that_is_none(script, tmp_path):
    name = script("raise SystemExit('the operator was loaded')")
    before = (tmp_path / name).read_text()
    for option in ("--json", "--html"):
        run = opwright("check", name, option, name, cwd=tmp_path)
        assert run.returncode == 2, run.stdout + run.stderr
        assert f"{option} must name a new file or a report, got {name}" in " ".join(run.stderr.split())
        assert "was loaded" not in run.stderr
    assert (tmp_path / name).read_text() == before
    both = opwright("check", name, "--json", "out", "--html", "out", cwd=tmp_path)
    assert both.returncode == 2
    assert "--json and --html must name two files, got out" in both.stderr
    for option, text in (("--json", "{}"), ("--html", "<html>"), ("--json", "")):  # earlier records, an empty file
        (tmp_path / "out").write_text(text)
        assert "was loaded" in opwright("check", name, option, "out", cwd=tmp_path).stderr


@pytest.mark.parametrize("options", [("--mutants", "3"), ("--seed", "1")], ids=" ".join)
def test_options_of_mutants_without_mutate_are_refused(script, tmp_path, options):
    run = opwright("check", script("raise SystemExit('the operator was loaded')"), *options, cwd=tmp_path)
    assert run.returncode == 2
    assert "--mutants and --seed must be passed with --mutate" in " ".join(run.stderr.replace("│", " ").split())
    assert "was loaded" not in run.stderr


@pytest.mark.slow  # a command that imports torch twice
def test_requiring_a_language_that_no_kernel_is_written_in_is_a_failure(script, tmp_path):
    name = script(RIGHT)
    run = opwright("check", name, "--check", "values", "--require", "cpp", "--json", "out.json", cwd=tmp_path)
    assert run.returncode == 1, run.stdout + run.stderr
    assert "required, but it has no cpp kernel" in run.stdout
    verdicts = json.loads((tmp_path / "out.json").read_text())["verdicts"]
    assert [(v["kernel"], v["status"]) for v in verdicts] == [("sum", "pass"), ("(cpp)", "fail")]
    fine = opwright("check", name, "--check", "values", "--require", "python", cwd=tmp_path)
    assert fine.returncode == 0, fine.stdout
    left_out = opwright(
        "check", name, "--check", "values", "--kernel", "reference", "--require", "python", cwd=tmp_path
    )
    assert left_out.returncode == 1
    assert "no python kernel is selected" in left_out.stdout


def test_sizes_are_read_as_records_write_them():
    assert parse_size("n=1024,64x1024") == ("n", [1024, (64, 1024)])
    for wrong in ("n", "n=", "n=a", "n=3x"):
        with pytest.raises(CheckError, match="write it like --size n=1024,4096"):
            parse_size(wrong)


SLOW = (
    RIGHT
    + """
    @double.python(name="tells")
    def _(x):
        import pathlib
        if x.numel() == 2000:
            pathlib.Path("second-size").touch()
        return (x + x).contiguous()
"""
)


@pytest.mark.slow
def test_ctrl_c_in_a_benchmark_keeps_what_was_measured(script, tmp_path):
    name = script(SLOW)
    arguments = ["bench", name, "--device", "cpu", "--size", "n=1000,2000", "--direction", "forward", "--iters", "40",
                 "--json", "out.json", "--html", "out.html"]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "opwright", *arguments],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "COLUMNS": "120"},
    )  # fmt: skip
    deadline = time.monotonic() + 200
    while not (tmp_path / "second-size").exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 1, output
    record = json.loads((tmp_path / "out.json").read_text())
    assert {str(m["case"]["n"]) for m in record["measurements"]} == {"[1000]"}
    assert {m["kernel"] for m in record["measurements"]} == {"sum", "tells", "reference", "torch.compile"}
    assert record["errors"] == ["interrupted: the report has the measurements until then"]
    assert "interrupted" in output
    assert (tmp_path / "out.html").exists()


@pytest.mark.exhaustive
@pytest.mark.slow
def test_tune_shows_what_is_fastest_where_and_clear_forgets_it(script, tmp_path):
    name = script(SLOW)
    cache = {"OPWRIGHT_CACHE_DIR": str(tmp_path / "cache")}
    sizes = ["--size", "n=100,2000", "--iters", "5", "--device", "cpu"]
    run = opwright("tune", name, *sizes, "--json", "out.json", cwd=tmp_path, **cache)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "clitest::double float32 on" in run.stdout
    assert "calls use this from now on" in run.stdout
    assert json.loads((tmp_path / "out.json").read_text())["crossovers"][0]["stored"]
    assert list((tmp_path / "cache" / "tuned").glob("*/*.json"))
    assert opwright("tune", name, "--clear", cwd=tmp_path, **cache).returncode == 0
    assert not list((tmp_path / "cache" / "tuned").glob("*/*.json"))
    alone = opwright("tune", script(RIGHT), *sizes, cwd=tmp_path, **cache)
    assert alone.returncode == 3
    assert "nothing was stored" in alone.stderr


@pytest.mark.slow  # compiles a kernel twice, before and after
def test_before_and_after_an_edit_are_shown_side_by_side(tmp_path):
    target = ["show", "opwright.gallery.trig:sin", "--kernel", "cpp", "--what", "source"]
    assert opwright(*target, "-o", "before.txt", cwd=tmp_path).returncode == 0
    same = opwright(*target, "--before", "before.txt", cwd=tmp_path)
    assert same.returncode == 0, same.stderr
    assert "before.txt" in same.stdout
    assert " | " not in same.stdout
    edited = (tmp_path / "before.txt").read_text().replace("kTile = 512", "kTile = 256")
    (tmp_path / "before.txt").write_text(edited)
    other = opwright(*target, "--before", "before.txt", cwd=tmp_path)
    assert "kTile = 256" in other.stdout
    assert " | " in other.stdout
    gone = opwright(*target, "--before", "gone.txt", cwd=tmp_path)
    assert gone.returncode == 2
    assert "cannot read gone.txt" in gone.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["check", "a.py", "--ray"], ["check", "a.py", "--ray=local"]),
        (["check", "--ray", "a.py"], ["check", "--ray=local", "a.py"]),
        (["check", "--ray", "a.py:relu"], ["check", "--ray=local", "a.py:relu"]),
        (["check", "--ray", "--jobs", "2"], ["check", "--ray=local", "--jobs", "2"]),
        (["check", "--ray", "auto", "a.py"], ["check", "--ray", "auto", "a.py"]),
        (["check", "--ray", "head-1.local:6379"], ["check", "--ray", "head-1.local:6379"]),
        (["check", "--ray", "ray://head:10001"], ["check", "--ray", "ray://head:10001"]),
        (["check", "--ray=10.0.0.5:6379", "a.py"], ["check", "--ray=10.0.0.5:6379", "a.py"]),
    ],
)
def test_ray_may_stand_without_an_address(arguments, expected):
    assert _with_address(arguments) == expected


@pytest.mark.slow  # three commands
def test_what_is_finished_is_taken_up_also_without_a_cluster(script, tmp_path):
    check = ["check", script(WRONG), "--check", "values", "--resume", "journal"]
    first = opwright(*check, "--kernel", "sum", cwd=tmp_path)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "taken from" not in first.stderr
    both = opwright(*check, cwd=tmp_path)
    assert both.returncode == 1
    assert "1 finished before are taken from journal" in both.stderr
    (tmp_path / "other.json").write_text("{}")
    refused = opwright(*check[:-1], "other.json", cwd=tmp_path)
    assert refused.returncode == 2
    assert "--resume other.json cannot be used" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_resume_does_not_go_with_calls(script, tmp_path):
    refused = opwright("bench", script(RIGHT), "--calls", "--resume", "journal", cwd=tmp_path)
    assert refused.returncode == 2
    assert "--resume must be left out with --calls" in refused.stderr


TRACKS = """
    import torch
    import opwright as ow
    from jaxtyping import Float32
    from torch import Tensor

    @ow.op("{namespace}::inner")
    def inner(x: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
        return x * 2

    inner.python(lambda x: x * 2, name="k")

    @ow.op("{namespace}::double")
    def double(x: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
        return x * 2

    @double.python
    def tracks(x):
        leaf = torch.ones(3, requires_grad=True)
        for _ in range(250):
            inner(leaf)
        return x * 2
"""


@pytest.mark.slow  # a check with an empty cache
def test_no_compiler_of_ours_is_taken_for_a_process_that_a_kernel_leaves_behind(script, tmp_path, namespace):
    file = script(TRACKS.format(namespace=namespace))
    chosen = ["--check", "values", "--check", "global state", "--level", "smoke", "--strict"]
    done = opwright("check", f"{file}:double", *chosen, cwd=tmp_path, OPWRIGHT_CACHE_DIR=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stdout + done.stderr
