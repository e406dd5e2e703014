"""Run ``core.py`` with one of torch's private names changed: ``misbehaving.py KEY``.

Each stand-in breaks what opwright relies on the name to do, as a release of torch might.
"""

from __future__ import annotations

import contextlib
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from opwright.internals import lookup


class AlwaysHolds:
    """A guard that accepts everything."""

    def __init__(self, *tensors: Any, **options: Any) -> None:
        pass

    def check(self, *tensors: Any) -> bool:
        return True


class ForgetsGradients:
    """One that does not compare whether a gradient is wanted."""

    def __init__(self, *tensors: Any, **options: Any) -> None:
        self._guard = torch._C._dynamo.guards.TensorGuards(*tensors, **options)

    def check(self, *tensors: Any) -> bool:
        return self._guard.check(*[t.detach() if type(t) is torch.Tensor else t for t in tensors])


def raises(*_: Any, **__: Any) -> Any:
    raise TypeError("takes other arguments now")


def constant(value: Any) -> Any:
    return lambda *_, **__: value


no_keys = torch._C._dispatch_keys(torch.empty(0)) - torch._C._dispatch_keys(torch.empty(0))
STAND_INS = {
    "guards": AlwaysHolds,
    "guards: gradients": ForgetsGradients,
    "guards: arguments": raises,
    "function_modes": constant(False),
    "dispatch_modes": constant(0),
    "profiler": constant(None),
    "include_keys": constant(no_keys),
    "exclude_keys": constant(no_keys),
    "tensor_keys": constant(torch._C._dispatch_keys(torch.empty(0))),
    "tensor_keys: arguments": raises,
    "key_set": raises,
    "functorch_stack": constant(None),
    "functorch_stack: list": constant([]),
    "transforms_on": constant(False),
    "is_wrapped": constant(False),
    "is_excluded": constant(False),
    "force_keys": lambda *_: contextlib.nullcontext(),
    "forward_level": 0,
    "below_autograd": contextlib.nullcontext,
    "after_autograd": torch._C._dispatch_keys(torch.empty(0)),
    "any_requires_grad": constant(False),
    "exclude_guard": lambda *_: contextlib.nullcontext(),
    "transform_type": SimpleNamespace(Functionalize=1, Vmap=1),
    "version": property(lambda tensor: 0),
    "storage_identity": property(lambda storage: 1),
    "tensor_address": property(lambda tensor: 0),
    "storage_holders": constant(1),
    "keeps_graph": constant(False),
    "overload_function": constant(torch.zeros(2)),
    "overload_schema": "aten::relu",
    "parse_schema": constant("(Tensor x) -> Tensor"),
}

if __name__ == "__main__":
    which = sys.argv[1]
    lookup.replace(which.partition(":")[0], STAND_INS[which])
    runpy.run_path(str(Path(__file__).parent / "core.py"), run_name="__main__")
