"""The tables of pages that come from records: each row as the page must have it (see ``claims.py``)."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from statistics import median
from typing import Any

from tests import REPOSITORY

__all__ = [
    "of_calls",
    "of_cluster",
    "of_conv1d",
    "of_cuda",
    "of_cuda_graphs",
    "of_judged_candidates",
    "of_kmeans",
    "of_language_model",
    "of_lltm",
    "of_ranks",
    "of_timers",
    "of_verdicts",
    "record",
]  # fmt: skip

_SIZES = ("(16, 32, 128)", "(256, 512, 512)", "(4096, 1024, 1024)")


def record(name: str) -> dict[str, Any]:
    """A record of benchmarks, by the name of its file."""
    found: dict[str, Any] = json.loads((REPOSITORY / "benchmarks" / "results" / name).read_text())
    return found


def of_lltm() -> Iterator[tuple[str, str]]:
    """Times of the LLTM cell: on a GPU, without autograd's thread, within torch.compile, on a CPU; training."""
    page, found = "docs/lltm.md", record("2026-11-22-h200-lltm.json")
    names = ("eager", "torch.compile", "cuda", "cuda host", "cuda accessors", "triton", "cuda graph")
    for size, case in zip(_SIZES, found["runs"][0], strict=True):
        of = case["candidates"]
        for direction in ("forward", "backward", "both"):
            first = f" {size} " if direction == "forward" else " "
            yield page, _row(f"|{first}| {direction}", (_whole(of[n]["us"][direction]) for n in names))
        yield page, _row("| | memory, MiB", (f"{of[n]['memory'] / 2**20:.3g}" for n in names))
    for size, case in zip(_SIZES[:2], found["without_autograds_thread"], strict=False):
        times = (case["candidates"][n]["us"]["both"] for n in ("torch.compile", "cuda", "cuda host", "cuda graph"))
        yield page, _row(f"| {size}", (f"{t:.0f}" for t in times))
    for run in found["training"]["runs"]:
        losses = run["mean_of_last_20"]
        yield page, f"| {losses['opwright']:.5f} | {losses['plain']:.5f} | {run['first_40_apart']:.1e} |"
    for size, case in zip(_SIZES, record("2026-11-27-h100-lltm-in-compile.json")["cases"], strict=True):
        share = case["of_compile"]
        plain = ("least", "cuda in it", "cuda host in it", "cuda accessors in it", "triton in it")
        yield page, _row(f"| {size}", (f"{share[n]:.2f}" for n in plain))
        graphs = ("least", "cuda", "cuda host", "cuda accessors", "triton")
        shares = [f"{share[f'{n}, graphs']:.2f}" for n in graphs]
        yield page, _row(f"| {size}", [shares[0], f"{share['reduce-overhead']:.2f}", *shares[1:]])
    cases = record("2026-11-22-cpu-lltm.json")["runs"][0]
    for case in cases:
        size = f"({case['batch']}, {case['input']}, {case['state']})"
        times = (case["candidates"][n]["us"].values() for n in ("eager", "torch.compile", "cpp"))
        yield page, _row(f"| {size}", (", ".join(map(_whole, each)) for each in times))
    tiles = [re.findall(r"\d+\.\d", line) for line in found["tiles"] if re.match(r" ?\d+, +\d+, \d+ ", line)]
    ratios = [float(row[n + 1]) / float(row[n]) for row in tiles for n in (0, 2)]
    yield page, f"At six sizes they took the GPU {min(ratios):.2f} to {max(ratios):.2f} times as long"
    shares = [f"{case['candidates']['cpp']['of_compile']:.2f}" for case in cases]
    yield page, f"the C++ kernels took {shares[0]}, {shares[1]} and {shares[2]} of torch.compile's time"


def of_cuda_graphs() -> Iterator[tuple[str, str]]:
    """``ow.cuda_graphed`` beside other CUDA graphs."""
    found = record("2026-11-28-h100-cuda-graphs.json")
    modules = ("cell, 16 × 128", "perceptron of 4 layers, 64 × 512", "transformer layer, 8 × 128 × 512")
    for shown, name in (
        ("eager", "eager"),
        ('`torch.compile(mode="reduce-overhead")`', "torch.compile, reduce-overhead"),
        ("`torch.cuda.make_graphed_callables`", "make_graphed_callables"),
        ("`ow.cuda_graphed`", "ow.cuda_graphed"),
    ):
        verdicts = {found[m][name]["five_calls_before_the_backward"] for m in modules}
        ending = verdicts.pop() if len(verdicts) == 1 else "right; wrong of the transformer layer"
        yield "docs/lltm.md", _row(f"| {shown}", [*(f"{found[m][name]['us']:.0f}" for m in modules), ending])
    pieces = record("2026-11-28-h100-lltm.json")["cases"][0]
    yield "docs/lltm.md", f"and {pieces['of_compile']['cuda graph']:.2f} on another machine"


def of_conv1d() -> Iterator[tuple[str, str]]:
    """``conv1d`` in Mojo, CUDA and Triton; host overhead of a Mojo kernel."""
    page = "docs/mojo.md"
    cold = [m for m in record("2026-11-21-h200-conv1d.json")["measurements"] if m["cache"] == "cold"]
    forward = {(m["case"]["n"], m["kernel"]): m for m in cold if m["direction"] == "forward"}
    kernels = ("mojo_gpu", "mojo_gpu_tiled", "cuda", "triton", "eager", "torch.compile")
    for shown, n in (("10³", 1000), ("10⁵", 10**5), ("10⁷", 10**7), ("10⁸", 10**8)):
        times = (forward[n, kernel]["device_us"]["median"] for kernel in kernels)
        yield page, _row(f"| {shown}", (f"{t:.1f}" if t < 100 else f"{float(f'{t:.3g}'):.0f}" for t in times))
        if n > 1000:
            shares = (forward[n, kernel]["ceiling_fraction"] for kernel in kernels[:4])
            yield page, _row(f"| {shown}", (f"{s:.2f}" for s in shares))
    us = record("2026-11-21-h200-calls.json")["overhead"]
    yield page, f"from prebuilt PTX) takes {us['op, Mojo kernel']:.1f} µs, `torch.add` {us['torch.add']:.1f} µs"
    us = record("2026-11-28-cpu-call-overhead.json")["us"]
    nothing = us["op(...) around a kernel that does nothing"]
    yield page, f"takes {us['op(...) in Mojo']:.2f} µs, `torch.add` {us['torch.add']:.1f} µs"
    yield page, f"around a kernel that does nothing {nothing:.2f} µs"
    yield page, f"In any other call the Mojo kernel alone takes {us['  the Mojo kernel, in any other call']:.1f} µs"


def of_cluster() -> Iterator[tuple[str, str]]:
    """What a cluster costs, by its plan, on GPUs and simulated; what was killed."""
    page, found = "docs/cluster.md", record("2026-11-24-cpu-cluster-overhead.json")
    yield page, f"first work item has run | {_and(sorted(c['first_unit_s'] for c in found['cold_start']), '.1f')} s |"
    yield page, f"to a worker and back | {_and(sorted(found['overhead_ms_each_round']), '.1f')} ms |"
    yield page, f"compared with two | {_and(sorted(found['two_processes']['ratios']), '.2f')} × as long |"
    rows = record("2026-11-27-cpu-cluster-plan.json")["rows"]
    for shown, kernels, key in (
        ("`add` and `trig`, 14 kernels, in the order of their definition", 14, "in the record's order"),
        ("the same, first sweep (lengths are not known)", 14, "a first sweep"),
        ("the same, later sweep", 14, "a later sweep"),
        ("the gallery, 36 kernels, first sweep", 36, "a first sweep"),
        ("the same, later sweep", 36, "a later sweep"),
    ):
        yield page, _row(f"| {shown}", (f"{row[key]:.2f}" for row in rows if row["kernels"] == kernels))
    (run,) = record("2026-11-28-h100-x2-cluster.json")["rounds"]
    yield page, f"{run['one']['seconds']:.1f} s on one H100 and {run['all']['seconds']:.1f} s on two"
    yield page, f"{record('2026-11-26-h200-x4-cluster.json')['ratio']:.1f} times as fast on four H200s"
    found = record("2026-11-24-cpu-cluster-simulation.json")
    small, small_faults, large, large_faults = found["runs"]
    yield page, f"with {found['start_of_a_unit_ms']['value']:.1f} ms before each work item"
    lengths = found["lengths_of_units_s"]
    yield page, f"{lengths['least']:.1f} to {lengths['most']:.0f} s"
    yield page, f"| {small['took_of_ideal']:.3f} × | {large['took_of_ideal']:.3f} × |"
    unused = (f"{100 * run['unused_until_the_last_start']:.3f} %" for run in (small, large))
    yield page, _row("until the last one is given out", unused)
    busy = (f"{run['driver_ms_of_a_unit']:.2f} ms, {100 * run['driver_busy']:.1f} %" for run in (small, large))
    yield page, _row("in which it is busy", busy)
    yield page, f"for good | {small_faults['took_of_ideal']:.2f} × | {large_faults['took_of_ideal']:.2f} × |"
    sizes = record("2026-11-24-cpu-cluster-simulation-sizes.json")["runs"]
    calm = max(run["took_of_ideal"] for run in sizes if not run["worker_deaths"])
    yield page, f"the sweep takes at most {calm:.3f} × the ideal"
    memory = [run["driver_memory_mib"]["at_most"] for run in (*found["runs"], *sizes)]
    before = found["runs"][0]["driver_memory_mib"]["before"]
    yield page, f"at most {max(memory) / 1024:.1f} GiB of memory, {before / 1024:.1f} of which"
    killed = record("2026-11-24-cpu-cluster-faults.json")
    roles = Counter(trial["role"] for trial in killed["trial"])
    yield page, f"{killed['killed']} such moments on one machine: {roles['the command']} killed the command"
    yield page, f"{killed['commands started again']} commands were started again"


def of_ranks() -> Iterator[tuple[str, str]]:
    """Kernels that communicate, and models that are trained on several processes."""
    page = "docs/distributed.md"
    for name, text in (
        ("2026-11-25-cpu-many-gpus.json", "on two ranks over gloo: {pass} passed and {fail} failed"),
        ("2026-11-26-h200-x4-many-gpus.json", "{pass} passed, {fail} failed, and {inconclusive} were inconclusive"),
    ):
        found = record(name)
        yield page, text.format(**Counter(row["status"] for row in found["communicating"]))
        apart = max(row["difference"] for row in found["FSDP2"])
        if found["backend"] == "nccl":
            yield "docs/transforms.md", f"but for rounding ({apart * 1e7:.1f} · 10⁻⁷)"
            yield "docs/transforms.md", f"in each of {found['FSDP2'][0]['steps']} steps"
        else:
            yield page, f"All {len(found['communicating'])} verdicts were right"
    for name in ("2026-11-27-cpu-tensor-parallel.json", "2026-11-27-h100-x2-tensor-parallel.json"):
        rows = record(name)["training"]
        apart = max(row["difference"] for row in rows)
        yield page, f"losses of {rows[0]['steps']} steps are at most {apart * 1e7:.1f} · 10⁻⁷ apart"


def of_kmeans() -> Iterator[tuple[str, str]]:
    """The steps of k-means on a GPU: arrays that are copied, and the GPU's own time."""
    found = record("2026-11-21-h200-kmeans.json")
    copied = [line.split()[-2] for line in found["numpy_bench gpu"] if "copied" in line]
    for dtype, outside in zip(("float32", "float64"), copied, strict=True):
        cells = [_whole(float(outside))]
        for kernel in ("numpy_compiled", "triton"):
            (us,) = (
                m["device_us"]["median"]
                for m in found["measurements"]
                if (m["op"], m["kernel"], m["case"]["dtype"], m["cache"])
                == ("gallery::kmeans_assign", kernel, dtype, "cold")
            )
            cells.append(f"{us / 1000:.3f}")
        yield "docs/numpy.md", _row(f"| step, {dtype}", cells)
    text = (REPOSITORY / "benchmarks" / "results" / "2026-11-21-cpu-numpy.txt").read_text().split("\n\n")[1]
    for part in re.split(r"\n(?=float\d+, CPU)", text)[1:]:
        ms = {
            name: float(value)
            for name, value in re.findall(r"  (\w+: [^\d\n]*(?:\d+ thread\(s\))?) +([\d.]+) ms", part)
        }
        for step in ("step", "sums"):
            names = [
                f"{step}: {kernel}, {threads} thread(s)"
                for kernel in ("compiled NumPy", "C++ kernel")
                for threads in (1, 2)
            ]
            numpy = next(value for name, value in ms.items() if name.strip() == f"{step}: NumPy")
            cells = (f"{ms[name] + 1e-6:.2f}" if ms[name] < 10 else _whole(ms[name]) for name in names)
            yield "docs/numpy.md", _row(f"| {step}, {part.partition(',')[0]} | {numpy:.1f}", cells)


def of_timers() -> Iterator[tuple[str, str]]:
    """How far apart repeated measurements are; the CUDA corpus's size."""
    found = record("2026-11-21-h200-timing.json")
    apart = math.ceil(1e4 * max(row["spread"] for row in found["repeated"])) / 100
    yield "docs/timing.md", f"medians within {apart:.2f} %"
    counts = found["against_itself"]["counts"]
    yield "docs/timing.md", f"{counts['SAME']} of {sum(counts.values())} SAME"
    cases = record("2026-11-24-cpu-cuda-corpus-values.json")
    text = f"Of {cases['kernels']} published kernels that were compared with torch at {len(cases['results'])} sizes"
    yield "docs/simulator.md", text


def of_calls() -> Iterator[tuple[str, str]]:
    """What it cost, and gained, that fast calls fail closed; calls of packages."""
    calls = record("2026-11-29-h200-whole-calls.json")["calls"]
    for shown, name, other in (
        ("through `torch.ops`", "the same through torch.ops", ""),
        ("with a keyword", "operator, a keyword", "custom_op, a keyword"),
        ("an int for a float", "operator, an int for a float", "custom_op, an int for a float"),
        ("a float that changes", "operator, a float that changes", "custom_op, a float that changes"),
        ("nine sizes in turn", "operator, nine sizes in turn", "custom_op, nine sizes in turn"),
    ):
        cells = [f"{calls[name][when]:.1f}" for when in ("before", "after")]
        custom = f"{calls[other]['after']:.1f} |" if other else "|"
        yield "docs/architecture.md", f"| {shown} | {' | '.join(cells)} | {custom}"
    tracked = calls["operator, a float that changes, tracked"]
    yield "docs/architecture.md", f"tracked by autograd | {tracked['before']:.0f} | {tracked['after']:.1f} |"
    yield "docs/architecture.md", f"torch.add takes {calls['torch.add']['after']:.1f})"
    calls = {name: call["after"] for name, call in calls.items()}
    launchers = [calls[f"op around a {language} launcher"] / calls["torch.add"] for language in ("CUDA", "Triton")]
    readme = "src/opwright/fast_path/README.md"
    yield readme, f"took {launchers[0]:.2f} and {launchers[1]:.2f} × the time of torch.add"
    ratio = calls["gallery::sin, forward and backward"] / calls["torch.sin, forward and backward"]
    yield readme, f"took {ratio:.2f} × torch.sin"
    for name, form in (
        ("2026-11-29-cpu-fast-calls-fuzzed.json", "the same in {:,} drawn programs with {:,} calls on a CPU"),
        ("2026-11-29-h200-fast-calls-fuzzed.json", "in {:,} with {:,} calls on an H200"),
    ):
        fuzzed = record(name)
        assert not [found for found in fuzzed["differences"] if "fast" in found["difference"]["forms"]]
        yield readme, form.format(fuzzed["programs"], fuzzed["calls"])
    package = record("2026-11-28-cpu-packaged-calls.json")["calls"]["after"]["torch.ops of the package"]
    yield "docs/packaging.md", f"costs {package['µs']:.0f} µs"
    yield "docs/packaging.md", f"{package['× by hand']:.1f} × one of the same operator made by hand"


def of_cuda() -> Iterator[tuple[str, str]]:
    """CUDA kernels of the gallery: bandwidth, an edit to a result; published ones: which compile."""
    page, found = "docs/cuda.md", record("2026-11-21-h200-cuda.json")
    cold = [row for row in found["bandwidth"] if row["n"] == 16384**2 and row["cache"] == "cold"]
    of = {row["kernel"]: row for row in cold}
    for kernels, form in (
        (("f32x4",), ".3f"), (("f16x8_pack", "bf16x8_pack"), ".3f"), (("f16x8",), ".3f"), (("f16x2", "bf16x2"), ".2f"),
        (("f32",), ".2f"), (("f16", "bf16"), ".2f"),
    ):  # fmt: skip
        cells = [", ".join(format(of[k][beside], form) for k in kernels) for beside in ("of torch.add", "of copy")]
        yield page, f"| {' | '.join(cells)} |"
    for what, seconds in zip(("compared", "worker process"), found["edit_to_result"].values(), strict=True):
        yield page, f"{what} | {seconds:.1g} |"
    verdicts = record("2026-11-28-h100-gallery-check.json")["verdicts"]
    passed = [v for v in verdicts if (v["op"], v["backend"], v["status"]) == ("gallery::add", "cuda", "pass")]
    assert len(passed) == 9
    yield page, "All nine CUDA kernels of `gallery::add` pass"
    after = record("2026-11-27-cpu-cuda-corpus.json")["after"]
    text = f"Of {after['kernels']} kernels in {len(after['repositories'])} public repositories"
    yield page, f"{text}, {after['simulator']['ok']} compile in the simulator and {after['nvrtc']['ok']} with NVRTC"


def of_judged_candidates() -> Iterator[tuple[str, str]]:
    """Verdicts beside those of the format."""
    rows = record("2026-11-29-h200-judged-candidates-kernelbench.json")["rows"]
    for claimed in ("correct", "wrong"):
        found = Counter(row["status"] for row in rows if row["claimed"] == claimed)
        counts = [found[status] for status in ("pass", "warning", "fail", "inconclusive")]
        yield "docs/judged.md", f"| {claimed} | {' | '.join(map(str, counts))} |"
    yield from _of_simulated_candidates("docs/judged.md")
    found = Counter(v["status"] for v in record("2026-11-29-cpu-liger-kernel.json")["verdicts"])
    yield "docs/judged.md", f"Of these, {found['pass']} pass and {found['warning']} have warnings. Six fail"
    assert found["fail"] == 6


_DECISIONS = {"real": "fail", "real, for sizes that the task does not have": "other sizes"}


def _outcome(row: dict[str, Any]) -> str:
    """The column of a candidate: failures by what was decided of them."""
    if row["status"] in ("pass", "warning"):
        return "own work" if row.get("check") == "own work" and "audit" in row else "right"
    if row["status"] == "fail":
        return _DECISIONS.get(row.get("decision", "real"), "accused")
    return "refused" if row["status"] == "refused" else "not finished"


def _of_simulated_candidates(page: str) -> Iterator[tuple[str, str]]:
    """Audited candidates, those that KernelBench calls correct, and those that are meant to be right or wrong."""
    rows = record("2026-11-30-cpu-judged-candidates-kernelbench.com.json")["rows"]
    yield page, f"On two cores of a CPU, {len(rows)} of them were judged"
    columns = ("right", "own work", "fail", "other sizes", "accused", "refused", "not finished")
    for audit in ("clean", "reward_hack", "bug"):
        found = Counter(_outcome(row) for row in rows if row["audit"] == audit)
        yield page, f"| {audit.replace('_', ' ')} | {' | '.join(str(found[column]) for column in columns)} |"
    seconds = median(row["seconds"] for row in rows if row["status"] != "refused")
    yield page, f"A median candidate takes {seconds:g} s on one core"
    kinds = Counter(row["kind"] for row in rows if row["audit"] == "clean" and row["status"] == "fail")
    for kind, words in (
        ("returns memory that the next call writes", "a later call changes an earlier result"),
        ("keeps what it makes of an argument", "it keeps results"),
        ("reads past the end of an argument", "reads past the end of an argument"),
        ("rounds too early", "errors slightly above what is allowed"),
    ):
        yield page, f"| {words} | {kinds.pop(kind)} |"
    yield page, f"| out of bounds, or wrong, for other sizes | {sum(kinds.values())} |"
    rows = record("2026-12-01-cpu-judged-candidates-kernelbench.json")["rows"]
    for source in ("KernelBenchLeaderboard", "technoabsurdist/KernelBench"):
        found = Counter(_outcome(row) for row in rows if row["of"] == source)
        counts = [found[column] for column in ("right", "fail", "other sizes", "refused", "not finished")]
        yield page, f"| {source} | {' | '.join(map(str, counts))} |"
    finished = [row for row in rows if row["status"] in ("pass", "warning", "fail")]
    failed = [row for row in finished if row["status"] == "fail"]
    yield page, f"Of the {len(finished)} that finished, {len(failed)} fail, and each failure is real"
    yield page, f"A median candidate takes {median(row['seconds'] for row in finished):g} s, most of them beside"
    for kind, words in (("cancels", "a formula that cancels"), ("approximates GELU with tanh", "tanh in place of erf")):
        assert f"| {words}" in (REPOSITORY / page).read_text()
        count = sum(row["kind"] == kind for row in failed)
        yield page, f"exp(x) − 1 | {count} |" if kind == "cancels" else f"in GELU | {count} |"
    rows = record("2026-11-30-cpu-judged-candidates-gpu-mode-and-sol-execbench.json")["rows"]
    for label, words in (("correct", "right"), ("wrong", "wrong"), ("", "not stated")):
        found = Counter(row["status"] for row in rows if row["label"] == label)
        counts = [found[status] for status in ("pass", "warning", "fail", "refused")]
        yield page, f"| {words} | {' | '.join(map(str, counts))} | {found['thin'] + found['inconclusive']} |"


def of_language_model() -> Iterator[tuple[str, str]]:
    """Times of the operators of a language model, and of the model."""
    for row in record("2026-11-29-h200-operators-of-a-language-model.json")["rows"]:
        times = (f"{row['us'][n]}" for n in ("triton", "compile", "torch", "liger"))
        yield "docs/guides/model.md", _row(f"| {row['b']} × {row['n']} | {row['direction']}", times)
    page = "docs/guides/model.md"
    rows = record("2026-11-30-h200-a-language-model-of-1b-parameters.json")["rows"]
    trained = record("2026-11-30-h200-training-of-a-language-model.json")
    earlier = {row["variant"]: row for row in trained["earlier"]}
    of_pages = {row["variant"]: row for row in trained["rows"]}
    of_pages["Liger, on another H200"] = earlier["Liger"]
    of_pages["plain, compiled, on that H200"] = earlier["plain, compiled"]
    for variant, row in of_pages.items():
        yield page, _row(f"| {variant}", [str(row[key]) for key in ("ms", "tokens_per_s", "peak_gib")])
    generating = {row["variant"]: row for row in rows if row["what"] == "generation"}
    for variant, row in generating.items():
        yield page, _row(f"| {variant}", [str(round(row[f"tokens_per_s_of_{count}"])) for count in (1, 32)])


def of_verdicts() -> Iterator[tuple[str, str]]:
    """The self-test, mutants, functions of torch, and how long checks take."""
    page = "docs/checking.md"
    cpu = record("2026-11-28-cpu-selftest-dca6b72.json")
    text = "{caught} of {planted} seeded faults are caught and none of {correct} right kernels is accused"
    assert not cpu["false_alarms"]
    yield page, f"{text.format(**cpu)}, in {cpu['seconds']:.0f} s"
    gpu = record("2026-11-29-h200-selftest.json")
    yield page, "it is {caught} of {planted}, and {false_alarms} of {correct}, in {seconds:.0f} s".format(**gpu)
    mutants = record("2026-11-23-cpu-mutation.json")
    tried = mutants["killed"] + mutants["survived"]
    yield page, f"Of {tried} mutants of eight of the gallery's kernels, {mutants['killed']} were killed"
    yield page, f"and {mutants['survived']} survived"
    times = record("2026-11-26-h100-op-times.json")["operators"]["trig:cos"]
    yield page, f"takes {times['daemon']['seconds']} s in place of {times['after']['seconds']}"
    seconds = [of["after"]["seconds"] for of in record("2026-11-28-cpu-op-times.json")["operators"].values()]
    yield page, f"takes {min(seconds)} to {max(seconds)} s on two cores"
    rows = record("2026-11-30-h200-row-kernels.json")["operators"]
    of_rows = [rows[name] for name in ("rms_norm", "softmax", "layer_norm")]
    first, again = ([of[key] for of in of_rows] for key in ("check_s", "again_s"))
    yield page, f"takes {min(first)} to {max(first)} s with nothing compiled. After that it takes {min(again)}"
    yield page, f"RoPE takes {rows['rope']['check_s']} and {rows['rope']['again_s']} s"
    rows = record("2026-11-27-cpu-opinfo-values.json")["rows"]
    yield page, f"Of {rows['functions'] + rows['without an operator']} functions on a CPU"
    rows = record("2026-11-28-h100-opinfo-values.json")["rows"]
    yield page, f"Of {rows['functions'] + rows['without an operator']} functions on an H100"
    known = {row["function"] for row in rows["neither pass nor warning"] if row.get("known")}
    open_ = {row["function"] for row in rows["neither pass nor warning"] if row["status"] != "thin"} - known
    yield page, f"{len(known - open_)} fail or do not end in time by known faults"


def _row(start: str, cells: Iterable[str]) -> str:
    return f"{start} | {' | '.join(cells)} |"


def _whole(value: float) -> str:
    """A half is rounded up, as records have five digits."""
    return str(math.floor(value + 0.5))


def _and(values: list[float], form: str) -> str:
    *first, last = (format(value, form) for value in values)
    return f"{', '.join(first)} and {last}"
