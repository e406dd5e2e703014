"""Every kind of wrong kernel is caught, and the message says what is wrong with it."""

import ctypes
import os
import time

import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor

import opwright as ow


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
    ("kernel", "check", "says"),
    [
        (wrong_tail, "values", "expected"),
        (ignores_strides, "values", "elements differ"),
        (ignores_storage_offset, "values", "elements differ"),
        (writes_into_its_input, "inputs unchanged", "argument 'x' was written"),
        (leaves_the_last_element_unwritten, "values", "nan"),
        (returns_float64, "metadata", "dtype torch.float64, but the fake promises"),
        (wrong_in_half_only, "values", "elements differ"),
        (returns_strided_memory, "metadata", "has strides"),
        (aliases_its_input, "metadata", "shares memory with input 0"),
        (raises_on_empty, "values", "grid of 0 blocks"),
        (segfaults, "values", "crashed with SIGSEGV"),
        (never_comes_back, "values", "did not come back within 3 s"),
        (leaves, "values", "left the process with exit code 0"),
        (prints_without_end, "values", "did not come back within 3 s"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_wrong_kernel_is_caught_by_its_family(kernel, check, says):
    scale = scale_op()
    scale.python(kernel)
    report = ow.check(scale, timeout=3, checks=["values", "metadata", "inputs unchanged"])
    (verdict,) = report.verdicts
    assert not report.passed
    found = {f.check: f for f in verdict.failures}
    assert check in found, report
    assert says in found[check].message
    assert "ow.check(scale" in found[check].reproduce or found[check].case == ""


def test_a_right_kernel_passes_every_family():
    scale = scale_op()
    scale.python(right)
    report = ow.check(scale)
    assert report.passed, report
    assert {f.check for f in report.verdicts[0].findings} == {
        "values", "metadata", "inputs unchanged", "gradients", "opcheck", "torch.compile",
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


@pytest.mark.parametrize("backward", [wrong_gradient, gradient_that_ignores_strides, no_gradient])
def test_a_wrong_gradient_is_caught(backward):
    scale = scale_op()
    scale.python(right)
    scale.register_autograd(backward, setup_context=remember)
    report = ow.check(scale, checks=["gradients"])
    (finding,) = report.verdicts[0].failures
    assert "the gradient of 'x' is wrong" in finding.message


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


def test_near_ties_of_an_argmin_are_no_failure_but_a_wrong_index_is():
    @ow.op("planted::nearest")
    def nearest(x: Float[Tensor, "n d"], y: Float[Tensor, "k d"]) -> Int[Tensor, "n"]:
        return torch.linalg.vector_norm(x[:, None] - y, dim=2).argmin(1)

    @nearest.python(name="squared")
    def _(x, y):
        return (x[:, None] - y).square().sum(2).argmin(1)

    @nearest.python(name="second")
    def _(x, y):
        order = torch.linalg.vector_norm(x[:, None] - y, dim=2).argsort(1)
        return order[:, min(1, order.shape[1] - 1)].contiguous()

    squared, second = ow.check(nearest, checks=["values"]).verdicts
    assert squared.status == "pass"
    assert second.status == "fail"
