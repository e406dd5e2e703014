"""The engine on a simulated clock: measurements, errors, records."""

import dataclasses
import functools
import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor

import opwright as ow
from opwright.contract.definition.define import make_contract
from opwright.errors import CheckError, KernelError
from opwright.report.records import read
from opwright.results import BenchReport, ComparisonVerdict, Estimate, Measurement, RooflineLimit
from opwright.timing import roofline
from opwright.timing import run as engine
from opwright.timing.analysis.regression import on_other_devices, slower_than
from opwright.timing.analysis.statistics import StopRule, compare
from opwright.timing.candidates import Candidate, backward_of, input_sets, kernel_candidate, plain_reference
from opwright.timing.hardware.clocks import ClockWatch
from opwright.timing.measurement_pass import measure_in_turn
from opwright.timing.merge import merged
from opwright.timing.roofline import fraction_of_roofline
from opwright.timing.sizes import bench_cases
from opwright.timing.timers import CpuTimer
from opwright.timing.verify import _close


class FakeTimer:
    """Candidates take the time in their name (µs); nothing runs. ``switch`` is the cost of a change of candidate."""

    cache_bytes, most_bytes, has_gpu_time = 1 << 20, 1 << 24, False

    def __init__(self, drift=0.0, switch=0.0):
        self.now, self.drift, self.switch, self.last = 0, drift, switch, None

    def _take(self, candidate, sets, count):
        found = []
        for _ in range(count):
            self.now += 1
            extra = self.switch if candidate is not self.last else 0.0
            self.last = candidate
            found.append(float(candidate.name.split()[0]) * (1 + self.drift * self.now) + extra)
        return found

    cold_times = warm_times = host_times = _take

    def warm_up(self, candidate, sets):
        pass

    def profiler_time(self, candidate, sets):
        return None

    def forget(self):
        pass


def candidates(*names):
    return [Candidate(name, "fake", lambda arguments: None) for name in names]


def in_turn(timer, names, rule=None):
    listed = candidates(*names)
    sets = {s.name: [None] for s in listed}
    rule = rule or StopRule(min_seconds=0, min_samples=30, max_samples=60)
    return measure_in_turn(timer, listed, sets, "warm", rule, ClockWatch(), lambda what: None)


def test_a_kernel_beside_itself_is_the_same_even_while_the_machine_slows_down():
    found = in_turn(FakeTimer(drift=0.002), ["10 a", "10 b"])
    assert compare(found["10 a"].rounds, found["10 b"].rounds).verdict is ComparisonVerdict.SAME


def test_what_a_switch_between_kernels_costs_is_not_counted():
    found = in_turn(FakeTimer(switch=1000.0), ["10 a", "20 b"])
    assert set(found["10 a"].all) == {10.0}
    assert set(found["20 b"].all) == {20.0}


def test_a_candidate_that_has_enough_samples_before_a_slow_one_gives_one_in_each_further_round():
    rule = StopRule(min_seconds=0, min_samples=7, max_samples=7)
    found = in_turn(FakeTimer(), ["10 a", "60000 slow"], rule)
    assert [len(samples) for samples in found["60000 slow"].rounds] == [1] * 7
    assert [len(samples) for samples in found["10 a"].rounds] == [5, 2, 1, 1, 1, 1, 1]
    assert compare(found["10 a"].rounds, found["60000 slow"].rounds).verdict is ComparisonVerdict.FASTER
    alike = in_turn(FakeTimer(), ["10 a", "10 b"], rule)
    assert [len(samples) for samples in alike["10 a"].rounds] == [5, 2]
    fewest = in_turn(FakeTimer(), ["10 a"], StopRule(min_seconds=0, min_samples=1, max_samples=1))
    assert len(fewest["10 a"].all) == 2, "a time needs two"


def test_samples_taken_while_the_gpu_throttled_are_dropped_and_said_so():
    class Hot(ClockWatch):
        answers = iter(["hardware thermal slowdown"] * 3)

        def throttled(self):
            return next(self.answers, None)

    (candidate,) = candidates("10 a")
    watch = Hot()
    rule = StopRule(min_seconds=0, min_samples=10, max_samples=10)
    found = measure_in_turn(FakeTimer(), [candidate], {candidate.name: [None]}, "warm", rule, watch, lambda what: None)
    assert len(found[candidate.name].all) == 10
    assert watch.discarded == 15
    assert watch.notes == ["throttled (hardware thermal slowdown): samples discarded"]


def scale_op(namespace):
    @ow.op(f"{namespace}::scale")
    def scale(x: Float[Tensor, "*n"], a: float) -> Float[Tensor, "*n"]:
        """``a * x``."""
        return a * x

    return scale


@pytest.fixture
def quick_engine(monkeypatch, tmp_path):
    """Real calls, few samples, and no roofline unless a test sets one."""
    monkeypatch.setattr(engine, "Roofline", lambda *_: None)

    def run(*operators, **options):
        options = {"iters": 3, "sizes": {"n": [64]}, "baselines": ["reference"], "device": "cpu", **options}
        return ow.bench(*operators, **options)

    return run


def test_every_kernel_direction_and_cache_state_is_there_with_its_record(namespace, quick_engine):
    scale = scale_op(namespace)
    scale.python(lambda x, a: (x * a).contiguous(), name="k")
    report = quick_engine(scale)
    assert {(m.kernel, m.direction, m.cache) for m in report} == {
        (k, d, c) for k in ("k", "reference") for d in ("forward", "backward") for c in ("cold", "warm")
    }
    record = json.loads(json.dumps(report.to_json()))
    assert record["schema"] == "opwright.bench/2"
    first = record["measurements"][0]
    assert first["case"] == {"n": [64], "dtype": "float32"}
    assert first["bytes"] == 512
    assert first["flops"] == 64
    assert set(first["host_us"]) == {"median", "lo", "hi", "n"}
    assert first["comparisons"]["reference"]["verdict"] in list(ComparisonVerdict)
    assert len(first["raw"]) == 3
    assert len(first["first_values"]) == 2
    assert not report.errors


def test_a_kernel_whose_timed_output_is_wrong_is_an_error(namespace, quick_engine):
    scale = scale_op(namespace)
    scale.python(lambda x, a: (x * a * 1.01).contiguous(), name="wrong")
    report = quick_engine(scale)
    assert any("wrong" in e and "its timed output is wrong" in e for e in report.errors)


def limits_of(bytes_per_s):
    return tuple(RooflineLimit(f"bandwidth {c}", "cpu", "B/s", {"65536": bytes_per_s}) for c in ("cold", "warm"))


@pytest.mark.parametrize(("again", "is_error"), [(1.0, True), (1e15, False)])
def test_a_time_that_the_machine_cannot_reach_is_an_error(
    namespace, quick_engine, monkeypatch, tmp_path, again, is_error
):
    """If the machine was busy when its limits were measured, a second measurement is higher."""
    measured = [limits_of(1.0), limits_of(again)]
    monkeypatch.setattr(roofline, "_measured", lambda *_: measured.pop(0))
    monkeypatch.setattr(engine, "Roofline", functools.partial(made_in, tmp_path))
    scale = scale_op(namespace)
    scale.python(lambda x, a: (x * a).contiguous(), name="k")
    report = quick_engine(scale, directions=["forward"])
    assert any("of this machine's bandwidth" in e for e in report.errors) is is_error
    assert any("of this machine's bandwidth" in n for m in report for n in m.notes) is is_error
    assert not measured  # once more, and no third time
    assert report.roofline == limits_of(max(1.0, again))
    (stored,) = (tmp_path / "roofline").iterdir()
    assert roofline._read(stored) == limits_of(max(1.0, again))


def made_in(folder, device, timer, machine, log):
    return roofline.Roofline(device, timer, dataclasses.replace(machine, cache_dir=folder), log)


def test_of_two_measurements_rates_are_the_higher_and_times_the_lower():
    rate, time = (RooflineLimit("limit", "cpu", unit, {"1": 2.0, "2": 2.0}) for unit in ("B/s", "us"))
    assert roofline._better(rate, {"1": 1.0, "2": 3.0}) == {"1": 2.0, "2": 3.0}
    assert roofline._better(time, {"1": 1.0, "2": 3.0}) == {"1": 1.0, "2": 2.0}


def test_a_kernel_that_raises_is_an_error_and_the_others_are_timed(namespace, quick_engine):
    scale = scale_op(namespace)

    @scale.python(name="broken")
    def _(x, a):
        raise ValueError("no such luck")

    scale.python(lambda x, a: (x * a).contiguous(), name="fine")
    report = quick_engine(scale)
    assert {m.kernel for m in report} == {"fine", "reference"}
    assert any("broken" in e and "no such luck" in e for e in report.errors)


def test_a_kernel_outside_its_domain_is_left_out_and_said_so(namespace, quick_engine):
    scale = scale_op(namespace)
    scale.python(lambda x, a: (x * a).contiguous(), name="small", when=lambda x, a: x.numel() < 10)
    messages = []
    report = quick_engine(scale, events=ow.Events(step=messages.append))
    assert {m.kernel for m in report} == {"reference"}
    assert any("small" in t and "`when` predicate is False" in t for t in messages)


def test_an_interrupt_keeps_what_was_measured(namespace, quick_engine):
    scale = scale_op(namespace)
    scale.python(lambda x, a: (x * a).contiguous(), name="k")
    seen = []

    def stop_after_two(measurement):
        seen.append(measurement)
        if len(seen) == 2:
            raise KeyboardInterrupt

    report = quick_engine(scale, events=ow.Events(finished=stop_after_two))
    assert len(report.measurements) == 2
    assert "interrupted" in report.errors[-1]


def test_an_operator_without_gradients_has_no_backward_times(namespace, quick_engine):
    @ow.op(f"{namespace}::largest")
    def largest(x: Float[Tensor, " n"]) -> Int[Tensor, ""]:
        return x.argmax()

    assert {m.direction for m in quick_engine(largest)} == {"forward"}


def test_numpy_references_are_timed_too(namespace, quick_engine):
    @ow.op(f"{namespace}::total")
    def total(x: Float[np.ndarray, " n"]) -> Float[np.ndarray, ""]:
        return np.sum(x)

    assert {m.kernel for m in quick_engine(total, directions=["forward"])} == {"reference"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernels": ["nope"]}, "the kernel must be one of none, got 'nope'"),
        ({"directions": ["sideways"]}, "the direction must be one of forward, backward, got 'sideways'"),
        ({"baselines": ["jax"]}, "the baseline must be one of reference, torch.compile, got 'jax'"),
        (
            {"sizes": {"q": [3], "r": [4]}, "dtypes": ["int8"]},
            "the dtype must be one of bfloat16, float16, float32, float64, got int8",
        ),
    ],
)
def test_an_unknown_name_is_refused_with_the_known_ones(namespace, quick_engine, options, message):
    scale = scale_op(namespace)
    with pytest.raises(CheckError, match=message):
        quick_engine(scale, **options)


def test_timing_on_a_gpu_that_is_not_there_is_refused(namespace):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(CheckError, match="cuda without a CUDA GPU"):
        ow.bench(scale_op(namespace), device="cuda")


def matmul(a: Float[Tensor, "m k"], b: Float[Tensor, "k n"]) -> Float[Tensor, "m n"]:
    return a @ b


def elementwise(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    return x


def sizes_of(function, **options):
    contract = make_contract("sizes::f", function, {})
    options = {"sizes": {}, "dtypes": (), "quick": False, **options}
    return [dict(c.sizes) for c in bench_cases(contract, "cpu", **options)]


def test_every_combination_of_sizes_is_timed_and_new_names_become_axes():
    assert sizes_of(matmul, sizes={"m": [2, 4], "n": [8]}) == [
        {"m": 2, "k": sizes_of(matmul, sizes={"m": [2]})[0]["k"], "n": 8},
        {"m": 4, "k": sizes_of(matmul, sizes={"m": [2]})[0]["k"], "n": 8},
    ]
    assert sizes_of(elementwise, sizes={"S": [2, 3], "K": [5]}) == [{"n": (2, 5)}, {"n": (3, 5)}]
    assert sizes_of(elementwise, sizes={"n": [7, (2, 3)]}) == [{"n": (7,)}, {"n": (2, 3)}]
    with pytest.raises(CheckError, match="the size of 'm' must be one number"):
        sizes_of(matmul, sizes={"m": [(2, 3)]})
    with pytest.raises(CheckError, match=r"a dim must be one of .* got 'q'"):
        sizes_of(matmul, sizes={"q": [1]})


def test_default_sizes_reach_from_launch_bound_to_past_the_cache():
    found = [s["n"][0] for s in sizes_of(elementwise)]
    assert found[0] <= 1 << 10
    assert found[-1] >= 1 << 23
    assert len(sizes_of(elementwise, quick=True)) == 1


def normalised(x: Float[Tensor, "*batch h"], w: Float[Tensor, " h"]) -> Float[Tensor, "*batch h"]:
    return x * w


def test_rows_grow_with_the_number_of_rows():
    found = sizes_of(normalised)
    assert [s["h"] * s["batch"][0] for s in found] == [1 << 10, 1 << 17, 1 << 23]
    assert all(1 <= s["batch"][0] / s["h"] <= 4 for s in found)


def test_the_authors_sizes_are_taken_in_step(namespace):
    scale = scale_op(namespace)
    scale.sizes(n=(3, 4))
    options = {"sizes": {}, "dtypes": ()}
    assert [dict(c.sizes)["n"] for c in bench_cases(scale.contract, "cpu", quick=False, **options)] == [(3,), (4,)]
    product = ow.op(f"{namespace}::matmul")(matmul)
    product.sizes(m=(1, 2, 3), k=(4,))
    found = [dict(c.sizes) for c in bench_cases(product.contract, "cpu", quick=False, **options)]
    assert [(s["m"], s["k"]) for s in found] == [(1, 4), (2, 4), (3, 4)]
    with pytest.raises(KernelError, match=r"a dim must be one of .* got 'q'"):
        scale.sizes(q=(1,))


def test_the_nearest_limit_is_named():
    roofline = (
        RooflineLimit("bandwidth cold", "cpu", "B/s", {"1000": 1e9, "1000000": 2e9}),
        RooflineLimit("arithmetic", "cpu", "FLOP/s", {"float32": 1e9}),
    )
    limit, share = fraction_of_roofline(roofline, moved=1_000_000, flops=10, dtype="float32", cold=True, us=1000.0)
    assert (limit, share) == ("bandwidth", pytest.approx(0.5))
    limit, share = fraction_of_roofline(roofline, moved=10, flops=900_000, dtype="float32", cold=True, us=1000.0)
    assert (limit, share) == ("arithmetic", pytest.approx(0.9))
    assert fraction_of_roofline((), moved=1, flops=1, dtype="float32", cold=True, us=1.0) == ("", None)


def test_input_sets_are_distinct_and_together_larger_than_the_cache(namespace):
    scale = scale_op(namespace)
    (case,) = bench_cases(scale.contract, "cpu", sizes={"n": [1000]}, dtypes=(), quick=True)
    sets = input_sets(scale, case, "cpu", cache_bytes=40_000, most_bytes=1 << 30)
    assert len(sets) * 8000 >= 5 * 40_000
    assert len({s[0].data_ptr() for s in sets}) == len(sets)
    assert not torch.equal(sets[0][0], sets[1][0])
    assert all(s[0].abs().sum() > 0 for s in sets)


def test_a_backward_subject_does_only_the_backward(namespace):
    scale = scale_op(namespace)
    calls = []

    @scale.python(name="counted")
    def _(x, a):
        calls.append(1)
        return (x * a).contiguous()

    (case,) = bench_cases(scale.contract, "cpu", sizes={"n": [10]}, dtypes=(), quick=True)
    sets = input_sets(scale, case, "cpu", 1000, 10_000)
    made = backward_of(scale.contract, kernel_candidate(scale, "counted"), sets[:2])
    assert made is not None
    candidate, states = made
    before = len(calls)
    (grad,) = candidate.run(states[0])
    assert len(calls) == before
    assert grad.shape == (10,)
    assert backward_of(scale.contract, plain_reference(scale), sets[:1]) is not None


def test_the_cpu_timer_orders_a_short_and_a_long_call():
    timer = CpuTimer()
    short, long = (Candidate(str(n), "x", lambda arguments, n=n: sum(range(n))) for n in (100, 100_000))
    for take in (timer.warm_times, timer.cold_times):
        assert min(take(long, [None], 5)) > 10 * min(take(short, [None], 5))


def measured(median, **changes):
    content = {
        "op": "a::b", "kernel": "k", "backend": "cpp", "device": "cpu", "direction": "forward", "case": {"n": 5},
        "cache": "warm", "gpu_us": None, "host_us": Estimate(median, median * 0.99, median * 1.01, 50), "bytes": 1,
        "flops": 1, **changes,
    }  # fmt: skip
    return Measurement(**content)


@pytest.mark.parametrize(("now", "count"), [(100.0, 0), (103.0, 0), (110.0, 1), (90.0, 0), (math.inf, 1)])
def test_only_what_is_surely_slower_counts_as_a_regression(now, count):
    before = BenchReport({}, (measured(100.0), measured(100.0, kernel="gone"))).to_json()
    found = slower_than(before, BenchReport({}, (measured(now), measured(5.0, kernel="new"))), allowed=0.03)
    assert len(found) == count
    assert all("a::b k forward warm" in messages for messages in found)


@pytest.mark.parametrize(
    ("then", "now", "compared"),
    [
        ({"device_name": "H100"}, {"device_name": "H100"}, True),
        ({"device_name": "H100"}, {"device_name": "A100"}, False),
        # A record of before names its machine only.
        ({}, {"device_name": "EPYC"}, True),
        ({}, {"device_name": "Xeon"}, False),
        ({"device": "cuda", "device_name": ""}, {"device": "cuda", "device_name": "H200"}, True),
        ({"device": "cuda", "device_name": ""}, {"device": "cuda", "device_name": "H100"}, False),
    ],
)
def test_times_of_different_devices_are_not_compared_and_that_is_said(then, now, compared):
    machine = {"cpu": "EPYC", "gpus": [{"name": "H200"}]}
    before = BenchReport(machine, (measured(100.0, **then),)).to_json()
    after = BenchReport(machine, (measured(200.0, **now),))
    assert len(slower_than(before, after, allowed=0.03)) == compared
    assert len(on_other_devices(before, after)) == (not compared)


def test_a_time_of_another_machine_of_the_same_type_is_marked():
    before = BenchReport({}, (measured(100.0, host="a", device_name="H100"),)).to_json()
    for host, is_marked in (("b", True), ("a", False)):
        (found,) = slower_than(before, BenchReport({}, (measured(200.0, host=host, device_name="H100"),)), allowed=0)
        assert found.endswith("[on b, before on a]") is is_marked


def test_reports_of_several_machines_become_one_and_keep_them_apart():
    limits = [(RooflineLimit("bandwidth cold", "cuda", "B/s", {"1": rate}),) for rate in (1.0, 2.0)]
    reports = [
        BenchReport({"cpu": host}, (measured(10.0, host=host, device_name=name),), limit, settings={"tf32": tf32})
        for host, name, limit, tf32 in (("a", "H100", limits[0], "off"), ("b", "A100", limits[1], "on"))
    ]
    lost = BenchReport({}, (), errors=("a::c on cuda: its worker died",))
    found = merged([lost, *reports])
    assert [m.host for m in found] == ["a", "b"]
    assert found.errors == lost.errors
    assert found.roofline == ()  # neither's
    assert {host: m["cpu"] for host, m in found.machines.items()} == {"a": "a", "b": "b"}
    assert found.settings == {"tf32": "off or on"}
    shown = read([found.to_json()]).benches
    assert [(b.machine["host"], len(b.measurements), b.roofline) for b in shown] == [
        ("a", 1, limits[0]), ("b", 1, limits[1]),
    ]  # fmt: skip
    assert merged([reports[0]]).roofline == limits[0]
    assert merged([lost]).machine == {}


@pytest.mark.slow
def test_the_command_times_writes_records_and_compares_with_an_earlier_run(tmp_path):
    (tmp_path / "bench_op.py").write_text(
        "from jaxtyping import Float\nfrom torch import Tensor\nimport opwright as ow\n"
        '@ow.op("benchcli::double")\ndef double(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:\n    return 2 * x\n'
        '@double.python(name="sum")\ndef _(x):\n    return (x + x).contiguous()\n'
    )

    def opwright(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "opwright", "bench", "bench_op.py", "--iters", "3", "--size", "n=100",
             "--direction", "forward", "--device", "cpu", *arguments],
            cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "COLUMNS": "130"}, timeout=250,
        )  # fmt: skip

    run = opwright("--json", "new.json")
    assert "vs reference" in run.stdout, run.stderr
    assert "of limit" in run.stdout
    record = json.loads((tmp_path / "new.json").read_text())
    assert {m["kernel"] for m in record["measurements"]} == {"sum", "reference", "torch.compile"}
    for m in record["measurements"]:  # as if the machine had been a thousand times faster
        for key in ("median", "lo", "hi"):
            m["host_us"][key] /= 1000
    (tmp_path / "old.json").write_text(json.dumps(record))
    slower = opwright("--baseline", "old.json", "--fail-on-slower", "3%")
    assert slower.returncode == 1
    assert "slower benchcli::double" in slower.stdout
    without = opwright("--no-limits", "--json", "without.json")
    assert "of limit" not in without.stdout
    assert "limits" not in without.stderr, "their first measurement takes half a minute"
    assert json.loads((tmp_path / "without.json").read_text())["roofline"] == []
    wrong = opwright("--baseline", "bench_op.py")
    assert wrong.returncode == 2
    assert "must be a record in JSON" in wrong.stderr


@pytest.mark.gpu
def test_a_captured_graph_keeps_alive_what_it_reads():
    """A graph was once found again by the id of a candidate that was gone, and read freed memory."""
    import gc

    from opwright.timing.timers import GpuTimer

    timer = GpuTimer()
    for _ in range(50):
        x = torch.randn(1000, device="cuda")
        (sample,) = timer.warm_times(Candidate("s", "torch", lambda _, x=x: x + 1), [None], 1)
        assert sample > 0
        del x
        gc.collect()
        torch.cuda.empty_cache()


def test_the_bandwidth_between_two_measured_sizes_is_between_theirs_and_caches_have_no_sharp_edges():
    roofline = (RooflineLimit("bandwidth cold", "cpu", "B/s", {str(1 << 20): 1e9, str(1 << 22): 3e9}),)

    def share(moved, rate):
        return fraction_of_roofline(roofline, moved=moved, flops=0, dtype="", cold=True, us=moved / rate * 1e6)[1]

    assert share(1 << 21, 1.5e9) == pytest.approx(0.75)
    assert share(1 << 21, 2.5e9) == pytest.approx(1.0)  # above 2e9, but a copy of twice the size gets 3e9
    assert share(1 << 21, 3.3e9) == pytest.approx(1.1)


def test_a_few_of_very_many_may_be_counted_elsewhere():
    counts = torch.tensor([10_000_000, 9_000_000])
    assert _close(counts + torch.tensor([3, -3]), counts)
    assert not _close(counts + torch.tensor([3000, -3000]), counts)
    assert not _close(torch.tensor([3, 4]), torch.tensor([4, 3]))
    assert _close(torch.tensor([], dtype=torch.int64), torch.tensor([], dtype=torch.int64))
