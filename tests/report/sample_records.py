"""Records to show: a check with failures, and a benchmark of ``add`` as an H100 might do it (made-up figures)."""

from __future__ import annotations

from typing import Any

from opwright.results import (
    BenchReport,
    CheckReport,
    Comparison,
    ComparisonVerdict,
    Coverage,
    Crossover,
    Estimate,
    Finding,
    Measurement,
    NotChecked,
    RooflineLimit,
    SizeRange,
    Status,
    Verdict,
)

MACHINE = {
    "system": "Linux x86_64",
    "python": "3.12.4",
    "cpu": "Intel(R) Xeon(R) Platinum 8480+",
    "cores": 16,
    "torch": "2.13.0+cu130",
    "torch_cuda": "13.0",
    "gpus": [{"name": "NVIDIA H100 80GB HBM3", "capability": [9, 0], "memory_bytes": 85_014_020_096}],
    "triton": "3.7.1",
    "cxx": "g++ 12.2.0",
}
SIZES = (1024, 2048, 4096, 8192, 16384)
# Kernel → (language, microseconds that every call costs, share of the bandwidth that it reaches).
KERNELS = {
    "cuda_vec4": ("cuda", 2.1, 0.97),
    "triton": ("triton", 2.6, 0.955),
    "triton_autotuned": ("triton", 2.6, 0.968),
    "reference": ("torch", 2.3, 0.945),
    "torch.compile": ("inductor", 2.7, 0.95),
}
BANDWIDTH, CACHE_BANDWIDTH, CACHE = 3.05e12, 5.6e12, 30e6


def make_verdict(**changes: Any) -> Verdict:
    content = {
        "op": "gallery::add", "kernel": "triton", "backend": "triton", "device": "cuda", "status": Status.PASS,
        "parts": {"schema": "derived", "fake": "derived", "autograd": "custom", "sharding": "missing"},
        "findings": (Finding("values", Status.PASS, message="33 cases"),), "seconds": 1.25, **changes,
    }  # fmt: skip
    return Verdict(**content)


def make_check(*verdicts: Verdict) -> dict[str, Any]:
    wrong = Finding(
        "values",
        Status.FAIL,
        "n=5 dtype=float32 layout=contiguous",
        "1 of 5 elements differ\n  at (4,): expected 1.0, got 0.0",
        "opwright check add.py:add --kernel forgets_tail --check 'values' --case 'n=5 dtype=float32'",
    )
    return CheckReport(
        MACHINE,
        verdicts
        or (
            make_verdict(not_checked=(NotChecked("gradients", "no floating output"),)),
            make_verdict(kernel="forgets_tail", status=Status.FAIL, reason="failed: values", findings=(wrong,)),
            make_verdict(kernel="mojo", backend="mojo", status=Status.REFUSED, reason="no Mojo here", findings=()),
        ),
    ).to_json()


UNCAPTURED = Finding(
    "streams",
    Status.WARNING,
    "n=1024 dtype=float32 layout=contiguous",
    "the kernel cannot be captured in a CUDA graph: it calls cudaStreamSynchronize",
    "opwright check add.py:add --kernel vec4 --check 'streams' --case 'n=1024 dtype=float32'",
    remedy="Leave the synchronisation to the caller.",
)
LEAKING = Finding("memory", Status.WARNING, message="each call leaves 4,096 bytes", remedy="Free the workspace.")
HARDLY_RAN = Finding(
    "values",
    Status.THIN,
    message="152 of 164 cases were skipped: no values satisfy where=['n == 7 * m']",
    coverage=Coverage(12, 164),
    remedy="State sizes that satisfy it: op.sizes(n=14, m=2).",
)
ENDLESS = Finding(
    "gradients",
    Status.INCONCLUSIVE,
    "n=1025 dtype=float64 layout=transposed",
    "the step did not end within 60 s",
    "opwright check add.py:sin --kernel cpp --check 'gradients' --case 'n=1025 dtype=float64 layout=transposed'",
    remedy="Allow more time with --timeout 300.",
)


def every_status() -> tuple[Verdict, ...]:
    """Verdicts of all statuses, those that passed first."""
    values = Finding("values", Status.PASS, coverage=Coverage(152, 164))
    compiled = Finding("torch.compile", Status.PASS, message="fullgraph, static and dynamic", coverage=Coverage(2, 2))
    wrong = Finding(
        "values",
        Status.FAIL,
        "n=5 dtype=float32 layout=contiguous",
        "1 of 5 elements differ\n  at (4,): expected 1.0, got 0.0",
        "opwright check add.py:add --kernel forgets_tail --check 'values' --case 'n=5 dtype=float32'",
        coverage=Coverage(3, 164),
    )
    skipped = (NotChecked("bfloat16", "the simulator computes in float32"),)
    simulated = {"backend": "cuda", "device": "cpu-sim", "reason": "in the CUDA simulator", "not_checked": skipped}
    return (
        make_verdict(findings=(values, compiled)),
        make_verdict(kernel="vec4", findings=(values, UNCAPTURED), status=Status.WARNING, **simulated),
        make_verdict(kernel="mojo", backend="mojo", device="cpu", status=Status.REFUSED, reason="no Mojo here",
                     findings=(), seconds=0),
        make_verdict(op="gallery::sin", findings=(values, UNCAPTURED, LEAKING), status=Status.WARNING),
        make_verdict(op="gallery::sin", kernel="cpp", backend="cpp", device="cpu", status=Status.INCONCLUSIVE,
                     reason="did not end in time: gradients", findings=(values, compiled, ENDLESS), seconds=61.2),
        make_verdict(op="gallery::conv1d", kernel="tiled", status=Status.THIN, reason=HARDLY_RAN.message,
                     findings=(HARDLY_RAN, compiled)),
        make_verdict(op="gallery::conv1d", kernel="forgets_tail", backend="cpp", device="cpu", status=Status.FAIL,
                     reason="failed: values", findings=(wrong, compiled)),
    )  # fmt: skip


def make_measurement(**changes: Any) -> Measurement:
    content = {
        "op": "gallery::add", "kernel": "triton", "backend": "triton", "device": "cuda", "direction": "forward",
        "case": {"n": [1024, 1024], "dtype": "float32"}, "cache": "cold", "gpu_us": Estimate(10.0, 9.8, 10.3, 40),
        "host_us": Estimate(14.0, 13.0, 15.0, 40), "bytes": 12 << 20, "flops": 1 << 20, **changes,
    }  # fmt: skip
    return Measurement(**content)


def _add(kernel: str, size: int, direction: str, cache: str) -> Measurement:
    language, fixed, share = KERNELS[kernel]
    elements = size * size
    moved, flops = (12 * elements, elements) if direction == "forward" else (24 * elements, 2 * elements)
    rate = CACHE_BANDWIDTH if cache == "warm" and moved < CACHE else BANDWIDTH
    us = fixed + moved / (rate * share) * 1e6

    def comparisons(other: str) -> Comparison:
        _, other_fixed, other_share = KERNELS[other]
        ratio = us / (other_fixed + moved / (rate * other_share) * 1e6)
        width = 0.04 if kernel == "triton" and size == 1024 else 0.006
        verdict = (
            ComparisonVerdict.FASTER
            if ratio < 0.99
            else ComparisonVerdict.SLOWER
            if ratio > 1.01
            else ComparisonVerdict.SAME
        )
        if width > abs(1 - ratio) > 0.015:
            verdict = ComparisonVerdict.UNCLEAR
        return Comparison(verdict, ratio, ratio * (1 - width), ratio * (1 + width))

    return make_measurement(
        kernel=kernel,
        backend=language,
        direction=direction,
        case={"n": [size, size], "dtype": "float32"},
        cache=cache,
        gpu_us=Estimate(us, us * 0.993, us * 1.011, 480),
        host_us=Estimate(us + 4.4, us + 4.1, us + 5.2, 480),
        bytes=moved,
        flops=flops,
        bound="bandwidth",
        roofline_fraction=moved / us * 1e6 / rate,
        comparisons={b: comparisons(b) for b in ("reference", "torch.compile") if b != kernel},
        notes=("12 of 492 samples discarded: the GPU throttled (power)",) if (kernel, size) == ("triton", 8192) else (),
        first_values=(-0.0207704, 1.3144712),
        reproduce=f"opwright bench opwright.gallery.add --kernel {kernel} --size n={size}x{size} --dtype float32",
    )


def make_bench(*measurements: Measurement, errors: tuple[str, ...] = ()) -> dict[str, Any]:
    sizes = [1 << p for p in range(16, 31, 2)]
    roofline = (
        RooflineLimit("bandwidth cold", "cuda", "B/s", {str(s): BANDWIDTH * s / (s + 3e6) for s in sizes}),
        RooflineLimit(
            "bandwidth warm", "cuda", "B/s", {str(s): CACHE_BANDWIDTH if s < CACHE else BANDWIDTH for s in sizes}
        ),
        RooflineLimit("arithmetic", "cuda", "FLOP/s", {"float32": 51e12, "float16": 690e12, "bfloat16": 705e12}),
        RooflineLimit("call overhead of torch.add", "cuda", "us", {"1024": 4.4}),
    )
    found = measurements or tuple(
        _add(kernel, size, direction, cache)
        for size in SIZES
        for direction in ("forward", "backward")
        for cache in ("cold", "warm")
        for kernel in KERNELS
    )
    crossovers = (
        Crossover(
            "gallery::add",
            "cuda",
            "NVIDIA H100 80GB HBM3",
            "float32",
            (SizeRange(0, 1 << 21, "cuda_vec4"), SizeRange(1 << 21, None, "triton_autotuned")),
            tuple(2 * s * s for s in SIZES),
            "2026-11-20",
            stored=True,
        ),
    )
    settings = {"TF32 in cuBLAS": "off", "persisting lines of the L2": "reset before each cold sample"}
    return BenchReport({**MACHINE, "power_w": 311.5}, found, roofline, errors, crossovers, settings).to_json()


def many_verdicts(count: int = 60) -> list[Verdict]:
    """Kernels that passed, and one that failed."""
    wrong = Finding("values", Status.FAIL, "n=5", "differs", "opwright check x")
    passing = [make_verdict(kernel=f"right_{i}", not_checked=(NotChecked("opcheck", "slow"),)) for i in range(count)]
    return [*passing, make_verdict(kernel="wrong", status=Status.FAIL, findings=(wrong,))]


# Text of a kernel that tries to change the page.
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>{{7*7}}</style></pre>"


def hostile_records() -> list[dict[str, Any]]:
    """Records with such text wherever a kernel's text may be."""
    verdicts = [
        make_verdict(op=HOSTILE, kernel=HOSTILE, backend=HOSTILE, device=HOSTILE, status=status, reason=HOSTILE,
                     findings=tuple(Finding(HOSTILE, s, HOSTILE, HOSTILE, HOSTILE, remedy=HOSTILE) for s in Status),
                     not_checked=(NotChecked(HOSTILE, HOSTILE),), parts={HOSTILE: HOSTILE})
        for status in Status
    ]  # fmt: skip
    comparisons = {HOSTILE: Comparison(ComparisonVerdict.SAME, 1.0, 0.99, 1.01)}
    measured = [
        make_measurement(op=HOSTILE, kernel=HOSTILE, backend=HOSTILE, device=HOSTILE, direction=HOSTILE, bytes=1 << p,
                         case={HOSTILE: 1 << p, "dtype": HOSTILE}, comparisons=comparisons, notes=(HOSTILE,),
                         reproduce=HOSTILE,
                         bound=HOSTILE, roofline_fraction=0.5)
        for p in (20, 22)
    ]  # fmt: skip
    machine = {**MACHINE, HOSTILE: HOSTILE, "gpus": [{"name": HOSTILE}]}
    check, bench = make_check(*verdicts), {**make_bench(*measured), "errors": [HOSTILE]}
    check["verdicts"][0]["findings"][0]["error_histogram"] = {"edges": [0, 1], "counts": [3], "unit": HOSTILE}
    bench["settings"] = {HOSTILE: HOSTILE}
    bench["crossovers"] = [
        {"op": HOSTILE, "device": HOSTILE, "device_name": HOSTILE, "dtype": HOSTILE, "measured": HOSTILE,
         "ranges": [{"least": 0, "below": None, "kernel": HOSTILE}]}
    ]  # fmt: skip
    return [{**check, "machine": machine}, {**bench, "machine": machine}]
