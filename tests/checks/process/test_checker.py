"""The checker process: a kernel cannot read what is expected, change the comparison, or answer in its place."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
import struct
import sys
from pathlib import Path

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

import opwright as ow
from opwright.results import Status
from tests.sampled import quick

CHECKS = ["values", "gradients", "afterwards"]


@ow.op("checked_apart::twice")
def twice(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
    return 2 * x


def _links():
    """The sockets of this process."""
    for fd in range(3, 64):
        with contextlib.suppress(OSError):
            found = socket.socket(fileno=os.dup(fd))
            if found.family == socket.AF_UNIX:
                yield found


def _answer(header, payload=b""):
    text = json.dumps(header).encode()
    for link in _links():
        with contextlib.suppress(OSError):
            link.sendall(struct.pack("<QQ", len(text), len(payload)) + text + payload)


def _tensors_of_stack():
    frame = sys._getframe()
    while frame is not None:
        yield from (v for v in frame.f_locals.values() if isinstance(v, Tensor))
        frame = frame.f_back


@twice.python(name="searches the stack for the expected value")
def _(x):
    return next((t.clone() for t in _tensors_of_stack() if torch.equal(t, 2 * x) and t is not x), 3 * x)


SEARCHES = []


@twice.python(name="searches memory for what the reference gave")
def _(x):
    if len(SEARCHES) > 4:  # it takes long
        return 3 * x
    SEARCHES.append(x.shape)
    found = [o for o in gc.get_objects() if type(o).__name__ == "Computation"]
    return next((c.rounded[0].clone() for c in found if torch.equal(c.arguments[0], x)), 3 * x)


@twice.python(name="changes the comparison")
def _(x):
    from opwright.checks.comparison import tolerance
    from opwright.checks.outputs import values

    tolerance.Computation.wrong = lambda self, i, result, sizes=None: torch.zeros(result.shape, dtype=torch.bool)
    values.find_error = lambda *args, **kwargs: None
    torch.allclose = torch.equal = lambda *args, **kwargs: True
    return 3 * x


@twice.python(name="says that it has passed")
def _(x):
    finding = {"check": "values", "status": "pass", "message": "30 cases"}
    _answer({"message": {"kind": "Found", "content": {"finding": finding}}})
    return 3 * x


@twice.python(name="says that all checks have ended")
def _(x):
    _answer({"message": {"kind": "Done", "content": {}}})
    os._exit(0)


@twice.python(name="says that it is not applicable")
def _(x):
    _answer({"chosen": "reference"})
    return 3 * x


@twice.python(name="answers in the place of its process")
def _(x):
    layout = {"shape": [3], "strides": [1], "dtype": "float32", "device": "cpu"}
    outputs = {"dtype": "float32", "shape": [3]}
    _answer({"changed": {}, "outputs": [outputs], "layouts": [layout], "promised": [layout], "shared": ""}, b"\0" * 12)
    return 3 * x


@twice.python(name="sends a tensor that is larger than what was sent")
def _(x):
    _answer({"changed": {}, "outputs": [{"dtype": "float32", "shape": [1 << 40]}], "layouts": [], "promised": "",
             "shared": ""})  # fmt: skip
    return 3 * x


@twice.python(name="announces more bytes than there are")
def _(x):
    for link in _links():
        link.sendall(struct.pack("<QQ", 2, 1 << 50) + b"{}")
    return 3 * x


@twice.python(name="ends the checker process")
def _(x):
    group = Path(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read_text().split()
    for pid in map(int, group):
        if pid != os.getpid() and Path(f"/proc/{pid}/status").exists():
            os.kill(pid, signal.SIGKILL)
    return 3 * x


SEEN = []


@twice.python(name="is right until a check that it knows has ended")
def _(x):
    frame, files = sys._getframe(), []
    while frame is not None:
        files.append(frame.f_code.co_filename)
        frame = frame.f_back
    is_checked = any("repeated_calls" in file for file in files)
    SEEN.extend([True] * is_checked)
    return 3 * x if SEEN and not is_checked else 2 * x


@pytest.mark.parametrize("kernel", quick(list(twice.kernels), 0, 3, 7))
def test_it_does_not_pass(kernel):
    checks = ["values", "repeated calls", "afterwards"] if "until" in kernel else CHECKS
    (verdict,) = ow.check(twice, kernels=[kernel], checks=checks, device="cpu").verdicts
    assert verdict.status is Status.FAIL, verdict.findings
