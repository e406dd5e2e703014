"""Times of attention on a GPU, in bfloat16: forward and backward, beside torch's SDPA (each backend) and FlexAttention.
Usage: attention.py FILE [--quick] [--tune [SECONDS]]

Each time is the median of the GPU's, in ms, with a cold cache. ``--quick`` leaves out the compiled FlexAttention, which
takes a minute to compile. ``--tune`` tries tiles of each kernel for 90 s in all, or the seconds that follow it, and
prints the fastest.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

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
SECONDS_OF_TUNING = 90.0
# Queries and keys of a tile, warps and stages: the likely ones first, as each takes some seconds to compile.
CHOICES = {
    "forward": (
        (128, 128, 8, 3), (128, 64, 8, 3), (128, 64, 4, 3), (128, 128, 8, 2), (64, 64, 4, 3), (128, 32, 4, 4),
        (128, 64, 8, 4), (64, 128, 4, 3), (64, 64, 4, 4),
    ),
    "of_queries": (
        (128, 64, 8, 2), (128, 64, 8, 3), (64, 64, 4, 3), (128, 32, 4, 3), (64, 64, 4, 2), (128, 128, 8, 2),
        (64, 128, 8, 2), (64, 32, 4, 4),
    ),
    "of_keys": (
        (64, 128, 8, 2), (64, 128, 8, 3), (32, 128, 4, 3), (64, 64, 4, 3), (64, 64, 4, 2), (32, 128, 8, 3),
        (128, 128, 8, 2), (32, 64, 4, 4),
    ),
}  # fmt: skip
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


def tune(seconds: float) -> list[dict[str, Any]]:
    """The fastest tiles of each kernel and head dim, of those that the time allows."""
    rows: list[dict[str, Any]] = []
    tasks = [(kernel, d) for d in (128, 64) for kernel in CHOICES]
    for kernel, d in tasks:
        run, ends = launch_to_tune(kernel, (4, 32, 8, 4096, d, True)), time.monotonic() + seconds / len(tasks)
        first = TILES[kernel][d]
        measured: dict[tuple[int, ...], float] = {}
        for chosen in dict.fromkeys((first, *CHOICES[kernel])):
            if time.monotonic() > ends:
                break
            with (
                tile(kernel, d, chosen),
                contextlib.suppress(Exception),
            ):  # too much shared memory, or too few registers
                measured[chosen] = milliseconds(run, 5)
        order = sorted(measured, key=measured.__getitem__)
        rows.append({"kernel": kernel, "d": d, "best": [[*c, round(measured[c], 3)] for c in order[:5]],
                     "tried": len(measured), "now": round(measured.get(first, float("nan")), 3)})  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def main(out: Path, quick: bool, seconds: float | None) -> None:
    record: dict[str, Any] = {"machine": this_machine().to_json(), "torch": torch.__version__, "rows": []}
    if seconds is not None:
        record["tuned"] = tune(seconds)
    for case in CASES if seconds is None else ():
        times = times_of(case, quick)
        for direction in PRODUCTS:
            row = row_of(case, times, direction)
            record["rows"].append(row)
            cells = "  ".join(f"{name} {ms:.3f} ms ({row['tflops'][name]})" for name, ms in row["ms"].items())
            print(f"d={case[4]} causal={case[5]} {direction}: {cells}  share {row['share_of_best_sdpa']}", flush=True)
        out.write_text(json.dumps(record, indent=1) + "\n")
    out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    seconds = None
    if "--tune" in sys.argv:
        seconds = float(next(iter(sys.argv[sys.argv.index("--tune") + 1 :]), SECONDS_OF_TUNING))
    main(Path(sys.argv[1]), "--quick" in sys.argv, seconds)
