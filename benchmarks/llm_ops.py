"""Times of the language model's operators on a GPU, in bfloat16: beside torch's own functions, the compiled reference
and, where it is installed, Liger-Kernel. Usage: llm_ops.py FILE [--quick] [OPERATOR...]

Each row is a median of the GPU's time of a call with a cold cache, in µs, the share of the machine's limits that this
is, and its ratio to others. ``--quick`` has one size in place of three, which take some four minutes an operator.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import opwright as ow
from opwright.gallery import llm
from opwright.machine import this_machine

OPERATORS = ("rms_norm", "layer_norm", "glu", "softmax", "cross_entropy")


def torch_s() -> dict[str, Callable[..., Any]]:
    return {
        "rms_norm": lambda x, weight, eps: F.rms_norm(x, weight.shape, weight, eps),
        "layer_norm": lambda x, weight, bias, eps: F.layer_norm(x, weight.shape, weight, bias, eps),
        "glu": lambda gate, up, activation: F.silu(gate) * up,
        "softmax": lambda x: x.softmax(-1),
        "cross_entropy": lambda logits, labels, smoothing, z_loss: F.cross_entropy(
            logits.float(), labels, reduction="none"
        ),
    }


def liger_s() -> dict[str, Callable[..., Any]]:
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction

    return {
        "rms_norm": lambda x, weight, eps: LigerRMSNormFunction.apply(x, weight, eps, 0.0, "llama", False),
        "layer_norm": LigerLayerNormFunction.apply,
        "glu": lambda gate, up, activation: LigerSiLUMulFunction.apply(gate, up),
    }


def main(out: Path, names: list[str]) -> None:
    peers = {"torch": torch_s()}
    with contextlib.suppress(ImportError):
        peers["liger"] = liger_s()
    packages = ["torch", "triton", *(["liger-kernel"] if "liger" in peers else [])]
    versions = {package: metadata.version(package) for package in packages}
    record = {"machine": this_machine().to_json(), "torch": torch.__version__, "versions": versions, "rows": []}
    for name in [n for n in names if n != "--quick"] or OPERATORS:
        operator = getattr(llm, name)
        of_peers = {peer: functions[name] for peer, functions in peers.items() if name in functions}
        for peer, function in of_peers.items():
            operator.baseline(function, name=peer)
        report = ow.bench(
            operator,
            device="cuda",
            dtypes=["bfloat16"],
            baselines=["torch.compile", *of_peers],
            quick="--quick" in names,
        )
        for m in report.measurements:
            if m.cache != "cold":
                continue
            row = {
                "operator": name, "kernel": m.kernel, "direction": m.direction, "case": m.case,
                "us": round(m.gpu_us.median, 1) if m.gpu_us else None,
                "of_limit": round(m.roofline_fraction, 3) if m.roofline_fraction else None,
                "ratio_to": {other: round(found.ratio, 3) for other, found in m.comparisons.items()},
            }  # fmt: skip
            record["rows"].append(row)
            print(row, flush=True)
        for error in report.errors:
            print(name, error, flush=True)
        out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
