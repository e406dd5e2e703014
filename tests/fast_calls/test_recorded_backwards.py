"""Recorded gradients that are registered: functions that call operators, and backward operators."""

from __future__ import annotations

import enum
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

import pytest
import torch
from jaxtyping import Float, Int64
from torch import Tensor

import opwright as ow
from opwright.fast_path import recorded_gradient
from opwright.fast_path.recorded_gradient import GradientRecorder
from tests.fast_calls.recorders import noted_recorders, nothing_in_python, recordings

pytestmark = pytest.mark.compiler
GPU = pytest.param("cuda", marks=pytest.mark.gpu)
COUNTS: list[int] = []
SCALE = torch.ones(3)
FACTOR = 1.0


@pytest.fixture(autouse=True)
def recorders(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[GradientRecorder]]:
    yield noted_recorders(monkeypatch)
    for name in OPERATORS:
        globals()[name] = None


# Operators of a test; a backward finds them here.
OPERATORS = ("cosine", "both", "total", "noisy", "scaled", "norm_gradient")
cosine: Any = None
both: Any = None
total: Any = None
noisy: Any = None
scaled: Any = None
norm_gradient: Any = None


def define(namespace: str, name: str, reference: Callable[..., Any], kernel: Callable[..., Any] | None = None) -> ow.Op:
    op = ow.op(f"{namespace}::{name}")(reference)
    op.python(kernel or reference, name="kernel")
    globals()[name] = op
    return op


def cos(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    return torch.cos(x)


def sin_and_cos(x: Float[Tensor, "*n"], a: float = 1.0) -> tuple[Float[Tensor, "*n"], Float[Tensor, "*n"]]:
    return torch.sin(x) * a, torch.cos(x) * a


def sum_of(xs: list[Float[Tensor, " n"]], weights: list[float]) -> Float[Tensor, " n"]:
    result = torch.zeros_like(xs[0])
    for x, weight in zip(xs, weights, strict=True):
        result = result + x * weight
    return result


def random(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    return x * torch.rand_like(x)


def helped(grad: Tensor, x: Tensor) -> Tensor:
    return grad * cosine(x)


def by_an_operator(ctx: Any, grad: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    return grad * cosine(x)


def by_a_helper(ctx: Any, grad: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    return helped(grad, x)


def by_several_outputs(ctx: Any, grad: Tensor) -> Tensor | None:
    (x,) = ctx.saved_tensors
    if not ctx.needs_input_grad[0]:
        return None
    _, cosines = both(x, a=2.0)
    return grad * cosines / 2


def by_a_list(ctx: Any, grad: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    product = grad.reshape(-1) * torch.cos(x).reshape(-1)
    return total([product, product, x.reshape(-1)], [0.5, 0.5, 0.0]).reshape(x.shape)


def by_torch(ctx: Any, grad: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    return grad * torch.cos(x) * FACTOR


RECORDABLE = [by_an_operator, by_a_helper, by_several_outputs, by_a_list, by_torch]


def by_a_value(ctx: Any, grad: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    return grad * torch.cos(x) if float(x.sum()) > -1e9 else -grad


def by_counting(ctx: Any, grad: Tensor) -> Tensor:
    COUNTS.append(1)
    (x,) = ctx.saved_tensors
    return grad * torch.cos(x)


def by_a_tensor(ctx: Any, grad: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    return grad * torch.cos(x) * SCALE


def by_writing(ctx: Any, grad: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    return grad.mul_(1.0) * torch.cos(x)


def by_a_random_operator(ctx: Any, grad: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    return grad * torch.cos(x) + 0 * noisy(x)


def by_an_accumulated_gradient(ctx: Any, grad: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    return grad * torch.cos(x) if x.grad is None else grad * torch.cos(x) + 0 * x.grad


def by_trying_a_value(ctx: Any, grad: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    try:
        has_nan = bool(torch.isnan(grad).any())
    except RuntimeError:
        has_nan = False
    return (torch.nan_to_num(grad) if has_nan else grad) * torch.cos(x)


def by_trying_memory(ctx: Any, grad: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    is_large = False
    try:
        is_large = grad.flatten().tolist()[0] > 1e9
    except:  # noqa: E722
        grad = grad.clone()
    return (-grad if is_large else grad) * torch.cos(x)


def by_an_attribute_of_a_function(ctx: Any, grad: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    return grad * torch.cos(x) * helped.scale  # type: ignore[attr-defined]


def by_a_chosen_kernel(ctx: Any, grad: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    with cosine.only("kernel"):
        return grad * cosine(x)


def by_text(ctx: Any, grad: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    return grad * torch.cos(x) if type(grad) is not Tensor or "nan" not in str(grad) else -grad


def by_a_setting(ctx: Any, grad: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    return grad * torch.cos(x) if torch.get_deterministic_debug_mode() < 3 else -grad


helped.scale = 1.0  # type: ignore[attr-defined]
UNRECORDABLE = [
    by_a_value, by_counting, by_a_tensor, by_writing, by_a_random_operator, by_an_accumulated_gradient,
    by_trying_a_value, by_trying_memory, by_an_attribute_of_a_function, by_a_chosen_kernel, by_text, by_a_setting,
]  # fmt: skip


def sine(namespace: str, backward: Callable[..., Any]) -> ow.Op:
    """An operator with this backward, and those that it calls."""
    define(namespace, "cosine", cos)
    define(namespace, "both", sin_and_cos)
    define(namespace, "total", sum_of)
    noise = ow.op(f"{namespace}::noisy", random=True)(random)
    noise.python(random, name="kernel")
    globals()["noisy"] = noise

    @ow.op(f"{namespace}::sine")
    def op(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return torch.sin(x)

    op.python(torch.sin, name="kernel")

    def save(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    op.register_autograd(backward, setup_context=save)
    return op


def leaf(device: str = "cpu", seed: int = 0) -> Tensor:
    torch.manual_seed(seed)
    return torch.randn(2, 3, device=device, requires_grad=True)


def gradient(function: Callable[..., Tensor], x: Tensor) -> Tensor:
    return torch.autograd.grad(function(x), x, torch.arange(6.0, device=x.device).reshape(2, 3))[0]


def warm(op: ow.Op, x: Tensor) -> None:
    """A guard is made, and then a gradient behind it is seen."""
    for _ in range(3):
        gradient(op, x)


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("backward", RECORDABLE)
def test_the_same_bits_as_in_python(
    backward: Callable[..., Any],
    device: str,
    recorders: list[GradientRecorder],
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    op = sine(namespace, backward)
    warm(op, leaf(device))
    assert recordings(recorders) == 1
    nothing_in_python(monkeypatch)
    for seed in (1, 2):
        assert torch.equal(gradient(op, leaf(device, seed)), gradient(torch.sin, leaf(device, seed)))


@pytest.mark.parametrize("backward", UNRECORDABLE)
def test_what_depends_on_more_or_does_more_is_computed_in_python(
    backward: Callable[..., Any], recorders: list[GradientRecorder], namespace: str
) -> None:
    op = sine(namespace, backward)
    warm(op, leaf())
    assert recorders
    assert recordings(recorders) == 0
    COUNTS.clear()
    assert torch.equal(gradient(op, leaf(seed=1)), gradient(torch.sin, leaf(seed=1)))
    assert len(COUNTS) == (backward is by_counting)


@pytest.mark.parametrize(("most", "count"), [(23, 0), (24, 1)])
def test_large_results_are_not_held_twice(
    most: int, count: int, recorders: list[GradientRecorder], namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_gradient, "_MOST_BYTES", most)
    warm(sine(namespace, by_torch), leaf())  # 24 bytes
    assert recordings(recorders) == count


def rows(x: Float[Tensor, "m n"], chosen: Int64[Tensor, " k"]) -> Float[Tensor, "k n"]:
    return x[chosen]


def sparse(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    (chosen,) = ctx.saved_tensors
    return torch.sparse_coo_tensor(chosen[None], grad, (4, 3)), None


def keep_chosen(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[1])


def test_a_sparse_gradient_stays_in_python(recorders: list[GradientRecorder], namespace: str) -> None:
    op = define(namespace, "scaled", rows)
    op.register_autograd(sparse, setup_context=keep_chosen)
    x, chosen = torch.randn(4, 3, requires_grad=True), torch.tensor([0, 2])
    for _ in range(4):
        (found,) = torch.autograd.grad(op(x, chosen).sum(), x)
        assert found.is_sparse
        assert torch.equal(found.to_dense()[:, 0], torch.tensor([1.0, 0, 1, 0]))
    assert recorders
    assert recordings(recorders) == 0


def product(x: Float[Tensor, "*n"], y: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    return x * y


RETURNED = [
    "grad, y.detach()",
    "y.detach(), y.detach()",
    "grad.detach(), grad",
    "w, w.detach()",
    "y.detach().t().t(), w",
]
IN_PYTHON = ["x, y", "y.detach().t().t(), x"]  # a recording does not return what requires a gradient


def who_is_who(gradients: Sequence[Tensor], known: Sequence[Tensor]) -> list[Any]:
    """For each gradient, whether it is tracked, and of which tensors it is the object, shares the memory, or counts
    the writes."""

    def written(tensor: Tensor) -> list[int]:
        before = [other._version for other in others]
        with torch.no_grad():
            tensor.mul_(1)
        return [other._version - version for other, version in zip(others, before, strict=True)]

    others = [*known, *gradients]
    return [
        [
            g.requires_grad,
            [g is other for other in others],
            [g.untyped_storage().data_ptr() == other.untyped_storage().data_ptr() for other in others],
            written(g),
        ]
        for g in gradients
    ]


@pytest.mark.parametrize("returned", [*RETURNED, *IN_PYTHON])
def test_what_was_saved_or_given_is_returned_as_in_python(
    returned: str, recorders: list[GradientRecorder], namespace: str
) -> None:
    names: dict[str, Any] = {}
    exec(f"def backward(ctx, grad):\n    x, y = ctx.saved_tensors\n    w = grad * 2\n    return {returned}", names)
    op = ow.op(f"{namespace}::product")(product)
    op.python(product, name="kernel")
    op.register_autograd(names["backward"], setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))
    x, y, grad = leaf(), leaf(seed=1), torch.arange(6.0).reshape(2, 3)

    def gradients() -> tuple[Tensor, ...]:
        return torch.autograd.grad(op(x, y), [x, y], grad)

    found = [who_is_who(gradients(), [x, y, grad]) for _ in range(20)]
    assert recordings(recorders) == (returned in RETURNED)
    with ow.fast_calls(False):
        expected = who_is_who(gradients(), [x, y, grad])
    assert found == [expected] * 20


class Mode(enum.StrEnum):
    FAST = "fast"


def of_a_mode(x: Float[Tensor, "*n"], mode: Mode) -> Float[Tensor, "*n"]:
    return x * 2


def test_an_attribute_of_an_enumerations_member_may_change(
    recorders: list[GradientRecorder], namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mode, ctx.factor = inputs[1], 1.0

    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * ctx.mode.factor * ctx.factor, None

    op = ow.op(f"{namespace}::of_a_mode")(of_a_mode)
    op.python(of_a_mode, name="kernel")
    op.register_autograd(backward, setup_context=save)
    x = leaf()
    for factor in (2.0, 3.0):
        monkeypatch.setattr(Mode.FAST, "factor", factor, raising=False)
        for _ in range(15):
            (found,) = torch.autograd.grad(op(x, Mode.FAST), x, torch.ones(2, 3))
            assert torch.equal(found, torch.full((2, 3), factor))
    assert recordings(recorders) == 0


def by_asserting(ctx: Any, grad: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    with torch.no_grad():
        torch._assert_async((grad >= 0).all())
    return grad * torch.cos(x)


def test_a_block_makes_a_backward_run_in_python(recorders: list[GradientRecorder], namespace: str) -> None:
    op, x = sine(namespace, by_asserting), leaf()
    warm(op, x)
    assert recordings(recorders) == 0
    assert torch.equal(gradient(op, x), gradient(torch.sin, x))
    with pytest.raises(RuntimeError, match="single nonzero value"):
        torch.autograd.grad(op(x), x, -torch.ones(2, 3))


def test_hooks_of_saved_tensors_see_no_recording_and_always_the_same(
    recorders: list[GradientRecorder], namespace: str
) -> None:
    op, x = define(namespace, "cosine", cos), leaf()
    seen: list[list[type]] = []

    def pack(saved: Tensor) -> Tensor:
        seen[-1].append(type(saved))
        return saved

    def watched() -> None:
        seen.append([])
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
            gradient(op, x)

    for _ in range(4):
        watched()
    assert recordings(recorders) == 0
    warm(op, x)
    assert recordings(recorders) == 1
    watched()
    assert seen[1:] == seen[:-1]
    assert {kind for kinds in seen for kind in kinds} <= {Tensor}


def test_a_module_that_is_rebound(recorders: list[GradientRecorder], namespace: str) -> None:
    names: dict[str, Any] = {"torch": torch}  # without a name of its own
    exec("def backward(ctx, grad): return derivative(ctx.saved_tensors[0]) * grad", names)
    exec("def derivative(x): return torch.cos(x)", names)
    op, x = sine(namespace, names["backward"]), leaf()
    warm(op, x)
    assert recordings(recorders) == 1
    assert torch.equal(gradient(op, x), gradient(torch.sin, x))
    names["torch"] = types.SimpleNamespace(cos=torch.zeros_like)
    assert not gradient(op, x).any()


def test_a_list_that_the_caller_changes_before_the_backward(namespace: str) -> None:
    op, found = define(namespace, "scaled", doubled_or_tripled), []
    for _ in range(4):
        x, flags = leaf(), [True]
        result = op(x, flags)
        flags[0] = False
        found.append(torch.autograd.grad(result.sum(), x)[0])
    assert all(torch.equal(each, torch.full((2, 3), 3.0)) for each in found)


def doubled_or_tripled(x: Float[Tensor, "*n"], flags: list[bool]) -> Float[Tensor, "*n"]:
    return x * (3.0 if flags[0] else 2.0)


def test_an_operator_runs_the_kernel_that_it_has_then(recorders: list[GradientRecorder], namespace: str) -> None:
    op = sine(namespace, by_an_operator)
    warm(op, leaf())
    assert recordings(recorders) == 1
    cosine.python(lambda x: torch.cos(x) + 1, name="kernel")  # replaces it
    x = leaf(seed=1)
    expected = torch.arange(6.0).reshape(2, 3) * (torch.cos(x.detach()) + 1)
    assert torch.equal(gradient(op, x), expected)


def test_a_name_that_is_rebound(
    recorders: list[GradientRecorder], namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    op = sine(namespace, by_torch)
    warm(op, leaf())
    assert recordings(recorders) == 1
    monkeypatch.setitem(globals(), "FACTOR", 2.0)
    assert torch.equal(gradient(op, leaf()), 2 * gradient(torch.sin, leaf()))


def test_an_operator_that_is_rebound(recorders: list[GradientRecorder], namespace: str) -> None:
    op = sine(namespace, by_an_operator)
    warm(op, leaf())
    define(namespace, "scaled", lambda_of_two)
    globals()["cosine"] = scaled
    assert torch.equal(gradient(op, leaf()), torch.arange(6.0).reshape(2, 3) * 2 * leaf().detach())


def lambda_of_two(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    return 2 * x


def test_an_error_of_an_operator_arrives_in_its_words(recorders: list[GradientRecorder], namespace: str) -> None:
    op = sine(namespace, by_an_operator)
    warm(op, leaf())

    def failing(x: Tensor) -> Tensor:
        raise ValueError("no cosine today")

    cosine.python(failing, name="kernel")
    with pytest.raises(ValueError, match="no cosine today"):
        gradient(op, leaf())


def test_second_derivatives_run_in_python(recorders: list[GradientRecorder], namespace: str) -> None:
    op, x = sine(namespace, by_an_operator), leaf()
    warm(op, x)
    (first,) = torch.autograd.grad(op(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, -torch.sin(x.detach()))


Scale = Annotated[Float[Tensor, "m 1"], ow.saved_for_backward]


def norm(x: Float[Tensor, "m n"], w: Float[Tensor, " n"]) -> tuple[Float[Tensor, "m n"], Scale]:
    scale = torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)
    return x * scale * w, scale


def norm_backward(
    grad: Float[Tensor, "m n"], x: Float[Tensor, "m n"], w: Float[Tensor, " n"], result1: Float[Tensor, "m 1"]
) -> tuple[Float[Tensor, "m n"], Float[Tensor, " n"]]:
    product = grad * w
    along = (product * x).mean(-1, keepdim=True) * result1**3
    return product * result1 - x * along, (grad * x * result1).sum(0)


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_a_backward_operator_and_what_is_saved_for_it(
    device: str, recorders: list[GradientRecorder], namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    op = ow.op(f"{namespace}::norm")(norm)
    op.python(norm, name="kernel")
    op.register_autograd(define(namespace, "norm_gradient", norm_backward))
    x, w = leaf(device), torch.ones(3, device=device, requires_grad=True)

    def gradients(x: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad((op(x, w) * 2).sum(), (x, w))

    for _ in range(3):
        gradients(x)
    assert recordings(recorders) == 1
    expected = torch.autograd.grad((norm(x, w)[0] * 2).sum(), (x, w))
    nothing_in_python(monkeypatch)
    torch.testing.assert_close(gradients(x), expected)


def test_a_recorded_gradient_of_a_part(recorders: list[GradientRecorder], namespace: str) -> None:
    """Of two arguments one needs no gradient; a later call's other one does."""
    op = ow.op(f"{namespace}::scaled")(lambda_of_product)
    op.python(lambda_of_product, name="kernel")
    op.register_autograd(product_backward, setup_context=save_both)
    x, y = leaf(), leaf(seed=1)
    for _ in range(3):
        torch.autograd.grad(op(x, y.detach()).sum(), x)
    assert recordings(recorders) == 1
    for _ in range(3):
        found = torch.autograd.grad(op(x, y).sum(), (x, y))
        assert all(torch.equal(a, b) for a, b in zip(found, (y, x), strict=True))


def lambda_of_product(x: Float[Tensor, "*n"], y: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    return x * y


def save_both(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs)


def product_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    x, y = ctx.saved_tensors
    need_x, need_y = ctx.needs_input_grad
    return grad * y if need_x else None, grad * x if need_y else None
