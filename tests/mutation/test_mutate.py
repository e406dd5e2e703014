"""Mutation testing end to end: contracts that let mutants live, and one that lets none."""

from __future__ import annotations

import importlib
import io
import json
import textwrap
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

import opwright as ow
from opwright.checks.scheduling.plan import plan
from opwright.cli import app
from opwright.machine import this_machine
from opwright.mutation.edits import Edit
from opwright.mutation.judging import MutatedKernel, judge
from opwright.mutation.patch import Patch, mutant_of
from opwright.mutation.run import mutate
from opwright.mutation.sources import FILE, sources_of
from opwright.report.terminal.mutation import show_mutation
from opwright.results import Fate, KernelMutation, Killer, Mutant, MutationReport, Status
from tests.mutation import operators


def _only(report):
    (kernel,) = report
    return kernel


def _kernel(operator, name, folder, timeout=60.0):
    (task,) = plan(operator, this_machine(), [name], "cpu")
    return MutatedKernel(task, timeout, folder)


def _made(operator, name, folder, old, new, timeout=60.0):
    """What becomes of a kernel in whose source a text is replaced."""
    sources, _ = sources_of(operator, name)
    source = next(s for s in reversed(sources) if old in s.text)  # CUDA's text stands in the Python file, too
    at = source.text.rindex(old)
    return judge(_kernel(operator, name, folder, timeout), 0, source, Edit(at, at + len(old), new, "by hand"))


@pytest.mark.exhaustive
@pytest.mark.slow  # the kernel itself is checked first, then each mutant
def test_a_contract_that_tells_every_mutant_has_no_survivors():
    found = _only(mutate(operators.strong, kernels=["python"]))
    assert found.refused == ""
    assert found.possible == len(found.mutants) == 2
    assert {m.fate for m in found.mutants} == {Fate.KILLED}
    assert found.score == 1.0
    assert all(m.check and m.message and m.line and m.file.endswith("operators.py") for m in found.mutants)


@pytest.mark.exhaustive
@pytest.mark.slow  # the kernel itself is checked first, then each mutant
def test_a_survivor_of_a_stated_value_is_killed_by_another_value():
    found = _only(mutate(operators.one_divisor, kernels=["python"]))
    survivors = {m.operator: m for m in found.survivors}
    killer = survivors["arithmetic"].killer
    assert survivors["arithmetic"].diff.endswith("+ return torch.div(x, 1) * by")
    assert found.score < 1
    assert killer.check == "values"
    assert "by=" in killer.case
    assert killer.add == "state more values of 'by' with ow.values(...)"


@pytest.mark.exhaustive
@pytest.mark.slow  # every case of the level full, for the kernel and for the survivor
def test_a_survivor_at_a_size_is_killed_by_that_size():
    found = _only(mutate(operators.step, kernels=["python"]))
    (survivor,) = [m for m in found.survivors if ">=" in m.diff and m.killer]
    assert "n=3000" in survivor.killer.case
    assert survivor.killer.add == "op.sizes(n=(3000,))"


@pytest.mark.slow
def test_a_mutant_that_loops_for_ever_is_stopped(tmp_path):
    found = _made(operators.counted, "loop", tmp_path, "rounds += 1", "rounds -= 1", timeout=1.0)
    assert found.fate is Fate.TIMEOUT
    assert KernelMutation("o", "k", "python", "cpu", 1, (found,)).score == 1.0


def test_a_mutant_that_does_not_compile_is_invalid(tmp_path):
    assert _made(operators.strong, "python", tmp_path, "a * x - y", "a * x -").fate is Fate.INVALID


@pytest.mark.slow
def test_a_mutant_of_cuda_that_does_not_compile_is_invalid(tmp_path):
    found = _made(operators.plain, "cuda", tmp_path, "out[i] = -x[i]", "out[i] = -nothing")
    assert found.fate is Fate.INVALID, found.message


def test_a_mutant_with_the_same_code_is_equivalent(tmp_path):
    assert _made(operators.strong, "python", tmp_path, "a * x - y", "(a * x) - y").fate is Fate.EQUIVALENT


@pytest.mark.slow  # a process is started anew for each mutant that ends one
def test_a_mutant_that_ends_its_process_is_killed(tmp_path):
    found = _made(operators.counted, "loop", tmp_path, "rounds += 1", "__import__('os').abort()")
    assert (found.fate, "SIGABRT" in found.message) == (Fate.KILLED, True)


def test_mutants_of_cuda_in_the_simulator(tmp_path):
    found = _made(operators.plain, "cuda", tmp_path, "i < n", "i <= n")
    assert (found.fate, "out-of-bounds" in found.message) == (Fate.KILLED, True)


@pytest.mark.slow  # a survivor passes every check
def test_a_mutant_of_cuda_that_is_right_survives(tmp_path):
    assert _made(operators.plain, "cuda", tmp_path, "-x[i]", "-(x[i])").fate is Fate.SURVIVED


def test_a_kernel_without_anything_to_change_is_named():
    report = mutate(operators.plain, kernels=["nothing"])
    assert _only(report).refused == "there is nothing to mutate in it"
    assert not report.ran_anything


@pytest.mark.slow  # the kernel itself is checked first, then each mutant
def test_a_kernel_that_does_not_pass_itself_is_not_mutated():
    found = _only(mutate(operators.plain, kernels=["wrong"]))
    assert "the kernel itself does not pass the check" in found.refused
    assert not found.mutants


def test_the_operator_stays_as_it_is():
    before = operators.strong.fingerprint, Path(operators.__file__).read_text()
    sources, _ = sources_of(operators.strong, "python")
    patch = Patch("python", sources[0].kind, sources[0].name, sources[0].edits[0].apply(sources[0].text))
    made = mutant_of(operators.strong, patch)
    assert made.contract is operators.strong.contract
    assert (operators.strong.fingerprint, Path(operators.__file__).read_text()) == before


def test_wrong_numbers_and_kernels_are_refused():
    with pytest.raises(ow.errors.CheckError, match="mutants=0"):
        mutate(operators.strong, mutants=0)
    with pytest.raises(ow.errors.CheckError, match=r"the kernel must be one of .*, got 'nothere'"):
        mutate(operators.strong, kernels=["nothere"])


@pytest.mark.exhaustive
@pytest.mark.slow  # the kernel itself is checked first, then each mutant
def test_a_sample_is_the_same_for_the_same_seed():
    sources, _ = sources_of(operators.plain, "cuda")
    assert sum(len(s.edits) for s in sources) > 5  # more than are drawn here
    first, again = (_only(mutate(operators.plain, kernels=["cuda"], mutants=1, seed=3)) for _ in range(2))
    assert len(first.mutants) == 1
    assert first.mutants[0].diff == again.mutants[0].diff


def test_a_check_that_ends_at_the_first_failure_has_one():
    report = ow.check(operators.plain, kernels=["wrong"], fail_fast=True)
    (verdict,) = report
    assert verdict.status is Status.FAIL
    assert len(verdict.failures) == 1
    assert any(n.check == "gradients" for n in verdict.not_checked)


def test_a_check_that_ends_at_the_first_failure_leaves_a_right_kernel_alone():
    checks = ("values", "metadata")
    (fast,) = ow.check(operators.plain, kernels=["nothing"], fail_fast=True, checks=checks, level="smoke")
    (whole,) = ow.check(operators.plain, kernels=["nothing"], checks=checks, level="smoke")
    assert (fast.findings, fast.not_checked) == (whole.findings, whole.not_checked)


@pytest.mark.slow  # the kernel itself is checked first, then each mutant
def test_an_operator_of_a_function_is_mutated_too():
    @ow.op("mutating::local")
    def local(x: operators.Float32[operators.Tensor, " n"]) -> operators.Float32[operators.Tensor, " n"]:
        return operators.torch.neg(x)

    @local.python(name="python")
    def _(x):
        return -x

    found = _only(mutate(local))
    assert [(m.operator, m.fate) for m in found.mutants] == [("sign or negation", Fate.KILLED)]


# -- what is shown ----------------------------------------------------------------------------------------------------


def _report():
    killer = Killer("values", "n=1025 dtype=float32", "1 of 1025 elements differ\nmore", "op.sizes(n=(1025,))")
    mutants = (
        Mutant("k.py", 7, "bound", "- a < b\n+ a <= b", Fate.SURVIVED, killer=killer),
        Mutant("k.py", 9, "constant", "- 1\n+ 2", Fate.SURVIVED),
        Mutant("k.py", 8, "index", "- x[i]\n+ x[(i) + 1]", Fate.KILLED, "values", "n=5", "wrong"),
        Mutant("k.py", 8, "index", "- x[i]\n+ x[(i) + 2]", Fate.TIMEOUT, "values"),
        Mutant("k.py", 8, "index", "- x[i]\n+ x[(i) + 3]", Fate.INVALID, "build"),
    )
    ran = KernelMutation("o::p", "k", "python", "cpu", 40, mutants, ("h.h: a header",), "", 3.0)
    return MutationReport({}, (ran, KernelMutation("o::p", "g", "mojo", "cpu", refused="no GPU")), 5)


def _shown(report, **options):
    stream = io.StringIO()
    show_mutation(Console(file=stream, width=100), report, **options)
    return stream.getvalue()


def test_the_table_the_survivors_and_what_kills_them_are_shown():
    text = _shown(_report())
    assert text == textwrap.dedent("""\
        kernel  device  mutants  killed  time-out  survived  invalid  equal  score
        o::p k  cpu     5 of 40       1         1         2        1      ·   50 %

        survived o::p k: bound  k.py:7
          - a < b
          + a <= b
          killed by values on n=1025 dtype=float32
            1 of 1025 elements differ
          → op.sizes(n=(1025,))

        survived o::p k: constant  k.py:9
          - 1
          + 2
          no input was found that kills it; it may be equivalent to the kernel

        o::p g: not mutated: no GPU

        not mutated: h.h: a header

        2 mutants killed, 2 survived: mutation score 50 %; inputs that kill were found for 1 of the
        survivors
        a sample of each kernel's mutants, seed 5
        --strict counts survivors as failures
        """)
    assert "because of --strict" in _shown(_report(), strict=True)
    assert "killed o::p k: index" in _shown(_report(), verbose=True)
    assert "no mutant was run" in _shown(MutationReport({}, ()))


def test_the_record_has_each_kernel_with_its_score():
    record = json.loads(json.dumps(_report().to_json()))
    assert record["schema"] == "opwright.mutation/1"
    assert [k["score"] for k in record["kernels"]] == [0.5, None]
    assert record["kernels"][0]["mutants"][0]["killer"]["add"] == "op.sizes(n=(1025,))"
    assert record["kernels"][0]["mutants"][0]["fate"] == "survived"


SCRIPT = """
import torch
from jaxtyping import Float32
from torch import Tensor
from typing import Annotated
import opwright as ow

@ow.op("mutating_script::{name}")
def f(x: Float32[Tensor, "n"], by: Annotated[float, ow.values(one_of=(1.0,))]) -> Float32[Tensor, "n"]:
    return x / by

@f.python
def divide(x, by):
    return x / by
"""


@pytest.mark.slow  # the kernel itself is checked first, then each mutant
def test_the_command_exits_0_with_survivors_and_1_with_strict(tmp_path):
    file, record = tmp_path / "mutated_script.py", tmp_path / "record.json"
    file.write_text(SCRIPT.format(name="weak"))
    shown = CliRunner().invoke(app, ["check", str(file), "--mutate", "--strict", "--json", str(record)])
    assert shown.exit_code == 1, shown.output
    assert "+ return x * by" in shown.output
    assert "mutated_script.py:14" in shown.output
    assert json.loads(record.read_text())["kernels"][0]["score"] == 0
    assert CliRunner().invoke(app, ["check", str(file), "--mutate"]).exit_code == 0
    assert file.read_text() == SCRIPT.format(name="weak")


def test_the_command_refuses_options_of_other_checks(tmp_path):
    assert CliRunner().invoke(app, ["check", "nothere.py", "--mutate", "--case", "n=1"]).exit_code == 2


@pytest.mark.triton
def test_a_mutant_of_the_gallery_is_what_runs(tmp_path):
    """Operators of this package are sent to workers by their names, and mutants of them are not."""
    add = importlib.import_module("opwright.gallery.add").add
    source = Path(add.kernels["triton"].spec.source)
    changed = tmp_path / source.name
    for text, status in (("if n > 0:", Status.PASS), ("if n <= 0:", Status.FAIL)):
        changed.write_text(source.read_text().replace("if n > 0:", text))
        mutant = mutant_of(add, Patch("triton", kind=FILE, file=changed))
        (verdict,) = ow.check(mutant, kernels=["triton"], device="cpu-sim", level="smoke", checks=("values",)).verdicts
        assert verdict.status is status
