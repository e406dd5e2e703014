"""The import path of an operator, in modules with any values."""

import sys
import types

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.runtime.targets import find_import_path


def test_a_module_may_hold_arrays_and_tensors(monkeypatch, namespace):
    module = types.ModuleType("holds_arrays")
    monkeypatch.setitem(sys.modules, "holds_arrays", module)
    module.TABLE, module.TENSOR = np.arange(3), torch.arange(3)

    def twice(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return 2 * x

    twice.__module__ = "holds_arrays"
    op = ow.op(f"{namespace}::twice")(twice)
    assert find_import_path(op) is None
    module.twice = op
    assert find_import_path(op).qualname == f"{namespace}::twice"
