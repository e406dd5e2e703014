"""The two sides of a fork server: workers begin, end, and end with it."""

from __future__ import annotations

import importlib
import inspect
import os
import select
import signal
import socket
import subprocess

import pytest

import opwright as ow
from opwright.errors import CheckError
from opwright.workers import fork_server_client, fork_server_process, pool
from opwright.workers.roles import Role


@pytest.mark.parametrize("role", Role)
def test_each_role_is_a_module_with_a_main_function(role):
    assert callable(importlib.import_module(role).main)


def test_the_files_of_new_modules_are_looked_up(tmp_path, monkeypatch):
    (tmp_path / "looked_up_once.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    file = inspect.getabsfile(importlib.import_module("looked_up_once"))
    assert file not in inspect.modulesbyfile
    fork_server_process._look_up_files_of_modules()
    assert inspect.modulesbyfile[file] == "looked_up_once"


@pytest.mark.slow  # starts another server
def test_a_fork_server_that_has_died_is_replaced():
    assert ow.check("opwright.gallery.add:add", kernels=["reference"], checks=["metadata"]).passed
    with pool.shared_server(interpret=False) as server:
        server._process.kill()
        server._process.wait()
    assert ow.check("opwright.gallery.add:add", kernels=["reference"], checks=["metadata"]).passed


def test_a_server_that_still_starts_is_ended_at_once():
    server = fork_server_client.ForkServer(interpret=False)
    server.close()
    assert server._process.wait(20) == -signal.SIGKILL
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(CheckError, match="has ended"):
        server.fork(Role.KERNEL, [theirs], theirs.fileno())
    assert not server.alive


@pytest.mark.slow  # waits for processes to end
def test_a_worker_ends_with_its_server_whatever_it_waits_for():
    server = fork_server_client.ForkServer(interpret=False)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        worker = os.pidfd_open(server.fork(Role.KERNEL, [theirs], theirs.fileno()))
        server._process.kill()  # and so it cannot end its workers; this one waits for its checker
        assert select.select([worker], [], [], 60)[0]
        os.close(worker)


def test_a_stop_is_known_before_the_job_that_it_belongs_to_ends():
    with pool.shared_server(interpret=False) as server:
        for _ in range(50):
            before = server.stops
            assert not server.disturbed_since(before)
            os.kill(server._process.pid, signal.SIGSTOP)
            os.kill(server._process.pid, signal.SIGCONT)
            assert server.disturbed_since(before)


def test_a_worker_that_was_forked_while_its_server_was_closed_is_ended(monkeypatch):
    killed = []
    monkeypatch.setattr(fork_server_client, "kill", killed.append)
    with pool.shared_server(interpret=False) as server:
        monkeypatch.setattr(server, "_is_closed", True)
    ours, theirs = socket.socketpair()
    with ours, theirs:  # a worker whose connection is closed ends by itself
        with pytest.raises(CheckError, match="was ended"):
            server.fork(Role.KERNEL, [theirs], theirs.fileno())
        assert len(killed) == 1
        os.kill(killed[0], signal.SIGKILL)  # it is there
        assert server.wait(killed[0], 20) == -signal.SIGKILL


def test_the_number_of_a_worker_that_has_ended_may_be_another_processs(monkeypatch):
    """Numbers come again after some 32,000 processes, which a busy machine starts in minutes."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with pool.shared_server(interpret=False) as server, subprocess.Popen(["sleep", "60"]) as other:
        pid = server.fork(Role.KERNEL, [], nowhere)  # it ends for want of a connection
        assert server.wait(pid, timeout=60) == 1
        monkeypatch.setitem(server._ended, other.pid, 1)  # as if that were the number of a worker before
        for _ in range(2):
            assert server.end(other.pid) == 1
            server.kill(other.pid)
        assert other.poll() is None
        other.kill()
    os.close(nowhere)
