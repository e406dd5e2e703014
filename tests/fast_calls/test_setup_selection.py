"""What a ``setup_context`` saves is known without a call only if it is the same in every call."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.fast_path.extension import fast_calls_extension
from opwright.fast_path.setup_selection import Selection, selection_by, takes_from_ctx

SCALE = 3


def all_inputs(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def some_and_the_output(ctx, inputs, output):
    x, a = inputs
    ctx.save_for_backward(output, x)
    ctx.a, ctx.dim = a, -1


def nothing(ctx, inputs, output):
    pass


def sets_a_flag_of_autograd(ctx, inputs, output):
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(inputs[0])


@pytest.mark.parametrize(
    ("setup_context", "expected"),
    [
        (all_inputs, Selection((0, 1), {}, {})),
        (some_and_the_output, Selection((-1, 0), {"a": 1}, {"dim": -1})),
        (nothing, Selection((), {}, {})),
        (lambda ctx, inputs, output: ctx.save_for_backward(inputs[-1]), Selection((1,), {}, {})),
        (None, Selection((), {}, {})),
        (sets_a_flag_of_autograd, Selection((0,), {}, {}, materialize_grads=False)),
        (lambda ctx, inputs, output: ctx.save_for_backward(*inputs, output), Selection((0, 1, -1), {}, {})),
    ],
)
def test_what_is_chosen_of_a_call(setup_context, expected):
    assert selection_by(setup_context, 2, 0) == expected


def test_outputs_have_places_of_their_own():
    def the_second(ctx, inputs, output):
        _, statistics = output
        ctx.save_for_backward(inputs[0], statistics)

    assert selection_by(the_second, 1, 2) == Selection((0, -2), {}, {})


def branches(ctx, inputs, output):
    if inputs[1] is not None:
        ctx.save_for_backward(inputs[0])


def compares(ctx, inputs, output):
    ctx.has_second = inputs[1] is not None


def asks_for_a_size(ctx, inputs, output):
    ctx.size = inputs[0].shape


def computes(ctx, inputs, output):
    ctx.save_for_backward(inputs[0] * 2)


def reads_a_global(ctx, inputs, output):
    ctx.scale = SCALE


def sets_a_flag_by_an_argument(ctx, inputs, output):
    ctx.set_materialize_grads(inputs[1])


def sets_another_flag(ctx, inputs, output):
    ctx.mark_non_differentiable(output)


def takes_a_name_of_ours(ctx, inputs, output):
    ctx._materializes = False


def takes_a_name_of_autograd(ctx, inputs, output):
    ctx.saved_tensors = inputs


def saves_no_tensor(ctx, inputs, output):
    ctx.save_for_backward(inputs[0], 1)


def saves_a_list(ctx, inputs, output):
    ctx.kept = [inputs[0]]


def writes_a_text(ctx, inputs, output):
    ctx.text = f"{inputs[0]}"


def negates(ctx, inputs, output):
    ctx.is_empty = not inputs[0]


def loops(ctx, inputs, output):
    ctx.kept = [each for each in inputs]  # noqa: C416


def keeps_what_its_default_holds(ctx, inputs, output, kept=[0]):  # noqa: B006
    ctx.kept = kept[0]


@pytest.mark.parametrize(
    "setup_context",
    [
        keeps_what_its_default_holds, branches, compares, asks_for_a_size, computes, reads_a_global,
        sets_a_flag_by_an_argument, sets_another_flag, takes_a_name_of_ours,
        takes_a_name_of_autograd, saves_no_tensor, saves_a_list, writes_a_text, negates, loops,
        functools.partial(all_inputs),
    ],
)  # fmt: skip
def test_what_depends_on_the_call_is_not_foretold(setup_context):
    assert selection_by(setup_context, 2, 0) is None


def usual(ctx, grad):
    (x,) = ctx.saved_tensors
    return grad * x if ctx.needs_input_grad[0] else None


def counts(ctx, grad):
    ctx.calls = getattr(ctx, "calls", 0) + 1
    return grad


def asks_the_node(ctx, grad):
    return grad * len(ctx.next_functions)


def through_another(ctx, grad):
    return counts(ctx, grad)


def from_an_inner_function(ctx, grad):
    return grad * (lambda: ctx.a)()


def under_another_name(ctx, grad):
    node = ctx
    return grad * node.a


def of_a_method(ctx, grad):
    return grad * ctx.name()


def is_compared(ctx, grad):
    return grad if ctx is not None else None


def many(ctx, grad):
    x, _ = ctx.saved_tensors
    for _ in range(ctx.count):
        grad = grad * ctx.scale
    return grad * x, grad / ctx.scale


@pytest.mark.parametrize(
    ("backward", "taken"),
    [
        (usual, {"saved_tensors", "needs_input_grad"}), (many, {"saved_tensors", "count", "scale"}),
        (asks_the_node, {"next_functions"}), (of_a_method, {"name"}),
        *((each, None) for each in (counts, through_another, from_an_inner_function, under_another_name, is_compared)),
        (lambda *arguments: arguments, None), (functools.partial(usual), None),
    ],
)  # fmt: skip
def test_what_a_backward_takes_of_its_ctx(backward, taken):
    assert takes_from_ctx(backward) == taken


@pytest.fixture
def natively(request: pytest.FixtureRequest) -> None:
    assert fast_calls_extension.loaded is not None


def powers(namespace: str, setup_context: Callable[..., Any], backward: Callable[..., Any]) -> ow.Op:
    @ow.op(f"{namespace}::powers")
    def powers(x: Float[Tensor, " n"], w: Float[Tensor, " n"] | None, a: float) -> Float[Tensor, " n"]:
        return x**a if w is None else w * x**a

    powers.python(lambda x, w, a: x**a if w is None else w * x**a, name="kernel")
    powers.register_autograd(backward, setup_context=setup_context)
    return powers


def tensors_saved(ctx, inputs, output):
    x, w, a = inputs
    ctx.save_for_backward(x, w)
    ctx.a = a


def tensors_kept(ctx, inputs, output):
    ctx.x, ctx.w, ctx.a = inputs


def of_saved(ctx, grad):
    x, w = ctx.saved_tensors
    return _gradients(grad, x, w, ctx.a)


def of_kept(ctx, grad):
    return _gradients(grad, ctx.x, ctx.w, ctx.a)


def _gradients(grad, x, w, a):
    of_power = a * x ** (a - 1)
    return (grad * of_power, None, None) if w is None else (grad * w * of_power, grad * x**a, None)


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("setup", "backward", "is_native"), [(tensors_saved, of_saved, True), (tensors_kept, of_kept, False)]
)
@pytest.mark.parametrize("has_weight", [True, False])
def test_optional_arguments_and_other_numbers(setup, backward, is_native, has_weight, natively, namespace):
    op = powers(namespace, setup, backward)
    x, *others = (torch.rand(5, dtype=torch.float64, requires_grad=True) for _ in range(1 + has_weight))
    w = others[0] if has_weight else None
    for a in (2.0, 2.0, 3.0, 2.0):
        out, expected = op(x, w, a), x**a if w is None else w * x**a
        grad = torch.rand(5, dtype=torch.float64)
        found, right = (torch.autograd.grad(each, [x, *others], grad) for each in (out, expected))
        torch.testing.assert_close(found, right)
    assert (type(out.grad_fn).__name__ == "CppFunction") == is_native


@pytest.mark.compiler
def test_a_number_where_only_tensors_are_saved_is_the_error_that_torch_has(natively, namespace):
    def setup(ctx, inputs, output):
        x, _, a = inputs
        ctx.save_for_backward(x, a)

    op = powers(namespace, setup, lambda ctx, grad: (grad, None, None))
    x = torch.rand(5, requires_grad=True)
    for _ in range(3):
        with pytest.raises(TypeError, match="save_for_backward can only save variables"):
            op(x, None, 2.0)


def without_zeros(ctx, inputs, output):
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(inputs[0])


def with_zeros(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])


@pytest.mark.compiler
@pytest.mark.parametrize(("setup", "given"), [(without_zeros, type(None)), (with_zeros, torch.Tensor)])
def test_an_output_that_nothing_depends_on_has_zeros_or_none(setup, given, natively, namespace):
    seen = list[type]()

    @ow.op(f"{namespace}::both")
    def both(x: Float[Tensor, " n"]) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        return x * 2, x * 3

    def backward(ctx, first, second):
        seen.append(type(second))
        return first * 2 if second is None else first * 2 + second * 3

    both.python(lambda x: (x * 2, x * 3), name="kernel")
    both.register_autograd(backward, setup_context=setup)
    for _ in range(20):
        x = torch.rand(5, requires_grad=True)
        first, second = both(x)
        for total, expected in ((first.sum(), 2.0), ((first + second).sum(), 5.0)):
            (found,) = torch.autograd.grad(total, x, retain_graph=True)
            assert found.tolist() == [expected] * 5
    assert type(first.grad_fn).__name__ == "CppFunction"
    assert set(seen[::2]) == {given}  # of plain calls, and of native ones


def keeps_three(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])
    ctx.factor = 3.0


def keeps_five(ctx, inputs, output):
    ctx.save_for_backward(inputs[0] * 0)
    ctx.factor = 5.0


def keeps_its_default(ctx, inputs, output, factor=3.0):
    ctx.save_for_backward(inputs[0])
    ctx.factor = factor


def by_factor(ctx, grad):
    (x,) = ctx.saved_tensors
    return grad * (ctx.factor + x)


def counts_itself(ctx, grad):
    ctx.runs = getattr(ctx, "runs", 0) + 1
    return grad * ctx.runs


def _copy(function):
    return types.FunctionType(function.__code__, globals(), function.__name__, function.__defaults__)


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("setup", "replace", "expected"),
    [
        (keeps_three, lambda setup, _: setattr(setup, "__code__", keeps_five.__code__), 5.0),
        (keeps_its_default, lambda setup, _: setattr(setup, "__defaults__", (7.0,)), 7.0 + 2.0),
        (keeps_three, lambda _, backward: setattr(backward, "__code__", counts_itself.__code__), 1.0),
        (keeps_three, lambda *_: None, 3.0 + 2.0),
    ],
)
def test_code_that_is_replaced_in_place_counts_in_the_next_call(setup, replace, expected, natively, namespace):
    setup, backward = _copy(setup), _copy(by_factor)
    op = ow.op(f"{namespace}::same")(same)
    op.python(lambda x: x.clone(), name="kernel")
    op.register_autograd(backward, setup_context=setup)
    x = torch.full((3,), 2.0, requires_grad=True)

    def gradient():
        return torch.autograd.grad(op(x), x, torch.ones(3))[0].unique().tolist()

    assert [gradient() for _ in range(20)] == [[5.0]] * 20
    replace(setup, backward)
    assert [gradient() for _ in range(20)] == [[expected]] * 20


def same(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    return x.clone()
