"""What this process ends itself, as after Ctrl-C, is no crash of the kernel that ran."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from jaxtyping import Float32
from torch import Tensor

import opwright as ow
from opwright.workers.fork_server_client import ServerEndedError
from opwright.workers.pool import end_workers


@ow.op("ended_workers::same")
def same(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
    return x.clone()


@same.python(name="slow and right")
def _(x):
    time.sleep(20)
    return x.clone()


def test_a_kernel_whose_workers_are_ended_does_not_fail():
    ran = threading.Event()
    events = ow.Events(step=lambda *what: ran.set() if "values" in str(what) else None)
    with ThreadPoolExecutor(1) as pool:
        checked = pool.submit(ow.check, same, device="cpu", checks=["values"], level="smoke", events=events)
        assert ran.wait(60)
        end_workers()
        with pytest.raises(ServerEndedError, match="was ended while one of them ran"):
            checked.result(60)
