"""Guarded calls that autograd tracks, natively and in Python: both do what ``torch.autograd.Function`` does."""

from __future__ import annotations

import dataclasses
import gc
import math
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.autograd.graph import increment_version, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import opwright as ow
from opwright.backends.build_tools import build_tools
from opwright.backends.native import on_request as on_request_module
from opwright.backends.native.on_request import OnRequest
from opwright.cache import ArtifactCache
from opwright.errors import ArgumentError
from opwright.fast_path import extension, recorded_gradient, switch

pytestmark = pytest.mark.compiler


@pytest.fixture(params=["native", "recorded", "python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How calls are tracked from now on; "recorded": natively, and a derived gradient is recorded when it is first
    computed; "python": through the dispatcher."""
    if request.param != "python":
        if request.param == "recorded":
            monkeypatch.setattr(recorded_gradient, "_GRADIENTS_BEFORE", 1)
    else:
        switch.set_mode("0")
    return str(request.param)


def product(namespace: str) -> ow.Op:
    """An operator with a derived gradient."""

    @ow.op(f"{namespace}::product")
    def product(x: Float[Tensor, " n"], y: Float[Tensor, " n"], a: float = 2.0) -> Float[Tensor, " n"]:
        return a * x * y

    product.python(lambda x, y, a: a * x * y, name="kernel")
    return product


def product_with_operator(namespace: str) -> ow.Op:
    """The same with a backward operator."""
    op = product(namespace)

    @ow.op(f"{namespace}::product_backward")
    def product_backward(
        grad: Float[Tensor, " n"], x: Float[Tensor, " n"], y: Float[Tensor, " n"], a: float, needs: list[bool]
    ) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        return a * grad * y, a * grad * x

    op.register_autograd(product_backward)
    return op


def exponential(namespace: str) -> ow.Op:
    """One whose result is saved."""

    @ow.op(f"{namespace}::exponential")
    def exponential(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return torch.exp(x)

    @ow.op(f"{namespace}::exponential_backward")
    def exponential_backward(grad: Float[Tensor, " n"], result: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return grad * result

    exponential.python(lambda x: torch.exp(x), name="kernel")
    exponential.register_autograd(exponential_backward)
    return exponential


def product_with_functions(namespace: str) -> ow.Op:
    """The same with functions as ``torch.library.register_autograd`` takes them."""
    op = product(namespace)

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, y, a = inputs
        ctx.save_for_backward(x, y)
        ctx.a = a

    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, y = ctx.saved_tensors
        of_x, of_y = ctx.needs_input_grad[:2]
        return ctx.a * grad * y if of_x else None, ctx.a * grad * x if of_y else None, None

    op.register_autograd(backward, setup_context=setup_context)
    return op


def exponential_with_functions(namespace: str) -> ow.Op:
    op = exponential(namespace)

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(output)

    op.register_autograd(lambda ctx, grad: grad * ctx.saved_tensors[0], setup_context=setup_context)
    return op


MAKERS = [product, product_with_operator, product_with_functions]


def inputs(n: int = 5) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return tuple(torch.randn(n, dtype=torch.float64, requires_grad=True) for _ in range(2))  # type: ignore[return-value]


def guarded(op: ow.Op, *arguments: Any) -> ow.Op:
    """The operator, which has a guard for calls like this one."""
    op(*arguments)
    if switch.mode() == "1":
        found = extension.fast_calls_extension.loaded
        assert found is not None
        assert found.find_guarded(op._learner, arguments) is not None
    return op


def is_native(tensor: Tensor) -> bool:
    return type(tensor.grad_fn).__name__ == "CppFunction"


@pytest.mark.parametrize("make", [*MAKERS, exponential, exponential_with_functions])
@pytest.mark.parametrize("called_before", [False, True])
def test_several_incoming_gradients_at_a_time(
    make: Callable[[str], ow.Op], called_before: bool, way: str, namespace: str
) -> None:
    op, arguments = make(namespace), inputs()[: 2 if make in MAKERS else 1]
    meaning = op.contract.function
    if called_before:
        op(*arguments)  # leaves a guard
    out, wanted = op(*arguments), meaning(*arguments)
    each = torch.randn(3, *out.shape, dtype=out.dtype)
    found = torch.autograd.grad(out, arguments, each, is_grads_batched=True, retain_graph=True)
    for got, right in zip(found, torch.autograd.grad(wanted, arguments, each, is_grads_batched=True), strict=True):
        torch.testing.assert_close(got, right)
    jacobian, right = (torch.autograd.functional.jacobian(f, arguments, vectorize=True) for f in (op, meaning))
    torch.testing.assert_close(jacobian, right)
    again = torch.autograd.grad(out, arguments, each[0])  # one at a time, as before
    torch.testing.assert_close(again[0], found[0][0])


@pytest.mark.parametrize("make", MAKERS)
def test_gradients_of_any_order(make: Callable[[str], ow.Op], way: str, namespace: str) -> None:
    x, y = inputs()
    op = guarded(make(namespace), x, y, 3.0)
    out = op(x, y, 3.0)
    assert is_native(out) == (way != "python")
    assert out.grad_fn is not None
    assert out.grad_fn.name() == "product_gradientBackward"
    grads = torch.autograd.grad(out, (x, y), torch.ones_like(out))
    assert torch.equal(grads[0], 3 * y)
    assert torch.equal(grads[1], 3 * x)
    assert gradcheck(lambda x, y: op(x, y, 3.0), (x, y))
    assert gradgradcheck(lambda x, y: op(x, y, 3.0), (x, y))


@pytest.mark.parametrize("make", MAKERS)
def test_only_what_is_needed(make: Callable[[str], ow.Op], way: str, namespace: str) -> None:
    x, y = inputs()
    op = make(namespace)
    for first, second in ((x, y.detach()), (x.detach(), y), (x, y), (x * 1, y)):
        guarded(op, first, second, 2.0)
        out = op(first, second)
        wanted = [t for t in (first, second) if t.requires_grad]
        others = [2 * (second if t is first else first) for t in wanted]
        for grad, expected in zip(torch.autograd.grad(out.sum(), wanted), others, strict=True):
            assert torch.equal(grad, expected.detach())
    with torch.no_grad():
        assert not op(x, y).requires_grad


@pytest.mark.parametrize("mode", [torch.inference_mode, torch._C._AutoDispatchBelowAutograd])
def test_calls_below_autograd_are_not_tracked_where_gradients_are_enabled(mode: Any, way: str, namespace: str) -> None:
    x, y = inputs()
    op = product_with_operator(namespace)
    for _ in range(2):
        with mode(), torch.enable_grad():
            for _ in range(3):
                assert not op(x, y).requires_grad
        guarded(op, x, y)
        assert op(x, y).requires_grad


@pytest.mark.parametrize("make", [*MAKERS, exponential, exponential_with_functions])
def test_a_second_backward_is_refused_as_by_torch(make: Callable[[str], ow.Op], way: str, namespace: str) -> None:
    x, y = inputs()
    arguments = (x,) if make not in MAKERS else (x, y, 2.0)
    op = guarded(make(namespace), *arguments)
    expected = pytest.raises(RuntimeError, match="Trying to backward through the graph a second time")
    kept = op(*arguments).sum()
    torch.autograd.grad(kept, x, retain_graph=True)
    torch.autograd.grad(kept, x)
    with expected:
        torch.autograd.grad(kept, x)


@pytest.mark.parametrize("make", [*MAKERS, exponential, exponential_with_functions])
def test_a_saved_tensor_that_was_modified_is_noticed(make: Callable[[str], ow.Op], way: str, namespace: str) -> None:
    x, y = inputs()
    arguments = (x,) if make not in MAKERS else (x, y, 2.0)
    op = guarded(make(namespace), *arguments)
    out = op(*arguments)
    increment_version(out if make not in MAKERS else y)
    with pytest.raises(RuntimeError, match=r"has been modified by an inplace operation.*is at version 1; expected"):
        out.sum().backward()


def test_hooks_of_tensors_and_nodes_run(way: str, namespace: str) -> None:
    x, y = inputs()
    op = guarded(product(namespace), x, y, 2.0)
    seen: list[str] = []
    out = op(x, y)
    assert out.grad_fn is not None
    out.register_hook(lambda grad: seen.append("tensor") or grad * 10)
    out.grad_fn.register_prehook(lambda grads: seen.append("before"))
    out.grad_fn.register_hook(lambda found, given: seen.append(f"after {len(found)} {len(given)}"))
    x.register_post_accumulate_grad_hook(lambda t: seen.append("accumulated"))
    out.retain_grad()
    out.sum().backward()
    assert seen == ["tensor", "before", "after 2 1", "accumulated"]
    assert x.grad is not None
    assert torch.equal(x.grad, 20 * y.detach())
    assert out.grad is not None
    assert out.grad.tolist() == [10.0] * 5
    assert [type(edge[0]).__name__ for edge in out.grad_fn.next_functions] == ["AccumulateGrad"] * 2


@pytest.mark.parametrize("make", [*MAKERS, exponential, exponential_with_functions])
def test_hooks_of_saved_tensors_see_what_is_saved(make: Callable[[str], ow.Op], way: str, namespace: str) -> None:
    x, y = inputs()
    arguments = (x,) if make not in MAKERS else (x, y, 2.0)
    op = guarded(make(namespace), *arguments)
    packed, unpacked = [], []
    with saved_tensors_hooks(lambda t: packed.append(t) or t.clone(), lambda t: unpacked.append(t) or t):
        out = op(*arguments)
    (found,) = torch.autograd.grad(out.sum(), x)
    assert len(packed) == len(unpacked) == (1 if make not in MAKERS else 2)
    assert torch.equal(found, torch.exp(x) if make not in MAKERS else 2 * y)

    def fail(tensor: Tensor) -> Tensor:
        raise KeyError("no room")

    with saved_tensors_hooks(fail, lambda t: t), pytest.raises(KeyError, match="no room"):
        op(*arguments)
    with torch.autograd.graph.save_on_cpu():
        out = op(*arguments)
    assert torch.equal(torch.autograd.grad(out.sum(), x)[0], found)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoint_recomputes_a_call_whose_first_made_the_guard(use_reentrant: bool, way: str, namespace: str) -> None:
    x, y = inputs()
    op = product_with_operator(namespace)
    for _ in range(3):
        out = checkpoint(lambda x, y: op(op(x, y, 2.0), y, 2.0), x, y, use_reentrant=use_reentrant)
        assert torch.allclose(torch.autograd.grad(out.sum(), x)[0] if not use_reentrant else grad_of(out, x), 4 * y * y)


def grad_of(out: Tensor, x: Tensor) -> Tensor:
    x.grad = None
    out.sum().backward()
    assert x.grad is not None
    return x.grad


def pair(namespace: str, kernel: Callable[..., Any]) -> ow.Op:
    """Two outputs."""

    @ow.op(f"{namespace}::pair")
    def pair(x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        return x + y, x * y

    @ow.op(f"{namespace}::pair_backward")
    def pair_backward(
        grad0: Float[Tensor, " n"], grad1: Float[Tensor, " n"], x: Float[Tensor, " n"], y: Float[Tensor, " n"]
    ) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        return grad0 + grad1 * y, grad0 + grad1 * x

    pair.python(kernel, name="kernel")
    pair.register_autograd(pair_backward)
    return pair


def test_an_output_without_a_gradient_gets_zeros(way: str, namespace: str) -> None:
    x, y = inputs()
    op = guarded(pair(namespace, lambda x, y: (x + y, x * y)), x, y)
    first, second = op(x, y)
    assert first.grad_fn is second.grad_fn
    assert is_native(first) == (way != "python")
    assert first.output_nr == 0
    assert second.output_nr == 1
    assert torch.equal(torch.autograd.grad(first.sum(), x, retain_graph=True)[0], torch.ones_like(x))
    assert torch.equal(torch.autograd.grad(second.sum(), x)[0], y)


def test_a_kernel_may_return_its_argument_or_a_view(way: str, namespace: str) -> None:
    x, y = inputs()
    kernels: list[Callable[[Any, Any], Any]] = [
        lambda x, y: (x, x * y),
        lambda x, y: (x.view_as(x), x * y),
        lambda x, y: ((x + 0).view(-1), (x * y).contiguous()),
        lambda x, y: [x + 0, x * y],
    ]
    for i, kernel in enumerate(kernels):
        op = alternating(f"{namespace}{i}", kernel)
        guarded(op, x, y)
        first, second = op(x, y)
        assert first is not x
        assert first.requires_grad
        assert second.grad_fn is not None
        assert second.grad_fn.name() == "pair_gradientBackward"
        grads = torch.autograd.grad(first.sum() + second.sum(), (x, y))
        assert torch.equal(grads[0], 1 + y)
        assert torch.equal(grads[1], 1 + x)


def alternating(namespace: str, kernel: Callable[..., Any]) -> ow.Op:
    """``pair``, whose first call, which leaves the guard, runs another kernel."""
    calls: list[None] = []

    def either(x: Tensor, y: Tensor) -> Any:
        calls.append(None)
        return kernel(x, y) if len(calls) > 1 else (x + y, x * y)

    return pair(namespace, either)


def test_integers_have_no_gradient(way: str, namespace: str) -> None:
    @ow.op(f"{namespace}::largest")
    def largest(x: Float[Tensor, " n"]) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
        return x.max(), x.argmax()

    largest.python(lambda x: (x.max(), x.argmax()), name="kernel")
    x = inputs()[0]
    guarded(largest, x)
    value, index = largest(x)
    assert value.requires_grad
    assert not index.requires_grad
    (grad,) = torch.autograd.grad(value, x)
    assert grad.nonzero().tolist() == [[int(index)]]


def test_saved_outputs_are_saved_and_not_returned(way: str, namespace: str) -> None:
    @ow.op(f"{namespace}::scaled")
    def scaled(
        x: Float[Tensor, " n"], a: float
    ) -> tuple[Float[Tensor, " n"], Annotated[Float[Tensor, " n"], ow.saved_for_backward]]:
        e = torch.exp(x)
        return a * e, e

    @ow.op(f"{namespace}::scaled_backward")
    def scaled_backward(grad: Float[Tensor, " n"], a: float, result1: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return a * grad * result1

    scaled.python(lambda x, a: (a * torch.exp(x), torch.exp(x)), name="kernel")
    scaled.register_autograd(scaled_backward)
    x = inputs()[0]
    guarded(scaled, x, 3.0)
    out = scaled(x, 3.0)
    assert is_native(out) == (way != "python")
    (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    assert torch.allclose(grad, 3 * torch.exp(x))
    assert torch.allclose(torch.autograd.grad(grad.sum(), x)[0], 3 * torch.exp(x))
    assert gradgradcheck(lambda x: scaled(x, 3.0), x)


def test_a_non_contiguous_or_expanded_gradient_is_right(way: str, namespace: str) -> None:
    x, y = inputs()
    op = guarded(product_with_operator(namespace), x, y, 2.0)
    for grad in (torch.ones(1, dtype=torch.float64).expand(5), torch.arange(10.0, dtype=torch.float64)[::2]):
        assert torch.equal(torch.autograd.grad(op(x, y), x, grad)[0], 2 * grad * y)


def broken(namespace: str, returned: Callable[[Tensor], Any]) -> ow.Op:
    """An operator whose backward returns something wrong, as a gradient that the native node also takes."""
    op = product(namespace)
    gradient = op._rules.gradient
    gradient.gradients = lambda values, needs, grads: returned(grads[0])  # type: ignore[method-assign]
    return op


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda g: (g,), "its backward returned 1 gradients; expected one, or None, for each of its 3 positional"),
        (lambda g: (g, g, None, g), "its backward returned 4 gradients"),
        (
            lambda g: (torch.ones(4), g, None),
            r"Function product_gradientBackward returned an invalid gradient at index 0",
        ),
        (lambda g: (1.0, g, None), r"expected Variable or None \(got float\)"),
        (lambda g: (g, g, g), "product_gradientBackward returned a gradient different than None at position 3"),
    ],
)
def test_a_wrong_backward_is_refused_in_the_same_words(
    returned: Callable[[Tensor], Any], message: str, way: str, namespace: str
) -> None:
    x, y = inputs()
    op = guarded(broken(namespace, returned), x, y, 2.0)
    with pytest.raises(RuntimeError, match=message):
        op(x, y).sum().backward()


def test_an_error_of_the_backward_arrives_as_it_was_raised(way: str, namespace: str) -> None:
    class OwnError(Exception):
        pass

    def fail(grad: Tensor) -> Any:
        raise OwnError("in the backward")

    x, y = inputs()
    op = guarded(broken(namespace, fail), x, y, 2.0)
    with pytest.raises(OwnError, match="in the backward") as caught:
        op(x, y).sum().backward()
    assert any(entry.name == "fail" for entry in caught.traceback)


def test_anomaly_mode_names_the_call(way: str, namespace: str) -> None:
    def nan(grad: Tensor) -> Any:
        return grad * float("nan"), grad, None

    x, y = inputs()
    op = guarded(broken(namespace, nan), x, y, 2.0)
    fails = pytest.raises(RuntimeError, match="'product_gradientBackward' returned nan values in its 0th output")
    warns = pytest.warns(UserWarning, match="product_gradientBackward")
    with torch.autograd.detect_anomaly(), warns, fails:
        op(x, y).sum().backward()


def test_a_kernel_that_fails_leaves_its_error(way: str, namespace: str) -> None:
    x, y = inputs()
    fails: list[bool] = []

    @ow.op(f"{namespace}::failing")
    def op(x: Float[Tensor, " n"], y: Float[Tensor, " n"], a: float = 2.0) -> Float[Tensor, " n"]:
        return a * x * y

    def kernel(x: Tensor, y: Tensor, a: float) -> Tensor:
        if fails:
            raise ZeroDivisionError("in the kernel")
        return a * x * y

    op.python(kernel, name="kernel")
    guarded(op, x, y, 2.0)
    fails.append(True)
    with pytest.raises(ZeroDivisionError, match="in the kernel"):
        op(x, y)
    assert torch.is_grad_enabled()


def test_a_kernel_and_a_gradient_that_are_replaced_after_the_forward(way: str, namespace: str) -> None:
    x, y = inputs()
    op = guarded(product(namespace), x, y, 2.0)
    before = op(x, y)
    op.python(lambda x, y, a: a * x * y, name="another")
    assert torch.equal(torch.autograd.grad(before.sum(), x)[0], 2 * y)
    assert torch.equal(torch.autograd.grad(op(x, y).sum(), x)[0], 2 * y)


def test_nothing_is_kept_alive(way: str, namespace: str) -> None:
    op = product_with_operator(namespace)
    guarded(op, *inputs(), 2.0)

    def references(run_backward: bool) -> list[weakref.ref[Any]]:
        x, y = inputs()
        out = op(x, y)
        if run_backward:
            out.sum().backward()
        return [weakref.ref(t) for t in (x, y, out)]

    for run_backward in (True, False):
        found = references(run_backward)
        gc.collect()
        assert [r() for r in found] == [None] * 3
    assert exponential_is_freed(namespace)


def exponential_is_freed(namespace: str) -> bool:
    op, x = exponential(namespace), inputs()[0]
    guarded(op, x)
    out = op(x)
    found = weakref.ref(out)
    del out
    gc.collect()
    return found() is None


def test_what_nodes_have_saved_is_dropped_by_a_later_call(way: str, namespace: str) -> None:
    """A thread of autograd's that has no lock of Python leaves it to the next tracked call."""
    x, y = inputs()
    number = float("2.5")
    op = guarded(product(namespace), x, y, number)
    before = sys.getrefcount(number)
    for _ in range(50):
        op(x, y, number).sum().backward()
    op(x, y, 2.5)
    assert sys.getrefcount(number) < before + 10


def test_a_deep_graph_is_freed_without_recursion(way: str, namespace: str) -> None:
    x, y = inputs()
    op = guarded(product(namespace), x, y, 1.0)
    out = guarded(op, op(x, y, 1.0), y, 1.0)(x, y, 1.0)
    first = weakref.ref(out)
    for _ in range(20_000):
        out = op(out, y, 1.0)
    assert first() is not None
    del out
    gc.collect()
    assert first() is None


def test_threads(way: str, namespace: str) -> None:
    op = product_with_operator(namespace)
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            x, y = (torch.full((64,), float(seed + i), requires_grad=True) for i in range(2))
            for _ in range(200):
                (grad,) = torch.autograd.grad(op(x, y, 2.0).sum(), x)
                assert torch.equal(grad, 2 * y)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_modes_transforms_and_autocast_take_the_dispatcher(way: str, namespace: str) -> None:
    x, y = inputs()
    op = guarded(product_with_operator(namespace), x, y, 2.0)
    expected = 2 * y.detach()
    assert torch.equal(torch.func.grad(lambda x: op(x, y, 2.0).sum())(x), expected)
    assert torch.allclose(torch.func.jacrev(lambda x: op(x, y, 2.0))(x), torch.diag(expected))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(torch.autograd.grad(op(x, y).sum(), x)[0], expected)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        op(x, y).sum().backward()
    names = {event.key for event in profile.key_averages()}
    assert {f"{namespace}::product", "product_gradientBackward"} <= names
    outside = op(x, y)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        outside.sum().backward()
    names = {event.key for event in profile.key_averages()}
    assert {"product_gradientBackward", f"{namespace}::product_backward"} <= names
    with pytest.raises(ArgumentError):
        op(x, y[:2])


@pytest.mark.slow  # Dynamo traces many backwards
@pytest.mark.parametrize("make", [*MAKERS, exponential, exponential_with_functions])
def test_compiled_autograd(make: Callable[[str], ow.Op], way: str, namespace: str) -> None:
    arguments: tuple[Any, ...] = inputs()[:1] if make not in MAKERS else (*inputs(), 2.0)
    op = guarded(make(namespace), *arguments)
    x = arguments[0]
    for n in (5, 5, 7):
        values = tuple(torch.randn(n, requires_grad=True) if isinstance(a, Tensor) else a for a in arguments)
        guarded(op, *values)
        plain = torch.autograd.grad(op(*values).square().sum(), values[0])[0]
        out = op(*values)
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
            out.square().sum().backward()
        assert torch.allclose(values[0].grad, plain)
    assert x.grad is None


@pytest.mark.parametrize("make", [product_with_operator, exponential])
def test_batched_gradients(make: Callable[[str], ow.Op], way: str, namespace: str) -> None:
    arguments: tuple[Any, ...] = inputs()[:1] if make not in MAKERS else (*inputs(), 2.0)
    op = guarded(make(namespace), *arguments)
    out, each = op(*arguments), torch.eye(5, dtype=torch.float64)
    (batched,) = torch.autograd.grad(out, arguments[0], each, is_grads_batched=True, retain_graph=True)
    rows = [torch.autograd.grad(out, arguments[0], row, retain_graph=True)[0] for row in each]
    assert torch.equal(batched, torch.stack(rows))


def test_inside_torch_compile(way: str, namespace: str) -> None:
    x, y = inputs()
    op = guarded(product_with_operator(namespace), x, y, 2.0)
    compiled = torch.compile(lambda x, y: op(x, y, 2.0) + 1, backend="aot_eager", fullgraph=True)
    assert torch.equal(torch.autograd.grad(compiled(x, y).sum(), x)[0], 2 * y)


def test_numbers_of_a_guard_are_those_of_each_call(way: str, namespace: str) -> None:
    """0.0 and -0.0 are equal, and another number to a kernel and a gradient."""
    x, y = inputs()
    op = guarded(product(namespace), x, y, 0.0)
    for number in (0.0, 0.0, -0.0, 0.0, -0.0):  # the first ones may be recorded
        negative = torch.signbit(torch.autograd.grad(op(x, y.abs(), number).sum(), x)[0])
        assert negative.all() if math.copysign(1.0, number) < 0 else not negative.any()


def test_nothing_is_built_unasked_and_what_is_in_the_cache_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, namespace: str
) -> None:
    on_request = OnRequest(extension._load)
    monkeypatch.setattr(switch, "fast_calls_extension", on_request)
    monkeypatch.setattr(on_request_module, "build_tools", lambda: dataclasses.replace(build_tools(), cache=empty))
    empty = ArtifactCache(tmp_path)
    x, y = inputs()
    op = product(namespace)
    for _ in range(40):
        assert not is_native(op(x, y))
    assert on_request.loaded is None
    assert not list(tmp_path.rglob("*.so"))
    found = OnRequest(extension._load)
    monkeypatch.setattr(on_request_module, "build_tools", build_tools)
    for _ in range(16):
        found.after_some_calls()
    assert found.loaded is not None


def test_an_extension_that_does_not_compile_is_said_and_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    output: list[str] = []
    refused = dataclasses.replace(extension._EXTENSION, flags=("--no-such-flag",))
    monkeypatch.setattr(extension, "_EXTENSION", refused)
    on_request = OnRequest(extension._load)
    on_request.load(dataclasses.replace(build_tools(), notify=output.append), build=True)
    assert on_request.loaded is None
    assert "calls of operators go through torch's dispatcher" in output[-1]


def test_an_output_that_nothing_depends_on_is_left_out(way: str, namespace: str) -> None:
    """Zeros in its place would be multiplied by an infinite derivative."""

    @ow.op(f"{namespace}::root")
    def root(x: Float[Tensor, " n"]) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        return x.sqrt(), x * x

    root.python(lambda x: (x.sqrt(), x * x), name="kernel")

    def gradients(function: Callable[..., Any], used: int, **options: Any) -> list[float]:
        x = torch.tensor([0.0, 1.0, 4.0], requires_grad=True)
        (found,) = torch.autograd.grad(function(x)[used].sum(), x, **options)
        if not options:
            return list(found.tolist())
        (second,) = torch.autograd.grad(found.sum(), x)
        return list(second.tolist())

    for _ in range(4):
        for function in (root, getattr(torch.ops, namespace).root):
            assert gradients(function, 1) == [0.0, 2.0, 8.0]
            assert gradients(function, 0) == [math.inf, 0.5, 0.25]
            assert gradients(function, 1, create_graph=True) == [2.0, 2.0, 2.0]
        x = torch.tensor([1.0, 4.0], requires_grad=True)
        (both,) = torch.autograd.grad([o[1] for o in root(x)], x, [torch.tensor(1.0), torch.tensor(1.0)])
        assert both.tolist() == [0.0, 8.25]


def test_a_custom_gradient_gets_zeros_of_an_output_that_nothing_depends_on(way: str, namespace: str) -> None:
    @ow.op(f"{namespace}::pair")
    def pair(x: Float[Tensor, " n"]) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        return x * 2, x * 3

    pair.python(lambda x: (x * 2, x * 3), name="kernel")
    pair.register_autograd(lambda ctx, first, second: first * 2 + second * 3)
    x = torch.ones(3, requires_grad=True)
    for _ in range(4):
        (found,) = torch.autograd.grad(pair(x)[0].sum(), x)
        assert found.tolist() == [2.0] * 3
