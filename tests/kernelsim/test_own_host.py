"""kernelsim's own host: its cache, and what it reads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kernelsim.errors import CompileError
from kernelsim.host import Key
from kernelsim.own_host import OwnHost, own_host


def test_a_build_is_made_once(tmp_path: Path) -> None:
    builds: list[Path] = []

    def build(folder: Path) -> None:
        builds.append(folder)
        (folder / "made").write_text("x")

    key = Key("a name/of it", (("source", "text"),))
    for _ in range(2):
        place = OwnHost(tmp_path / "cache").get_or_build(key, build)
        assert (place / "made").read_text() == "x"
    assert len(builds) == 1
    OwnHost(tmp_path / "cache").get_or_build(Key("a name/of it", (("source", "other"),)), build)
    assert len(builds) == 2


def test_a_file_that_was_read_and_changes_is_read_again(tmp_path: Path) -> None:
    header = tmp_path / "own.h"
    host = OwnHost(tmp_path / "cache")
    built: list[str] = []

    def build(folder: Path) -> dict[str, str]:
        built.append(header.read_text())
        (folder / "made").write_text(built[-1])
        watch = host.watch(own_host().compiler)
        Path(watch.environment["SUNPRO_DEPENDENCIES"]).write_text("")  # as a compiler does
        return watch.read_files([], base=tmp_path, built_in=folder, installed=[], others=[header])

    for text in ("one", "one", "two", "two", "one"):
        header.write_text(text)
        assert (host.get_or_build(Key("k", ()), build) / "made").read_text() == text
    assert built == ["one", "two", "one"]


def test_what_a_compiler_without_a_report_has_read_is_built_each_time(tmp_path: Path) -> None:
    host, builds = OwnHost(tmp_path / "cache"), []

    def build(folder: Path) -> dict[str, str]:
        builds.append(folder)
        return host.watch(own_host().compiler).read_files([], base=tmp_path, built_in=folder, installed=[])

    for _ in range(3):
        host.get_or_build(Key("k", ()), build)
    assert len(builds) == 3


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    host = OwnHost(tmp_path / "cache")

    def build(folder: Path) -> None:
        (folder / "half").write_text("")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        host.get_or_build(Key("k", ()), build)
    assert [path.name for path in host.root.iterdir() if path.is_dir()] == []


def test_a_folder_that_others_may_write_is_no_cache(tmp_path: Path) -> None:
    messages: list[str] = []
    root = tmp_path / "cache"
    root.mkdir()
    root.chmod(0o777)
    host = OwnHost(root, messages.append)
    place = host.get_or_build(Key("k", ()), lambda folder: (folder / "made").write_text("x") and None)
    assert not place.is_relative_to(root)
    assert messages == [f"the cache must be a folder that only you can write, got {root}; a temporary one replaces it"]
    assert (place / "made").is_file()


@pytest.mark.compiler
def test_the_headers_that_a_compiler_reads_are_known(tmp_path: Path) -> None:
    (tmp_path / "a file.h").write_text("int x;\n")
    (tmp_path / "a.cpp").write_text('#include "a file.h"\n#include <cstddef>\n')
    host = own_host()
    assert host.compiler is not None
    watch = host.watch(host.compiler)
    command = [host.compiler.path, "-c", str(tmp_path / "a.cpp"), "-o", os.devnull]
    host.run(command, "a.cpp", environment=watch.environment)
    assert str(tmp_path / "a file.h") in watch.included()
    assert any(name.endswith("/cstddef") for name in watch.included())
    read = watch.read_files([], base=tmp_path, built_in=tmp_path / "b", installed=[Path("/usr")])
    assert list(read) == [str(tmp_path / "a file.h")]


@pytest.mark.compiler
def test_the_first_errors_of_a_compiler_are_shown(tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text("int f() { return 1 }\nint g() { return nonsense; }\n")
    host = own_host()
    assert host.compiler is not None
    with pytest.raises(CompileError) as caught:
        host.run([host.compiler.path, "-c", str(tmp_path / "a.cpp")], "a.cpp", target="here", folder=tmp_path)
    assert caught.value.message.startswith("a.cpp does not compile for here\na.cpp:1:")
    assert "nonsense" in caught.value.message
