"""``ow.adopt``: what exists already is checked as it is, and what is wrong with it is found in its own name."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Annotated

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

import opwright as ow
from opwright.errors import ContractError
from opwright.results import Origin, Status
from opwright.runtime.inspect.show import show_kernel
from tests.adopted import operators as made

CHECKS = ["values", "metadata", "inputs unchanged", "gradients", "opcheck", "torch.compile"]


def findings(op, checks=CHECKS):
    (verdict,) = ow.check(op, checks=checks, jobs=1).verdicts
    return verdict, {f.check: f for f in verdict.findings if f.status is Status.FAIL}


@pytest.mark.parametrize(
    "name", ["right_custom_op", "right_alias", "right_in_place", "right_function", "right_module", "right_plain"]
)
def test_what_is_right_passes(name):
    verdict, failed = findings(getattr(made, name))
    assert not failed, "\n".join(f.message for f in failed.values())
    assert verdict.status is Status.PASS


@pytest.mark.parametrize(
    ("name", "check", "message"),
    [
        ("wrong_fake", "metadata", "adopted_tests::wrong_fake: output 0 has shape"),
        ("wrong_fake", "opcheck", "adopted_tests::wrong_fake: .*test_faketensor failed"),
        ("wrong_gradient", "gradients", "adopted_tests::wrong_gradient: .*the gradient of 'x' is wrong"),
        ("writes", "inputs unchanged", "adopted_tests::writes: argument 'x' was written"),
        ("writes", "opcheck", "adopted_tests::writes: .*test_schema failed.*not defined as mutable"),
        ("wrong_alias", "metadata", "adopted_tests::flat: output 0 shares memory with argument 'x'"),
        ("wrong_in_place", "values", "adopted_tests::twice_to_: argument 'y' after the call"),
        ("wrong_function", "gradients", "WrongSquare: .*the gradient of 'x' is wrong"),
        ("wrong_module", "values", "WrongNorm: "),
        ("inferred_module", "values", "WrongNorm: "),
        ("wrong_plain", "values", "wrong_mixed: "),
    ],
)
def test_what_is_wrong_is_found_in_its_own_name(name, check, message):
    _, failed = findings(getattr(made, name), [check])
    assert check in failed
    assert re.search(message, failed[check].message.replace("\n", " ")), failed[check].message


def test_nothing_is_registered_and_calls_run_what_exists():
    op, x = made.right_custom_op, torch.randn(3, 2, requires_grad=True)
    assert op.overload is torch.ops.adopted_tests.scale.default
    op(x, 2.0).sum().backward()
    assert x.grad is not None
    assert x.grad.unique().tolist() == [2.0]
    with op.only("reference"):
        assert torch.equal(op(x, 2.0), 2.0 * x)
    assert str(op.explain(x, 2.0)).startswith("adopted_tests::scale would run 'adopted'")
    assert op.parts["fake"].how == "adopted_tests::scale's own"
    assert op.parts["vmap"].origin is Origin.MISSING


def test_its_version_is_that_of_the_code_behind_it():
    def adopt(function):
        return ow.adopt(function, reference=lambda x: x + x, inputs=[torch.randn(4)], name="adopted_tests::versions")

    one, other = adopt(lambda x: x * 2.0), adopt(lambda x: x * 3.0)
    assert one.fingerprint == adopt(lambda x: x * 2.0).fingerprint != other.fingerprint
    assert made.right_function.fingerprint != made.wrong_function.fingerprint


def test_the_source_that_is_shown_is_its_own():
    (shown,) = show_kernel(made.right_custom_op.kernels["adopted"], "source", "sm_90")
    assert "return body(x, a)" in shown.text


def test_one_without_a_fake_and_a_gradient_is_not_accused():
    verdict, failed = findings(made.bare)
    assert not failed
    reasons = " ".join(each.reason for each in verdict.not_checked)
    assert "adopted_tests::bare has no fake, so that torch.compile refuses it" in reasons
    assert "adopted_tests::bare has no gradient" in reasons


def test_a_function_without_a_gradient_passes():
    (verdict,) = ow.check(made.without_gradient, checks=["values", "gradients"]).verdicts
    assert verdict.status is Status.PASS
    assert [each.reason.partition(":")[0] for each in verdict.not_checked if each.check == "gradients"] == [
        "detached has no gradient"
    ]


@pytest.mark.slow
def test_it_is_timed_as_it_is():
    report = ow.bench(made.right_custom_op, sizes={"n": [64], "m": [64]}, quick=True, directions=["forward"])
    assert "adopted" in str(report.to_json())


@pytest.mark.triton
@pytest.mark.slow
def test_a_triton_op_runs_in_the_simulator(tmp_path):
    (tmp_path / "ops.py").write_text(TRITON)
    done = subprocess.run(
        [sys.executable, "-m", "opwright", "check", "ops.py", "--check", "values", "--json", "out.json"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 1 passed" in done.stdout
    assert "triton_tests::wrong_twice" in done.stdout


TRITON = """
import torch, triton
import triton.language as tl
from jaxtyping import Float32
from torch import Tensor
from torch.library import triton_op, wrap_triton
import opwright as ow

@triton.jit
def kernel(x, out, n, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * factor, mask=at < n)

def launch(x, factor):
    out = torch.empty_like(x)
    wrap_triton(kernel)[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), factor, BLOCK=256)
    return out

@triton_op("triton_tests::twice", mutates_args={})
def twice(x: Tensor) -> Tensor:
    return launch(x.contiguous(), 2.0)

@triton_op("triton_tests::wrong_twice", mutates_args={})
def wrong_twice(x: Tensor) -> Tensor:
    return launch(x.contiguous(), 2.5)

def reference(x: Float32[Tensor, "*n"]) -> Float32[Tensor, "*n"]:
    return x + x

right = ow.adopt(twice, reference=reference)
wrong = ow.adopt(wrong_twice, reference=reference)
"""


@pytest.mark.slow
def test_an_override_of_aten_is_checked_where_it_is_installed(tmp_path):
    (tmp_path / "ops.py").write_text(OVERRIDES)
    done = subprocess.run(
        [sys.executable, "-m", "opwright", "check", "ops.py", "--check", "values"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "aten::frac: " in done.stdout
    assert "1 failed, 1 passed" in done.stdout


OVERRIDES = """
import torch
from jaxtyping import Float32
from torch import Tensor
import opwright as ow

library = torch.library.Library("aten", "IMPL")
library.impl("frac", lambda x: x - x.floor(), "CPU", allow_override=True)
library.impl("deg2rad", lambda x: x * (torch.pi / 180), "CPU", allow_override=True)

def frac(self: Float32[Tensor, "*n"]) -> Float32[Tensor, "*n"]:
    return self - self.trunc()

def deg2rad(self: Float32[Tensor, "*n"]) -> Float32[Tensor, "*n"]:
    return self * torch.pi / 180

wrong = ow.adopt(torch.ops.aten.frac.default, reference=frac)
right = ow.adopt(torch.ops.aten.deg2rad.default, reference=deg2rad)
"""


def test_a_reference_that_calls_the_operator_itself_is_refused():
    def relu(self: Float32[Tensor, "*n"]) -> Float32[Tensor, "*n"]:
        return torch.relu(self)

    with pytest.raises(ContractError, match=r"the reference must not call aten::relu, got one that does"):
        ow.adopt(torch.ops.aten.relu.default, reference=relu)

    def called_before_it_reads(self: Annotated[Float32[Tensor, "*n"], ow.values(0, 1)]) -> Float32[Tensor, "*n"]:
        out = torch.relu(self)
        return out if float(out.sum()) > 0 else out.clone()

    with pytest.raises(ContractError, match=r"the reference must not call aten::relu, got one that does"):
        ow.adopt(torch.ops.aten.relu.default, reference=called_before_it_reads)


def test_a_reference_that_contradicts_the_schema_is_refused():
    def other_names(value: Float32[Tensor, "n m"], a: float) -> Float32[Tensor, "n m"]:
        return a * value

    def pure(y: Float32[Tensor, "n m"], x: Float32[Tensor, "n m"]) -> Float32[Tensor, "n m"]:
        return y + x

    with pytest.raises(ContractError, match=r"must have the arguments of adopted_tests::scale, x, a, got value, a"):
        ow.adopt(torch.ops.adopted_tests.scale, reference=other_names)
    with pytest.raises(ContractError, match="the reference must write 'y', as the schema of adopted_tests::add_to_"):
        ow.adopt(torch.ops.adopted_tests.add_to_, reference=pure)


def test_what_cannot_be_adopted_is_refused_with_what_to_pass():
    with pytest.raises(ContractError, match=r"must be given one overload of aten\.pow, got all"):
        ow.adopt(torch.ops.aten.pow, reference=made.scaled)
    with pytest.raises(ContractError, match=r"must be given an operator of torch\.ops.*got 3"):
        ow.adopt(3, reference=made.scaled)
    with pytest.raises(ContractError, match="must be annotated, or come with inputs, got neither"):
        ow.adopt(made.mixed, reference=lambda x, y, weight: x)
