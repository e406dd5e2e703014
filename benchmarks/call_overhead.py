"""The time of an eager call on a CPU, in µs: kernels in C++ and Mojo, an empty kernel, and the parts of a call.

Usage: call_overhead.py [FILE] [--rounds N]   (writes the record there)
"""

from __future__ import annotations

import argparse
import ctypes
import timeit
from collections.abc import Callable
from pathlib import Path

import records
import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.backends.build_tools import build_tools
from opwright.backends.gpu.arguments import Packer
from opwright.backends.gpu.device_code import Parameter
from opwright.backends.native import native_call
from opwright.backends.native.tensor_access import LIBRARIES, address_of
from opwright.machine import this_machine
from opwright.results import Refused
from opwright.runtime.extensions import load_extensions

HERE = Path(__file__).parent
Calls = dict[str, Callable[[], object]]


def adding(name: str) -> ow.Op:
    @ow.op(f"bench::{name}")
    def add(x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x + y

    return add


x, y, out = (torch.randn(1024) for _ in range(3))
CPU = -1


def around_nothing() -> Calls:
    nothing = adding("nothing")
    nothing.python(lambda x, y: x, name="nothing")

    def plain() -> object:
        with ow.fast_calls(False):
            return nothing(x, y)

    return {
        "op(...) around a kernel that does nothing": lambda: nothing(x, y),
        "the same through torch's dispatcher": plain,
    }


def around_a_native_kernel(language: str, label: str, suffix: str) -> Calls:
    """An addition in a language, called in each way; empty if this machine cannot build it."""
    add = adding(f"add_{language}")
    getattr(add, language)(HERE / f"add_host.{suffix}", entry="add_host", name="native")
    kernel = add.kernels["native"]
    probe = kernel.probe("cpu")
    if isinstance(probe, Refused):
        print(f"{label} is left out: {probe.reason}")
        return {}
    assert torch.equal(add(x, y), x + y)
    any_call = kernel.load()
    like_this = any_call.for_calls_like((x, y))
    assert like_this is not any_call, "it was called once, so it has a guarded form"
    return {
        f"op(...) in {label}": lambda: add(x, y),
        f"  of it: the {label} kernel, in a guarded call": lambda: like_this(x, y),
        f"  the {label} kernel, in any other call": lambda: any_call(x, y),
    }


def arguments_of_a_cuda_launch() -> Calls:
    """The time of a launch of a CUDA kernel from Python, with empty functions in place of CUDA's."""
    pointer = Parameter("pointer", 8, "float*", (torch.float32,), 4)
    packer = Packer("add", [pointer, pointer, pointer, Parameter("integer", 8, "long long")])
    nothing = address_of(ctypes.CDLL(str(LIBRARIES / "libtorch_cpu.so")).aoti_torch_device_type_cpu)  # returns 0
    native_call.gpu_functions = lambda: (nothing,) * 3  # type: ignore[assignment]
    native, passed = native_call.native_calls(build_tools()), packer.native_arguments
    assert native is not None
    assert passed is not None
    kernel = native_call.GpuKernel(0, (1, 1, 1), (1, 1, 1), 0, parameters=4)
    launch = native.function_for(native_call.NativeCall(4, (), False, passed, x.device, (kernel,), print))
    assert launch is not None
    return {
        "a CUDA launch without CUDA's part": lambda: launch(x, y, out, 1024),
        "its arguments alone, in Python": lambda: packer.pack((x, y, out, 1024), CPU),
    }


def microseconds(calls: Calls, rounds: int, n: int = 5_000) -> dict[str, float]:
    """The minimum over many rounds; each round times all calls in turn."""
    least = {}
    for name, call in calls.items():
        call()
        least[name] = float("inf")
    for _ in range(rounds):
        for name, call in calls.items():
            least[name] = min(least[name], timeit.timeit(call, number=n) / n * 1e6)
    return {name: round(us, 3) for name, us in least.items()}


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("file", type=Path, nargs="?")
parser.add_argument("--rounds", type=int, default=40)
options = parser.parse_args()
torch.set_num_threads(1)
load_extensions(build=True)
times = microseconds(
    {
        "torch.add": lambda: torch.add(x, y),
        **around_a_native_kernel("cpp", "C++", "cpp"),
        **around_a_native_kernel("mojo", "Mojo", "mojo"),
        **around_nothing(),
        **arguments_of_a_cuda_launch(),
    },
    options.rounds,
)
for name, us in times.items():
    print(f"{name:<60} {us:6.2f} µs {us / times['torch.add']:6.2f} × torch.add")
if options.file:
    record = {"schema": "opwright.call_overhead/2", "machine": this_machine().to_json(), "us": times}
    records.write(options.file, record)
