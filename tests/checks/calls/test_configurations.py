"""Configurations that fail in one way are one finding; those that fail in another way have their own."""

from __future__ import annotations

import contextlib

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

import opwright as ow
from opwright.checks.calls import configurations
from opwright.checks.context import Context
from opwright.contract.inputs.cases import cases
from opwright.results import Status
from opwright.target import Target

chosen = "1"


@contextlib.contextmanager
def choosing(name):
    global chosen
    before, chosen = chosen, name
    yield
    chosen = before


@ow.op("configurations::twice")
def twice(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
    return 2 * x


@twice.python(name="tuned")
def _(x):
    if chosen == "raises":
        raise RuntimeError("out of resource")
    return x * {"1": 2, "2": 2, "3": 3, "4": 5, "5": 7}[chosen]


class Hooks:
    def __init__(self, names):
        self.names = names

    def configurations(self):
        return [(f"B={name}", choosing(name)) for name in self.names]

    def measuring(self):
        return None


@pytest.mark.parametrize(
    ("names", "messages"),
    [
        (["1", "2"], []),
        (["1", "3"], ["with the configuration B=3: "]),
        (["1", "3", "4", "2"], ["with 2 of 4 configurations, such as B=3: "]),
        (["3", "4", "5"], ["with each configuration, such as B=3: "]),
        (["3", "raises", "4"], ["with 2 of 3 configurations, such as B=3: ", "with the configuration B=raises: "]),
    ],
)
def test_a_failure_of_several_configurations_is_told_once(monkeypatch, names, messages):
    monkeypatch.setattr(Context, "hooks", property(lambda self: Hooks(names)))
    context = Context(twice, "tuned", Target("cpu"), cases(twice.contract, "quick", longest=300))
    found = list(configurations.check(context))
    failures = [f.message for f in found if f.status is Status.FAIL]
    assert len(failures) == len(messages)
    assert all(message.startswith(start) for message, start in zip(failures, messages, strict=True))
    assert (found[-1].status is Status.PASS) == (not messages)
    assert torch.equal(twice(torch.ones(2)), torch.full((2,), 2.0))
