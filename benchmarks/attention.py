"""Times of attention on a GPU, in bfloat16: forward and backward, beside torch's SDPA (each backend) and FlexAttention.
Usage: attention.py FILE [--quick] [--tune]

Each time is the median of the GPU's, in ms, with a cold cache. ``--quick`` leaves out the compiled FlexAttention, which
takes a minute to compile. ``--tune`` tries tiles of each kernel, and prints the fastest.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import multiprocessing
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.profiler import ProfilerActivity, profile

from opwright.gallery import llm
from opwright.gallery.llm.tiles import TILES
from opwright.machine import this_machine

# Batches, heads of q, heads of k, length, head dim, and whether it is causal.
CASES = [(4, 32, 8, 4096, d, causal) for d in (128, 64) for causal in (True, False)]
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}  # fmt: skip
ROUNDS = 15
# What the forward and the backward of a case multiply, in products of s · s · d.
PRODUCTS = {"forward": 2, "backward": 5}
# Queries and keys of a tile, warps and stages.
CHOICES = {
    kernel: [*itertools.product(queries, keys, (4, 8), (1, 2, 3, 4))]
    for kernel, queries, keys in (
        ("forward", (64, 128), (32, 64, 128)), ("of_queries", (64, 128), (32, 64, 128)),
        ("of_keys", (32, 64, 128), (64, 128)),
    )
}  # fmt: skip
NAMES = {"forward": "forward_kernel", "of_queries": "query_kernel", "of_keys": "key_kernel"}
KERNELS = Path(llm.__file__).with_name("kernels") / "attention_triton.py"


def milliseconds(run: Callable[[], Any], rounds: int = ROUNDS) -> float:
    """The median of the GPU's time; before each round, other values fill the cache."""
    filler = torch.empty(1 << 28, dtype=torch.int8, device="cuda")
    run()
    found = []
    for _ in range(rounds):
        filler.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end))
    return statistics.median(found)


def inputs(case: tuple[Any, ...]) -> tuple[Tensor, Tensor, Tensor]:
    b, hq, hkv, s, d, _ = case
    q, k, v = (
        torch.randn(b, s, heads, d, device="cuda", dtype=torch.bfloat16, requires_grad=True) for heads in (hq, hkv, hkv)
    )
    return q, k, v


def compiled_flex(case: tuple[Any, ...]) -> Callable[..., Tensor]:
    mask = (
        create_block_mask(lambda b, h, q, k: q >= k, None, None, case[3], case[3], device="cuda") if case[5] else None
    )
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda *tensors: compiled(*heads_first(tensors), block_mask=mask, enable_gqa=True)


def heads_first(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Views as models have them."""
    return [x.transpose(1, 2) for x in tensors]


def by_backend(backend: SDPBackend, causal: bool) -> Callable[..., Tensor]:
    def run(*tensors: Tensor) -> Tensor:
        q, k, v = heads_first(tensors)
        with sdpa_kernel(backend):
            if backend is SDPBackend.EFFICIENT_ATTENTION:  # it has no groups
                k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
                return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)

    return run


def times_of(case: tuple[Any, ...], quick: bool) -> dict[str, dict[str, float | str]]:
    """Of each candidate: milliseconds of the forward and of the backward, or why there are none."""
    q, k, v = inputs(case)
    candidates = {"ours": lambda q, k, v: llm.attention(q, k, v, case[5])}
    candidates |= {name: by_backend(backend, case[5]) for name, backend in BACKENDS.items()}
    if not quick:
        candidates["flex"] = compiled_flex(case)
    found: dict[str, dict[str, float | str]] = {}
    for name, attend in candidates.items():
        try:
            with torch.no_grad():
                forward = milliseconds(lambda attend=attend: attend(q, k, v))
            out = attend(q, k, v)
            above = torch.randn_like(out)
            backward = milliseconds(
                lambda out=out, above=above: torch.autograd.grad(out, (q, k, v), above, retain_graph=True)
            )
            found[name] = {"forward": forward, "backward": backward}
        except RuntimeError as error:  # a backend that does not take these arguments
            found[name] = {"error": str(error).splitlines()[0][:200]}
    return found


def row_of(case: tuple[Any, ...], times: dict[str, dict[str, Any]], direction: str) -> dict[str, Any]:
    b, hq, _, s, d, causal = case
    operations = 2 * PRODUCTS[direction] * b * hq * s * s * d / (2 if causal else 1)
    ms = {name: round(found[direction], 3) for name, found in times.items() if direction in found}
    best = min((ms[name] for name in BACKENDS if name in ms), default=None)
    return {
        "case": dict(zip(("b", "hq", "hkv", "s", "d", "causal"), case, strict=True)), "direction": direction, "ms": ms,
        "tflops": {name: round(operations / of / 1e9) for name, of in ms.items()},
        "share_of_best_sdpa": round(best / ms["ours"], 3) if best and "ours" in ms else None,
        "errors": {name: found["error"] for name, found in times.items() if "error" in found},
    }  # fmt: skip


def import_file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -- tuning --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def tile(kernel: str, d: int, chosen: tuple[int, int, int, int]) -> Iterator[None]:
    before = TILES[kernel][d]
    TILES[kernel][d] = chosen
    try:
        yield
    finally:
        TILES[kernel][d] = before


def launch_to_tune(kernel: str, case: tuple[Any, ...]) -> Callable[[], Any]:
    """The launch of a kernel, of the backward with its other one. A call of the operator might repeat a launch that it
    has recorded, with other tiles."""
    launchers = import_file(KERNELS)
    q, k, v = (x.detach() for x in inputs(case))
    options = (case[5], 0, 0.0, None)
    if kernel == "forward":
        return lambda: launchers.attention(q, k, v, *options)
    out, lse = launchers.attention(q, k, v, *options)
    above = torch.randn_like(out)
    return lambda: launchers.attention_backward(above, q, k, v, out, lse, *options)


def compiles(task: tuple[str, int, tuple[int, int, int, int]]) -> bool:
    """Launch one kernel with one tile. Its binary stays in Triton's cache."""
    kernel, d, chosen = task
    with contextlib.suppress(Exception), tile(kernel, d, chosen):  # too much shared memory, or too few registers
        launch_to_tune(kernel, tuned_case(d))()
        torch.cuda.synchronize()
        return True
    return False


def tuned_case(d: int) -> tuple[Any, ...]:
    return (4, 32, 8, 2048, d, True)


def microseconds(kernel: str, d: int, chosen: tuple[int, int, int, int]) -> float:
    """The median of the kernel's own time, in five launches."""
    with tile(kernel, d, chosen):
        run = launch_to_tune(kernel, tuned_case(d))
        run()
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            for _ in range(5):
                run()
            torch.cuda.synchronize()
    return statistics.median(e.time_range.elapsed_us() for e in profiled.events() if NAMES[kernel] in e.name)


def tune() -> list[dict[str, Any]]:
    """The fastest tiles of each kernel and head dim. They are compiled in as many processes as there are cores."""
    tasks = [(kernel, d, chosen) for d in (64, 128) for kernel in CHOICES for chosen in CHOICES[kernel]]
    with ProcessPoolExecutor(os.cpu_count(), mp_context=multiprocessing.get_context("spawn")) as pool:
        is_compiled = [*pool.map(compiles, tasks)]
    rows: list[dict[str, Any]] = []
    for kernel, d in itertools.product(CHOICES, (64, 128)):
        tried = [t[2] for t, is_one in zip(tasks, is_compiled, strict=True) if is_one and t[:2] == (kernel, d)]
        measured = sorted((round(microseconds(kernel, d, chosen), 1), chosen) for chosen in tried)
        rows.append(
            {"kernel": kernel, "d": d, "us_of_best": measured[:5], "tried": len(tried), "now": TILES[kernel][d]}
        )
        print(rows[-1], flush=True)
    return rows


def main(out: Path, quick: bool, tunes: bool) -> None:
    record: dict[str, Any] = {"machine": this_machine().to_json(), "torch": torch.__version__, "rows": []}
    if tunes:
        record["tuned"] = tune()
    for case in () if tunes else CASES:
        times = times_of(case, quick)
        for direction in PRODUCTS:
            row = row_of(case, times, direction)
            record["rows"].append(row)
            cells = "  ".join(f"{name} {ms:.3f} ms ({row['tflops'][name]})" for name, ms in row["ms"].items())
            print(f"d={case[4]} causal={case[5]} {direction}: {cells}  share {row['share_of_best_sdpa']}", flush=True)
        out.write_text(json.dumps(record, indent=1) + "\n")
    out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), "--quick" in sys.argv, "--tune" in sys.argv)
