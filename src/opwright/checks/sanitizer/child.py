"""The process in which a tool watches one kernel: it runs the cases that it is given, and prints where each begins.

What the tool prints between two of these lines belongs to the case of the first.
"""

from __future__ import annotations

import base64
import json
import sys
from typing import Any

import torch

from opwright import tree
from opwright.contract.inputs.arguments import arguments_of
from opwright.contract.inputs.text import parse_case
from opwright.internals.autograd import below_autograd
from opwright.runtime import serialization
from opwright.runtime.kernel import Kernel, gpu_of
from opwright.runtime.op import Op
from opwright.runtime.targets import ImportPath, import_operator

__all__ = ["MARK", "main"]

# What a line of this process begins with.
MARK = "@opwright@"


def main() -> None:
    """Read one job from the standard input, and run it."""
    job = json.load(sys.stdin)
    operator = _operator(job)
    kernel = operator.kernels[job["kernel"]].with_flags(job["flags"])
    kernel.load()
    for text in job["cases"]:
        _run(operator, kernel, text, job["device"])
    _say("end")


def _operator(job: dict[str, Any]) -> Op:
    if job["import_path"] is None:
        return serialization.load(base64.b64decode(job["pickle"]))
    operator = import_operator(ImportPath(**job["import_path"]))
    assert operator is not None  # the same module has defined it in the process that asks
    return operator


def _run(operator: Op, kernel: Kernel, text: str, device: str) -> None:
    arguments = arguments_of(operator.contract, parse_case(operator.contract, text), device)
    _say("case", text)
    named = zip(operator.contract.signature.arguments, arguments, strict=True)
    for argument, value in named:
        for tensor in tree.tensors([value]):
            storage = tensor.untyped_storage()
            _say("memory", argument.name, storage.data_ptr(), storage.nbytes())
    try:
        with below_autograd():
            kernel.launch(arguments, gpu_of(arguments))
        if device == "cuda":
            torch.cuda.synchronize()
    except Exception as error:  # the check "values" reports what the kernel raises
        _say("raised", f"{type(error).__name__}: {error}")
    _say("returned")


def _say(*what: Any) -> None:
    """To the tools' own stream, which keeps the order."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    print(MARK, json.dumps(what), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
