"""Calls in the kernel's process tell the checker what calls in its own process would."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Annotated

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.checks.exceptions import Raised
from opwright.checks.kernel_calls import CallsHere
from opwright.checks.process.kernel_client import RemoteCalls
from opwright.checks.process.kernel_process import _Server
from opwright.checks.process.messages import Job
from opwright.target import Target
from opwright.workers.wire import Connection, Ended, NotATensor


@ow.op("remote::two")
def two(x: Float[Tensor, " n"], w: Float[Tensor, " n"]) -> tuple[Float[Tensor, " n"], Float[Tensor, ""]]:
    return x * w, x.sum()


@two.python(name="right")
def _(x, w):
    return x * w, x.sum()


@two.python(name="writes an input")
def _(x, w):
    x.add_(1)
    return x * w, x.sum()


@two.python(name="raises")
def _(x, w):
    raise ValueError(f"no {x.numel()}")


@two.python(name="returns an input")
def _(x, w):
    return x, x.sum()


@two.python(name="returns a number")
def _(x, w):
    return x * w, 3.0


@two.python(name="changes the default dtype")
def _(x, w):
    torch.set_default_dtype(torch.float64)
    return x * w, x.sum()


@two.python(name="draws")
def _(x, w):
    return torch.rand(x.shape[0]), x.sum()


@ow.op("remote::add_to")
def add_to(x: Annotated[Float[Tensor, " n"], ow.mutated], y: Float[Tensor, " n"]) -> None:
    x.add_(y)


@add_to.python(name="right")
def _(x, y):
    x.add_(y)


# The checker process's memory itself, and copies of it, as on a GPU.
@pytest.fixture(params=["cpu", "cpu:0"])
def remote(request):
    with contextlib.ExitStack() as stack:

        def start(op, kernel):
            checker, end = socket.socketpair()
            stack.enter_context(checker)
            stack.enter_context(end)
            server = _Server(Connection(end), op, Job(kernel, Target(request.param), "quick", ""))

            def serve():
                with contextlib.suppress(Ended):
                    server.serve()

            thread = threading.Thread(target=serve, daemon=True)
            thread.start()
            stack.callback(thread.join, 10)
            stack.callback(checker.shutdown, socket.SHUT_RDWR)
            return RemoteCalls(Connection(checker), op.contract, lambda message: None)

        yield start
        torch.set_default_dtype(torch.float32)


def _arguments():
    return torch.arange(1.0, 9.0)[::2], torch.full((4,), 2.0)


@pytest.mark.parametrize("kernel", [k for k in two.kernels if k not in ("raises", "draws")])
def test_an_observation_is_that_of_a_call_here(remote, kernel):
    there = remote(two, kernel).observe(_arguments())
    here = CallsHere(two, kernel, "cpu").observe(_arguments())
    assert (there.layouts, there.promised, there.shared) == (here.layouts, here.promised, here.shared)
    assert dict(there.changed) == dict(here.changed)
    if isinstance(here.outputs, Raised):
        assert str(there.outputs) == str(here.outputs)
        return
    for a, b in zip((*there.outputs, *there.passed), (*here.outputs, *here.passed), strict=True):
        assert a == b if isinstance(a, NotATensor) else torch.equal(a, b)
    for a, b in zip(there.passed, here.passed, strict=True):
        assert bytes(a.untyped_storage()) == bytes(b.untyped_storage())


def test_an_exception_comes_with_its_line(remote):
    calls = remote(two, "raises")
    raised = calls.observe(_arguments()).outputs
    assert isinstance(raised, Raised)
    assert str(raised).startswith("ValueError: no 4\ntest_kernel_client.py:")
    assert 'raise ValueError(f"no' in raised.at
    with pytest.raises(Raised, match="ValueError: no 4"):
        calls.results(_arguments())


def test_a_seed_is_that_of_the_kernels_process(remote):
    calls = remote(two, "draws")
    first, second, again = (calls.results(_arguments(), seed=seed)[0] for seed in (1, 2, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert not torch.equal(calls.results(_arguments())[0], again)


def test_what_is_written_comes_back_as_a_result(remote):
    x, y = torch.zeros(6)[::2], torch.ones(3)
    calls = remote(add_to, "right")
    assert [t.tolist() for t in calls.results((x, y))] == [[1, 1, 1]]
    call = calls.observe((x, y))
    assert call.outputs == ()
    assert call.passed[0].tolist() == [1, 1, 1]
    assert x.tolist() == [0, 0, 0]


@pytest.mark.parametrize("tracked", [[True, True], [True, False]])
def test_gradients(remote, tracked):
    incoming = [torch.arange(4.0), torch.tensor(2.0)]
    there = remote(two, "right").gradients(_arguments(), tracked, incoming)
    here = CallsHere(two, "right", "cpu").gradients(_arguments(), tracked, incoming)
    assert all(torch.equal(a, b) for a, b in zip(there.of_inputs, here.of_inputs, strict=True))
    assert len(there.of_inputs) == sum(tracked)


def test_a_kernel_that_is_chosen_has_its_name(remote):
    assert remote(two, "right").chosen(_arguments()) == "right"
    assert remote(two, "right").chosen([t.double() for t in _arguments()]) == "right"


def test_a_call_that_was_begun_is_the_one_that_is_observed(remote):
    x, w = _arguments()
    calls = remote(two, "right")
    first, second = (x, w), (x + 1, w)
    calls.begin(first)
    assert torch.equal(calls.observe(first).outputs[0], x * w)
    calls.begin(second)
    assert torch.equal(calls.observe(first).outputs[0], x * w)  # another is asked for
    calls.begin(second)
    assert torch.equal(calls.results(first)[0], x * w)
    assert torch.equal(calls.observe(second).outputs[0], (x + 1) * w)
    calls.begin(first)
    assert calls.chosen(second) == "right"
    calls.begin(second)
    calls.begin(first)
    assert torch.equal(calls.observe(first).outputs[0], x * w)


def test_what_a_call_raises_that_nobody_waits_for_is_not_another_s(remote):
    calls = remote(two, "raises")
    calls.begin(_arguments())
    assert calls.chosen(_arguments()) == "raises"
    assert isinstance(calls.observe(_arguments()).outputs, Raised)
