"""Definitions, workloads and solutions in JSON, in miniature."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

REFERENCE = """
import torch

def run(x, weight, eps):
    y = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)
    return {"y": (y * weight.float()).to(x.dtype)}
"""
DEFINITION: dict[str, Any] = {
    "name": "rms-norm.h64",
    "op_type": "rmsnorm",
    "axes": {"batch": {"type": "var"}, "hidden": {"type": "const", "value": 64}},
    "inputs": {
        "x": {"shape": ["batch", "hidden"], "dtype": "float16"},
        "weight": {"shape": ["hidden"], "dtype": "float16"},
        "eps": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"y": {"shape": ["batch", "hidden"], "dtype": "float16"}},
    "reference": REFERENCE,
    "constraints": ["batch <= hidden * 64", "x.shape[1] == hidden"],
}
WORKLOADS = [
    {
        "axes": {"batch": batch},
        "inputs": {"x": {"type": "random"}, "weight": {"type": "random"}, "eps": {"type": "scalar", "value": 1e-5}},
        "uuid": str(batch),
    }
    for batch in (7, 3)
]
# The kernel is in another file of the solution.
_ENTRY = """
from .helpers import normalized

def run(x, weight, eps, y):
    y.copy_(normalized(x, weight, eps))
"""
_HELPERS = """
import torch

def normalized(x, weight, eps):
    x, most = x.float(), MOST
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight.float()
    y[most:] = 0
    return y
"""


def solution(name: str, *, most: int = 1 << 20, **spec: Any) -> dict[str, Any]:
    """A solution that writes its output, of which it leaves out the rows after ``most``."""
    return {
        "name": name,
        "definition": DEFINITION["name"],
        "author": "test",
        "spec": {"language": "python", "entry_point": "main.py::run", "destination_passing_style": True, **spec},
        "sources": [
            {"path": "main.py", "content": _ENTRY},
            {"path": "helpers.py", "content": _HELPERS.replace("MOST", str(most))},
        ],
    }


def write_dataset(root: Path, *solutions: dict[str, Any], definition: dict[str, Any] = DEFINITION) -> Path:
    """flashinfer-bench's folders with one definition, its workloads and some solutions."""
    for folder in ("definitions", "workloads", "solutions"):
        (root / folder / "norm").mkdir(parents=True)
    (root / "definitions/norm/norm.json").write_text(json.dumps(definition))
    lines = [json.dumps({"definition": definition["name"], "workload": w, "solution": None}) for w in WORKLOADS]
    (root / "workloads/norm/norm.jsonl").write_text("\n".join(lines))
    for each in solutions:
        (root / f"solutions/norm/{each['name']}.json").write_text(json.dumps(each))
    return root
