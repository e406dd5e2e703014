"""Artifacts are built once in a cluster: others wait for the one that builds, and build themselves when it dies."""

from __future__ import annotations

import os
import threading
import time

import pytest

from opwright.backends.supplier import SocketSupplier
from opwright.cache import ArtifactCache, ArtifactKey, pack, unpack
from opwright.cluster import artifacts
from opwright.cluster.artifact_store import LEASE_S, ArtifactStore
from opwright.cluster.artifacts import Artifacts

KEY = ArtifactKey("kernel", (("source", "text"), ("target", "sm_90")))


class Actor:
    """An actor's handle, whose methods run at once and one at a time."""

    def __init__(self, held):
        self._held, self._lock = held, threading.Lock()

    def __getattr__(self, name):
        def remote(*arguments):
            with self._lock:
                return getattr(self._held, name)(*arguments)

        return type("Method", (), {"remote": staticmethod(remote)})


@pytest.fixture
def machines(tmp_path, monkeypatch):
    """Caches of machines that share a store."""
    monkeypatch.setattr(Artifacts, "_ask", lambda self, value: value)
    actor = Actor(ArtifactStore(put=lambda data: data))

    def make(name):
        address = tmp_path / f"{name}.socket"
        Artifacts(actor).listen(str(address))
        return ArtifactCache(tmp_path / name, SocketSupplier(address))

    make.store = actor
    return make


def builder(text="binary", *, built, seconds=0.0, fails=False):
    def build(folder):
        built.append(text)
        time.sleep(seconds)
        if fails:
            raise ValueError("does not compile")
        (folder / "kernel.so").write_text(text)

    return build


def test_another_machine_takes_what_is_built(machines):
    built = []
    first = machines("a").get_or_build(KEY, builder(built=built))
    second = machines("b").get_or_build(KEY, builder(built=built))
    assert built == ["binary"]
    assert first != second
    assert (second / "kernel.so").read_text() == "binary"
    other = ArtifactKey("kernel", (("source", "text"), ("target", "sm_100")))
    machines("c").get_or_build(other, builder("other", built=built))
    assert built == ["binary", "other"]


def test_one_waits_for_another_that_builds(machines):
    built = []
    caches = [machines(name) for name in "abc"]
    threads = [threading.Thread(target=c.get_or_build, args=(KEY, builder(built=built, seconds=0.5))) for c in caches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert built == ["binary"]
    assert all(cache.find(KEY) for cache in caches)


def test_when_a_build_fails_the_next_one_tries(machines):
    built = []
    with pytest.raises(ValueError, match="does not compile"):
        machines("a").get_or_build(KEY, builder(built=built, fails=True))
    machines("b").get_or_build(KEY, builder(built=built))
    assert built == ["binary", "binary"]
    assert machines.store.size.remote() == 1


def test_what_does_not_fit_is_built_again(machines, tmp_path):
    built = []
    folder = machines("a").get_or_build(KEY, builder(built=built))
    machines.store._held._stored[KEY.folder][folder.name] = pack(_damaged(folder))
    second = machines("b").get_or_build(KEY, builder("anew", built=built))
    assert built == ["binary", "anew"]
    assert (second / "kernel.so").read_text() == "anew"


def _damaged(folder):
    (folder / "kernel.so").write_text("something else")
    return folder


def test_without_the_worker_it_is_built(tmp_path):
    built = []
    ArtifactCache(tmp_path / "a", SocketSupplier(tmp_path / "nothing")).get_or_build(KEY, builder(built=built))
    assert built == ["binary"]


def test_a_builder_that_dies_is_waited_for_no_longer_than_its_lease():
    now = [0.0]
    held = ArtifactStore(put=lambda data: data, clock=lambda: now[0])
    assert held.want("k", "first", []) == ({}, False)
    assert held.want("k", "second", []) == ({}, True)
    now[0] = LEASE_S - 1
    held.builds("k", "first")
    now[0] = LEASE_S + 1
    assert held.want("k", "second", []) == ({}, True)
    now[0] = 2 * LEASE_S
    assert held.want("k", "second", []) == ({}, False)
    assert held.want("k", "third", []) == ({}, True)
    held.ends("k", "first", "", b"")  # it was not its turn any more
    assert held.want("k", "third", []) == ({}, True)
    held.ends("k", "second", "k.1", b"data")
    assert held.want("k", "third", []) == ({"k.1": b"data"}, False)
    assert held.want("k", "fourth", ["k.1"]) == ({}, False)  # it has that, which does not fit


@pytest.mark.parametrize("name", ["../outside", ".tmp", "a/b"])
def test_a_name_that_leads_out_of_the_cache_is_not_written(tmp_path, name):
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "file").write_text("text")
    (tmp_path / "root" / ".tmp").mkdir(parents=True)
    unpack(pack(tmp_path / "from"), name, tmp_path / "root")
    assert sorted(p.name for p in tmp_path.rglob("*")) == [".tmp", "file", "from", "root"]


def test_folders_of_workers_that_have_ended_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    names = [f"opwright-supplier-{os.getpid()}-a", "opwright-supplier-999999999-b", "opwright-supplier-x", "other"]
    for name in names:
        (tmp_path / name).mkdir()
    artifacts._remove_leftovers()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([names[0], names[2], names[3]])


def test_the_modules_of_actors_and_of_what_warms_up_import_no_torch():
    import subprocess
    import sys

    script = "import sys; from opwright.cluster import artifact_store, board, warm; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.slow  # it imports torch in two processes
def test_a_worker_that_was_made_ready_has_a_process_from_which_kernels_are_forked():
    import subprocess
    import sys

    script = """
from opwright.workers import pool
from opwright.cluster.warm import warm

before = dict(pool._servers)
warm(None)
(server,) = pool._servers.values()
print(before, server._process.poll())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "{} None\n"
