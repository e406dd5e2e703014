"""The time of a call of an installed package's operator, beside the same operator made by hand, in µs.

Usage: python benchmarks/packaged_calls.py [--json FILE] [--rounds N] [--before CHECKOUT]

A C++ kernel becomes a package with ``opwright package``. The same C++ function is registered by hand, on torch's stable
ABI, with the checks of the contract: dtypes, device, layout, dims. Both are called in processes that cannot import
opwright: in turns, with tensors of one size and with another size in every call.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# Within a process all calls take turns; the least time of each counts.
_CALLS, _TURNS = 1000, 25
_SIZES = [*range(1000, 1128)]

_OPERATORS = '''
"""Operators whose kernels are one C++ function."""
from jaxtyping import Float32
from torch import Tensor

import opwright as ow


@ow.op("packaged::add")
def add(x: Float32[Tensor, "*n"], y: Float32[Tensor, "*n"]) -> Float32[Tensor, "*n"]:
    return x + y


add.cpp("add_host.cpp", entry="add_host")
'''

_BY_HAND = """
#include <torch/csrc/stable/library.h>
#include "add_host.cpp"

namespace {

int32_t number(AOTITorchError (*of)(AtenTensorHandle, int32_t*), const Tensor& t) {
  int32_t found;
  STD_TORCH_CHECK(of(t.get(), &found) == 0, "no such property");
  return found;
}

void check(const Tensor& t, const char* name) {
  STD_TORCH_CHECK(t.scalar_type() == torch::headeronly::ScalarType::Float, name, " should be float32");
  STD_TORCH_CHECK(number(aoti_torch_get_layout, t) == aoti_torch_layout_strided(), name, " should be strided");
}

Tensor checked(const Tensor& x, const Tensor& y) {
  check(x, "x");
  check(y, "y");
  STD_TORCH_CHECK(number(aoti_torch_get_device_type, x) == number(aoti_torch_get_device_type, y), "other devices");
  STD_TORCH_CHECK(number(aoti_torch_get_device_index, x) == number(aoti_torch_get_device_index, y), "other devices");
  STD_TORCH_CHECK(x.sizes().equals(y.sizes()), "x and y should have the same dims");
  return add_host(x, y);
}

}  // namespace

STABLE_TORCH_LIBRARY(by_hand, m) { m.def("add(Tensor x, Tensor y) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(by_hand, CPU, m) { m.impl("add", TORCH_BOX(&checked)); }
"""


def prepare(folder: Path, tree: Path) -> None:
    """Write and install the package, and build the library that is made by hand with the same options."""
    import torch

    from opwright.backends.native.abi import INCLUDE, TARGET_VERSION
    from opwright.package.native import baseline

    (folder / "ops.py").write_text(_OPERATORS)
    (folder / "add_host.cpp").write_text((HERE / "add_host.cpp").read_text())
    (folder / "by_hand.cpp").write_text(_BY_HAND)
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    command = [sys.executable, "-m", "opwright", "package", "ops.py", "--name", "packaged_ops", "--out", "build"]
    subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    of_torch = Path(torch.__file__).parent
    flags = [
        "-O3",
        "-std=c++20",
        "-fPIC",
        "-shared",
        f"-march={baseline()}",
        f"-DTORCH_TARGET_VERSION={TARGET_VERSION}",
    ]
    places = [f"-I{of_torch / 'include'}", f"-I{INCLUDE}", f"-L{of_torch / 'lib'}", "-ltorch", "-ltorch_cpu"]
    subprocess.run(["g++", *flags, "by_hand.cpp", "-o", "by_hand.so", *places], cwd=folder, check=True)


def calls(folder: Path) -> dict[str, Callable[[], object]]:
    import torch

    sys.path.insert(0, str(folder / "build"))
    torch.ops.load_library(str(folder / "by_hand.so"))
    import packaged_ops  # type: ignore[import-not-found]  # of the folder

    by_hand, packaged = torch.ops.by_hand.add, torch.ops.packaged.add
    x, y = torch.randn(1024), torch.randn(1024)
    others = [(torch.randn(n), torch.randn(n)) for n in _SIZES]

    def with_sizes(function: Callable[..., Any]) -> Callable[[], object]:
        position = 0

        def call() -> object:
            nonlocal position
            position = (position + 1) % len(others)
            return function(*others[position])

        return call

    return {
        "torch.add": lambda: torch.add(x, y),
        "by hand": lambda: by_hand(x, y),
        "torch.ops of the package": lambda: packaged(x, y),
        "the package's function": lambda: packaged_ops.add(x, y),
        "by hand, .default": lambda: by_hand.default(x, y),
        "torch.ops of the package, .default": lambda: packaged.default(x, y),
        "by hand, another size in each call": with_sizes(by_hand),
        "torch.ops of the package, another size in each call": with_sizes(packaged),
        "the package's function, another size in each call": with_sizes(packaged_ops.add),
    }


def measure(folder: Path) -> dict[str, float]:
    found = calls(folder)
    for call in found.values():
        for _ in range(500):
            call()
    best = dict.fromkeys(found, float("inf"))
    for _ in range(_TURNS):
        for name, call in found.items():
            best[name] = min(best[name], timeit.timeit(call, number=_CALLS) / _CALLS * 1e6)
    return best


def in_a_process(folder: Path) -> dict[str, float]:
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    command = [sys.executable, str(Path(__file__).resolve()), "--once", str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    times: dict[str, float] = json.loads(done.stdout)
    return times


def compare(trees: dict[str, Path], rounds: int) -> dict[str, dict[str, dict[str, float]]]:
    """For each tree and call: the median of the rounds' times, and of its ratio to the call made by hand."""
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
    with tempfile.TemporaryDirectory() as temporary:
        for name, tree in trees.items():
            (Path(temporary) / name).mkdir()
            prepare(Path(temporary) / name, tree)
        for _ in range(rounds):
            for name in trees:
                taken[name].append(in_a_process(Path(temporary) / name))
    return {name: {call: _row(rows, call) for call in rows[0]} for name, rows in taken.items()}


def _row(rounds: list[dict[str, float]], call: str) -> dict[str, float]:
    hand = "by hand" + "".join(part for part in (", .default", ", another size in each call") if call.endswith(part))
    times, ratios = [r[call] for r in rounds], [r[call] / r[hand] for r in rounds]
    return {
        "µs": round(statistics.median(times), 2), "from": round(min(times), 2), "to": round(max(times), 2),
        "× by hand": round(statistics.median(ratios), 2),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="a checkout of an earlier version, measured in turns")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--once", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        print(json.dumps(measure(options.once)))
        return
    trees = {"after": HERE.parent} | ({"before": options.before} if options.before else {})
    table = compare(trees, options.rounds)
    for name, rows in table.items():
        for call, row in rows.items():
            print(f"{name:<7}{call:<54}" + "".join(f"  {part} {value:6.2f}" for part, value in row.items()))
    if options.json:
        import records
        import torch

        from opwright.machine import this_machine

        header = {"torch": torch.__version__, "machine": this_machine().to_json(), "rounds": options.rounds}
        records.write(options.json, {**header, "calls": table})


if __name__ == "__main__":
    main()
