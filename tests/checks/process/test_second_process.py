"""The second process of a kernel, which runs the checks of its registration beside the first."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import textwrap
from pathlib import Path

import pytest

import opwright as ow
from opwright.checks import unit
from opwright.checks.table import BESIDE_THE_KERNEL, CHECKS, OF_REGISTRATION
from opwright.results import Status
from tests.sampled import quick

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="it needs a second core")

SOURCE = """
import os, pathlib, signal, threading
from jaxtyping import Float32
from torch import Tensor
import opwright as ow

here = pathlib.Path(__file__).parent
AT_IMPORT

@ow.op("NAME::double")
def double(x: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
    return 2 * x

@double.python(name="kernel")
def _(x):
    (here / f"called by {os.getpid()}").touch()
    return x + x

def end():
    (here / f"ended {os.getpid()}").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def operator(folder: Path, monkeypatch: pytest.MonkeyPatch, *, more: str = "", at_import: str = "") -> ow.Op:
    """An operator in a module of its own."""
    name = f"second_{folder.name}"
    source = SOURCE.replace("NAME", name).replace("AT_IMPORT", textwrap.dedent(at_import)) + textwrap.dedent(more)
    (folder / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setitem(sys.modules, name, importlib.import_module(name))
    return sys.modules[name].double


def callers(folder: Path) -> int:
    return len([*folder.glob("called by *")])


def test_what_may_run_there_runs_beside_the_kernel() -> None:
    assert OF_REGISTRATION < BESIDE_THE_KERNEL


def test_both_processes_call_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = ow.check(operator(tmp_path, monkeypatch), device="cpu")
    assert report.passed, report
    assert callers(tmp_path) == 2
    found = [f.check for f in report.verdicts[0].findings]
    assert found == [name for name in CHECKS if name in found], "in the order of the table"
    assert {"values", "opcheck", "torch.compile", "afterwards"} <= {*found}


def test_the_reference_is_checked_in_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = """
    double.register_vmap(lambda info, in_dims, x: (x + x, in_dims[0]))
    """
    report = ow.check(operator(tmp_path, monkeypatch, more=more), kernels=["reference"], device="cpu")
    assert report.passed, report
    assert {"vmap", "opcheck", "torch.compile"} <= {f.check for f in report.verdicts[0].findings}
    assert callers(tmp_path) == 0


@pytest.mark.parametrize("checks", [["opcheck", "torch.compile"], ["values", "two threads"]])
def test_one_group_of_checks_has_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checks: list[str]
) -> None:
    assert ow.check(operator(tmp_path, monkeypatch), checks=checks, device="cpu").passed
    assert callers(tmp_path) == 1


def test_without_a_second_core_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPWRIGHT_CORES", "1")  # as a cluster does, which runs another unit beside it
    assert ow.check(operator(tmp_path, monkeypatch), device="cpu").passed
    assert callers(tmp_path) == 1


def test_while_every_core_has_a_kernel_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others: list[object] = [object()] * (len(os.sched_getaffinity(0)) // 2)
    monkeypatch.setattr(unit, "_running", others)
    assert ow.check(operator(tmp_path, monkeypatch), device="cpu").passed
    assert callers(tmp_path) == 1


def test_what_is_wrong_is_found_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = """
    double.register_vmap(lambda info, in_dims, x: (x + x + 1, in_dims[0]))
    """
    (verdict,) = ow.check(operator(tmp_path, monkeypatch, more=more), device="cpu").verdicts
    assert [f.check for f in verdict.findings if f.status is Status.FAIL] == ["vmap"]
    assert "afterwards" in {f.check for f in verdict.findings}


def test_its_end_is_found_by_the_first_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = """
    double.register_vmap(lambda info, in_dims, x: end())
    """
    (verdict,) = ow.check(operator(tmp_path, monkeypatch, more=more), device="cpu").verdicts
    (failure,) = [f for f in verdict.findings if f.status is Status.FAIL]
    assert failure.check == "vmap"
    assert f"crashed with {signal.SIGKILL.name}" in failure.message
    assert {"values", "gradients"} <= {f.check for f in verdict.findings}, "what ran before is kept"
    assert len([*tmp_path.glob("ended *")]) == 2


# Each is a whole check.
@pytest.mark.parametrize(
    "what",
    quick(
        [
            "raise OSError('it is taken')",
            "os._exit(3)",
            pytest.param("threading.Event().wait()", marks=pytest.mark.slow),  # waits for a time limit
        ],
        1,
    ),
)
@pytest.mark.parametrize("fail_fast", quick([False, True], 1))
def test_what_is_for_one_process_only_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, fail_fast: bool
) -> None:
    """Where the second one waits, this takes two fifths of the limit of a step, which is long for slow machines."""
    more = f"""
    @double.python(name="of one process")
    def _(x):
        try:
            (here / "taken").touch(exist_ok=False)
            (here / "by").write_text(str(os.getpid()))
        except FileExistsError:
            (here / "refused").touch()
            while not (here / "by").exists():
                pass
            if (here / "by").read_text() != str(os.getpid()):
                {what}
        return x + x
    """
    checked = operator(tmp_path, monkeypatch, more=more)
    report = ow.check(checked, kernels=["of one process"], device="cpu", fail_fast=fail_fast, timeout=20)
    assert report.passed, report
    assert (tmp_path / "refused").exists()
    assert {"opcheck", "torch.compile"} <= {f.check for f in report.verdicts[0].findings}


# Each is a whole check.
@pytest.mark.parametrize("refusal", quick(["raise OSError('one process only')", "os._exit(3)"], 0))
def test_where_it_cannot_start_the_first_one_runs_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: str
) -> None:
    # Who imports the module: this process, the judge, the kernel's first process, then the second.
    at_import = f"""
    for number in range(4):
        try:
            (here / f"import {{number}}").touch(exist_ok=False)
            break
        except FileExistsError:
            pass
    if number == 3:
        {refusal}
    """
    report = ow.check(operator(tmp_path, monkeypatch, at_import=at_import), device="cpu")
    assert report.passed, report
    assert (tmp_path / "import 3").exists()
    assert {"opcheck", "torch.compile"} <= {f.check for f in report.verdicts[0].findings}
    assert callers(tmp_path) == 1


@pytest.mark.slow  # waits for a time limit
def test_an_endless_loop_there_is_inconclusive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the time limit of a step, two seconds."""
    more = """
    double.register_vmap(lambda info, in_dims, x: threading.Event().wait())
    """
    (verdict,) = ow.check(operator(tmp_path, monkeypatch, more=more), device="cpu", timeout=2).verdicts
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.findings[-1].check == "vmap"
