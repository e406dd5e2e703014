"""What an eager call costs on a CPU, in µs: around a kernel that does nothing, and the pieces that it is made of.

Usage: call_overhead.py [FILE]   (writes the record there)
"""

from __future__ import annotations

import json
import sys
import timeit
from collections.abc import Callable
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.backends.arguments import Packer
from opwright.backends.device_code import Parameter
from opwright.machine import this_machine
from opwright.runtime.door import is_plain_call
from opwright.runtime.plan import nothing_listens, static_key


@ow.op("bench::nothing")
def nothing(x: Float[Tensor, "n"], y: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    return x + y


nothing.python(lambda x, y: x, name="nothing")
x, y, out = (torch.randn(1024) for _ in range(3))
pointer = Parameter("pointer", 8, "float*", (torch.float32,), 4)
packer = Packer("add", [pointer, pointer, pointer, Parameter("integer", 8, "long long")])
CPU = -1


def microseconds(call: Callable[[], object], n: int = 20_000) -> float:
    call()
    return min(timeit.repeat(call, number=n, repeat=15)) / n * 1e6


calls: dict[str, Callable[[], object]] = {
    "torch.add": lambda: torch.add(x, y),
    "op(...) around a kernel that does nothing": lambda: nothing(x, y),
    "  of it: does a plan recognise the call": lambda: nothing._plans[0].holds(x, y),
    "  of it: does anything else listen": nothing_listens,
    "the same asked in Python: is the call plain": lambda: is_plain_call((x, y)),
    "the same asked in Python: what its checks depend on": lambda: static_key((x, y)),
    "arguments of a CUDA launch, as one function": lambda: packer.pack_usual((x, y, out, 1024), CPU),
    "arguments of a CUDA launch, one by one": lambda: packer.pack((x, y, out, 1024), CPU),
}
nothing(x, y)
times = {name: round(microseconds(call), 3) for name, call in calls.items()}
for name, us in times.items():
    print(f"{name:<52} {us:6.2f} µs")
if len(sys.argv) > 1:
    record = {"schema": "opwright.call_overhead/1", "machine": this_machine().to_json(), "us": times}
    Path(sys.argv[1]).write_text(json.dumps(record, indent=1) + "\n")
