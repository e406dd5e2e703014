"""The record of this machine, and the effect of environment variables."""

from __future__ import annotations

import dataclasses
import json
import stat
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from opwright import machine as machine_module
from opwright.machine import Gpu, own_cores, this_machine


def fresh_machine() -> machine_module.Machine:
    """A new record, not the one that is kept for the process."""
    return this_machine.__wrapped__()


def test_the_record_is_made_once_and_frozen() -> None:
    assert this_machine() is this_machine()
    with pytest.raises(dataclasses.FrozenInstanceError):
        this_machine().torch = "0"  # type: ignore[misc]


def test_it_says_what_is_here() -> None:
    machine = fresh_machine()
    assert machine.torch == torch.__version__
    assert machine.has_gpu == torch.cuda.is_available()
    assert machine.cores >= 1
    assert machine.cpu


def test_the_json_form_holds_no_folder_and_can_be_written() -> None:
    record = this_machine().to_json()
    assert "cache_dir" not in record
    assert str(Path.home()) not in json.dumps(record)
    if this_machine().cxx is not None:
        assert record["cxx"] == this_machine().cxx.version  # type: ignore[union-attr]


def test_a_gpu_names_its_architecture() -> None:
    assert Gpu("H100", (9, 0), 80 << 30).arch == "sm_90"


def test_what_is_installed_is_looked_at_once_for_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    before = this_machine()
    installed = {"max": "26.7.0", "max-core": "26.7.0"}

    def version(name: str) -> str:
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(metadata, "version", version)
    assert (fresh_machine().max, fresh_machine().mojo_lacks, fresh_machine().triton) == (
        "26.7.0",
        ("max-mojo-libs",),
        None,
    )
    assert this_machine() is before


def test_the_cache_folder_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPWRIGHT_CACHE_DIR", str(tmp_path))
    assert fresh_machine().cache_dir == tmp_path
    monkeypatch.delenv("OPWRIGHT_CACHE_DIR")
    assert fresh_machine().cache_dir.name == "opwright"


def fake_compiler(folder: Path, name: str, script: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    return path


def test_the_compiler_is_cxx_then_the_default_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mine = fake_compiler(tmp_path, "mycxx", "echo mycxx 1.2.3; echo more")
    monkeypatch.setenv("CXX", str(mine))
    assert fresh_machine().cxx == machine_module.Compiler(str(mine), "mycxx 1.2.3")
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert fresh_machine().cxx is None
    fake_compiler(tmp_path, "g++", "exit 1")
    clang = fake_compiler(tmp_path, "clang++", "echo clang 18")
    found: Any = fresh_machine().cxx
    assert found.path == str(clang), "a compiler that does not print its version is skipped"


def test_the_compiler_that_mojo_links_with_is_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not fresh_machine().cc
    fake_compiler(tmp_path, "cc", "exit 0")
    assert fresh_machine().cc


def test_a_compiler_that_says_nothing_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    fake_compiler(tmp_path, "g++", "exit 0")
    assert fresh_machine().cxx is None


def test_a_compiler_is_asked_again_only_when_it_has_changed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    monkeypatch.setenv("CXX", str(tmp_path / "mycxx"))
    for version, times in (("mycxx 1.2.3", 1), ("mycxx 1.10.0", 2)):
        fake_compiler(tmp_path, "mycxx", f"echo x >> {asked}; echo {version}")
        for _ in range(2):
            found: Any = fresh_machine().cxx
            assert found.version == version
        assert len(asked.read_text().split()) == times


def test_a_process_uses_the_cores_that_a_cluster_has_given_and_no_more_than_it_has(monkeypatch):
    monkeypatch.setattr("opwright.machine._cores", lambda: 8)
    monkeypatch.delenv("OPWRIGHT_CORES", raising=False)
    assert own_cores() == 8
    for given, used in (("1", 1), ("3", 3), ("64", 8), ("0", 8), ("many", 8)):
        monkeypatch.setenv("OPWRIGHT_CORES", given)
        assert own_cores() == used
