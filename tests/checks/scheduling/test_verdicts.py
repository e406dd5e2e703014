"""What a verdict says besides right and wrong: too little coverage, contracts that prove nothing, several kinds of
failures, and gradients that no call uses."""

from __future__ import annotations

import re

import pytest
import torch
from jaxtyping import Float, Float32
from torch import Tensor

import opwright as ow
from opwright.checks.scheduling.coverage import too_little
from opwright.checks.scheduling.verdict import Settings, _status
from opwright.results import Coverage, Finding, NotChecked, Status
from tests.sampled import quick


def verdict_of(operator, *checks, **options):
    (verdict,) = ow.check(operator, checks=checks, kernels=["kernel"], **options).verdicts
    return verdict


# -- coverage ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "generated", "is_thin"),
    [(2, 164, True), (12, 75, True), (14, 209, True), (5, 12, True), (40, 100, False), (5, 5, False), (7, 12, False)],
)
def test_few_of_the_generated_cases_are_thin(namespace, run, generated, is_thin):
    @ow.op(f"{namespace}::f")
    def f(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x

    passed = Finding("values", Status.PASS, coverage=Coverage(run, generated))
    skipped = NotChecked.in_cases("values", generated - run, "n=5", "the kernel is not applicable (dtypes, when)")
    found = too_little(f, [passed], [skipped])
    assert [x.status for x in found] == [Status.THIN] * is_thin
    if is_thin:
        assert f"only {run} of {generated} cases could be run: the kernel is not applicable" in found[0].message
        assert "op.sizes" in found[0].remedy
    assert too_little(f, [passed, Finding("metadata", Status.FAIL)], [skipped]) == []


def test_a_kernel_that_takes_almost_nothing_is_thin():
    @ow.op("verdicts::rare")
    def rare(x: Float[Tensor, "m n"], y: Float[Tensor, "p q"]) -> Float[Tensor, "m n"]:
        return x + y.sum()

    rare.python(
        lambda x, y: (x + y.sum()).contiguous(), name="kernel",
        when=lambda x, y: tuple(x.shape) == (5, 7) and tuple(y.shape) == (3, 6) and x.is_contiguous(),
    )  # fmt: skip
    report = ow.check(rare, checks=["values"], device="cpu")
    assert [verdict.status for verdict in report.verdicts] == ["thin"]
    assert report.passed
    assert not report.strictly_passed


@pytest.mark.slow
def test_a_reference_that_always_raises_is_said_to():
    @ow.op("verdicts::refuses")
    def refuses(x: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
        raise ValueError("not these")

    refuses.python(lambda x: x.clone(), name="kernel")
    (failure,) = verdict_of(refuses, "values").failures
    assert "nothing could be checked: the reference raises ValueError: not these" in failure.message
    assert "where=" in failure.remedy


@pytest.mark.slow  # a whole check
def test_sizes_that_a_kernel_needs_are_found():
    @ow.op("verdicts::heads")
    def heads(q: Float[Tensor, "b s d"], k: Float[Tensor, "b t e"]) -> Float[Tensor, "b s t"]:
        if q.shape[2] != k.shape[2]:
            raise ValueError("different heads")
        return q @ k.mT

    heads.python(lambda q, k: (q @ k.mT).contiguous(), name="kernel", when=lambda q, k: q.shape[2] in (64, 128))
    verdict = verdict_of(heads, "values", "gradients")
    assert verdict.status == "pass", verdict
    values, gradients = verdict.findings
    assert values.coverage.run >= 50
    assert values.coverage.run / values.coverage.generated > 0.6
    assert gradients.coverage.run >= 2


# -- contracts that prove nothing ----------------------------------------------------------------------------------


def warnings_of(reference, kernel, **options):
    operator = ow.op("verdicts::proves")(reference)
    operator.python(kernel, name="kernel")
    verdict = verdict_of(operator, "contract", **options)
    return [f.message for f in verdict.warnings]


def test_a_constant_result_is_named():
    def constant(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x * 0

    found = warnings_of(constant, lambda x: x * 0)
    assert any("the output is 0.0 in every case" in message for message in found)


def test_a_result_that_is_constant_in_the_smallest_cases_only_is_not_named():
    def later_rows(x: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
        return torch.where(torch.arange(x.shape[0], device=x.device)[:, None] < 100, 0, x)

    def nothing(x: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
        return later_rows(x) * 0

    for level in ("smoke", "quick"):
        assert warnings_of(later_rows, later_rows, level=level) == []
        assert warnings_of(nothing, nothing, level=level)


def test_an_argument_without_effect_is_named():
    def ignores(x: Float[Tensor, " n"], mask: Float[Tensor, " n"], scale: float) -> Float[Tensor, " n"]:
        return x + mask * 0

    found = warnings_of(ignores, lambda x, mask, scale: x.clone())
    assert {w for w in ("'mask'", "'scale'", "'x'") if any(w in message for message in found)} == {"'mask'", "'scale'"}


def test_a_reference_that_rounding_makes_arbitrary_is_named():
    def unstable(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return (x + 1e12) - 1e12 - x

    assert warnings_of(unstable, lambda x: x * 0)


def test_an_ordinary_contract_is_not_warned_about():
    def norm(x: Float[Tensor, "m n"], w: Float[Tensor, " n"], eps: float = 1e-5) -> Float[Tensor, "m n"]:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * w

    assert warnings_of(norm, norm) == []


# -- findings ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_failures_of_several_kinds_are_all_said_and_shrunk_to_their_own():
    @ow.op("verdicts::several")
    def several(x: Float32[Tensor, "m n"]) -> Float32[Tensor, "m n"]:
        return x * 2

    @several.python(name="kernel")
    def _(x):
        if x.numel() == 0:
            raise ValueError("grid of 0 blocks")
        out = (x * 2).contiguous()
        if x.shape[1] > 100:
            out[:, 100:] = 0
        return out.mT.contiguous() if x.stride(0) < x.stride(1) else out

    cases = {f.message.splitlines()[0]: f.case for f in verdict_of(several, "values").failures}
    (empty,) = (case for message, case in cases.items() if "grid of 0 blocks" in message)
    (transposed,) = (case for message, case in cases.items() if message.startswith("shape"))
    (tail,) = (case for message, case in cases.items() if "elements differ" in message)
    assert "=0 " in empty
    assert "layout=transposed" in transposed or "layout=permuted" in transposed
    assert int(re.search(r"n=(\d+)", tail)[1]) > 100


def test_a_case_that_is_asked_for_is_shown_as_it_is():
    @ow.op("verdicts::exact")
    def exact(x: Float32[Tensor, " n"], v: Float32[Tensor, " k"]) -> Float32[Tensor, " n"]:
        return x + v.sum()

    exact.python(lambda x, v: x + 1, name="kernel")
    (failure,) = verdict_of(exact, "values", case="n=4 k=3 layout=sliced").failures
    assert failure.case == "n=4 k=3 layout=sliced"


# -- gradients -----------------------------------------------------------------------------------------------------


def square(dtype=Float32, factor=2.0, writes=False):
    @ow.op("verdicts::square")
    def square(x: dtype[Tensor, "m n"]) -> dtype[Tensor, "m n"]:
        return x * x

    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        result = grad * factor * x
        if writes:
            grad.zero_()
        return result

    square.register_autograd(backward, setup_context=setup_context)
    return square


# Each is a whole check.
@pytest.mark.slow
@pytest.mark.parametrize("when", quick([None, lambda x: x.is_contiguous()], 1))
def test_a_gradient_of_a_concrete_dtype_is_compared(when):
    for factor, status in ((14.0, "fail"), (2.0, "pass")):
        operator = square(factor=factor)
        operator.python(lambda x: (x * x).contiguous(), name="kernel", when=when)
        assert verdict_of(operator, "gradients").status == status


def test_an_incoming_gradient_that_is_written_is_found():
    operator = square(writes=True)
    operator.python(lambda x: (x * x).contiguous(), name="kernel")
    assert any("wrote the incoming gradient" in f.message for f in verdict_of(operator, "gradients").failures)


@pytest.mark.slow
def test_a_gradient_that_is_wrong_for_long_dims_only_is_found():
    @ow.op("verdicts::long")
    def long(x: Float32[Tensor, "m n"]) -> Float32[Tensor, "m n"]:
        return x * 3

    def backward(ctx, grad):
        result = grad * 3
        return torch.cat((result[:, :2048], result[:, 2048:] * 0), 1)

    long.register_autograd(backward, setup_context=lambda ctx, inputs, output: None)
    long.python(lambda x: (x * 3).contiguous(), name="kernel")
    (failure, *_) = verdict_of(long, "gradients").failures
    assert "n=2049" in failure.case or "n=65537" in failure.case or "n=300007" in failure.case


class Sine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0].cos()


class WrongSine(Sine):
    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0].sin()


@pytest.mark.parametrize(("function", "status"), [(Sine, "warning"), (WrongSine, "fail")])
def test_a_backward_within_a_kernel_is_compared_and_has_to_be_registered(function, status):
    @ow.op("verdicts::sine")
    def sine(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return x.sin()

    sine.python(lambda x: function.apply(x.contiguous()), name="kernel")
    verdict = verdict_of(sine, "gradients", "own backward")
    assert verdict.status == status, verdict
    if status == "warning":
        assert "register_autograd" in verdict.warnings[0].remedy


@pytest.mark.parametrize(("double", "status"), [(2.0, "pass"), (3.0, "fail")])
def test_second_derivatives_of_a_custom_gradient(double, status):
    class Slope(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, grad):
            ctx.save_for_backward(x, grad)
            return 2 * x * grad

        @staticmethod
        def backward(ctx, incoming):
            x, grad = ctx.saved_tensors
            return double * grad * incoming, 2 * x * incoming

    @ow.op("verdicts::twice")
    def twice(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x * x

    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    twice.register_autograd(lambda ctx, grad: Slope.apply(ctx.saved_tensors[0], grad), setup_context=setup_context)
    twice.python(lambda x: (x * x).contiguous(), name="kernel")
    assert verdict_of(twice, "gradients", "second derivatives").status == status


@pytest.mark.parametrize(("factor", "status"), [(1, "pass"), (2, "fail")])
def test_a_custom_rule_for_batches_is_compared(factor, status):
    @ow.op("verdicts::batched")
    def batched(x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x * y

    batched.python(lambda x, y: (x * y).contiguous(), name="kernel")

    def rule(info, in_dims, x, y):
        moved = [t.movedim(d, 0) if d is not None else t.expand(info.batch_size, -1) for t, d in zip((x, y), in_dims)]  # noqa: B905
        return torch.stack([batched(a, b) * factor for a, b in zip(*moved)]), 0  # noqa: B905

    batched.register_vmap(rule)
    assert verdict_of(batched, "vmap").status == status


@pytest.mark.parametrize(("count", "status"), [(lambda x: x.numel(), "pass"), (lambda x: 7, "warning")])
def test_a_custom_count_of_operations_is_compared(count, status):
    @ow.op("verdicts::counted")
    def counted(x: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
        return x * 2

    counted.python(lambda x: (x * 2).contiguous(), name="kernel")
    counted.register_flops(count)
    assert verdict_of(counted, "flops").status == status


@pytest.mark.parametrize(
    ("checks", "status"),
    [(("large offsets",), "refused"), (("gradients",), "fail"), (("large offsets", "values"), "fail"), ((), "fail")],
)
def test_chosen_checks_that_a_machine_has_no_memory_for_cannot_run_there(checks, status):
    assert _status(Settings("quick", "", checks, (), 60.0), ()) == status
