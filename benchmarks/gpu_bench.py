"""The timing engine's results on a GPU, and their reliability. Usage: gpu_bench.py OUTPUT_FOLDER

1. The gallery, quick, forward and backward, and how long that takes.
2. Four kernels at five sizes against themselves: how many come out SAME.
3. One kernel timed five times at three sizes: the spread of the medians.
4. Against triton.testing.do_bench, and warm graph replay against do_bench_cudagraph.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

import records
import torch

import opwright as ow
from opwright.gallery.add import add
from opwright.gallery.trig import cos, sin
from opwright.machine import this_machine
from opwright.report.terminal.bench import show_bench
from opwright.report.terminal.console import make_console
from opwright.timing.analysis.statistics import StopRule, compare, estimate
from opwright.timing.candidates import Candidate, input_sets, kernel_candidate
from opwright.timing.hardware.clocks import ClockWatch
from opwright.timing.measurement_pass import measure_in_turn
from opwright.timing.sizes import bench_cases
from opwright.timing.timers import GpuTimer

GALLERY = ("opwright.gallery.add", "opwright.gallery.trig", "opwright.gallery.kmeans")
out = Path(sys.argv[1])
out.mkdir(parents=True, exist_ok=True)
quiet = lambda what: None  # noqa: E731
timer, watch = GpuTimer(), ClockWatch()
watch.start(0)


def twenty() -> list[tuple[object, str, int]]:
    names = [(add, "triton"), (add, "triton_autotuned"), (sin, "triton"), (cos, "triton")]
    return [(op, name, n) for op, name in names for n in (1 << 10, 1 << 18, 1 << 22, 1 << 26, 1 << 28)]


def sets_of(op: object, n: int):
    (case,) = bench_cases(op.contract, "cuda", sizes={"n": [n]}, dtypes=(), declared={}, quick=True)
    return input_sets(op, case, "cuda", timer.cache_bytes, timer.most_bytes)


def against_itself() -> list[dict]:
    rows = []
    for op, name, n in twenty():
        sets = sets_of(op, n)
        one = kernel_candidate(op, name)
        pair = [one, Candidate(one.name + " again", one.backend, one.run, one.prepared)]
        for candidate in pair:
            with candidate.prepared():
                timer.warm_up(candidate, sets)
        for how in ("cold", "warm"):
            found = measure_in_turn(timer, pair, {s.name: sets for s in pair}, how, StopRule(), watch, quiet)
            verdict = compare(found[pair[0].name].rounds, found[pair[1].name].rounds)
            rows.append({"op": op.contract.qualname, "kernel": name, "n": n, "cache": how, **vars(verdict)})
        timer.forget()
    return rows


def repeated() -> list[dict]:
    rows = []
    for n in (1 << 10, 1 << 20, 1 << 26):
        sets, candidate = sets_of(add, n), kernel_candidate(add, "triton")
        for how in ("cold", "warm"):
            medians = []
            for _ in range(5):
                with candidate.prepared():
                    timer.warm_up(candidate, sets)
                found = measure_in_turn(timer, [candidate], {candidate.name: sets}, how, StopRule(), watch, quiet)
                medians.append(estimate(found[candidate.name].all).median)
            spread = (max(medians) - min(medians)) / statistics.median(medians)
            rows.append({"n": n, "cache": how, "medians_us": medians, "spread": spread})
        timer.forget()
    return rows


def other_timers() -> list[dict]:
    from triton.testing import do_bench, do_bench_cudagraph

    rows = []
    for n in (1 << 10, 1 << 18, 1 << 22, 1 << 26, 1 << 28):
        sets, candidate = sets_of(add, n), kernel_candidate(add, "triton")
        call = lambda: candidate.run(sets[0])  # noqa: B023, E731
        with candidate.prepared():
            timer.warm_up(candidate, sets)
            theirs, graph = (
                do_bench(call, return_mode="median") * 1e3,
                do_bench_cudagraph(call, return_mode="median") * 1e3,
            )
            profiler = timer.profiler_time(candidate, sets)
        row = {"n": n, "do_bench_us": theirs, "do_bench_cudagraph_us": graph, "profiler_us": profiler}
        for how in ("cold", "warm"):
            found = measure_in_turn(timer, [candidate], {candidate.name: sets}, how, StopRule(), watch, quiet)
            row[f"{how}_us"] = estimate(found[candidate.name].all).median
        rows.append(row)
        timer.forget()
    return rows


started = time.time()
quick = ow.bench(*GALLERY, quick=True)
quick_seconds = time.time() - started
(out / "bench.json").write_text(json.dumps(quick.to_json()))
show_bench(make_console(width=118), quick)
same, spread, timers = against_itself(), repeated(), other_timers()
counts = {v: sum(r["verdict"] == v for r in same) for v in ("SAME", "UNCLEAR", "FASTER", "SLOWER")}
record = {
    "what": "the timing engine on a GPU",
    "machine": this_machine().to_json(),
    "versions": {"torch": torch.__version__, "opwright": ow.__version__},
    "quick_gallery_seconds": quick_seconds,
    "against_itself": {"counts": counts, "rows": same},
    "repeated": spread,
    "other_timers": timers,
    "notes": watch.notes,
}
records.write(out / "timing.json", record)
print(f"gallery, quick: {quick_seconds:.0f} s; errors: {list(quick.errors)}")
print("against itself:", counts, [r for r in same if r["verdict"] != "SAME"][:6])
print("repeated:", [(r["n"], r["cache"], f"{r['spread']:.2%}") for r in spread])
for row in timers:
    print({k: round(v, 2) if isinstance(v, float) else v for k, v in row.items()})
