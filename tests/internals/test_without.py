"""Each private name missing in turn, and changed in the ways that are relied on not to happen: what opwright computes
is right all the same (``core.py``)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opwright.internals.lookup import problems
from opwright.internals.names import INTERNALS
from tests import warm
from tests.internals.misbehaving import STAND_INS
from tests.sampled import sampled

CORE = Path(__file__).parent / "core.py"
HERE_ALREADY = {problem.internal.key for problem in problems()}
KEYS = [row.key for row in INTERNALS]
# Without these, torch.compile's code of NumPy functions is another, which takes Inductor ten seconds to make.
OF_COMPILED_ARRAYS = {row.key for row in INTERNALS if "numpy" in row.key or "device_con" in row.key} | {"compile_fx"}

# Of CUDA graphs, which need a GPU: looked at when the first is captured.
NOTICED_LATER = {"keeps_graph"}


def run_core(*options: str, **environment: str) -> set[str]:
    """The names that were found missing or changed."""
    done = warm.run_script(CORE, *options, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return {line.split()[1] for line in done.stdout.splitlines() if line.startswith("problem ")} - HERE_ALREADY


@pytest.mark.slow  # imports torch anew
def test_with_all_of_them_nothing_is_refused():
    assert run_core() == set()


@pytest.mark.slow  # a core of the package, without what it needs
@pytest.mark.parametrize("prefix", ["torch.", "triton."])
def test_without_any_of_them(prefix):
    hidden = {row.key for row in INTERNALS if row.name.startswith(prefix)}
    assert hidden - HERE_ALREADY <= run_core(OPWRIGHT_WITHOUT_INTERNALS=",".join(hidden))


@pytest.mark.slow  # a process and a check for each (.ci/versions hides each name alone)
@pytest.mark.parametrize("first", sampled(range(0, len(KEYS), 6), 9))
def test_without_some(first):
    hidden = {*KEYS[first : first + 6]}
    parts = ["compiled_arrays"] if hidden & OF_COMPILED_ARRAYS else []
    assert hidden - HERE_ALREADY <= run_core(*parts, OPWRIGHT_WITHOUT_INTERNALS=",".join(hidden))


@pytest.mark.exhaustive  # a process and a check for each of some seventy names
@pytest.mark.parametrize("key", KEYS)
def test_without_one(key):
    parts = ["compiled_arrays"] if key in OF_COMPILED_ARRAYS else []
    assert {key} - HERE_ALREADY <= run_core(*parts, OPWRIGHT_WITHOUT_INTERNALS=key)


@pytest.mark.slow  # a process and a check for each
@pytest.mark.parametrize("which", sampled([*STAND_INS], 16))
def test_with_one_that_is_not_what_it_was(which):
    done = warm.run_script(CORE.parent / "misbehaving.py", which)
    assert done.returncode == 0, done.stdout + done.stderr
    key = which.partition(":")[0]
    if key not in NOTICED_LATER:
        assert f"problem {key}" in done.stdout.splitlines()


@pytest.mark.slow
def test_doctor_has_a_line_for_what_is_missing(tmp_path):
    done = warm.run_module(
        "opwright", "doctor", "--json", tmp_path / "doctor.json", env={"OPWRIGHT_WITHOUT_INTERNALS": "guards"}
    )
    line = "torch._C._dynamo.guards.TensorGuards is missing: these calls are compared in Python"
    assert line in done.stdout
    assert any(line in lacks for lacks in json.loads((tmp_path / "doctor.json").read_text())["lacks"])
