"""NPBench's kernels by NumPy, torch.compile, Numba, and whichever of them ``ow.compile_numpy`` chooses: a table.

    git clone https://github.com/spcl/npbench
    python benchmarks/npbench.py npbench -o benchmarks/results/DATE-MACHINE-npbench.json
    python benchmarks/npbench.py npbench --device cuda --preset L --only softmax hdiff …

Each kernel runs in a process of its own, unchanged, with ``compiler="auto", allow_breaks=True``. Its results and the
arrays that it writes are compared with NumPy's, of calls after the first one. Times are the shortest of several calls.
With ``--device cuda``, arguments are tensors on a GPU, torch.compile alone compiles, and a time ends when the GPU has.
"""

from __future__ import annotations

import argparse
import copy
import functools
import importlib
import json
import math
import os
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))


def load(checkout: Path, name: str, preset: str) -> tuple[Any, list[Any]]:
    """A kernel in NumPy, and its arguments."""
    info = json.loads((checkout / "bench_info" / f"{name}.json").read_text())["benchmark"]
    package = f"npbench.benchmarks.{info['relative_path'].replace('/', '.')}.{info['module_name']}"
    data: dict[str, Any] = dict(info["parameters"][preset])
    if info.get("init"):
        init = info["init"]
        made = getattr(importlib.import_module(package), init["func_name"])(*[data[n] for n in init["input_args"]])
        data |= zip(init["output_args"], made if len(init["output_args"]) > 1 else (made,), strict=True)
    module = importlib.import_module(f"{package}_numpy")
    return getattr(module, info["func_name"]), [data[n] for n in info["input_args"]]


def take_turns(
    functions: list[Any], arguments: list[Any], budget: float = 4.0, finished: Callable[[], None] = lambda: None
) -> list[tuple[float, Any, list[Any]]]:
    """The shortest of several calls of each function on fresh arguments; its last result and arguments.

    The functions take turns of up to four calls, so that what else the machine does counts for all of them. Each turn
    waits for the threads of the one before it, which spin for some 30 ms after a call.
    """
    best, last = [math.inf] * len(functions), [(None, arguments)] * len(functions)
    start = time.perf_counter()
    for count in range(50):
        for i, function in enumerate(functions):
            time.sleep(0.04)
            turn = time.perf_counter()
            for _ in range(4):
                given = copy.deepcopy(arguments)
                finished()  # copies to arguments on a GPU
                begin = time.perf_counter()
                result = function(*given)
                best[i] = min(best[i], time.perf_counter() - begin)
                last[i] = (result, given)
                if time.perf_counter() - turn > 0.3:
                    break
        if time.perf_counter() - start > budget and count >= 1:
            break
    return [(seconds, *outcome) for seconds, outcome in zip(best, last, strict=True)]


def measure_on(device: str, checkout: Path, name: str, preset: str) -> dict[str, Any]:
    """One kernel on tensors on a device, and NumPy on arrays, in this process."""
    import numpy as np
    import torch

    import opwright as ow
    from opwright import tree
    from opwright.contract.numpy.comparison import copied, difference

    def moved(value: Any) -> Any:
        return torch.from_numpy(value).to(device) if isinstance(value, np.ndarray) else value

    def brought_back(value: Any) -> Any:
        return value.cpu().numpy() if isinstance(value, torch.Tensor) else value

    sys.path.insert(0, str(checkout))
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    function, arguments = load(checkout, name, preset)
    on_device = tree.map_leaves(moved, arguments)
    compiled = ow.compile_numpy(mode="compiled")(function)
    finished = torch.cuda.synchronize if device == "cuda" else lambda: None

    def call(*given: Any) -> Any:
        result = compiled(*given)
        finished()
        return result

    start = time.perf_counter()
    call(*copy.deepcopy(on_device))
    first = time.perf_counter() - start
    ((numpys, expected, written),) = take_turns([function], arguments)
    ((took, came, ours),) = take_turns([call], on_device, finished=finished)
    found = difference(
        [copied(expected), copied(written)],
        [copied(tree.map_leaves(brought_back, came)), copied(tree.map_leaves(brought_back, ours))],
        classes=False,
    )
    return {
        "numpy_ms": numpys * 1e3, "auto_ms": took * 1e3, "chosen": device, "right": not found, "first_call_s": first,
        **({"difference": found} if found else {}),
    }  # fmt: skip


def measure(checkout: Path, name: str, preset: str) -> dict[str, Any]:
    """One kernel, in this process."""
    import numpy as np

    import opwright as ow
    from opwright.contract.numpy.comparison import copied, difference

    sys.path.insert(0, str(checkout))
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    function, arguments = load(checkout, name, preset)
    compiled = ow.compile_numpy(compiler="auto", allow_breaks=True)(function)
    start = time.perf_counter()
    compiled(*copy.deepcopy(arguments))
    first = time.perf_counter() - start
    (numpys, expected, written), (auto, came, ours) = take_turns([function, compiled], arguments)
    found = difference([copied(expected), copied(written)], [copied(came), copied(ours)], classes=False)
    choice = compiled.choices[-1] if compiled.choices else None
    record: dict[str, Any] = {
        "numpy_ms": numpys * 1e3,
        "auto_ms": auto * 1e3,
        "chosen": choice.chosen if choice else "NumPy",
        "right": not found,
        "first_call_s": first,
        "compile_s": {c.reason: c.seconds for c in compiled.compilations},
    }
    if choice:
        record["measured_ms"] = {way: took * 1e3 for way, took in choice.seconds.items()}
    if compiled.refused:
        record["refused"] = {way: why[:160] for way, why in compiled.refused.items()}
    return record | ({"difference": found} if found else {})


def in_a_process(checkout: Path, name: str, preset: str, limit: float, device: str) -> dict[str, Any]:
    """The same in a process of its own, which ends after ``limit`` seconds."""
    command = [sys.executable, "-W", "ignore", __file__, str(checkout), "--only", name, "--preset", preset, "--here"]
    command += ["--device", device]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"no result within {limit:g} s"}
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        told = [line for line in lines if line.startswith("opwright.errors.")]
        return {"failed": (told or lines)[-1][:300]}
    return json.loads(done.stdout.strip().splitlines()[-1])  # type: ignore[no-any-return]


def row(name: str, record: dict[str, Any]) -> str:
    if "failed" in record:
        return f"{name:<28} {record['failed']}"
    times = record.get("measured_ms", {})

    def ms(way: str) -> str:
        return f"{times[way]:>11.3f}" if way in times else f"{'-':>11}"

    speed = record["numpy_ms"] / record["auto_ms"]
    right = "" if record["right"] else f"  WRONG: {record['difference']}"
    return (
        f"{name:<28}{record['numpy_ms']:>11.3f}{ms('torch.compile')}{ms('numba')}{record['auto_ms']:>11.3f}"
        f"{speed:>9.2f} ×  {record['chosen']:<14}{record['first_call_s']:>6.1f} s{right}"
    )


def summary(records: dict[str, dict[str, Any]]) -> dict[str, Any]:
    ran = [r for r in records.values() if "failed" not in r]
    speeds = [r["numpy_ms"] / r["auto_ms"] for r in ran if r["right"]]
    chosen = [r["chosen"] for r in ran]
    return {
        "kernels": len(records), "ran": len(ran), "right": sum(r["right"] for r in ran),
        "slower_than_0.95": sum(s < 0.95 for s in speeds), "slowest": min(speeds, default=0.0),
        "geometric_mean": math.exp(sum(map(math.log, speeds)) / len(speeds)) if speeds else 0.0,
        "chosen": {way: chosen.count(way) for way in sorted(set(chosen))},
    }  # fmt: skip


def versions(device: str) -> dict[str, Any]:
    import numpy
    import torch

    found = {"python": platform.python_version(), "torch": torch.__version__, "numpy": numpy.__version__}
    try:
        import numba

        found["numba"] = numba.__version__
    except ImportError:
        pass
    if device == "cuda":
        found |= {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    return found | {"cores": os.cpu_count(), "threads": torch.get_num_threads()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path, help="a checkout of NPBench")
    parser.add_argument("--preset", default="S", choices=["S", "M", "L", "paper"])
    parser.add_argument("--only", nargs="+", help="kernels by name")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--limit", type=float, default=240, help="seconds for one kernel")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if options.here:
        way = measure if options.device == "cpu" else functools.partial(measure_on, options.device)
        print(json.dumps(way(options.checkout.resolve(), options.only[0], options.preset)))
        return
    from records import write

    names = options.only or sorted(file.stem for file in (options.checkout / "bench_info").glob("*.json"))
    print(f"{'ms':<28}{'NumPy':>11}{'torch':>11}{'numba':>11}{'auto':>11}{'NumPy/auto':>11}  chosen        first call")
    records = {}
    for name in names:
        records[name] = in_a_process(options.checkout.resolve(), name, options.preset, options.limit, options.device)
        print(row(name, records[name]), flush=True)
        if options.output:
            record = {
                "preset": options.preset,
                "device": options.device,
                **versions(options.device),
                "summary": summary(records),
                "kernels": records,
            }
            write(options.output, record)
    print(summary(records))


if __name__ == "__main__":
    main()
