"""A function in a fork returns its result, and has no effect on this process, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from opwright.workers.forking import ForkFailedError, in_fork

seen: list[int] = []


def test_its_result_is_returned_and_its_effects_are_not():
    def run():
        seen.append(1)
        os.environ["OPWRIGHT_TEST_IN_FORK"] = "1"
        return {"pid": os.getpid(), "words": ["a", None, 2.5]}

    found = in_fork(run, 30)
    assert found["pid"] != os.getpid()
    assert found["words"] == ["a", None, 2.5]
    assert seen == []
    assert "OPWRIGHT_TEST_IN_FORK" not in os.environ


def test_a_long_result_arrives_whole():
    assert in_fork(lambda: "x" * (1 << 20), 30) == "x" * (1 << 20)


def test_an_exception_is_told():
    def run():
        raise ValueError("not this")

    with pytest.raises(ForkFailedError, match="ValueError: not this"):
        in_fork(run, 30)


@pytest.mark.parametrize("end", [lambda: os._exit(0), lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: exit(2)])
def test_one_that_ends_its_process_is_told(end):
    with pytest.raises(ForkFailedError, match="its process ended"):
        in_fork(end, 30)


def test_one_that_does_not_return_is_ended_with_what_it_has_begun():
    def run():
        subprocess.Popen(["sleep", "3600"])
        time.sleep(3600)

    began = time.monotonic()
    with pytest.raises(TimeoutError):
        in_fork(run, 0.5)
    assert time.monotonic() - began < 10
