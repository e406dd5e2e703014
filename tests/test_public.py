"""The public names: their list, their types, and their examples."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright import errors, results

HERE = Path(__file__).parent
SOURCE = Path(ow.__file__).parent


# -- names -------------------------------------------------------------------------------------------------------


def test_dir_lists_the_public_names_and_no_others():
    assert dir(ow) == sorted(ow.__all__)
    assert not [name for name in dir(ow) if name.startswith("_") and name != "__version__"]
    for name in dir(ow):
        assert getattr(ow, name) is not None


def test_no_folder_hides_a_public_name():
    folders = {f.name for f in Path(ow.__file__).parent.iterdir() if f.is_dir()} | {
        f.stem for f in Path(ow.__file__).parent.glob("*.py")
    }
    assert folders & set(ow.__all__) == {"errors", "inputs", "results", "testing"}


def test_the_face_is_narrow():
    """What a user types to define, attach, check, time, tune and ship; records and exceptions have modules."""
    assert len(set(ow.__all__) - {"__version__"}) <= 35
    assert ow.errors is errors
    assert ow.results is results
    assert ow.inputs.offsets("t").arrangement == "offsets"


def test_every_exception_is_public():
    raised = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)}
    assert raised == set(errors.__all__)


def test_a_misspelt_name_is_answered_with_the_one_that_was_meant():
    with pytest.raises(AttributeError, match="no attribute 'chek'; did you mean 'check'"):
        ow.chek  # noqa: B018
    for name in ("ArgumentError", "Status", "offsets"):
        with pytest.raises(AttributeError, match=rf"it is ow\.(errors|results|inputs)\.{name}"):
            getattr(ow, name)
    for name, place in (("simulate", "kernelsim.triton_launches"), ("simulator_options", "kernelsim.options")):
        with pytest.raises(AttributeError, match=f"'{name}'; it is {place}$"):
            getattr(ow, name)


def test_an_operator_has_a_users_names_only(namespace):
    @ow.op(f"{namespace}::scale")
    def scale(x: Float[Tensor, " n"], a: float) -> Float[Tensor, " n"]:
        return a * x

    public = {name for name in dir(scale) if not name.startswith("_")}
    assert public == {
        "python", "triton", "cuda", "cpp", "mojo", "numpy", "numba", "kernels", "only", "restricted_to",
        "register_autograd", "register_fake", "register_flops", "register_property", "register_sharding",
        "register_vmap", "contract", "overload", "parts", "explain", "flops", "functional", "with_saved",
        "baseline", "samples", "sizes", "use_tuning",
    }  # fmt: skip
    for name in public - {"contract", "overload", "kernels"}:  # which the class's docstring explains
        assert inspect.getdoc(getattr(ow.Op, name)), f"Op.{name} has no docstring"


# -- types -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def complaints(tmp_path_factory):
    """mypy's, by file and line. It reads torch's types once for both files, which takes ten seconds."""
    report = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path_factory.mktemp("mypy")),
         "--config-file", str(HERE.parent / "pyproject.toml"),
         str(HERE / "typing" / "accepted.py"), str(HERE / "typing" / "refused.py")],
        capture_output=True, text=True, cwd=HERE.parent, check=False,
    ).stdout  # fmt: skip
    found = re.findall(r"(\w+)\.py:(\d+): error: (.*)", report)
    assert found, report
    return {(file, int(line)): text for file, line, text in found}


@pytest.mark.slow  # mypy reads all of torch
def test_what_is_right_is_accepted_and_its_types_are_known(complaints):
    assert {place: text for place, text in complaints.items() if place[0] != "refused"} == {}


@pytest.mark.slow  # mypy reads all of torch
def test_what_is_wrong_is_refused(complaints):
    lines = (HERE / "typing" / "refused.py").read_text().splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if "  # refused" in line}
    assert len(wrong) > 20
    assert {line for file, line in complaints if file == "refused"} == wrong


# -- examples in docstrings --------------------------------------------------------------------------------------

EXAMPLES = [
    ".".join(file.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
    for file in sorted(SOURCE.rglob("*.py"))
    if ">>>" in file.read_text() and "gallery" not in file.parts
]


def test_the_decorator_has_an_example():
    assert "opwright.runtime.decorator" in EXAMPLES


@pytest.mark.parametrize("module", EXAMPLES)
def test_examples_run(module):
    outcome = doctest.testmod(importlib.import_module(module), optionflags=doctest.ELLIPSIS)
    assert outcome.attempted > 0
    assert outcome.failed == 0
