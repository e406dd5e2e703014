"""Comparable samples: pinned threads that are released again, one precision for all, a reset cache."""

import contextlib
import os
import threading

import pytest
import torch

from opwright.timing.hardware import cores, persisting_l2
from opwright.timing.hardware.precision import PrecisionFlags
from opwright.timing.timers import CpuTimer

here = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
two_processors = pytest.mark.skipif(len(here) < 2, reason="there is one processor")


def affinities():
    return {t: os.sched_getaffinity(t) for t in cores._threads()}


@contextlib.contextmanager
def a_thread():
    """Another thread of this process, with its id."""
    stop, there = threading.Event(), []
    ready = threading.Event()

    def wait():
        there.append(threading.get_native_id())
        ready.set()
        stop.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    ready.wait()
    try:
        yield there[0]
    finally:
        stop.set()
        thread.join()


@two_processors
def test_threads_are_pinned_and_let_go_also_those_that_came_meanwhile():
    one = min(here)
    with a_thread() as old:
        before = affinities()
        with cores.pinned((one,)), contextlib.ExitStack() as kept:
            assert set(map(frozenset, affinities().values())) == {frozenset({one})}
            new = kept.enter_context(a_thread())
            assert os.sched_getaffinity(new) == {one}
            keep = kept.pop_all()
        with keep:
            assert os.sched_getaffinity(new) == here
        assert os.sched_getaffinity(old) == here
        after = affinities()
        assert all(after[t] == before[t] for t in before.keys() & after.keys())


@two_processors
def test_threads_are_let_go_after_an_error():
    with pytest.raises(KeyboardInterrupt), cores.pinned((min(here),)):
        raise KeyboardInterrupt
    assert os.sched_getaffinity(0) == here


def test_every_thread_gets_a_core_of_its_own(monkeypatch):
    siblings = {0: (0, 4), 1: (1, 5), 2: (2, 6), 3: (3, 7), 4: (0, 4), 5: (1, 5), 6: (2, 6), 7: (3, 7)}
    monkeypatch.setattr(cores, "_core_of", siblings.get)
    monkeypatch.setattr(cores, "_busy_ticks", lambda seconds: {0: 9, 4: 1})
    assert cores.choose_cpus(3, range(8)) == (1, 2, 3), "0 is busy"
    assert cores.choose_cpus(4, range(8)) == (1, 2, 3, 4), "4 is 0's idle sibling"
    assert cores.choose_cpus(6, range(8)) == (0, 1, 2, 3, 4, 5), "more threads than cores"
    assert cores.choose_cpus(2, [5]) == (), "too few processors: nothing is pinned"


def test_what_was_pinned_is_said():
    settings = CpuTimer().settings()
    assert settings["threads"] == str(torch.get_num_threads())
    assert settings["threads pinned"].startswith(("to processors", "no: too few"))


def test_parallel_work_is_not_squeezed_onto_one_processor():
    timer = CpuTimer()
    torch.ones(1 << 20).add(1)  # OpenMP's threads are there now
    with timer.steady():
        assert len(os.sched_getaffinity(0)) >= min(torch.get_num_threads(), len(here))


def test_precision_flags_are_told_compared_and_put_back():
    flags = PrecisionFlags()
    assert flags.to_json()["float32 matmul precision"] == torch.get_float32_matmul_precision()
    assert flags.changes() == []
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.set_default_dtype(torch.float64)
    try:
        changed = " ".join(flags.changes())
        assert "TF32 in cuBLAS: False → True" in changed
        assert "default dtype: torch.float32 → torch.float64" in changed
    finally:
        flags.restore()
    assert flags.changes() == []
    assert torch.get_default_dtype() is torch.float32


def test_a_program_that_uses_torchs_new_names_for_tf32_is_no_error():
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        flags = PrecisionFlags()
        assert flags.to_json()["float32 in cuBLAS"] == "tf32"
        assert flags.changes() == []
        flags.restore()
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


@pytest.mark.parametrize(("code", "message"), [(0, ""), (801, "the driver returned error 801")])
def test_the_driver_s_error_for_the_cache_is_kept(monkeypatch, code, message):
    monkeypatch.setattr(persisting_l2, "_find", lambda: (lambda: code, ""))
    assert persisting_l2.reset_persisting_lines() == message


def test_a_machine_without_cuda_says_why_the_cache_is_not_reset(monkeypatch):
    def refuse(name):
        raise OSError(name)

    monkeypatch.setattr(persisting_l2.ctypes, "CDLL", refuse)
    persisting_l2._find.cache_clear()
    try:
        assert "neither libcuda.so.1 nor libcudart.so" in persisting_l2.reset_persisting_lines()
    finally:
        persisting_l2._find.cache_clear()


@pytest.mark.gpu
def test_a_backward_is_captured_in_a_graph_and_the_cache_is_reset():
    from opwright.gallery.trig import sin
    from opwright.timing.candidates import Candidate, backward_of
    from opwright.timing.timers import GpuTimer

    timer = GpuTimer()
    assert timer.settings()["persisting lines of the L2"] == "reset before each cold sample"
    x = torch.randn(1 << 20, device="cuda")
    made = backward_of(sin.contract, Candidate("s", "torch", lambda arguments: torch.sin(arguments[0])), [(x,)])
    assert made is not None
    candidate, states = made
    graph = timer.warm_times(candidate, states, 5)
    assert timer.not_captured(candidate) == ""
    queued = timer._queued_times(candidate, states, 5)
    assert min(graph) <= 1.2 * min(queued)


@pytest.mark.gpu
def test_what_cannot_be_captured_is_timed_all_the_same_and_says_why():
    from opwright.timing.candidates import Candidate
    from opwright.timing.timers import GpuTimer

    timer = GpuTimer()
    x = torch.randn(100, device="cuda")
    candidate = Candidate("s", "torch", lambda _: x.sum().item())
    assert timer.warm_times(candidate, [None], 2)[0] > 0
    assert "captur" in timer.not_captured(candidate)
    assert torch.equal((x + 0).cpu(), x.cpu()), "the device works on"
    assert torch.randn(3, device="cuda").isfinite().all(), "and its random numbers too"


class FakeCuda:
    """The parts of torch.cuda that a capture needs, with a log of the work on each stream."""

    def __init__(self, monkeypatch, refuse=""):
        self.log, self.refuse = [], refuse
        for name, value in {
            "synchronize": lambda: None, "CUDAGraph": lambda: "graph", "graph": self.graph, "stream": self.stream,
        }.items():  # fmt: skip
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr("opwright.runtime.cuda_graphs.capture._capture_something", lambda: None)

    @contextlib.contextmanager
    def graph(self, graph, stream):
        self.log.append(f"capture on {stream}")
        if self.refuse:
            raise RuntimeError(self.refuse)
        yield

    @contextlib.contextmanager
    def stream(self, stream):
        self.log.append(f"on {stream}")
        yield

    def timer(self):
        from opwright.timing.timers import GpuTimer

        timer = GpuTimer.__new__(GpuTimer)
        timer._graphs, timer._host_us, timer._stream, timer._flush_us = {}, {}, "ours", 1.0
        timer._queued_times = lambda candidate, sets, count: [500.0] * count
        timer._replay = lambda graph: 80.0
        return timer


def test_a_graph_holds_about_two_milliseconds_of_calls(monkeypatch):
    from opwright.timing.candidates import Candidate

    cuda, seen = FakeCuda(monkeypatch), []
    timer, sets = cuda.timer(), ["a"]
    candidate = Candidate("s", "torch", seen.append)
    assert timer.warm_times(candidate, sets, 3) == [20.0] * 3
    assert seen == ["a"] * 4
    assert cuda.log == ["capture on ours"]
    assert timer.not_captured(candidate) == ""
    timer.warm_times(candidate, sets, 1)
    assert cuda.log == ["capture on ours"], "captured once"


def test_a_backwards_forward_runs_on_the_stream_of_the_capture(monkeypatch):
    from opwright.timing.candidates import Candidate

    cuda, seen = FakeCuda(monkeypatch), []
    timer = cuda.timer()

    def forward():
        cuda.log.append("forward")
        return "fresh"

    candidate = Candidate("s", "torch", seen.append, for_capture=forward)
    timer.warm_times(candidate, ["old"], 1)
    assert cuda.log == ["on ours", "forward", "capture on ours"]
    assert set(seen) == {"fresh"}
    assert timer._graphs[candidate][1].arguments == "fresh", "kept alive as long as the graph"


def test_why_no_graph_could_be_captured_is_a_note_of_the_measurement(monkeypatch):
    from opwright.timing.candidates import Candidate
    from opwright.timing.measurement import _capture_notes

    timer = FakeCuda(monkeypatch, refuse="operation not permitted when stream is capturing\nmore").timer()
    candidate = Candidate("s", "torch", lambda arguments: None)
    assert timer.warm_times(candidate, ["a"], 2) == [500.0] * 2
    assert timer.not_captured(candidate) == "RuntimeError: operation not permitted when stream is capturing"

    class Session:
        pass

    Session.timer = timer
    (note,) = _capture_notes(Session, candidate, "warm")
    assert "not a CUDA graph: RuntimeError: operation not permitted" in note
    assert _capture_notes(Session, candidate, "cold") == []
    timer.forget()
    assert timer.not_captured(candidate) == ""


@pytest.mark.parametrize(("load", "said"), [(0.9, {}), (3.2, {"load before": "3.2 on 4 cores"})])
def test_the_load_before_is_said_if_it_is_more_than_half_of_the_cores(monkeypatch, load, said):
    monkeypatch.setattr(cores.os, "cpu_count", lambda: 4)
    monkeypatch.setattr(cores.os, "getloadavg", lambda: (load, 9.0, 9.0), raising=False)
    assert cores.load_before() == said
