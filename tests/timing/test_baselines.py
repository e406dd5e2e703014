"""Baselines of an operator: timed beside the reference, compared like a kernel, never chosen."""

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.errors import CheckError, KernelError, SignatureMismatchError
from opwright.timing import run as engine
from tests.sampled import quick


@pytest.fixture
def scale(namespace, monkeypatch):
    monkeypatch.setattr(engine, "Roofline", lambda *_: None)

    @ow.op(f"{namespace}::scale")
    def scale(x: Float[Tensor, "*n"], a: float) -> Float[Tensor, "*n"]:
        return a * x

    scale.python(lambda x, a: (x * a).contiguous(), name="k")
    return scale


def bench(operator, **options):
    return ow.bench(operator, **{"device": "cpu", "sizes": {"n": [64]}, "iters": 3, **options})


def test_a_baseline_is_compared_with_and_never_chosen(scale):
    @scale.baseline
    def vendor(x, a):
        return torch.mul(x, a)

    scale.baseline(lambda x, a: x.mul(a), name="other")
    assert torch.equal(vendor(torch.ones(2), 3.0), torch.full((2,), 3.0)), "the decorator gives the function back"
    report = bench(scale, baselines=["reference", "vendor", "other"])
    assert not report.errors
    assert {(m.kernel, m.backend) for m in report if m.direction == "forward"} == {
        ("k", "python"), ("reference", "torch"), ("vendor", "baseline"), ("other", "baseline"),
    }  # fmt: skip
    assert {m.kernel for m in report if m.direction == "backward"} == {"k", "reference", "vendor", "other"}
    assert all(set(m.comparisons) == {"reference", "vendor", "other"} for m in report if m.kernel == "k")
    assert "vendor" not in scale.kernels
    assert [c.kernel for c in scale.explain(torch.ones(2), 1.0).choices] == ["k", "reference"]
    assert report.crossovers == (), "a baseline is not to be chosen"


# Each times an operator.
@pytest.mark.parametrize(
    ("wrong", "message"),
    quick(
        [
            (lambda x, a: x * a * 1.01, "its timed output is wrong"),
            (lambda x, a: (x * a)[:-1], "its timed output is wrong"),
            (lambda x, a: (x * a).double(), "its timed output is wrong"),
            (lambda x, a: (x * a, x), "it returns 2 outputs, not 1"),
            (lambda x, a: None, "its timed output is wrong"),
            (lambda x, a: x.mul_(a).clone(), "it changes its inputs"),
        ],
        0,
        3,
        5,
    ),
)
def test_a_wrong_baseline_is_reported_and_nothing_is_compared_with_it(scale, wrong, message):
    scale.baseline(wrong, name="vendor")
    report = bench(scale, baselines=["reference", "vendor"])
    assert any("vendor" in e and message in e and "nothing is compared" in e for e in report.errors), report.errors
    assert "vendor" not in {m.kernel for m in report} | {b for m in report for b in m.comparisons}
    assert {m.kernel for m in report} == {"k", "reference"}


def test_a_baseline_with_a_wrong_gradient_is_compared_forward_only(scale):
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, a):
            return x * a

        @staticmethod
        def backward(ctx, grad):
            return grad, None

    scale.baseline(lambda x, a: Wrong.apply(x, a), name="vendor")
    report = bench(scale, baselines=["reference", "vendor"])
    assert any("its timed gradient is wrong" in e for e in report.errors)
    assert {m.direction for m in report if m.kernel == "vendor"} == {"forward"}
    assert {m.direction for m in report if m.kernel == "k"} == {"forward", "backward"}


def test_a_kernel_with_a_wrong_hand_written_gradient_is_an_error(scale):
    scale.register_autograd(lambda ctx, grad: (grad, None), setup_context=lambda ctx, inputs, output: None)
    report = bench(scale, baselines=["reference"])
    assert any(" k (" in e and "its timed gradient is wrong" in e for e in report.errors)
    assert not any(" reference (" in e for e in report.errors)


def test_a_baseline_without_gradients_is_timed_forward(scale):
    messages = []
    scale.baseline(lambda x, a: (x * a).detach(), name="vendor")
    report = bench(scale, baselines=["vendor"], events=ow.Events(step=messages.append))
    assert {m.direction for m in report if m.kernel == "vendor"} == {"forward"}
    assert any("carries no gradient" in t for t in messages)
    assert not report.errors


def test_a_baseline_that_raises_does_not_stop_the_others(scale):
    def broken(x, a):
        raise ImportError("no such library")

    scale.baseline(broken)
    report = bench(scale, baselines=["reference", "broken"])
    assert any("broken" in e and "no such library" in e for e in report.errors)
    assert {m.kernel for m in report} == {"k", "reference"}


def test_devices_and_dtypes_say_where_it_is_timed(scale):
    messages = []
    scale.baseline(lambda x, a: x * a, name="gpu", devices=["cuda"])
    scale.baseline(lambda x, a: x * a, name="half", dtypes=[torch.float16])
    report = bench(scale, baselines=["gpu", "half"], events=ow.Events(step=messages.append))
    assert {m.kernel for m in report} == {"k"}
    assert any("gpu: for cuda only, not for cpu" in t for t in messages)
    assert any("half: takes float16, not float32" in t for t in messages)


def test_a_baseline_that_changes_torchs_precision_is_left_out_and_the_change_undone(scale):
    def cheats(x, a):
        torch.set_float32_matmul_precision("medium")
        return x * a

    before = torch.get_float32_matmul_precision()
    scale.baseline(cheats)
    report = bench(scale, baselines=["reference", "cheats"])
    assert torch.get_float32_matmul_precision() == before
    assert any("cheats" in e and f"float32 matmul precision: {before} → medium" in e for e in report.errors)
    assert {m.kernel for m in report} == {"k", "reference"}
    assert report.settings["float32 matmul precision"] == before


@pytest.mark.parametrize(
    ("function", "options", "error", "message"),
    [
        (lambda x: x, {"name": "v"}, SignatureMismatchError, r"the baseline 'v' must take \(x, a\), got \(x\)"),
        (lambda a, x: x, {"name": "v"}, SignatureMismatchError, r"must take \(x, a\), got \(a, x\)"),
        ("vendor.py", {}, KernelError, "op.baseline must be given a callable, got str"),
        (lambda x, a: x, {"name": "reference"}, KernelError, "the name of the reference in tables"),
        (lambda x, a: x, {"name": "torch.compile"}, KernelError, "the name of the reference in tables"),
        (lambda x, a: x, {"name": "k"}, KernelError, "'k' is a kernel already"),
    ],
)
def test_what_makes_no_sense_is_refused_at_attachment(scale, function, options, error, message):
    with pytest.raises(error, match=message):
        scale.baseline(function, **options)
    assert not scale.baselines


def test_a_kernel_cannot_take_a_baselines_name(scale):
    scale.baseline(lambda x, a: x * a, name="vendor")
    with pytest.raises(KernelError, match="'vendor' is a baseline already"):
        scale.python(lambda x, a: x * a, name="vendor")
    with pytest.raises(KernelError, match="the name of the reference in tables"):
        scale.python(lambda x, a: x * a, name="torch.compile")


def test_a_function_in_c_may_be_a_baseline(scale):
    scale.baseline(torch.mul, name="mul")
    assert "mul" in {m.kernel for m in bench(scale, baselines=["mul"], directions=["forward"])}


def test_asking_for_an_unknown_baseline_says_which_there_are(scale):
    scale.baseline(lambda x, a: x * a, name="vendor")
    with pytest.raises(CheckError, match=r"must be one of reference, torch\.compile, vendor, got"):
        bench(scale, baselines=["cublas"])
