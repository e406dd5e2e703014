"""The artifact cache: artifacts are built once, complete, verified, and never block a call."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from opwright.cache import ArtifactCache, ArtifactKey, CacheFallbackWarning, artifact, folders
from opwright.errors import CacheError, CompileError
from opwright.read_files import ReadFiles, record_files

# A cache that gives up its root without need would pass most tests: let it fail them.
pytestmark = pytest.mark.filterwarnings("error::opwright.cache.CacheFallbackWarning")

SOURCE = "int main() { return 0; }\n" * 40
KEY = ArtifactKey("demo_saxpy.cpp", (("compiler", "g++ 12.2.0"), ("flags", "-O3"), ("source", SOURCE)))


class Build:
    """A build that counts its runs."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, folder: Path) -> None:
        self.runs += 1
        (folder / "kernel.cpp").write_text(SOURCE)
        (folder / "kernel.so").write_bytes(bytes(range(256)) * 16)
        (folder / "parts").mkdir()
        (folder / "parts" / "device.ptx").write_text("// ptx")


def leftovers(root: Path) -> list[Path]:
    return list((root / ".tmp").iterdir())


def start(script: str, *args: object) -> subprocess.Popen[str]:
    """Run ``script`` in a new Python; it finds the cache class, KEY's parts and sys.argv ready."""
    preamble = f"""
import sys, time
from pathlib import Path
from opwright.cache import ArtifactCache, ArtifactKey
KEY = ArtifactKey({KEY.name!r}, {KEY.parts!r})
"""
    source = Path(artifact.__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, "-c", preamble + textwrap.dedent(script), *map(str, args)],
        env={**os.environ, "PYTHONPATH": str(source)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def fresh_fallback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """As in a new process: no temporary root and no warning yet. Returns where the root will be."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(folders, "_private_roots", {})
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    return temporary


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mounts a real file system of 256 KiB; calling it again with "remount,ro" makes it read-only."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(options: str = "size=256k") -> Path:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("mounting is not permitted here")
        return folder

    yield mount
    if os.path.ismount(folder):
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


# --- keys -------------------------------------------------------------------------------------


def test_equal_keys_have_the_same_folder_named_after_the_artifact() -> None:
    again = ArtifactKey(KEY.name, tuple(KEY.parts))
    assert again == KEY
    assert again.folder == KEY.folder == f"demo_saxpy.cpp-{KEY.digest}"
    assert len(KEY.digest) == 20
    assert set(KEY.digest) <= set("0123456789abcdef")


@pytest.mark.parametrize(
    "parts",
    [
        (("ab", ""), ("c", "")),
        (("a", ""), ("bc", "")),
        (("a", "b"), ("", "c")),
        (("a", "bc"),),
        (("c", ""), ("a", "b")),
        (("a", "b1:c"),),
        (("a", "b\0c"),),
        (("a", "b"), ("c", ""), ("", "")),
        (),
    ],
)
def test_text_that_moves_from_one_part_to_another_changes_the_digest(
    parts: tuple[tuple[str, str], ...],
) -> None:
    assert ArtifactKey("k", parts).digest != ArtifactKey("k", (("a", "b"), ("c", ""))).digest


def test_text_that_moves_between_the_name_and_a_part_changes_the_digest() -> None:
    assert ArtifactKey("ka", (("b", ""),)).digest != ArtifactKey("k", (("ab", ""),)).digest


@pytest.mark.parametrize("name", ["../../etc/passwd", "a b/c\0d", ".hidden", "", "ü" * 300, "\ud800", "/"])
def test_any_name_gives_one_plain_visible_folder_below_the_root(name: str, root: Path) -> None:
    folder = ArtifactCache(root).get_or_build(ArtifactKey(name, (("source", "\ud800"),)), Build())
    assert folder.parent == root
    assert not folder.name.startswith(".")
    assert len(folder.name) < 128


# --- reuse ------------------------------------------------------------------------------------


def test_an_artifact_is_built_once_and_then_reused_also_by_another_cache(root: Path) -> None:
    build, messages = Build(), []
    cache = ArtifactCache(root)
    assert cache.find(KEY) is None
    first = cache.get_or_build(KEY, build, on_build=lambda: messages.append("build"))
    assert first == root / KEY.folder == cache.find(KEY)
    assert cache.get_or_build(KEY, build, on_build=lambda: messages.append("again")) == first
    assert ArtifactCache(root).get_or_build(KEY, build) == first
    assert build.runs == 1
    assert messages == ["build"]
    assert (first / "kernel.cpp").read_text() == SOURCE
    assert leftovers(root) == []


def test_a_different_key_is_a_different_artifact(root: Path) -> None:
    build, other = Build(), ArtifactKey(KEY.name, (*KEY.parts, ("torch", "2.13.0")))
    cache = ArtifactCache(root)
    assert cache.get_or_build(KEY, build) != cache.get_or_build(other, build)
    assert build.runs == 2


def test_the_manifest_names_every_file_and_shortens_long_key_parts(root: Path) -> None:
    folder = ArtifactCache(root).get_or_build(KEY, Build())
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["schema"] == "opwright.artifact/2"
    assert [file["path"] for file in manifest["files"]] == ["kernel.cpp", "kernel.so", "parts/device.ptx"]
    assert manifest["files"][1]["size"] == 4096
    assert manifest["parts"][1] == {"label": "flags", "value": "-O3"}
    assert manifest["parts"][2]["length"] == len(SOURCE)
    assert SOURCE[:24] not in (folder / "manifest.json").read_text()


def test_a_relative_root_stays_where_it_was_when_the_process_changes_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cache = ArtifactCache(Path("cache"))
    monkeypatch.chdir("/")
    assert cache.get_or_build(KEY, Build()).parent == tmp_path / "cache"


def test_entries_can_be_listed_measured_removed_and_cleared(root: Path) -> None:
    cache = ArtifactCache(root)
    assert (cache.entries(), cache.size_bytes(), cache.clear()) == ([], 0, 0)
    keys = [ArtifactKey(name, ()) for name in "cab"]
    folders = [cache.get_or_build(key, Build()) for key in keys]
    assert cache.entries() == sorted(folders)
    assert cache.size_bytes() > 3 * 4096
    cache.remove(keys[0])
    cache.remove(keys[0])  # nothing there is no mistake
    assert cache.find(keys[0]) is None
    assert cache.clear() == 2
    assert cache.entries() == []
    assert leftovers(root) == []


# --- builders at once -------------------------------------------------------------------------


def test_two_processes_that_build_at_once_share_one_result(root: Path, tmp_path: Path) -> None:
    script = """
        def build(folder):
            Path(sys.argv[2], "runs").open("a").write("x")
            time.sleep(0.4)
            (folder / "kernel.so").write_text("binary")
        print("ready", flush=True)
        sys.stdin.readline()
        print(ArtifactCache(Path(sys.argv[1])).get_or_build(KEY, build, on_wait=lambda: print("waits")))
    """
    processes = [start(script, root, tmp_path) for _ in range(2)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:  # both run: release them together
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    printed = sorted(process.communicate(timeout=10)[0] for process in processes)
    final = f"{root / KEY.folder}\n"
    assert printed == [final, "waits\n" + final]
    assert (tmp_path / "runs").read_text() == "x"


def test_threads_that_build_at_once_share_one_result(root: Path) -> None:
    build, waits = Build(), []
    everyone = threading.Barrier(8)

    def slow_build(folder: Path) -> None:
        time.sleep(0.2)
        build(folder)

    def ask(cache: ArtifactCache) -> Path:
        everyone.wait()
        return cache.get_or_build(KEY, slow_build, on_wait=lambda: waits.append(1))

    shared = ArtifactCache(root)
    caches = [shared] * 4 + [ArtifactCache(root) for _ in range(4)]
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(ask, caches)) == {root / KEY.folder}
    assert build.runs == 1
    assert len(waits) == 7


def test_different_artifacts_are_built_side_by_side(root: Path) -> None:
    cache, both_building = ArtifactCache(root), threading.Barrier(2)

    def build(folder: Path) -> None:
        both_building.wait(timeout=5)  # breaks if one build had to wait for the other
        (folder / "kernel.so").write_text("binary")

    with ThreadPoolExecutor(2) as pool:
        keys = [ArtifactKey("a", ()), ArtifactKey("b", ())]
        assert len(set(pool.map(lambda key: cache.get_or_build(key, build), keys))) == 2


def test_a_build_under_way_is_invisible_and_survives_clear(root: Path) -> None:
    cache = ArtifactCache(root)

    def build(folder: Path) -> None:
        Build()(folder)
        assert ArtifactCache(root).find(KEY) is None
        assert ArtifactCache(root).entries() == []
        ArtifactCache(root).clear()

    assert cache.find(KEY) is None
    assert cache.get_or_build(KEY, build) == cache.find(KEY)


def test_a_killed_build_neither_blocks_the_next_one_nor_leaves_anything(root: Path) -> None:
    script = """
        def build(folder):
            (folder / "half.so").write_text("half")
            print("building", flush=True)
            time.sleep(60)
        ArtifactCache(Path(sys.argv[1])).get_or_build(KEY, build)
    """
    process = start(script, root)
    assert process.stdout is not None
    assert process.stdout.readline() == "building\n"
    assert len(leftovers(root)) == 1
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert len(leftovers(root)) == 1  # the kill gave it no time to tidy up

    build, began = Build(), time.monotonic()
    folder = ArtifactCache(root).get_or_build(KEY, build, on_wait=lambda: pytest.fail("waited for the dead"))
    assert time.monotonic() - began < 2
    assert build.runs == 1
    assert not (folder / "half.so").exists()
    assert leftovers(root) == []


def test_leftovers_of_another_host_stay_for_a_day(root: Path) -> None:
    recent, old = (root / ".tmp" / f"1-0000000{n}-elsewhere" for n in (1, 2))
    for folder in (recent, old):
        folder.mkdir(parents=True)
    two_days_ago = time.time() - 2 * 24 * 60 * 60
    os.utime(old, (two_days_ago, two_days_ago))
    ArtifactCache(root).get_or_build(KEY, Build())
    assert leftovers(root) == [recent]


# --- damage -----------------------------------------------------------------------------------


def flip_a_byte(folder: Path) -> None:
    data = bytearray((folder / "kernel.so").read_bytes())
    data[1000] ^= 1
    (folder / "kernel.so").write_bytes(data)


def truncate(folder: Path) -> None:
    os.truncate(folder / "kernel.so", 100)


def lose_a_file(folder: Path) -> None:
    (folder / "parts" / "device.ptx").unlink()


def lose_the_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def become_a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("not a folder")


def manifest_becomes(text: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / "manifest.json").write_text(text)

    damage.__name__ = f"manifest becomes {text[:24]}"
    return damage


def take_another_artifacts_place(folder: Path) -> None:
    other = ArtifactCache(folder.parent).get_or_build(ArtifactKey("other", ()), Build())
    shutil.rmtree(folder)
    other.rename(folder)


@pytest.mark.parametrize("same_process", [True, False], ids=["same process", "new process"])
@pytest.mark.parametrize(
    "damage",
    [
        flip_a_byte,
        truncate,
        lose_a_file,
        lose_the_manifest,
        become_a_file,
        take_another_artifacts_place,
        *(manifest_becomes(text) for text in ("", "\0\xff garbage", "[]", "{}", "null", "[" * 100_000)),
        manifest_becomes(json.dumps({"schema": "opwright.artifact/2", "digest": KEY.digest, "files": [1]})),
        manifest_becomes(json.dumps({"schema": "opwright.artifact/2", "digest": KEY.digest, "files": []})),
    ],
    ids=lambda damage: damage.__name__,
)
def test_a_damaged_artifact_is_never_used_but_built_again(
    damage: Callable[[Path], None], same_process: bool, root: Path
) -> None:
    build, cache = Build(), ArtifactCache(root)
    folder = cache.get_or_build(KEY, build)
    assert cache.find(KEY) == folder  # a process that has looked before must notice all the same
    time.sleep(0.01)  # the clock of file times has a tick of some milliseconds
    damage(folder)
    if not same_process:
        cache = ArtifactCache(root)
    assert cache.find(KEY) is None
    assert cache.get_or_build(KEY, build) == folder
    assert build.runs == 2
    assert (folder / "kernel.so").read_bytes() == bytes(range(256)) * 16
    assert ArtifactCache(root).find(KEY) == folder
    assert leftovers(root) == []


def test_a_second_lookup_does_not_read_the_files_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ArtifactCache(root)
    folder = cache.get_or_build(KEY, Build())
    assert cache.find(KEY) == folder
    monkeypatch.setattr(artifact, "_sha256", lambda data: pytest.fail("read again"))
    assert KEY.digest  # computed once, above
    assert cache.find(KEY) == folder


def leave_through_a_link(folder: Path) -> None:
    outside = folder.parent / "outside.so"
    outside.write_bytes((folder / "kernel.so").read_bytes())
    (folder / "kernel.so").unlink()
    (folder / "kernel.so").symlink_to(outside)


def become_a_link(folder: Path) -> None:
    folder.rename(folder.parent / "elsewhere")
    folder.symlink_to(folder.parent / "elsewhere")


def have_a_linked_folder(folder: Path) -> None:
    (folder / "parts").rename(folder.parent / "elsewhere")
    (folder / "parts").symlink_to(folder.parent / "elsewhere")


def list_a_file_elsewhere(path: str) -> Callable[[Path], None]:
    def poison(folder: Path) -> None:
        outside = folder.parent / "outside.so"
        outside.write_text("evil")
        manifest = json.loads((folder / "manifest.json").read_text())
        record = {"path": path.format(folder.parent), "size": 4, "sha256": hashlib.sha256(b"evil").hexdigest()}
        (folder / "manifest.json").write_text(json.dumps({**manifest, "files": [*manifest["files"], record]}))

    poison.__name__ = f"list {path}"
    return poison


def hold_a_file_that_nobody_lists(folder: Path) -> None:
    (folder / "parts" / "sitecustomize.py").write_text("evil")


def be_written_by_others(name: str) -> Callable[[Path], None]:
    def poison(folder: Path) -> None:
        (folder / name).chmod(0o777)

    poison.__name__ = f"{name} written by others"
    return poison


@pytest.mark.parametrize("same_process", [True, False], ids=["same process", "new process"])
@pytest.mark.parametrize(
    "poison",
    [
        leave_through_a_link,
        become_a_link,
        have_a_linked_folder,
        list_a_file_elsewhere("../outside.so"),
        list_a_file_elsewhere("{}/outside.so"),
        hold_a_file_that_nobody_lists,
        *(be_written_by_others(name) for name in (".", "parts", "kernel.so", "manifest.json")),
    ],
    ids=lambda poison: poison.__name__,
)
def test_a_poisoned_artifact_is_never_used_but_built_again(
    poison: Callable[[Path], None], same_process: bool, root: Path
) -> None:
    build, cache = Build(), ArtifactCache(root)
    folder = cache.get_or_build(KEY, build)
    assert cache.find(KEY) == folder
    time.sleep(0.01)  # the clock of file times has a tick of some milliseconds
    poison(folder)
    if not same_process:
        cache = ArtifactCache(root)
    assert cache.find(KEY) is None
    assert cache.get_or_build(KEY, build) == folder
    assert build.runs == 2
    assert not folder.is_symlink()
    assert (folder / "kernel.so").read_bytes() == bytes(range(256)) * 16


def test_nobody_else_can_write_what_is_made(root: Path) -> None:
    umask = os.umask(0)
    try:
        folder = ArtifactCache(root).get_or_build(KEY, Build())
    finally:
        os.umask(umask)
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    assert not any(path.stat().st_mode & 0o022 for path in (root, *root.iterdir(), folder, *folder.rglob("*")))
    assert ArtifactCache(root).find(KEY) == folder


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777])
def test_a_root_that_others_can_write_is_not_used(mode: int, root: Path, fresh_fallback: Path) -> None:
    stored = ArtifactCache(root).get_or_build(KEY, Build())
    root.chmod(mode)
    build, cache = Build(), ArtifactCache(root)
    assert cache.find(KEY) is None
    with pytest.warns(CacheFallbackWarning, match=rf"can be written by other users.*chmod go-w {root}"):
        folder = cache.get_or_build(KEY, build)
    assert (folder.parent.parent, build.runs) == (fresh_fallback, 1)
    root.chmod(0o755)
    assert ArtifactCache(root).find(KEY) == stored


def test_a_root_of_another_user_is_not_used(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = ArtifactCache(root).get_or_build(KEY, Build())
    if os.geteuid() == 0:  # an administrator may share artifacts, whom others trust
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        assert ArtifactCache(root).find(KEY) == stored
        os.chown(root, 54321, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: root.stat().st_uid + 1)
    assert ArtifactCache(root).find(KEY) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
def test_root_does_not_use_what_belongs_to_a_user(root: Path, fresh_fallback: Path) -> None:
    ArtifactCache(root).get_or_build(KEY, Build())
    os.chown(root, 54321, -1)
    with pytest.warns(CacheFallbackWarning, match=r"belongs to another user.*set OPWRIGHT_CACHE_DIR to a folder of"):
        assert ArtifactCache(root).get_or_build(KEY, Build()).parent.parent == fresh_fallback


# --- what a build has read --------------------------------------------------------------------


def reads(*paths: Path, missing: tuple[Path, ...] = ()) -> Callable[[Path], ReadFiles]:
    """A build that has read files."""

    def build(folder: Path) -> ReadFiles:
        (folder / "kernel.so").write_text("".join(path.read_text() for path in paths))
        now = time.time_ns() + 10**9
        return record_files(map(str, paths), [], map(str, missing), base=folder, since_ns=now)

    return build


def test_each_state_of_the_files_that_are_read_has_an_artifact(root: Path, tmp_path: Path) -> None:
    header, made = tmp_path / "a.h", {}
    for text, new in (("one", True), ("two", True), ("one", False), ("three", True), ("two", False)):
        header.write_text(text)
        assert (ArtifactCache(root).find(KEY) is None) == new
        folder = ArtifactCache(root).get_or_build(KEY, reads(header))
        assert (folder / "kernel.so").read_text() == text
        assert made.setdefault(text, folder) == folder
    cache = ArtifactCache(root)
    assert len(cache.entries()) == 3
    header.unlink()
    assert cache.find(KEY) is None
    cache.remove(KEY)
    assert cache.entries() == []


def test_a_file_that_appears_where_one_was_missing_counts(root: Path, tmp_path: Path) -> None:
    header, cache = tmp_path / "a.h", ArtifactCache(root)
    header.write_text("one")
    missing = (tmp_path / "none" / "deep" / "b.h", tmp_path / "b.h")
    cache.get_or_build(KEY, reads(header, missing=missing))
    (tmp_path / "c.h").write_text("")
    assert cache.find(KEY) is not None
    (tmp_path / "b.h").write_text("")
    assert cache.find(KEY) is None


def test_a_build_that_cannot_say_what_it_has_read_serves_its_own_process_only(root: Path) -> None:
    cache, build = ArtifactCache(root), Build()

    def unsure(folder: Path) -> ReadFiles:
        build(folder)
        return ReadFiles(complete=False)

    first, second = cache.get_or_build(KEY, unsure), cache.get_or_build(KEY, unsure)
    assert first != second  # a library that is loaded is not replaced
    assert (first / "kernel.so").exists()
    assert cache.entries() == []
    assert cache.find(KEY) is None


# --- builds that fail -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [ValueError("bad source"), PermissionError(errno.EACCES, "no g++"), KeyboardInterrupt()],
    ids=repr,
)
def test_a_build_that_raises_leaves_nothing_and_the_next_one_runs(error: BaseException, root: Path) -> None:
    cache = ArtifactCache(root)

    def fail(folder: Path) -> None:
        (folder / "half.so").write_text("half")
        raise error

    with pytest.raises(type(error)) as raised:
        cache.get_or_build(KEY, fail)
    assert raised.value is error
    assert leftovers(root) == []
    assert cache.find(KEY) is None
    assert cache.get_or_build(KEY, Build(), on_wait=lambda: pytest.fail("still locked")) == cache.find(KEY)


def test_an_error_of_a_compiler_is_kept_in_a_block_only(root: Path) -> None:
    cache, ran = ArtifactCache(root), []

    def build(error: Exception) -> Callable[[Path], None]:
        def raises(folder: Path) -> None:
            ran.append(error)
            raise error

        return raises

    wrong, broken = CompileError("no such name"), OSError("interrupted")
    with cache.keeping_errors():
        for _ in range(3):
            with cache.keeping_errors(), pytest.raises(CompileError, match="no such name"):
                cache.get_or_build(ArtifactKey("a", ()), build(wrong))
            with pytest.raises(OSError, match="interrupted"):
                cache.get_or_build(ArtifactKey("b", ()), build(broken))
        assert ran.count(wrong) == 1
        assert ran.count(broken) == 3
        with pytest.raises(CompileError):
            cache.get_or_build(ArtifactKey("c", ()), build(wrong))
        assert ran.count(wrong) == 2
    with pytest.raises(CompileError):
        cache.get_or_build(ArtifactKey("a", ()), build(wrong))
    assert ran.count(wrong) == 3


def test_a_callback_that_raises_leaves_nothing(root: Path) -> None:
    cache = ArtifactCache(root)
    with pytest.raises(ZeroDivisionError):
        cache.get_or_build(KEY, Build(), on_build=lambda: print(1 / 0))
    assert leftovers(root) == []
    cache.get_or_build(KEY, Build(), on_wait=lambda: pytest.fail("still locked"))


def test_a_build_that_writes_no_file_is_an_error(root: Path) -> None:
    cache = ArtifactCache(root)
    with pytest.raises(CacheError, match=r"demo_saxpy\.cpp.*wrote no file"):
        cache.get_or_build(KEY, lambda folder: (folder / "empty").mkdir())
    assert cache.entries() == leftovers(root) == []


# --- a full disk ------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG], ids=errno.errorcode.get)
def test_a_build_that_finds_the_disk_full_says_so_and_leaves_nothing(code: int, root: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half.so").write_text("half")
        raise OSError(code, os.strerror(code), str(folder / "half.so"))

    with pytest.raises(CacheError, match=r"disk is full.* MiB are free") as raised:
        ArtifactCache(root).get_or_build(KEY, fail)
    assert str(root) in raised.value.message
    assert "OPWRIGHT_CACHE_DIR" in (raised.value.fix or "")
    assert leftovers(root) == []


def test_a_disk_that_fills_up_at_the_rename_is_an_error_too(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "rename", full)
    cache = ArtifactCache(root)
    with pytest.raises(CacheError, match="disk is full"):
        cache.get_or_build(KEY, Build())
    assert cache.entries() == leftovers(root) == []


def test_a_real_disk_that_is_too_small_for_the_artifact_is_emptied_again(disk: Callable[..., Path]) -> None:
    cache = ArtifactCache(disk() / "cache")
    with pytest.raises(CacheError, match="disk is full"):
        cache.get_or_build(KEY, lambda folder: print((folder / "big.so").write_bytes(bytes(2**20))))
    assert leftovers(cache.root) == []
    cache.get_or_build(KEY, Build())  # there is space for this one


def test_a_real_disk_with_no_room_for_the_manifest_is_full(disk: Callable[..., Path]) -> None:
    cache = ArtifactCache(disk() / "cache")

    def fill(folder: Path) -> None:
        with pytest.raises(OSError, match="No space left"):
            (folder / "big.so").write_bytes(bytes(2**20))

    with pytest.raises(CacheError, match="disk is full"):
        cache.get_or_build(KEY, fill)
    assert cache.entries() == leftovers(cache.root) == []


# --- a root that cannot be written ------------------------------------------------------------


def make_root_a_file(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("")
    return tmp_path / "file"


def put_root_below_a_file(tmp_path: Path) -> Path:
    return make_root_a_file(tmp_path) / "cache"


def put_root_into_proc(tmp_path: Path) -> Path:
    return Path("/proc/opwright")  # not even root may make a folder there


@pytest.mark.parametrize("make", [make_root_a_file, put_root_below_a_file, put_root_into_proc])
def test_a_root_that_cannot_be_made_is_replaced_by_a_temporary_folder_with_one_warning(
    make: Callable[[Path], Path], tmp_path: Path, fresh_fallback: Path
) -> None:
    root, build = make(tmp_path), Build()
    cache = ArtifactCache(root)
    with pytest.warns(CacheFallbackWarning) as warned:
        folder = cache.get_or_build(KEY, build)
    assert len(warned) == 1
    text = str(warned[0].message)
    assert str(root) in text
    assert str(folder.parent) in text
    assert "OPWRIGHT_CACHE_DIR" in text

    assert folder.parent.parent == fresh_fallback
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.get_or_build(KEY, build) == cache.find(KEY) == folder
        assert ArtifactCache(root).get_or_build(KEY, build) == folder  # one per process, not per cache
    assert build.runs == 1
    assert cache.entries() == [folder]
    assert cache.clear() == 1


def test_a_read_only_file_system_is_read_but_not_written(disk: Callable[..., Path], fresh_fallback: Path) -> None:
    root, build = disk() / "cache", Build()
    stored = ArtifactCache(root).get_or_build(KEY, build)
    disk("remount,ro")

    cache = ArtifactCache(root)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.get_or_build(KEY, build) == stored
    assert build.runs == 1
    with pytest.raises(CacheError, match="Read-only file system"):
        cache.remove(KEY)

    with pytest.warns(CacheFallbackWarning, match="Read-only file system"):
        other = cache.get_or_build(ArtifactKey("other", ()), build)
    assert other.parent.parent == fresh_fallback
    assert build.runs == 2


def test_a_damaged_artifact_on_a_read_only_file_system_is_built_elsewhere(
    disk: Callable[..., Path], fresh_fallback: Path
) -> None:
    root = disk() / "cache"
    flip_a_byte(ArtifactCache(root).get_or_build(KEY, Build()))
    disk("remount,ro")
    with pytest.warns(CacheFallbackWarning):
        folder = ArtifactCache(root).get_or_build(KEY, Build())
    assert folder.parent.parent == fresh_fallback


def test_permission_denied_is_a_reason_for_a_temporary_folder(
    root: Path, fresh_fallback: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir = Path.mkdir

    def denied(path: Path, *args: object, **options: object) -> None:
        if path.is_relative_to(root):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        mkdir(path, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "mkdir", denied)
    with pytest.warns(CacheFallbackWarning, match="Permission denied"):
        assert ArtifactCache(root).get_or_build(KEY, Build()).parent.parent == fresh_fallback


def test_without_any_folder_to_write_the_error_says_what_to_set(tmp_path: Path, fresh_fallback: Path) -> None:
    fresh_fallback.rmdir()
    root = put_root_below_a_file(tmp_path)
    with pytest.raises(CacheError, match=r"cannot be written") as raised:
        ArtifactCache(root).get_or_build(KEY, Build())
    assert str(root) in raised.value.message
    assert "OPWRIGHT_CACHE_DIR" in (raised.value.fix or "")


def test_the_temporary_folder_goes_away_with_its_process(tmp_path: Path) -> None:
    script = """
        cache = ArtifactCache(Path(sys.argv[1]))
        print(cache.get_or_build(KEY, lambda folder: print(file=(folder / "kernel.so").open("w"), end="binary")))
        print((cache.find(KEY) / "kernel.so").read_text())
    """
    process = start(
        "import warnings; warnings.simplefilter('ignore')\n" + textwrap.dedent(script),
        put_root_below_a_file(tmp_path),
    )
    folder, content = process.communicate(timeout=10)[0].splitlines()
    assert content == "binary"
    assert process.returncode == 0
    assert not Path(folder).parent.exists()


def test_a_folder_is_listed_again_once_it_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = []
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda folder: listed.append(folder) or listdir(folder))
    key = ArtifactKey("add", (("source", "x"),))
    first, second = (tmp_path / f"{key.folder}.{state}" for state in "ab")
    first.mkdir()
    assert artifact.folders_of(tmp_path, key) == [first]
    assert artifact.folders_of(tmp_path, key) == [first]
    assert len(listed) == 2  # it has changed lately
    long_ago = time.time() - 60
    os.utime(tmp_path, (long_ago, long_ago))
    for _ in range(3):
        assert artifact.folders_of(tmp_path, key) == [first]
    assert len(listed) == 3
    second.mkdir()
    assert set(artifact.folders_of(tmp_path, key)) == {first, second}
    shutil.rmtree(first)
    assert artifact.folders_of(tmp_path, key) == [second]
