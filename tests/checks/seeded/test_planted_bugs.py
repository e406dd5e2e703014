"""Every kind of wrong kernel is caught, and the message states the fault."""

import ctypes
import os
import time

import numpy as np
import pytest
import torch
from jaxtyping import Complex, Float, Float32, Int
from torch import Tensor

import opwright as ow
from opwright.errors import CheckError
from tests.sampled import quick


def scale_op():
    @ow.op("planted::scale")
    def scale(x: Float[Tensor, "*n"], a: float) -> Float[Tensor, "*n"]:
        """``a * x``."""
        return a * x

    return scale


def right(x, a):
    return (x * a).contiguous()


def wrong_tail(x, a):
    flat = (x * a).reshape(-1)
    whole = flat.numel() // 4 * 4
    return torch.cat([flat[:whole], flat[whole:] * 0]).reshape(x.shape)


def ignores_strides(x, a):
    out = x.new_empty(x.shape)
    raw = torch.as_strided(
        x, (min(x.numel(), x.untyped_storage().size() // x.element_size() - x.storage_offset()),), (1,)
    )
    out.view(-1)[: raw.numel()] = raw * a
    return out


def ignores_storage_offset(x, a):
    x = x.contiguous()
    raw = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage(), 0, x.shape, x.stride())
    return (raw * a).contiguous()


def writes_into_its_input(x, a):
    result = (x * a).contiguous()
    if 0 not in x.stride():
        x.mul_(1.5)
    return result


def leaves_the_last_element_unwritten(x, a):
    out = torch.empty(x.shape, dtype=x.dtype)
    out.view(-1)[:-1] = (x * a).reshape(-1)[:-1]
    return out


def returns_float64(x, a):
    return (x * a).double().contiguous()


def wrong_in_half_only(x, a):
    return right(x, a if x.dtype != torch.float16 else a * 1.02)


def returns_strided_memory(x, a):
    return (x * a).mT.contiguous().mT if x.dim() >= 2 else right(x, a)


def aliases_its_input(x, a):
    return x.view(x.shape) if not x.is_contiguous() else x.view(-1).view(x.shape)


def raises_on_empty(x, a):
    if x.numel() == 0:
        raise RuntimeError("grid of 0 blocks")
    return right(x, a)


def aliases_its_input_through_numpy(x, a):
    return torch.from_numpy(x.numpy()) if x.dtype is torch.float32 and x.is_contiguous() else right(x, a)


def segfaults(x, a):
    if x.numel() > 8:
        ctypes.string_at(1)
    return right(x, a)


def never_comes_back(x, a):
    while x.numel() > 8:
        time.sleep(0.01)
    return right(x, a)


def leaves(x, a):
    if x.numel() > 8:
        os._exit(0)
    return right(x, a)


def prints_without_end(x, a):
    while x.numel() > 8:
        os.write(1, b"x" * (1 << 20))
    return right(x, a)


@pytest.mark.parametrize(
    ("kernel", "check", "expected_message"),
    quick(
        [
            (wrong_tail, "values", "expected"),
            (ignores_strides, "values", "elements differ"),
            pytest.param(ignores_storage_offset, "values", "elements differ", marks=pytest.mark.slow),
            (writes_into_its_input, "inputs unchanged", "argument 'x' was written"),
            (leaves_the_last_element_unwritten, "values", "nan"),
            (returns_float64, "metadata", "dtype torch.float64, but the fake promises"),
            pytest.param(wrong_in_half_only, "values", "elements differ", marks=pytest.mark.slow),
            pytest.param(returns_strided_memory, "metadata", "has strides", marks=pytest.mark.slow),
            (aliases_its_input, "metadata", "shares memory with argument 'x'"),
            pytest.param(
                aliases_its_input_through_numpy, "metadata", "shares memory with argument 'x'", marks=pytest.mark.slow
            ),
            pytest.param(raises_on_empty, "values", "grid of 0 blocks", marks=pytest.mark.slow),
            (segfaults, "values", "crashed with SIGSEGV"),
            (leaves, "values", "ended the process with exit code 0"),
        ],
        0,
        5,
    ),
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_wrong_kernel_is_caught_by_the_intended_check(kernel, check, expected_message):
    scale = scale_op()
    scale.python(kernel)
    report = ow.check(scale, checks=["values", "metadata", "inputs unchanged"])
    (verdict,) = report.verdicts
    assert not report.passed
    found = [f for f in verdict.failures if f.check == check]
    assert found, report
    assert expected_message in found[0].message
    assert "ow.check(scale" in found[0].reproduce or found[0].case == ""


def test_a_reference_that_crashes_is_not_blamed_on_the_kernel():
    @ow.op("planted::crashes")
    def crashes(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        if x.isinf().any():
            ctypes.string_at(1)
        return 2 * x

    crashes.python(lambda x: 2 * x, name="kernel")
    verdict = ow.check(crashes, checks=["values"]).verdicts[0]
    assert verdict.status == "inconclusive"
    (found,) = verdict.inconclusive
    assert found.check == "values"
    assert "values=inf" in found.case
    assert "the reference crashed with SIGSEGV" in found.message
    assert "ow.values(...)" in found.remedy


@pytest.mark.slow  # waits for three seconds, twice
@pytest.mark.parametrize("kernel", [never_comes_back, prints_without_end])
def test_what_does_not_end_is_inconclusive(kernel):
    scale = scale_op()
    scale.python(kernel)
    report = ow.check(scale, timeout=3, checks=["values"])
    (verdict,) = report.verdicts
    assert verdict.status == "inconclusive"
    assert not report.passed
    (finding,) = verdict.inconclusive
    assert "did not return within 3 s" in finding.message
    assert "--timeout 15" in finding.remedy
    assert "ow.check(scale" in finding.reproduce


def test_a_right_kernel_passes_every_check():
    scale = scale_op()
    scale.python(right)
    report = ow.check(scale)
    assert report.passed, report
    assert {f.check for f in report.verdicts[0].findings} == {
        "contract", "memory", "values", "special values", "metadata", "inputs unchanged", "global state",
        "repeated calls", "peak memory", "execution context", "threads", "gradients", "opcheck", "torch.compile",
        "afterwards", "own work", "protected memory",
    }  # fmt: skip


def test_a_failure_is_shrunk_to_the_smallest_case_and_can_be_repeated():
    scale = scale_op()
    scale.python(wrong_tail)
    finding = ow.check(scale, checks=["values"]).verdicts[0].failures[0]
    assert finding.case.startswith(("n=- ", "n=1 "))
    again = ow.check(scale, checks=["values"], case=finding.case).verdicts[0].failures[0]
    assert again.message == finding.message


def wrong_gradient(ctx, grad):
    return 2 * grad * ctx.a, None


def gradient_that_ignores_strides(ctx, grad):
    flat = (
        torch.as_strided(grad, (grad.numel(),), (1,)) if grad.untyped_storage().nbytes() >= 4 * grad.numel() else grad
    )
    return (flat * ctx.a).reshape(grad.shape), None


def no_gradient(ctx, grad):
    return None, None


def remember(ctx, inputs, output):
    ctx.a = inputs[1]


# Each is a whole check.
@pytest.mark.parametrize("backward", quick([wrong_gradient, gradient_that_ignores_strides, no_gradient], 1))
def test_a_wrong_gradient_is_caught(backward):
    scale = scale_op()
    scale.python(right)
    scale.register_autograd(backward, setup_context=remember)
    report = ow.check(scale, checks=["gradients"])
    (finding,) = report.verdicts[0].failures
    assert "the gradient of 'x' is wrong" in finding.message


@pytest.mark.slow
def test_a_fake_with_the_samples_shape_built_in_is_caught():
    scale = scale_op()
    scale.python(right)

    @scale.register_fake
    def _(x, a):
        return x.new_empty((3, 5))

    report = ow.check(scale)
    assert "metadata" in {f.check for f in report.verdicts[0].failures}


def test_a_kernel_that_breaks_the_graph_is_caught():
    scale = scale_op()
    scale.python(right)

    @scale.register_fake
    def _(x, a):
        if float(x.sum()) > 0:
            return x.new_empty(x.shape)
        return x.new_empty(x.shape)

    report = ow.check(scale, checks=["torch.compile"])
    assert not report.passed


def test_a_crash_does_not_hide_what_was_not_checked():
    scale = scale_op()
    scale.python(segfaults)
    (verdict,) = ow.check(scale).verdicts
    assert {"gradients", "opcheck", "torch.compile"} <= {n.check for n in verdict.not_checked}


@pytest.mark.slow  # hundreds of runs with errors
def test_near_ties_of_an_argmin_are_no_failure_but_a_wrong_index_is():
    @ow.op("planted::nearest")
    def nearest(x: Float[Tensor, "n d"], y: Float[Tensor, "k d"]) -> Int[Tensor, " n"]:
        return torch.linalg.vector_norm(x[:, None] - y, dim=2).argmin(1)

    @nearest.python(name="squared")
    def _(x, y):
        return (x[:, None].float() - y.float()).square().sum(2).argmin(1)

    @nearest.python(name="second")
    def _(x, y):
        order = torch.linalg.vector_norm(x[:, None] - y, dim=2).argsort(1)
        return order[:, min(1, order.shape[1] - 1)].contiguous()

    squared, second = ow.check(nearest, checks=["values"]).verdicts
    assert squared.status == "pass"
    assert second.status == "fail"


@pytest.mark.slow
def test_a_kernel_that_trusts_another_arguments_layout_is_caught():
    @ow.op("planted::sum2")
    def sum2(x: Float[Tensor, "*n"], y: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return x + y

    @sum2.python
    def _(x, y):
        if x.is_contiguous():  # and y has any value
            y = torch.as_strided(y, x.shape, x.stride())
        return (x + y).contiguous()

    found = ow.check(sum2, checks=["values"]).verdicts[0].failures
    assert {"layout=sliced:y", "layout=expanded:y"} >= {finding.case.split()[-1] for finding in found} != set()


@pytest.mark.slow
def test_a_kernel_that_is_wrong_in_the_corner_tile_only_is_caught():
    @ow.op("planted::outer")
    def outer(x: Float[Tensor, " n"], y: Float[Tensor, " k"]) -> Float[Tensor, "n k"]:
        return x[:, None] * y

    @outer.python
    def _(x, y):
        out = x[:, None] * y
        out[32:, 32:] = 0
        return out

    assert not ow.check(outer, checks=["values"]).passed


def test_a_kernel_whose_domain_admits_only_empty_cases_does_not_pass():
    scale = scale_op()
    scale.python(lambda x, a: torch.zeros(x.shape), name="never", when=lambda x, a: x.numel() % 4999 == 0)
    (verdict,) = ow.check(scale, checks=["values", "metadata"]).verdicts
    assert verdict.status == "fail"
    assert "only empty inputs" in " ".join(n.why for n in verdict.not_checked)


@pytest.mark.slow
def test_a_result_in_the_memory_of_an_earlier_one_is_caught():
    scale = scale_op()
    kept = {}

    @scale.python
    def _(x, a):
        out = kept.setdefault((x.shape, x.dtype), x.new_empty(x.shape))
        return out.copy_(a * x)

    (finding,) = ow.check(scale, checks=["values", "metadata"]).verdicts[0].failures
    assert "memory of an earlier result" in finding.message


def test_a_reference_that_contradicts_its_return_annotation_is_caught():
    @ow.op("planted::scalar")
    def scalar(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x.sum()

    @ow.op("planted::integer")
    def integer(x: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
        return 2 * x

    first, second = ow.check(scalar, integer, checks=["metadata"]).verdicts
    assert "output 0 must have 1 dim [n], got 0" in first.failures[0].message
    assert "output 0 must be Int, got float32" in second.failures[0].message


@pytest.mark.slow
def test_a_wrong_complex_gradient_is_caught():
    @ow.op("planted::cscale")
    def cscale(x: Complex[Tensor, " n"]) -> Complex[Tensor, " n"]:
        return 2j * x

    cscale.register_autograd(lambda ctx, grad: 2j * grad)  # not conjugated
    assert not ow.check(cscale, checks=["gradients"]).passed


def test_what_no_check_covers_is_listed():
    @ow.op("planted::unseen")
    def unseen(x: Float[Tensor, " n"], mode: str = "twice") -> Float[Tensor, " n"]:
        return x * 2

    unseen.register_vmap(lambda info, in_dims, x, mode: (x, in_dims[0]))
    unseen.register_flops(lambda x, mode: 7)
    (verdict,) = ow.check(unseen, checks=["values"]).verdicts
    assert {"vmap", "flops", "argument 'mode'"} <= {n.check for n in verdict.not_checked}


def in_order(x):
    """A running sum in float32, one addition after the other."""
    wide, total, sums = x.float() if x.itemsize < 4 else x, 0, []
    for part in wide.unbind(-1):
        total = total + part
        sums.append(total)
    return torch.stack(sums, -1) if sums else wide


def log_of_sum(x):
    most = x.amax(-1, keepdim=True) if x.shape[-1] else x
    shifted = x - most
    return ((shifted.exp().sum(-1, keepdim=True).log() if x.shape[-1] else shifted) - shifted).contiguous()


def softmax_by_exp2(x):
    shifted = (x.float() if x.itemsize < 4 else x) * 1.4426950408889634
    powers = torch.exp2(shifted - shifted.amax(-1, keepdim=True)) if x.shape[-1] else shifted
    return (powers / in_order(powers)[..., -1:]).to(x.dtype).contiguous()


@pytest.mark.slow  # whole checks
@pytest.mark.parametrize(
    ("reference", "kernel"),
    [
        (lambda x: x.cumsum(-1), lambda x: in_order(x).to(x.dtype).contiguous()),
        (lambda x: x.softmax(-1), softmax_by_exp2),
        (lambda x: torch.exp(40 * x), lambda x: torch.exp2(x * (40 * 1.4426950408889634)).contiguous()),
        (lambda x: x.logsumexp(-1, keepdim=True) - x, log_of_sum),
    ],
    ids=["cumsum", "softmax", "steep", "cancelling"],
)
def test_a_right_kernel_that_rounds_elsewhere_is_no_failure(reference, kernel):
    def rounding(x: Float32[Tensor, "n k"]) -> Float32[Tensor, "n k"]:
        return reference(x)

    operator = ow.op("planted::rounding")(rounding)
    operator.python(kernel)
    report = ow.check(operator, checks=["values"])
    assert report.passed, report


@pytest.mark.slow
def test_numpy_that_torch_cannot_follow_is_judged_all_the_same():
    @ow.op("planted::listed")
    def listed(x: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        return np.asarray([2 * value for value in x.tolist()], dtype=x.dtype)  # a fake tensor has no values

    assert ow.check(listed, checks=["values"]).passed
    listed.python(lambda x: 3 * x, name="wrong")
    (verdict,) = ow.check(listed, kernels=["wrong"], checks=["values"]).verdicts
    assert "elements differ" in verdict.failures[0].message


def test_an_unknown_language_cannot_be_required():
    with pytest.raises(CheckError, match=r"require must be one of python, .*, got 'tritn'"):
        ow.check(scale_op(), require=["tritn"])


def test_a_gradient_that_is_wrong_when_only_one_input_needs_it_is_caught():
    @ow.op("planted::product")
    def product(x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x * y

    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        both = all(ctx.needs_input_grad)
        return grad * y, grad * x if both else grad * y

    product.register_autograd(backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))
    (finding,) = ow.check(product, checks=["gradients"]).verdicts[0].failures
    assert "where only 'y' needs a gradient" in finding.message
    assert "the gradient of 'y' is wrong" in finding.message


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("fault", "passes"),
    [(torch.cuda.default_stream if torch.cuda.is_available() else None, False), (torch.cuda.current_stream, True)],
    ids=["legacy default stream", "current stream"],
)
def test_a_kernel_on_the_wrong_stream_is_caught(fault, passes):
    @ow.op("planted::on_stream")
    def on_stream(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return x * 2

    def kernel(x):
        with torch.cuda.stream(fault()):
            return x * 2

    on_stream.python(kernel, name="kernel", devices=["cuda"])
    (verdict,) = ow.check(on_stream, kernels=["kernel"], device="cuda", checks=["streams"]).verdicts
    assert (verdict.status == "pass") is passes, verdict
    if not passes:
        assert "on a side stream" in verdict.failures[0].message
