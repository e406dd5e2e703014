"""The one module between opwright and kernelsim."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import opwright as ow
from kernelsim import errors as theirs
from kernelsim.findings import CudaFinding
from kernelsim.host import Key
from opwright import errors
from opwright.backends import simulation
from opwright.backends.build_tools import build_tools
from opwright.checks import exceptions
from opwright.contract import fingerprint
from opwright.workers.daemon import address

OUT_OF_BOUNDS = "__global__ void k(int* x) {\n  x[threadIdx.x] = 1;\n}"


def test_every_name_that_is_passed_on_is_there() -> None:
    assert set(simulation._PLACE_OF) <= set(simulation.__all__)
    for name in simulation.__all__:
        assert getattr(simulation, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        simulation.nonsense  # noqa: B018


@pytest.mark.parametrize("name", theirs.__all__)
def test_each_error_becomes_one_of_ours(name: str) -> None:
    made = getattr(theirs, name)("what happened", fix="what to do")
    for key in ("log", "findings"):
        if hasattr(made, key):
            setattr(made, key, ("kept",))
    with pytest.raises(errors.OpwrightError) as caught, simulation.our_errors():
        raise made
    assert str(caught.value) == "what happened\n  → what to do"
    kept = [getattr(caught.value, key) for key in ("log", "findings") if hasattr(made, key)]
    assert kept == [("kept",)] * len(kept)


def test_errors_of_functions_that_are_passed_on_are_ours() -> None:
    with pytest.raises(errors.KernelError, match="'-fancy' is not known"):
        simulation.parse_options(["-fancy"])
    with pytest.raises(errors.LaunchError, match=r"k: the grid must be .*, got 'x'"):
        simulation.as_extent("x", "grid", "k")


@pytest.mark.compiler
def test_a_finding_is_ours_with_the_record_of_kernelsim() -> None:
    with pytest.raises(ow.errors.SimulatorError) as caught:
        ow.cuda_module(OUT_OF_BOUNDS)["k"][1, 5](torch.zeros(4, dtype=torch.int32))
    (found,) = caught.value.findings
    assert isinstance(found, CudaFinding)
    assert (found.kind, found.line, found.thread) == ("out-of-bounds", 2, (4, 0, 0))
    assert not isinstance(caught.value, theirs.KernelsimError)


def test_a_tensor_map_is_for_the_device_of_its_tensor() -> None:
    made = ow.tensor_map(torch.zeros(16, 64, dtype=torch.bfloat16), (16, 64), swizzle=128)
    assert len(made.kernel_bytes(-1)) == 128
    with pytest.raises(errors.LaunchError, match="the tensor map is of a tensor on cpu, and the kernel runs elsewhere"):
        made.kernel_bytes(0)
    with pytest.raises(errors.LaunchError, match="and the box as many"):
        ow.tensor_map(torch.zeros(16, 64), (16,))


def test_a_part_of_kernelsim_is_no_code_of_the_users() -> None:
    file = theirs.__file__
    assert not exceptions._is_the_users(file)
    assert file in {stamp[0] for stamp in address._stamps_of_sources()}  # a daemon with another version is not asked
    assert fingerprint._belongs_to_a_library(theirs.KernelError)


@pytest.mark.compiler
def test_the_simulators_build_with_opwrights_cache_and_compiler() -> None:
    tools = build_tools()
    host = simulation.host(tools)
    assert host.compiler is tools.machine.cxx
    built = host.get_or_build(Key("of a test", (("a", "b"),)), lambda folder: (folder / "x").write_text("x") and None)
    assert built.is_relative_to(tools.cache.root)
    with pytest.raises(theirs.CompileError, match=r"a\.cpp does not compile"):
        host.run([host.compiler.path, "-c", "/dev/null/a.cpp"], "a.cpp", folder=Path("/"))
