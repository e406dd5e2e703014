"""What pages state in numbers: each row computes them from the code, or from a record where it takes arithmetic.

``test_claims.py`` puts the values into the text and looks for it in the page. Numbers that stand in a cited record need
no row. ``DEFINITIONS`` are texts whose numbers define something, such as a symbol, and that nothing can contradict.
"""

from __future__ import annotations

import importlib
import inspect
import math
import re
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests import REPOSITORY
from tests import claims_of_tables as tables
from tests.claims_of_tables import record as _record

__all__ = ["DEFINITIONS", "Claim", "claims"]

_WORDS = {
    2: "two",
    3: "three",
    5: "five",
    6: "six",
    7: "seven",
    8: "eight",
    10: "ten",
    12: "twelve",
    40: "forty",
    60: "sixty",
}
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Claim:
    """A text that a page must have."""

    page: str
    text: str


DEFINITIONS = {
    "CONTRIBUTING.md": ("an imperative of at most 72 characters", "one idea in a sentence, at most 25 words"),
    "docs/checking.md": (
        "stride 0: one element for several places", "floats: -0.0 and denormal numbers",
        "integers from 0 to a dim less 1", "have size 1 in cases", "how many elements of a failing one exceed 1.",
    ),
    "docs/contracts.md": ("size n, or 1, which broadcasts", "from 0 up to t", "with sum 1 along"),
    "docs/cuda.md": ("a `float4*` takes a float32 tensor at a multiple of 16", "one of 128 bits"),
    "docs/index.md": ("{grid} 1 2 2 2\n:gutter: 3",),
    "docs/lltm.md": (
        "cell, 16 × 128", "perceptron, 64 × 512", "transformer layer, 8 × 128 × 512", "the first 40 losses",
        "first 40 differ by",
    ),
    "docs/mojo.md": ("an addition of 1,024 floats", "(one tap, 1,024 floats"),
    "docs/numpy.md": (
        "comparisons of integers beyond 2⁵³ with floats", "`abs` and `-` of -2⁶³", "cancels to 10⁻¹⁵",
        "and 64 bits may not suffice",
    ),
    "docs/timing.md": ("the whole interval is on one side of 1",),
}  # fmt: skip


def claims() -> list[Claim]:
    """Every claim, computed."""
    of_docs = (_of_checks, _of_inputs, _of_tolerance, _of_commands, _of_timing, _of_kernelsim)
    of_models = (tables.of_lltm, tables.of_cuda_graphs, tables.of_conv1d, tables.of_kmeans, tables.of_language_model)
    of_runs = (tables.of_calls, tables.of_cuda, tables.of_verdicts, tables.of_judged_candidates)
    of_tables = (*of_models, *of_runs, tables.of_cluster, tables.of_ranks, tables.of_timers)
    makers = (*of_docs, _of_kernels, _of_numpy, _of_lltm, _of_others, *of_tables)
    return [Claim(page, text) for make in makers for page, text in make()]


def _of_checks() -> Iterator[tuple[str, str]]:
    from kernelsim.launching import LARGEST_GRID
    from opwright.checks import contract
    from opwright.checks.calls import execution_context, grid_limits, large_cases, repeated_calls, threads
    from opwright.checks.check import Process
    from opwright.checks.limits import time_limit
    from opwright.checks.memory import allocation, large_offsets, peak_memory
    from opwright.checks.outputs import random_values
    from opwright.checks.ranks import context as ranks
    from opwright.checks.ranks import gradients_of_ranks
    from opwright.checks.registration import sharding
    from opwright.checks.sanitizer import sanitizer
    from opwright.checks.scheduling import coverage
    from opwright.checks.table import CHECKS

    page = "docs/checking.md"
    yield "CHANGELOG.md", f"compare each kernel with the reference in {len(CHECKS)} checks"
    *first, last = (f"*{name}*" for name, check in CHECKS.items() if check.process is Process.CHECKER)
    yield page, f"The checker process runs {', '.join(first)} and {last}."
    assert contract._SHARE == 0.2
    yield page, "the reference is NaN in a fifth of the cases"
    assert "_with_threads, 7)" in _line(execution_context, "with seven of torch's threads")
    yield page, "one and seven of torch's threads"
    most = repeated_calls._MOST_CALLS
    yield page, f"one, up to {most} times; a large one"
    yield "docs/cluster.md", f"(*repeated calls* makes up to {most})"
    yield page, f"{threads._LEAST_CALLS} to {threads._MOST_CALLS} times in each"
    limit = f"2{_raised(large_offsets._MOST_OF_32_BITS.bit_length() - 1)} elements"
    yield page, f"of more than {limit} right"
    yield "CHANGELOG.md", f"more than {limit}"
    yield page, f"(within {_alignment_of_protected_memory()} bytes of its end"
    yield page, f"in blocks of {allocation._OWN_PAGES >> 10} KiB or more"
    yield page, f"grows more than {_WORDS[peak_memory._TIMES]} times as fast"
    yield page, f"A grid has at most {LARGEST_GRID[1]:,} blocks in y and z"
    yield page, f"at n = {65_535 * 1024 + 1:,}; CUDA allows {LARGEST_GRID[1]:,}"
    elements = f"2{_raised((large_cases._MOST_ELEMENTS + 1).bit_length() - 1)} elements"
    yield page, f"a tensor has {elements}, or all tensors take {large_cases.MOST_BYTES >> 30} GiB"
    yield page, f"| each dim up to {elements}, on meta tensors |"
    yield page, f"take at most {grid_limits._MOST_OF_FAILURE >> 30} GiB, else a warning"
    yield page, f"only for tensors of more than {grid_limits._MOST_OF_FAILURE >> 30} GiB"
    yield page, f"up to {sanitizer._MOST_CASES}, small ones"
    yield page, f"without output for {_WORDS[int(sanitizer._SILENT_S // 60)]} minutes"
    yield page, f"make up the whole results? | {_WORDS[sharding._CASES]}, the smallest"
    assert (coverage._LEAST_SHARE, coverage._FEW) == (0.25, 12)
    yield page, "fewer than a quarter of the cases ran, or fewer than half and fewer than twelve"
    yield page, f"up to {_WORDS[time_limit._CALLS_IN_A_STEP]} times as long as one call of the reference"
    assert time_limit._LEAST_S == 1.0
    assert (time_limit._SHARE, time_limit._ENOUGH_S) == (0.8, 10.0)
    yield page, "at least one second, is left out"
    yield page, "or ten seconds if that is longer, but no more than four fifths"
    yield page, f"up to {_WORDS[ranks._MOST_CASES['quick']]} on two ranks"
    cases = ranks._MOST_CASES
    yield "docs/distributed.md", f"up to {_WORDS[cases['quick']]} cases ({cases['full']} with `--level full`)"
    yield "docs/distributed.md", f"gradients, in {_WORDS[gradients_of_ranks._MOST_CASES]} cases"
    yield (
        "docs/distributed.md",
        "a collective waits for {:.0%}, a rank answers within {:.0%}".format(*_patience_of_ranks()).replace("%", " %"),
    )
    least, most = random_values._RUNS
    yield "docs/contracts.md", f"over {least} to {most} runs of each ({random_values._RUNS_OF_LARGE} of large results)"
    from opwright.checks.comparison.statistics import ERROR_RATE

    yield "docs/contracts.md", f"below {_power_of_ten(ERROR_RATE)}"


def _of_inputs() -> Iterator[tuple[str, str]]:
    from opwright.contract.inputs import arguments, case, cases, draw, layouts, sizes

    page = "docs/checking.md"
    yield page, f"some between them: {', '.join(map(str, sizes._QUICK))}."
    yield page, f"long in turn ({'; '.join(f'{size:,}' for size in sizes._LONG['quick'])})"
    lengths = sorted({case.MOST_LISTS, *map(int, re.findall(r"\d+", _line(cases, "lists=count) for count in")))})
    listed = f"{', '.join(map(str, lengths[:-1]))} and {lengths[-1]}"
    yield page, f"lists have {listed} of them"
    yield "docs/contracts.md", f"lists of {listed} tensors"
    assert all(stride * (axes - 1) > 2**31 for axes, stride in layouts.FAR_STRIDES.items())
    yield page, "The check *far rows* has rows, and inner steps, whose offsets exceed 2³¹ elements"
    yield page, f"| `offset` | one to {_WORDS[max(layouts._OFFSETS)]} elements past the start"
    assert "normal + 100" in _line(draw, '"shifted": lambda')
    assert "30_000" in _line(draw, '"low": lambda')
    yield page, "| `shifted` | floats: 100 ± 1"
    yield page, "| `low` | floats: about -30,000"
    assert "30 * normal" in _line(draw, "CONFIDENT: lambda")
    yield page, "about 30 times normal ones"
    assert "normal * (700 if dtype is torch.float16" in _line(draw, "HUGE: lambda")
    yield page, "float16: about 700"
    assert "-8.0" in _line(draw, "least = ")
    yield page, "and of magnitudes from 10⁻⁸ to 1"
    assert "2.0 if dtype is torch.float16" in _line(draw, "most = 2.0")
    yield page, f"magnitudes up to {_power_of_ten(_largest_of_large())}, in float16 up to 100"
    yield page, f"integers: up to 2{_raised(draw._MOST_BITS[case.LARGE_INTEGERS])}; float32"
    yield page, f"integers: up to 2{_raised(draw._MOST_BITS[case.WIDE])}, of all"
    numbers = arguments._NUMBERS
    yield page, "`large` ({:g} and {:g}) and `hundreds` ({:g} and {:g})".format(*numbers["large"], *numbers["hundreds"])
    assert "0.5 to 2" in _line(draw, "exponent.exp2()")
    yield "docs/contracts.md", "matrices with singular values from 0.5 to 2"


def _of_tolerance() -> Iterator[tuple[str, str]]:
    from opwright.checks.comparison import tolerance

    page = "docs/checking.md"
    formula = inspect.getdoc(tolerance) or ""
    assert "2 · ulp + 3 · m + 1.5 · eps · |exact|" in formula
    assert "with 6 in place of 3 in float64" in formula
    yield page, "`2 · ulp + 3 · m`"
    yield page, "An output gets `1.5 · eps` more"
    yield page, "`m` counts six times"
    runs = f"in {tolerance._RUNS} runs ({tolerance._PATIENCE} where few elements are off, up to {tolerance._MOST_RUNS}"
    yield page, runs
    yield page, f"counts up to {tolerance.MOST_OWN:g} times"


def _of_kernelsim() -> Iterator[tuple[str, str]]:
    from kernelsim import command

    ending = f"{command._FOUND} with findings, and {command._FAILED} if the kernel did not run"
    yield "docs/kernelsim.md", f"The exit code is 0 without findings, {ending}"


def _of_commands() -> Iterator[tuple[str, str]]:
    from opwright.cli import common
    from opwright.cli.daemon import daemon
    from opwright.cli.package import package
    from opwright.report.terminal import kernels
    from opwright.workers.daemon import client

    page, check = "docs/checking.md", importlib.import_module("opwright.cli.check")
    yield page, f"`--mutants` ({check._MUTANTS}) is the size"
    meanings = {
        common.PASSED: "passed; warnings",
        common.FAILED: "something failed",
        common.WRONG_CALL: "the contract or",
        common.NOTHING_RAN: "nothing could run",
        common.UNFINISHED: "nothing failed, but",
        common.INTERRUPTED: "interrupted, by Ctrl-C",
    }
    for code, meaning in meanings.items():
        yield page, f"| {code} | {meaning}"
    yield page, f"It exits with {common.FAILED} if a fault is missed"
    yield page, f"Survivors exit with {common.PASSED}, and with {common.FAILED} under `--strict`"
    yield page, f"the command exits with {common.FAILED} all the same"
    yield page, f"`.passed` (exit code {common.PASSED})"
    yield page, f"`.strictly_passed` (exit code {common.PASSED} with `--strict`)"
    yield "docs/porting.md", f"It exits with {common.FAILED} if anything remains to be done"
    yield "docs/porting.md", f"It exits with {common.NOTHING_RAN} if the kernels could not run here"
    yield "docs/timing.md", f"the command exits with {common.FAILED}:"
    yield "docs/timing.md", f"exits with {common.FAILED} if a measurement's whole interval"
    yield page, f"does not answer within {client._PATIENCE:g} seconds"
    assert inspect.signature(daemon).parameters["minutes"].default == 60
    yield page, "It ends after an hour without a command (`--minutes`)"
    yield "docs/packaging.md", f"(default: {inspect.signature(package).parameters['version'].default})"
    yield page, f"If more than {_WORDS[kernels.MOST_ROWS]} kernels were checked"
    from opwright.cluster import ray_cluster, warm
    from opwright.cluster.attempts import RETRIES

    yield "docs/cluster.md", f"is tried again {_WORDS[RETRIES]} times"
    yield "docs/cluster.md", f"that is done for {_WORDS[warm._MOST]} workers at most"
    yield "docs/cluster.md", f"is an error within {_WORDS[int(ray_cluster._SECONDS_TO_REACH)]} seconds"


def _of_timing() -> Iterator[tuple[str, str]]:
    from opwright.timing import calls, candidates, measurement, measurement_pass, roofline, timers
    from opwright.timing.analysis import statistics as of_samples

    page, rule = "docs/timing.md", of_samples.StopRule()
    yield page, f"at least {rule.min_samples} samples and {rule.min_seconds:g} s"
    yield page, f"below {rule.spread * 100:g} % of the median"
    yield page, f"after {rule.max_samples:,} samples or {rule.max_seconds:g} s"
    yield page, f"in turn: {_WORDS[measurement_pass._PER_ROUND]} in each round"
    same = f"{of_samples.SAME_WITHIN * 100:g} %"
    yield page, f"the difference is above {same}"
    yield page, f"and the ratio within {same}"
    assert "lo > 0.95 and hi < 1.05" in inspect.getsource(of_samples)
    yield page, "the interval is within 5 %"
    assert "95 % interval" in (inspect.getdoc(of_samples.estimate) or "")
    yield page, "its 95 % interval"
    yield page, f"exceeds {roofline.IMPOSSIBLE:g} by its whole interval"
    assert "max(2.0, " in _line(measurement, "_TIMER_TOLERANCE * measured")
    yield page, f"above {measurement._TIMER_TOLERANCE * 100:g} % and 2 µs"
    yield page, f"Samples of {calls._SAMPLE_S * 1e3:g} ms are taken in turn"
    yield page, f"waits between at most {calls._MOST_QUEUED} calls"
    assert "torch.ones(1024, " in inspect.getsource(calls)
    yield page, "`torch.add` of 1,024 floats called in the same way"
    assert "min(64," in inspect.getsource(candidates)
    yield page, "Inputs rotate through up to 64 sets"
    assert "64 << 20" in inspect.getsource(timers)
    yield page, "the size of the last-level cache, but at most 64 MiB"
    assert "_microseconds(candidate, sets[0], 20)" in inspect.getsource(timers.GpuTimer.host_times)
    yield page, "in bursts of 20 after"
    assert "math.ceil(100 / " in inspect.getsource(timers.CpuTimer.warm_times)
    yield page, "as many calls as take 0.1 ms"
    assert "math.ceil(2000 / " in inspect.getsource(timers.GpuTimer)
    yield page, "as many calls as take 2 ms"
    rows = _record("2026-11-21-h200-self-comparison.json")["rows"]
    kernels = {(row["op"], row["kernel"], str(row["sizes"])): row["backend"] for row in rows}
    counts = Counter(kernels.values())
    assert len(kernels) == 23
    yield page, f"Twenty-three kernels ({counts['triton']} in Triton, {counts['python']} of torch"
    same = f"{sum(row['verdict'] == 'SAME' for row in rows)} of {len(rows)}"
    yield page, f"{same} SAME"
    yield "README.md", f"{len(kernels)} kernels timed against themselves gave SAME in [{same} comparisons]"


def _of_kernels() -> Iterator[tuple[str, str]]:
    from opwright.backends.cuda.host import calls
    from opwright.backends.gpu import launcher
    from opwright.fast_path import extension
    from opwright.runtime.cuda_graphs import graphed

    yield "docs/cuda.md", f"if it needs more than {launcher._DEFAULT_SHARED_BYTES >> 10} KB"
    yield "docs/cuda.md", f"more than {calls._SHARED_BYTES >> 10} KiB of dynamic shared memory"
    overhead = _record("2026-11-21-h200-cuda.json")["overhead"]
    add = statistics.mean([overhead["torch.add"], overhead["torch.add (again)"]])
    yield "docs/cuda.md", f"relative to `torch.add` ({add:.1f} µs)"
    rows = {
        "with a host function in a `.cu` file": "op, host function",
        "with a Python launcher": "op, Python launcher",
        "that launcher alone": "that launcher alone",
        "the bare kernel with `empty_like`": "bare kernel + empty_like",
    }
    for text, name in rows.items():
        yield "docs/cuda.md", f"{text} | {overhead[name] / add:.2f} |"
    every = inspect.signature(extension.FastCalls.verify).parameters
    readme = "src/opwright/fast_path/README.md"
    yield readme, f"The first {_WORDS[every['first'].default]} repetitions"
    yield readme, f"one of {every['of'].default:,} later ones"
    yield "docs/lltm.md", f"if the results of {graphed.HELD_RESULTS} calls are held"
    pairs = inspect.signature(graphed.cuda_graphed).parameters["max_pairs"].default
    yield "docs/lltm.md", f"({pairs} by default)"
    cases = _record("2026-11-25-h200-triton-corpus.json")["cases"].values()
    found = [case["gpu"] for case in cases if case.get("gpu")]
    launches, same = (sum(of.get(key, 0) for of in found) for key in ("launches", "same_bits"))
    most = max(value for of in found for value in of.get("difference", {}).values())
    yield "docs/checking.md", f"Of {launches} launches of published Triton kernels, {same} gave the same bits"
    yield "docs/checking.md", f"differ by at most {most * 1e4:.1f} · 10⁻⁴ of the largest element"
    results = _record("2026-11-24-h100-cuda-corpus-values.json")["results"]
    same = sum(result.get("gpu") == "same bits" for result in results)
    yield "docs/checking.md", f"at {len(results)} sizes, {same} launches gave the same bits"


def _of_numpy() -> Iterator[tuple[str, str]]:
    from opwright.backends.numba_jit import bounds
    from opwright.backends.numpy import choice, numba_compiled, placement
    from tests.backends.numba_jit import special_values
    from tests.backends.numba_jit.numpy_calls import EXPRESSIONS
    from tests.backends.numpy.idioms import IDIOMS

    page = "docs/numpy.md"
    counts = Counter(idiom.expected for idiom in IDIOMS.values())
    yield page, f"has {len(IDIOMS)} idioms ({counts['same']} the same as NumPy, {counts['refused']} refused)"
    yield page, f"calls {len(EXPRESSIONS)} expressions"
    dtypes = len(special_values.VALUES)
    expressions = len(special_values.CASES) // dtypes
    yield page, f"calls {expressions} with each pair of special values of {_WORDS[dtypes]} dtypes"
    small, loops = _raised(choice.SMALL.bit_length() - 1), _raised(bounds._ITERATIONS)
    yield page, f"for arguments below 2{small} and loops of fewer than 2{loops} iterations"
    yield page, f"takes less than {choice._CLEARLY:g} of its time"
    yield page, f"more than {placement._MOST_STEPS} steps in one graph"
    yield page, f"after {_WORDS[numba_compiled._MOST_CHANGES]} times"
    assert "2**62" in (REPOSITORY / "tests" / "backends" / "numba_jit" / "scalars.py").read_text()
    yield page, "integers up to 2⁶²"
    verdicts = _record("2026-11-27-cpu-numpy-programs-10000.json")["verdicts"]
    refused = verdicts["refused"] + verdicts["refused by comparison"]
    yield page, f"{refused} were refused, {verdicts['refused by comparison']} of them by the comparison"


def _of_lltm() -> Iterator[tuple[str, str]]:
    from opwright.gallery.lltm import MOST_IN_ONE_CALL

    page, folder = "docs/lltm.md", REPOSITORY / "src" / "opwright" / "gallery" / "lltm"
    small, tiles = (_constants((folder / name).read_text()) for name in ("lltm_small.cu", "lltm_tiles.cu"))
    gates = f"2{_raised(MOST_IN_ONE_CALL.bit_length() - 1)}"
    yield page, f"If the gates have more than {gates} elements"
    yield page, f"at most {MOST_IN_ONE_CALL * 4 >> 20} MiB in float32"
    weights = _raised(small["MOST_WEIGHTS"].bit_length() - 1)
    yield page, f"up to {small['MOST_ROWS']} rows and 2{weights} weights"
    weights = _raised(tiles["MOST_TILED_WEIGHTS"].bit_length() - 1)
    yield page, f"up to {tiles['MOST_TILED_ROWS']} rows and 2{weights} weights; backward up to {gates} gates"
    yield page, f"a warp computes a column of the state for {small['GROUP']} rows"
    assert "constexpr int WIDTH = 16 / sizeof(T);" in (folder / "lltm_host.cu").read_text()
    yield page, "raw pointers (16 bytes per load)"
    runs = _record("2026-11-22-h200-lltm.json")["runs"]
    for at, size in enumerate(("(16, 32, 128)", "(256, 512, 512)", "(4096, 1024, 1024)")):
        cells = []
        for name in ("cuda", "cuda host", "cuda accessors", "triton", "cuda graph"):
            shares = [run[at]["candidates"][name]["of_compile"] for run in runs]
            cells.append(f"{statistics.median(shares):.3f} ({min(shares):.3f} – {max(shares):.3f})")
        yield page, f"| {size} | {' | '.join(cells)} |"


def _of_others() -> Iterator[tuple[str, str]]:
    import tomllib

    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    torch = next(d for d in project["dependencies"] if d.startswith("torch>="))
    least = project["requires-python"].removeprefix(">=")
    yield "README.md", f"Python ≥ {least}, torch ≥ {torch.removeprefix('torch>=')}"
    yield "README.md", f"Licence: {project['license']}"
    options = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["addopts"]
    cores = re.findall(r"--maxprocesses (\d+)", options)[0]
    yield "README.md", f"&& pytest                 # on up to {cores} cores"
    yield "CONTRIBUTING.md", f"`pytest` runs on up to {cores} cores and leaves out tests marked `slow` or `exhaustive`"
    assert "not slow and not exhaustive" in options
    from opwright.checks.run import check
    from opwright.package.native import BASELINES
    from tests.prose import MOST_WORDS

    yield "CONTRIBUTING.md", f"refuses sentences of more than {MOST_WORDS} words"

    yield "docs/checking.md", f"`--level {inspect.signature(check).parameters['level'].default}` (default)"
    yield "docs/packaging.md", f"is `{BASELINES['x86_64']}` (AVX2, FMA) or `{BASELINES['aarch64']}`"
    template = (REPOSITORY / "src" / "opwright" / "package" / "templates" / "overlap.h").read_text()
    yield "docs/packaging.md", f"Beyond {_constants(template)['MOST_BLOCKS']:,} blocks of memory"
    for name, extra in (("docs/mojo.md", "max"), ("docs/mojo.md", "mojo"), ("docs/packaging.md", "package")):
        assert extra in project["optional-dependencies"]
        yield name, f"pip install 'opwright[{extra}]'"


def _line(module: Any, part: str) -> str:
    """The line of a module's source that has a text."""
    return next(line for line in inspect.getsource(module).splitlines() if part in line)


def _raised(exponent: int) -> str:
    return str(exponent).translate(_RAISED)


def _power_of_ten(value: float) -> str:
    exponent = round(math.log10(value))
    assert abs(value / 10.0**exponent - 1) < 1e-9
    return f"10{_raised(exponent)}"


def _constants(source: str) -> dict[str, int]:
    """The integers that a C++ source names, such as ``constexpr int N = 1 << 19;``."""
    found = re.findall(r"constexpr \w+ (\w+) = (\d+)(?: << (\d+))?;", source)
    return {name: int(value) << int(shift or 0) for name, value, shift in found}


def _alignment_of_protected_memory() -> int:
    from opwright.checks.memory import protected_memory

    return int(re.findall(r"else (\d+)", inspect.getsource(protected_memory._alignment))[0])


def _patience_of_ranks() -> tuple[float, float]:
    from opwright.checks.process import rank_client

    return rank_client._PATIENCE, rank_client._LIMIT


def _largest_of_large() -> float:
    from opwright.contract.inputs import draw

    return 10.0 ** float(re.findall(r"else (\d+\.\d+)", inspect.getsource(draw._large))[0])
