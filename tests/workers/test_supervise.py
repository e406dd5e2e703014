"""How a worker ended, in words and numbers."""

from __future__ import annotations

import signal

import pytest

from opwright.workers.supervise import LOST_GPU, NO_GPU, Ending, ended_for_memory


def test_the_number_of_processes_ended_for_memory_is_read() -> None:
    assert ended_for_memory() >= 0


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        (Ending(3), "the kernel ended the process with exit code 3"),
        (Ending(-signal.SIGSEGV), "the kernel crashed with SIGSEGV at a guard page"),
        (Ending(-signal.SIGABRT), "the kernel crashed with SIGABRT"),
        (Ending(LOST_GPU), "the kernel caused an error after which the GPU answers nothing to its process"),
        (Ending(NO_GPU), "the kernel had no memory of the GPU left"),
        (Ending(-signal.SIGKILL, out_of_memory=True), "the kernel was ended by the system, whose memory was short"),
        (Ending(-signal.SIGKILL, hung=True), "the kernel did not return within 2 s, and was stopped"),
        (Ending(broken="7 bytes"), "the kernel sent 7 bytes in place of a check's messages, and was stopped"),
        (Ending(1, output="a\x1b[2J\n"), "the kernel ended the process with exit code 1; its last output:\na\\x1b[2J"),
    ],
)
def test_an_ending_in_words(ending: Ending, said: str) -> None:
    assert ending.went_wrong
    assert ending.describe("the kernel", "at a guard page", 2.0) == said
