"""An autotuner launches each configuration on the caller's tensors to measure it: what that does is found without a
GPU."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

import kernelsim
import opwright as ow
from opwright.backends.simulation import autotuners_measure
from opwright.results import Status

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
pytestmark = [
    pytest.mark.triton,
    pytest.mark.compiler,
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
]


@triton.jit
def _add_up(x, out, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.atomic_add(out, tl.sum(tl.load(x + at, mask=at < n, other=0.0)))


@triton.jit
def _increase(x, out, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(x + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)


@triton.jit
def _double(x, out, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)


def clear(arguments: dict[str, Any]) -> None:
    arguments["out"].zero_()


def tuned(kernel: Any, pre_hook: Any = None, **options: Any) -> Any:
    configurations = [triton.Config({"B": b}, pre_hook=pre_hook) for b in (32, 64)]
    return triton.autotune(configurations, key=["n"], **options)(kernel)


def run(kernel: Any, x: Tensor, out: Tensor) -> None:
    if x.numel():
        kernel[lambda meta: (triton.cdiv(x.numel(), meta["B"]),)](x, out, x.numel())


def total_by(kernel: Any):
    def launch(x):
        out = x.new_zeros(())
        run(kernel, x.contiguous(), out)
        return out

    return launch


def increase_by(kernel: Any):
    def launch(x):
        run(kernel, x, x)

    return launch


def double_by(kernel: Any):
    def launch(x):
        out = x.new_empty(x.shape)
        run(kernel, x.contiguous(), out)
        return out

    return launch


@ow.op("autotuned::total")
def total(x: Float32[Tensor, " n"]) -> Float32[Tensor, ""]:
    return x.sum()


@ow.op("autotuned::increase")
def increase(x: Annotated[Float32[Tensor, " n"], ow.mutated]) -> None:
    x.add_(1)


@ow.op("autotuned::double")
def double(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
    return x * 2


total.triton(total_by(tuned(_add_up)), name="never cleared")
total.triton(total_by(tuned(_add_up, reset_to_zero=["out"])), name="cleared by name")
total.triton(total_by(tuned(_add_up, pre_hook=clear)), name="cleared by a hook")
increase.triton(increase_by(tuned(_increase)), name="never restored", when=lambda x: x.is_contiguous())
increase.triton(increase_by(tuned(_increase, restore_value=["x"])), name="restored", when=lambda x: x.is_contiguous())
double.triton(double_by(tuned(_double)), name="written once")

RIGHT = [(total, "cleared by name"), (total, "cleared by a hook"), (increase, "restored"), (double, "written once")]


@pytest.mark.slow
@pytest.mark.parametrize(("operator", "kernel"), [(total, "never cleared"), (increase, "never restored")])
def test_a_kernel_whose_measuring_changes_its_result_is_found(operator: Any, kernel: str) -> None:
    (verdict,) = ow.check(operator, kernels=[kernel], device="cpu-sim", checks=["configurations"]).verdicts
    (failure,) = verdict.failures
    assert "an autotuner launches all of them on the same tensors to measure them" in failure.message
    assert "reset_to_zero=" in failure.message
    assert "restore_value=" in failure.message


@pytest.mark.slow
@pytest.mark.parametrize(("operator", "kernel"), RIGHT)
def test_a_kernel_that_may_be_measured_passes(operator: Any, kernel: str) -> None:
    (verdict,) = ow.check(operator, kernels=[kernel], device="cpu-sim", checks=["configurations"]).verdicts
    assert verdict.status is Status.PASS, verdict.findings
    assert any("2 configurations" in f.message for f in verdict.findings)


def sum_of_ones(kernel: Any) -> float:
    out = torch.zeros(())
    run(kernel, torch.ones(100), out)
    return out.item()


def test_configurations_are_launched_as_they_are_measured_in_each_call() -> None:
    never_cleared, cleared = tuned(_add_up), tuned(_add_up, reset_to_zero=["out"])
    with kernelsim.triton_launches():
        assert sum_of_ones(never_cleared) == 100
        with autotuners_measure():
            assert [sum_of_ones(never_cleared) for _ in range(2)] == [300, 300]
            assert sum_of_ones(cleared) == 100
        assert sum_of_ones(never_cleared) == 100
    assert never_cleared.best_config.kwargs == {"B": 32}
    assert not never_cleared.cache
