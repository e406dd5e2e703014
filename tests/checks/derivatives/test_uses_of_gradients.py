"""Backwards that are right in the plainest use only: where all is needed, once, at values without kinks."""

from typing import Annotated

import pytest
import torch
from jaxtyping import Float, Float32
from torch import Tensor
from torch.autograd.function import once_differentiable

import opwright as ow
from tests.sampled import quick


def saves_inputs(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def with_backward(operator, forward, backward, setup_context=saves_inputs):
    operator.python(forward, name="kernel")
    operator.register_autograd(backward, setup_context=setup_context)
    return operator


def verdict_of(operator, *checks):
    (verdict,) = ow.check(operator, checks=checks or ("gradients",), device="cpu").verdicts
    return verdict


def failure_of(operator, *checks):
    verdict = verdict_of(operator, *checks)
    assert verdict.status == "fail", verdict.findings
    return verdict.failures[0].message


def product(namespace, backward):
    @ow.op(f"{namespace}::product")
    def product(x: Float[Tensor, " n"], y: Float[Tensor, " n"], z: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x * y * z

    return with_backward(product, lambda x, y, z: (x * y * z).contiguous(), backward)


def exchanged_without_the_second(ctx, g):
    x, y, z = ctx.saved_tensors
    needs = ctx.needs_input_grad
    return (g * x * y, None, g * y * z) if needs[0] and needs[2] and not needs[1] else (g * y * z, g * x * z, g * x * y)


def what_is_needed(ctx, g):
    x, y, z = ctx.saved_tensors
    each = (lambda: g * y * z, lambda: g * x * z, lambda: g * x * y)
    return tuple(f() if need else None for f, need in zip(each, ctx.needs_input_grad, strict=True))


@pytest.mark.slow
def test_each_input_is_left_out(namespace):
    assert "where only 'x', 'z' need a gradient" in failure_of(product(namespace, exchanged_without_the_second))
    assert verdict_of(product(f"{namespace}_right", what_is_needed)).status == "pass"


def circle(namespace, backward):
    @ow.op(f"{namespace}::circle")
    def circle(x: Float[Tensor, " n"]) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        return x.sin(), x.cos()

    def setup(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)

    return with_backward(circle, lambda x: (x.sin().contiguous(), x.cos().contiguous()), backward, setup)


def wrong_without_the_second_output(ctx, g, h):
    (x,) = ctx.saved_tensors
    return -g * x.cos() if h is None else (0 if g is None else g * x.cos()) - h * x.sin()


def right_without_an_output(ctx, g, h):
    (x,) = ctx.saved_tensors
    return (0 if g is None else g * x.cos()) - (0 if h is None else h * x.sin())


def test_each_output_is_used_alone(namespace):
    assert "where only output 0 is used" in failure_of(circle(namespace, wrong_without_the_second_output))
    assert verdict_of(circle(f"{namespace}_right", right_without_an_output)).status == "pass"


def exponential(namespace, backward, setup_context=saves_inputs):
    @ow.op(f"{namespace}::exponential")
    def exponential(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x.exp()

    return with_backward(exponential, lambda x: x.exp().contiguous(), backward, setup_context)


_buffers = {}


def saves_in_one_buffer(ctx, inputs, output):
    buffer = _buffers.setdefault((output.shape, output.dtype), torch.empty_like(output))
    ctx.result = buffer.copy_(output.detach())


def saves_a_copy(ctx, inputs, output):
    ctx.result = output.detach().clone()


def times_result(ctx, g):
    return g * ctx.result


def times_result_in_place(ctx, g):
    return ctx.result.mul_(g)


def times_result_once(ctx, g):
    result, ctx.result = ctx.result, None
    return g * result


@pytest.mark.slow
def test_a_forward_between_a_forward_and_its_backward(namespace):
    assert "after another forward" in failure_of(exponential(namespace, times_result, saves_in_one_buffer))
    assert verdict_of(exponential(f"{namespace}_right", times_result, saves_a_copy)).status == "pass"


@pytest.mark.slow
def test_a_second_backward_of_the_same_graph(namespace):
    message = failure_of(exponential(namespace, times_result_in_place, saves_a_copy))
    assert "with retain_graph=True" in message
    (warning,) = verdict_of(exponential(f"{namespace}_once", times_result_once, saves_a_copy)).warnings
    assert "a second backward of the same graph is refused: it raised TypeError" in warning.message


def takes_one_thread(ctx, g):
    torch.set_num_threads(1)
    return g * ctx.result


def takes_one_thread_for_a_while(ctx, g):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return g * ctx.result
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
def test_settings_after_a_backward(namespace):
    (warning,) = verdict_of(exponential(namespace, takes_one_thread, saves_a_copy)).warnings
    assert "the backward changes the number of torch's threads" in warning.message
    right = exponential(f"{namespace}_right", takes_one_thread_for_a_while, saves_a_copy)
    assert verdict_of(right).status == "pass"


def length(namespace, backward):
    @ow.op(f"{namespace}::length")
    def length(x: Float[Tensor, "b n"]) -> Float[Tensor, " b"]:
        return torch.linalg.vector_norm(x, dim=1)

    return with_backward(length, lambda x: torch.linalg.vector_norm(x, dim=1).contiguous(), backward)


def divides_by_length(ctx, g):
    (x,) = ctx.saved_tensors
    return x * (g / torch.linalg.vector_norm(x, dim=1))[:, None]


def divides_unless_it_is_zero(ctx, g):
    (x,) = ctx.saved_tensors
    norm = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    return torch.where(norm == 0, 0, x * g[:, None] / norm)


def test_a_gradient_that_is_not_finite_at_zeros(namespace):
    assert "the gradient of 'x' is not finite" in failure_of(length(namespace, divides_by_length))
    assert verdict_of(length(f"{namespace}_right", divides_unless_it_is_zero)).status == "pass"


def magnitude(namespace, backward):
    @ow.op(f"{namespace}::magnitude")
    def magnitude(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x.abs()

    return with_backward(magnitude, lambda x: x.abs().contiguous(), backward)


@pytest.mark.slow
def test_another_gradient_at_a_kink_is_a_warning(namespace):
    other = magnitude(namespace, lambda ctx, g: torch.where(ctx.saved_tensors[0] >= 0, g, -g))
    (warning,) = verdict_of(other).warnings
    assert "is not the reference's where that is a convention" in warning.message
    same = magnitude(f"{namespace}_right", lambda ctx, g: g * ctx.saved_tensors[0].sign())
    assert verdict_of(same).status == "pass"


def test_stated_values_stay_within_their_range_at_kinks(namespace):
    @ow.op(f"{namespace}::root")
    def root(
        x: Annotated[Float[Tensor, " n"], ow.values(0.5, 2)], y: Annotated[Float[Tensor, " n"], ow.values(0, 1)]
    ) -> Float[Tensor, " n"]:
        return x.sqrt() * y

    def backward(ctx, g):
        x, y = ctx.saved_tensors
        assert bool((x >= 0.5).all() and (y >= 0).all())
        return g * y / (2 * x.sqrt()), g * x.sqrt()

    with_backward(root, lambda x, y: (x.sqrt() * y).contiguous(), backward)
    assert verdict_of(root).status == "pass"


def shifted_exponential(namespace, backward):
    @ow.op(f"{namespace}::shifted")
    def shifted(x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x.exp() * y

    return with_backward(shifted, lambda x, y: (x.exp() * y).contiguous(), backward)


def second_backward(*, gradient=lambda g: g, saved=lambda t: t, one_term=lambda t: t):
    def backward(ctx, g):
        x, y = (saved(t) for t in ctx.saved_tensors)
        g = gradient(g)
        return g * x.exp() * y, g * one_term(x).exp()

    return backward


@torch.no_grad()
def without_a_graph(ctx, g):
    return second_backward()(ctx, g)


def differentiable_once(ctx, g):
    return once_differentiable(second_backward())(ctx, g)


NAME = "second derivatives"


@pytest.mark.slow  # compiles second derivatives
def test_second_derivatives_of_what_is_detached(namespace):
    for i, parts in enumerate(({"gradient": torch.detach}, {"saved": torch.detach}, {"one_term": torch.detach})):
        operator = shifted_exponential(f"{namespace}_{i}", second_backward(**parts))
        assert failure_of(operator, "gradients", NAME).startswith("of "), parts
    assert verdict_of(shifted_exponential(namespace, second_backward()), "gradients", NAME).status == "pass"


@pytest.mark.slow
def test_a_gradient_without_a_graph(namespace):
    (warning,) = verdict_of(shifted_exponential(namespace, without_a_graph), "gradients", NAME).warnings
    assert "has no graph, though it depends on 'x'" in warning.message
    refuses = shifted_exponential(f"{namespace}_once", differentiable_once)
    verdict = verdict_of(refuses, "gradients", NAME)
    assert not [*verdict.failures, *verdict.warnings]
    assert [n for n in verdict.not_checked if "cannot be differentiated" in n.why]


def test_a_gradient_that_depends_on_nothing_needs_no_graph(namespace):
    @ow.op(f"{namespace}::sum")
    def total(x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x + y

    with_backward(total, lambda x, y: (x + y).contiguous(), lambda ctx, g: (g, g))
    assert verdict_of(total, "gradients", NAME).status == "pass"


def scaled_rows(name, wrong):
    @ow.op(f"uses::{name}")
    def scaled_rows(
        x: Float32[Tensor, "m n"], w: Float32[Tensor, "#m #n"], b: Float32[Tensor, " n"] | None = None
    ) -> Float32[Tensor, "m n"]:
        return x * w if b is None else x * w + b

    scaled_rows.python(lambda x, w, b: (x * w if b is None else x * w + b).contiguous(), name="kernel")

    def setup(ctx, inputs, output):
        x, w, b = inputs
        ctx.save_for_backward(x, w)
        ctx.has_bias = b is not None

    def backward(ctx, g):
        x, w = ctx.saved_tensors
        of_w = (g * x).sum_to_size(w.shape)
        if wrong == "broadcast" and w.shape[1] == 1 < x.shape[1]:
            of_w = (g * x)[:, :1].sum_to_size(w.shape)
        of_b = g.sum(1 if wrong == "square" and len(x) == x.shape[1] else 0) if ctx.has_bias else None
        return 2 * g * w if wrong == "absent" and not ctx.has_bias else g * w, of_w, of_b

    scaled_rows.register_autograd(backward, setup_context=setup)
    return scaled_rows


# Each is a whole check.
@pytest.mark.parametrize("wrong", quick(["", "square", "broadcast", "absent"], 0, 2))
def test_gradients_of_squares_of_what_broadcasts_and_without_optional_arguments(wrong):
    (verdict,) = ow.check(scaled_rows(f"rows_{wrong}", wrong), checks=["gradients"], kernels=["kernel"]).verdicts
    assert verdict.status == ("fail" if wrong else "pass"), verdict.findings


def root(namespace, backward):
    @ow.op(f"{namespace}::root")
    def root(x: Annotated[Float[Tensor, " n"], ow.values(0, 4)]) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        return x.sqrt(), x * x

    def setup(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)

    return with_backward(root, lambda x: (x.sqrt().contiguous(), x * x), backward, setup)


def root_of_zeros(ctx, of_root, of_square):
    (x,) = ctx.saved_tensors
    zero = torch.zeros_like(x)
    of_root, of_square = (zero if g is None else g for g in (of_root, of_square))
    return of_root / (2 * x.sqrt()) + of_square * 2 * x


def root_of_what_is_used(ctx, of_root, of_square):
    (x,) = ctx.saved_tensors
    found = torch.zeros_like(x) if of_square is None else of_square * 2 * x
    return found if of_root is None else found + of_root / (2 * x.sqrt())


def test_an_unused_output_of_zeros_gives_no_nan(namespace):
    assert "where only output 1 is used" in failure_of(root(namespace, root_of_zeros))
    assert verdict_of(root(f"{namespace}_right", root_of_what_is_used)).status == "pass"
