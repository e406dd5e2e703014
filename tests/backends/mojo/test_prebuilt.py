"""PTX that is shipped beside its Mojo source: when it is found, and when it is not used."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from pathlib import Path

import pytest
import torch

from opwright.backends.build_tools import build_tools
from opwright.backends.gpu.device_code import entries_in_ptx
from opwright.backends.mojo import prebuilt
from opwright.backends.mojo.backend import MojoBackend
from opwright.backends.mojo.call import BuildTarget
from opwright.backends.mojo.prebuilt import Recipe
from opwright.errors import KernelError, KernelRefusedError
from opwright.machine import Compiler, Gpu, Machine, this_machine
from opwright.results import Accepted, Refused
from opwright.runtime.kernel import hooks_of
from opwright.target import Target
from tests.backends.mojo.mojo_sources import GPU, GPU_SCALE


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "scales.mojo"
    path.write_text(textwrap.dedent(GPU_SCALE))
    return path


def machine(gpu: bool = True) -> Machine:
    """One without Mojo."""
    gpus = (Gpu("some GPU", (9, 0), 1 << 30),) if gpu else ()
    return dataclasses.replace(this_machine(), gpus=gpus, mojo=None)


def test_a_gpu_kernel_without_mojo_runs_from_ptx_that_was_built_before(scale, source, tmp_path):
    kernel = scale.mojo(source, prebuilt="ptx", **GPU)
    assert isinstance(kernel.probe("cuda", machine()), Refused)
    (tmp_path / "ptx").mkdir()
    manifest = {
        "schema": "opwright.mojo-ptx/1",
        "files": [{"file": "a", "arch": "sm_80", "parameters": {}, "sources": ""}],
    }
    (tmp_path / "ptx" / f"{source.stem}.scale.json").write_text(json.dumps(manifest))
    assert kernel.probe("cuda", machine()) == Accepted("PTX that was built before")
    assert isinstance(kernel.probe("cpu", machine()), Refused)
    assert isinstance(kernel.probe("cuda", machine(gpu=False)), Refused)


def test_a_list_of_ptx_is_read_again_when_it_has_changed_and_only_then(scale, source, tmp_path, monkeypatch):
    kernel = scale.mojo(source, prebuilt="ptx", **GPU)
    manifest = tmp_path / "ptx" / f"{source.stem}.scale.json"
    manifest.parent.mkdir()
    nothing, one = {"schema": "opwright.mojo-ptx/1", "files": []}, {"file": "a", "arch": "", "parameters": {}}
    something = nothing | {"files": [one | {"sources": ""}]}
    without, readings = machine(), []
    read = prebuilt.read_manifest
    monkeypatch.setattr(prebuilt, "read_manifest", lambda m: readings.append(m) or read(m))

    def answer():
        probe = kernel.probe("cuda", without)
        return probe.reason if isinstance(probe, Refused) else probe.note

    for content, message in ((nothing, "holds no PTX"), (something, "built before"), ("no list", "is not a list of")):
        manifest.write_text(json.dumps(content))
        readings.clear()
        for _ in range(2):
            assert message in answer()
        assert len(readings) == (2 if content == "no list" else 1)  # a manifest that cannot be read is not kept
    manifest.write_text(json.dumps(something))
    assert "built before" in answer()
    manifest.unlink()
    assert "holds no PTX" in answer()


def test_ptx_of_a_source_that_was_edited_after_a_call_is_refused(scale, source):
    kernel = scale.mojo(source, prebuilt="ptx", **GPU)
    without = dataclasses.replace(build_tools(), machine=machine())
    made = MojoBackend().compile(kernel.spec, kernel.contract, without).payload
    target = BuildTarget("sm_90", (torch.float32, torch.float32))
    unit = made.unit({"dtype": "DType.float32"}, target)
    manifest = prebuilt.manifest_of(source, "scale", "ptx")
    prebuilt.write(manifest, [(Recipe({"dtype": "DType.float32"}, "sm_90"), unit, "PTX")], "Mojo 1")
    assert made((torch.ones(3),), target).read_text() == "PTX"
    source.write_text(source.read_text() + "\n# edited\n")
    with pytest.raises(KernelRefusedError, match="or from another version of the source"):
        made((torch.ones(4),), target)


def test_a_list_of_ptx_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "list.json").write_text('{"schema": "another"}')
    with pytest.raises(KernelError, match=r"list.json is not a list of prebuilt PTX"):
        prebuilt.read_manifest(tmp_path / "list.json")


@pytest.mark.mojo
@pytest.mark.slow  # compiles Mojo
def test_prebuilt_ptx_is_found_by_its_source_and_architecture(scale, source):
    kernel = scale.mojo(source, prebuilt="ptx", dtypes=[torch.float32], **GPU)
    files = MojoBackend().prebuild(kernel.spec, kernel.contract, build_tools(), ["sm_80"], [(torch.ones(3),)])
    assert [f.name for f in files] == [f"{source.stem}.scale.json", f"{source.stem}.scale.float32.sm_80.ptx"]
    (entry,) = entries_in_ptx(files[1].read_text())
    assert (entry.symbol, len(entry.parameters)) == ("opwright_entry", 4)

    unit = _unit(kernel, "sm_90")
    assert prebuilt.find(files[0], unit) == (files[1], "sm_80")
    assert prebuilt.find(files[0], dataclasses.replace(unit, target="sm_75")) is None
    source.write_text(source.read_text() + "\n# edited\n")
    assert prebuilt.find(files[0], unit) is None


def _unit(kernel, arch):
    made = MojoBackend().compile(kernel.spec, kernel.contract, build_tools()).payload
    return made.unit({"dtype": "DType.float32"}, BuildTarget(arch, (torch.float32, torch.float32)))


def test_without_mojo_only_the_dtypes_of_the_ptx_are_taken(scale, source, tmp_path, monkeypatch):
    manifest = prebuilt.manifest_of(source, "scale", "ptx")
    manifest.parent.mkdir()

    def list_ptx(*parameters):
        files = [{"file": "a", "arch": "sm_80", "parameters": p, "sources": ""} for p in parameters]
        manifest.write_text(json.dumps({"schema": "opwright.mojo-ptx/1", "files": files}))

    list_ptx({"dtype": "DType.float32"}, {"dtype": "DType.float64"})
    kernel = scale.mojo(source, prebuilt="ptx", **GPU)
    spec, backend = kernel.spec, MojoBackend()
    assert set(backend.dtypes_here(spec, "cuda", machine())) == {torch.float32, torch.float64}
    hooks = hooks_of(kernel, Target("cuda"))
    assert "holds no PTX of scale for it" in hooks.unchecked_dtypes(machine())[torch.float16]
    assert torch.float16 in backend.dtypes_here(spec, "cuda", this_machine_with_mojo())
    assert not hooks.unchecked_dtypes(this_machine_with_mojo())
    list_ptx({"dtype": "DType.float32", "width": "3"})  # not distinguished from width=4 by the dtype
    assert torch.float16 in backend.dtypes_here(spec, "cuda", machine())


def this_machine_with_mojo() -> Machine:
    return dataclasses.replace(machine(), mojo=Compiler("mojo", "Mojo 1.2.0"))
