"""The command ``python -m kernelsim``: runs a kernel of a CUDA file on arguments that are described in words."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernelsim.cuda_kernels import cuda
from kernelsim.errors import KernelError, KernelsimError
from kernelsim.settings import options

__all__ = ["main"]

_FOUND, _FAILED = 1, 2  # exit codes
_TENSOR = re.compile(r"(?P<dtype>[a-z]+\d*)\[(?P<shape>[\d,x ]*)\](?:=(?P<values>\w+))?")
_VALUES = ("random", "zeros", "ones", "arange", "empty")
_ARGUMENT = """\
an argument of the kernel, in order. A number: 3, 2.5, true. A tensor: float32[1000], int32[32,64]; its values follow
as =random (the default), =zeros, =ones, =arange or =empty (no values yet: reading it is a finding). A file: x.npy."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns its exit code: 0 without findings, 1 with findings, 2 if the kernel did not run."""
    asked = _parser().parse_intermixed_args(arguments)
    try:
        return _list(asked) if asked.command == "list" else _run(asked)
    except (KernelsimError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return _FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m kernelsim",
        description="Run a CUDA kernel on a CPU, with every access checked. The exit code is 1 if there are findings.",
    )
    parser.add_argument("command", choices=("run", "list"), help="run a kernel, or list the kernels of a file")
    parser.add_argument("file", type=Path, help="a CUDA C++ source")
    parser.add_argument("arguments", nargs="*", metavar="ARGUMENT", help=_ARGUMENT)
    parser.add_argument("--kernel", help="its name, or an instance of a template; needed if the file has several")
    parser.add_argument("--grid", type=_extent, default=(1,), help="blocks: 4 or 4,2 or 4,2,1 (default: 1)")
    parser.add_argument("--block", type=_extent, default=(256,), help="threads of a block (default: 256)")
    parser.add_argument("--shared", type=int, default=0, help="bytes of dynamic shared memory")
    parser.add_argument("--cluster", type=_extent, help="blocks of a cluster")
    parser.add_argument("--flag", action="append", default=[], help="an option of nvcc's: --flag=-DTILE=32")
    parser.add_argument("--seed", type=int, help="of the order of threads, and of random values")
    parser.add_argument("--time-limit", type=float, help="seconds after which the launch counts as hung")
    parser.add_argument("--unchecked", action="store_true", help="check nothing; faster")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    return parser


def _extent(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _list(asked: argparse.Namespace) -> int:
    for name in cuda(asked.file, flags=asked.flag).names:
        print(name)
    return 0


def _run(asked: argparse.Namespace) -> int:
    kernels = cuda(asked.file, flags=asked.flag)
    name = asked.kernel or kernels.names[0]
    if asked.kernel is None and len(kernels.names) > 1:
        raise KernelError(
            f"{asked.file.name} has several kernels: {', '.join(kernels.names)}", fix="name one: --kernel"
        )
    random = np.random.default_rng(asked.seed or 0)
    passed = [_value(text, random) for text in asked.arguments]
    empty = [value for value, text in zip(passed, asked.arguments, strict=True) if text.endswith("=empty")]
    launch = (asked.grid, asked.block, asked.shared, asked.cluster)
    with options(
        checked=not asked.unchecked, seed=asked.seed, time_limit_s=asked.time_limit, uninitialised=empty, raises=False
    ):
        report = kernels[name][launch](*passed)
    print(json.dumps(report.to_json(), indent=1) if asked.json else report)
    return 0 if report else _FOUND


def _value(text: str, random: np.random.Generator) -> Any:
    """An argument from its description.

    Raises:
        KernelError: it is none.
    """
    if text in ("true", "false"):
        return text == "true"
    if text.endswith(".npy"):
        return np.load(text)
    if found := _TENSOR.fullmatch(text):
        shape = tuple(int(n) for n in re.split(r"[,x ]+", found["shape"]) if n)
        return _tensor(text, found["dtype"], shape, found["values"] or _VALUES[0], random)
    try:
        return int(text, 0) if re.fullmatch(r"[-+]?(?:0[xX][0-9a-fA-F]+|\d+)", text) else float(text)
    except ValueError:
        raise KernelError(
            f"an argument must be a number, a tensor or a .npy file, got {text!r}",
            fix="write 3, 2.5, float32[1000], float32[32,64]=zeros or x.npy",
        ) from None


def _tensor(text: str, dtype: str, shape: tuple[int, ...], values: str, random: np.random.Generator) -> Any:
    try:
        kind = np.dtype(dtype)
    except TypeError:
        raise KernelError(f"{text}: the dtype must be one of NumPy's, got {dtype}", fix="write float32[1000]") from None
    if values == "random":
        if kind.kind == "f":
            return random.standard_normal(shape).astype(kind)
        return random.integers(0, 2 if kind.kind == "b" else 100, shape).astype(kind)
    if values == "arange":
        return np.arange(int(np.prod(shape))).reshape(shape).astype(kind)
    if values not in _VALUES:
        raise KernelError(f"{text}: the values must be {_one_of(_VALUES)}, got {values}")
    made: np.ndarray[Any, Any] = getattr(np, values)(shape, dtype=kind)
    return made


def _one_of(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
