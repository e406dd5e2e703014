"""The amount of opwright's code that each step runs: calls of Python functions, different functions, and files.

Usage: frames.py [STEP]     with a word of a step's name, its functions are listed in the order of their first calls

The steps are those of the three pictures in docs/architecture.md. Only functions of the installed opwright count; those
of worker processes, of torch and of compilers do not.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import sys
import tempfile
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ["OPWRIGHT_CACHE_DIR"] = tempfile.mkdtemp()

import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.report.html import render
from opwright.report.terminal.check import show_check
from opwright.report.terminal.console import make_console

PACKAGE = str(Path(ow.__file__).parent)
Frame = tuple[str, str]
HOST = """
#include <torch/csrc/stable/tensor.h>
#include <torch/csrc/stable/ops.h>
using torch::stable::Tensor;
Tensor scale(const Tensor& x, double a) {
  Tensor out = torch::stable::empty_like(x);
  for (int64_t i = 0; i < x.numel(); ++i)
    static_cast<float*>(out.data_ptr())[i] = a * static_cast<const float*>(x.data_ptr())[i];
  return out;
}
"""
DEVICE = """
extern "C" __global__ void scale(const float* x, float* out, float a, long n) {
  long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
  if (i < n) out[i] = a * x[i];
}
"""


@contextlib.contextmanager
def seen() -> Iterator[list[Frame]]:
    """The frames of opwright's functions that start in a block, in order."""
    frames: list[Frame] = []

    def note(frame: types.FrameType, event: str, _: object) -> None:
        code = frame.f_code
        is_function = code.co_flags & inspect.CO_OPTIMIZED  # the body of a class or a module is not a function
        if event == "call" and is_function and code.co_filename.startswith(PACKAGE):
            frames.append((code.co_filename[len(PACKAGE) + 1 :], code.co_qualname))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield frames
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def define(name: str) -> ow.Op:
    @ow.op(f"frames::{name}")
    def scale(x: Float[Tensor, "*n"], a: float) -> Float[Tensor, "*n"]:
        """``a * x``."""
        return a * x

    return scale


def steps(folder: Path) -> Iterator[tuple[str, str, Callable[[], object]]]:
    (folder / "scale.cpp").write_text(HOST)
    (folder / "scale.cu").write_text(DEVICE)
    x, wants_gradient = torch.randn(64), torch.randn(64, requires_grad=True)
    made: list[ow.Op] = []

    yield "definition → call", "define a first operator", lambda: define("first")
    yield "", "define another operator", lambda: made.append(define("scale"))
    op = made[0]
    yield "", "call the reference", lambda: op(x, 2.0)
    yield "", "attach a C++ kernel", lambda: op.cpp(folder / "scale.cpp", dtypes=[torch.float32])
    yield "", "build and load it", op.kernels["cpp"].load
    yield "", "first call", lambda: op(x, 2.0)
    yield "", "same call again", lambda: op(x, 2.0)
    yield "", "through torch.ops", lambda: torch.ops.frames.scale(x, 2.0)
    yield "", "first tracked by autograd", lambda: op(wants_gradient, 2.0)
    yield "", "same tracked call again", lambda: op(wants_gradient, 2.0)
    result = op(wants_gradient, 2.0).sum()
    yield "", "its backward", result.backward
    make_native(op, wants_gradient)
    yield "", "same tracked call with a native node", lambda: op(wants_gradient, 2.0)
    result = op(wants_gradient, 2.0).sum()
    yield "", "its backward, too", result.backward

    reports: list[ow.results.CheckReport] = []
    yield "check → verdict → report", "check (this process's part)", lambda: reports.append(ow.check(op))
    yield "", "show it on a terminal", lambda: show_check(make_console(file=io.StringIO()), reports[0])
    yield "", "as JSON", reports[0].to_json
    yield "", "as a page", lambda: render([reports[0].to_json()])

    yield "source → binary → launch", "read the CUDA source", lambda: ow.cuda_module(folder / "scale.cu")
    module = ow.cuda_module(folder / "scale.cu")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    where = "on the GPU" if device == "cuda" else "in the simulator"
    on, out = x.to(device), torch.empty(64, device=device)
    launch = lambda: module["scale"][1, 64](on, out, 2.0, 64)  # noqa: E731
    yield "", f"compile, and launch {where}", launch
    yield "", "launch again", launch


def make_native(op: ow.Op, wants_gradient: Tensor) -> None:
    """Call until autograd tracks calls in a native function, which a thread builds meanwhile."""
    for _ in range(2):
        for _ in range(300):
            op(wants_gradient, 2.0)
        for thread in threading.enumerate():
            if thread.name == "opwright-build":
                thread.join()


def main() -> None:
    wanted = sys.argv[1] if len(sys.argv) > 1 else None
    print(f"{'way':<26} {'step':<37} {'calls':>6} {'functions':>9} {'files':>6}")
    with tempfile.TemporaryDirectory() as folder:
        for way, step, run in steps(Path(folder)):
            with seen() as frames:
                run()
            different = list(dict.fromkeys(frames))
            files = len({file for file, _ in frames})
            print(f"{way:<26} {step:<37} {len(frames):>6} {len(different):>9} {files:>6}")
            if wanted and wanted in step:
                print("\n".join(f"    {file:<44} {name}" for file, name in different))


if __name__ == "__main__":
    main()
