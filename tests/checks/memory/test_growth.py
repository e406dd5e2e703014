"""What grows from call to call: threads that are ending are no leak, those that stay are."""

from __future__ import annotations

import mmap
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from opwright.checks.calls import growth


def found(call: Any) -> list[str]:
    context: Any = SimpleNamespace(device="cpu", progress=lambda *a: None, synchronize=lambda: None)
    case: Any = "n=8"
    return [f.message for f in growth.findings(context, "repeated calls", case, call, 10, 64)]


@pytest.mark.slow
def test_threads_that_end_a_moment_after_the_call_are_no_leak() -> None:
    assert found(lambda: threading.Timer(0.2, lambda: None).start()) == []


@pytest.mark.slow
def test_what_the_c_library_keeps_of_ended_threads_is_no_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = iter([0, 8, 16, 16, 8, 16])  # MiB of stacks, after each round
    monkeypatch.setattr(growth, "address_space", lambda: next(kept) << 20)
    assert found(lambda: None) == []


@pytest.mark.slow  # many rounds of calls
def test_address_space_that_is_never_given_back_is_a_leak() -> None:
    mapped: list[mmap.mmap] = []
    leak = ["address space grew by 10.0 MiB in 10 calls, whose results were given back"]
    try:
        assert found(lambda: mapped.append(mmap.mmap(-1, 1 << 20))) == leak
        assert len(mapped) == 50
    finally:
        for each in mapped:
            each.close()


@pytest.mark.slow  # many rounds of calls
def test_threads_that_stay_are_a_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "_QUIET_SECONDS", 0.05)
    end = threading.Event()
    try:
        assert found(lambda: threading.Thread(target=end.wait).start()) == ["10 threads more are there after 10 calls"]
    finally:
        end.set()
