"""A stand-in for CUDA graphs on a machine without a GPU, ways of replaying, and modules and inputs of tests."""

from __future__ import annotations

import contextlib

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from opwright import tree
from opwright.backends.build_tools import build_tools
from opwright.backends.native.graph_step import graph_steps
from opwright.runtime.cuda_graphs import graphed, native_replay, replay, step


class Recorder(TorchDispatchMode):
    """Keeps each operation with its arguments and results, and copies of the arguments from before."""

    def __init__(self):
        super().__init__()
        self.calls = []
        self.before = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.before += [(t, t.clone()) for t in tree.tensors([args, kwargs])]
        result = function(*args, **(kwargs or {}))
        self.calls.append((function, args, kwargs or {}, result))
        return result


class RecordedGraph:
    """In the place of a CUDA graph. Like one, it leaves nothing behind when it is captured."""

    executable, copies = 0, ()

    def __init__(self, own, work, stream, beside=None):
        self.own = own
        with torch.random.fork_rng([]), Recorder() as recorder:
            self.results = work()
        for tensor, before in reversed(recorder.before):
            tensor.data.copy_(before)
        self._calls = recorder.calls

    def hold(self, tensors):
        self.held = list(tensors)

    def replay(self, given):
        with torch.no_grad():
            for own, tensor in zip(self.own, given, strict=True):
                own.data.copy_(tensor)
        self.launch()

    def launch(self):
        with torch.no_grad():
            for function, args, kwargs, first in self._calls:
                again = function(*args, **kwargs)
                for old, new in zip(tree.tensors(first), tree.tensors(again), strict=True):
                    old.data.copy_(new)


@contextlib.contextmanager
def nowhere(device):
    with torch.random.fork_rng([]):
        yield None


def stand_in_for_graphs(monkeypatch):
    monkeypatch.setattr(step, "Graph", RecordedGraph)
    monkeypatch.setattr(step, "on_side_stream", nowhere)
    monkeypatch.setattr(graphed, "needs_gpu", lambda name, tensors: None)


def replay_in_python(monkeypatch):
    monkeypatch.setattr(replay, "_see_free_step", lambda replayed: None)


def replay_natively(monkeypatch):
    graph_steps.load(build_tools(), build=True)
    assert graph_steps.loaded is not None
    monkeypatch.setattr(replay, "_see_free_step", native_replay._replay_natively)


def net(on, **options):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3)).to(device=on, dtype=torch.float64, **options)


def inputs(on, *shape, requires_grad=True):
    return torch.randn(shape or (4, 3), dtype=torch.float64, device=on, requires_grad=requires_grad)


def gradients(function, x, parameters):
    return torch.autograd.grad(function(x).sin().sum(), [x, *parameters])


def assert_equal(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def full(on, value, *shape):
    return torch.full(shape or (3,), value, dtype=torch.float64, device=on)
