"""``ow.adopt`` of an override: it is compared with the operator as it is, and its condition is reported."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import opwright as ow
from opwright.adopted.override import override_of
from opwright.errors import ContractError
from opwright.internals.registration import NativeOverride, native_overrides
from opwright.results import Status
from tests.adopted import override_ops


@pytest.fixture(scope="module")
def verdicts():
    report = ow.check("tests.adopted.override_ops", checks=["values", "gradients"], device="cpu")
    return {(v.op.removeprefix("overrides::"), v.kernel): v for v in report.verdicts}


@pytest.mark.slow  # ten kernels
@pytest.mark.parametrize(
    ("name", "kernel", "status"),
    [
        ("right", "adopted", Status.PASS),
        ("within_its_condition", "adopted", Status.PASS),
        ("narrow", "adopted", Status.PASS),
        ("both", "adopted", Status.PASS),
        ("wrong", "adopted", Status.FAIL),
        ("without_its_condition", "adopted", Status.FAIL),
        ("raising", "adopted", Status.FAIL),
        ("never_runs", "adopted", Status.FAIL),
        ("too_wide", "adopted", Status.FAIL),
        ("both", "fallback", Status.FAIL),
    ],
)
def test_an_override_is_right_where_its_condition_holds(verdicts, name, kernel, status):
    assert verdicts[name, kernel].status is status, str(verdicts[name, kernel])


@pytest.mark.slow  # as above
def test_the_condition_is_told_and_the_gradient_is_the_operators(verdicts):
    left_out = {n.check: n for n in verdicts["narrow", "adopted"].not_checked}
    assert left_out["values"].reason == "by the condition of the override, the other implementation runs"
    assert left_out["values"].cases > 10
    assert left_out["gradients"].why == "the operator's own, which an override leaves as it is"
    assert "the condition broke" in str(verdicts["raising", "adopted"])
    assert not [n for n in verdicts["right", "adopted"].not_checked if n.check == "values"]


def test_a_call_does_what_torch_would_do():
    override = override_of(torch.ops.aten.bmm.default, override_ops.outer, override_ops.is_outer)
    a, b = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    assert torch.equal(override(a, b), torch.bmm(a, b))
    assert torch.equal(override(a[:, :, :1], b[:, :1]), a[:, :, :1] * b[:, :1])
    functions = (override_ops.outer, override_ops.is_outer, override_ops.wrong_product)
    with_fallback = override_of(torch.ops.aten.bmm, *functions)
    assert not torch.allclose(with_fallback(a, b), torch.bmm(a, b))


def test_overrides_in_torchs_tree_decide_in_their_order(monkeypatch):
    found = [
        NativeOverride(lambda self: self.dim() == 1, lambda self: "first", "cuda"),
        NativeOverride(lambda self: self.dim() < 3, lambda self: "second", "cuda"),
    ]
    monkeypatch.setattr("opwright.adopted.override.native_overrides", lambda overload: found)
    override = override_of(torch.ops.aten.frac)
    assert override.devices == ("cuda",)
    assert [override(torch.ones([2] * n)) for n in (1, 2)] == ["first", "second"]
    assert override.falls_back(torch.ones(2, 2, 2))
    assert torch.equal(override(torch.ones(2, 2, 2)), torch.zeros(2, 2, 2))


def test_torchs_own_override_is_adopted():
    if not native_overrides(torch.ops.aten.bmm.default):
        pytest.skip("this torch has no override of bmm")
    adopted = ow.adopt(torch.ops.aten.bmm, inputs=(override_ops.A, override_ops.B))
    assert adopted.adopted == "the override of aten::bmm"
    assert adopted.kernels["adopted"].spec.devices == ("cuda",)


@pytest.mark.parametrize(
    ("existing", "options", "message"),
    [
        (torch.relu, {"implementation": torch.relu}, "implementation must override an operator of ATen, got"),
        (torch.ops.aten.digamma, {}, "must be given a reference or an implementation, got neither, and this torch"),
        (torch.relu, {"condition": bool}, "condition and fallback must come with an implementation, got none"),
        (torch.relu, {}, "reference must be a function or a module, got None"),
    ],
)
def test_what_is_no_override_is_refused(existing, options, message):
    with pytest.raises(ContractError, match=message):
        ow.adopt(existing, inputs=(override_ops.X,), **options)


INSTALLED = """
import torch
import opwright as ow
library = torch.library.Library("aten", "IMPL")
how = {"implementation": lambda self: self, "inputs": (torch.ones(3),)}
adopted = ow.adopt(torch.ops.aten.frac, **how)
library.impl("frac", lambda x: x, "CPU", allow_override=True)
for refused in (lambda: adopted.contract.reference(torch.ones(3)), lambda: ow.adopt(torch.ops.aten.frac, **how)):
    try:
        refused()
    except ow.errors.ContractError as error:
        print(error.message)
"""


def test_an_override_is_never_its_own_reference():
    done = subprocess.run([sys.executable, "-c", INSTALLED], capture_output=True, text=True, check=True)
    message = "aten::frac must be torch's own on the CPU, got one that <string>:4 overrides"
    assert done.stdout.splitlines() == [message, message]
