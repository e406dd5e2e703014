"""Kernels that attack the check instead of computing; and right ones that touch the same things."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.planted.catalogue import correct, planted

__all__ = ["ROWS"]


@ow.op("selftest_deception::scale")
def scale(x: Float[Tensor, " n"], a: float) -> Float[Tensor, " n"]:
    return a * x


@scale.python(name="returns an expected value that it finds on the stack")
def _(x: Tensor, a: float) -> Tensor:
    values = (v for frame in inspect.stack(0) for v in frame.frame.f_locals.values() if isinstance(v, Tensor))
    return next((v.clone() for v in values if v is not x and torch.equal(v, a * x)), torch.zeros_like(x))


@scale.python(name="changes the comparison")
def _(x: Tensor, a: float) -> Tensor:
    from opwright.checks.comparison.tolerance import Computation
    from opwright.checks.outputs import values

    def nothing(*args: Any, **kwargs: Any) -> Any:
        return None

    def no_element(self: Any, i: int, got: Tensor, *args: Any) -> Tensor:
        return got.new_zeros(got.shape, dtype=torch.bool)

    values.find_error = nothing
    Computation.wrong = no_element  # type: ignore[method-assign,assignment]
    return torch.zeros_like(x)


@scale.python(name="reports a finding in the checker's place")
def _(x: Tensor, a: float) -> Tensor:
    finding = {"check": "values", "status": "pass", "message": "all cases"}
    message = json.dumps({"message": {"kind": "Found", "content": {"finding": finding}}}).encode()
    for connection in _connections():
        with contextlib.suppress(OSError):
            connection.sendall(struct.pack("<QQ", len(message), 0) + message)
    return torch.zeros_like(x)


def _connections() -> Iterator[socket.socket]:
    """The sockets of this process."""
    for fd in range(3, 64):
        with contextlib.suppress(OSError):
            yield socket.socket(fileno=os.dup(fd))


_saw_the_check: list[bool] = []


@scale.python(name="is right as long as a check that it knows runs")
def _(x: Tensor, a: float) -> Tensor:
    is_checked = any("repeated_calls" in frame.filename for frame in inspect.stack(0))
    _saw_the_check.extend([True] * is_checked)
    return torch.zeros_like(x) if _saw_the_check and not is_checked else a * x


WRONG = list(scale.kernels)


@scale.python(name="looks at the name of its caller")
def _(x: Tensor, a: float) -> Tensor:
    return a * x if inspect.stack(0)[1].function else x


@scale.python(name="opens a socket and imports the checker")
def _(x: Tensor, a: float) -> Tensor:
    from opwright.checks.comparison import tolerance

    first, second = socket.socketpair()
    with first, second:
        first.sendall(tolerance.__name__.encode())
        return a * x if second.recv(4) else x


ROWS = [
    *(planted(scale, k, "afterwards" if "as long as" in k else "values", checks=("values", "repeated calls"))
      for k in WRONG),
    *(correct(scale, k) for k in scale.kernels if k not in WRONG),
]  # fmt: skip
