"""A call like an earlier one runs behind a guard; other calls do not."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import opwright as ow
from opwright.errors import ArgumentError, KernelRefusedError


class Own(float):
    """A float of the user."""


@pytest.fixture
def scale(namespace: str) -> ow.Op:
    @ow.op(f"{namespace}::scale")
    def scale(x: Float[Tensor, " n"], a: float = 2.0) -> Float[Tensor, " n"]:
        return x * a

    # A kernel with another result, so that a call that took another path is noticed.
    scale.python(lambda x, a: x * a + 100, name="marked")
    return scale


def was_direct(op: object, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> bool:
    """Whether a guard accepted a call, without the checks in Python and the dispatcher."""
    with monkeypatch.context() as patch:
        slow = []
        patch.setattr(op, "_call", lambda *a: slow.append(a))
        op(*arguments)  # type: ignore[operator]
    return not slow


def test_the_second_call_like_one_goes_straight_to_the_kernel(scale, monkeypatch):
    x = torch.ones(3)
    assert not was_direct(scale, monkeypatch, x)
    scale(x)
    assert was_direct(scale, monkeypatch, x)
    assert was_direct(scale, monkeypatch, torch.zeros(3))
    assert was_direct(scale, monkeypatch, x, 2.0)
    assert scale(x)[0] == 102


def test_a_call_that_autograd_records_goes_straight_to_the_kernel_too(scale, monkeypatch):
    x = torch.ones(3, requires_grad=True)
    for _ in range(2):
        out = scale(x, 3.0)
        assert out[0] == 103
        assert torch.autograd.grad(out.sum(), x)[0].tolist() == [3, 3, 3]
    assert was_direct(scale, monkeypatch, x, 3.0)
    assert not was_direct(scale, monkeypatch, x.detach(), 3.0)
    with torch.no_grad():
        assert not was_direct(scale, monkeypatch, x, 3.0)
        assert not scale(x, 3.0).requires_grad
        assert was_direct(scale, monkeypatch, x, 3.0)
    assert was_direct(scale, monkeypatch, x, 3.0)
    assert scale(x, 3.0).requires_grad
    (first,) = torch.autograd.grad(scale(x, 3.0).square().sum(), x, create_graph=True)
    assert torch.autograd.grad(first.sum(), x)[0].tolist() == [18, 18, 18]


@pytest.mark.parametrize(
    "other",
    [
        (torch.ones(3, dtype=torch.float64),),
        (torch.ones(3, requires_grad=True),),
        (torch.nn.Parameter(torch.ones(3)),),
        (torch.ones(3), Own(2.0)),
        (torch.ones(3), np.float64(2.0)),
        (torch.ones(3, dtype=torch.complex64).conj().imag,),
    ],
    ids=["dtype", "grad", "parameter", "subclass of float", "NumPy's float", "lazy"],
)
def test_another_kind_of_call_is_not_taken_for_it(scale, monkeypatch, other):
    scale(torch.ones(3))
    assert not was_direct(scale, monkeypatch, *other)


def test_numbers_and_sizes_without_a_condition_are_no_part_of_a_guard(scale, monkeypatch):
    scale(torch.ones(3))
    for arguments in ((torch.ones(3), 3.0), (torch.ones(3), 3), (torch.ones(6)[::2],), (torch.ones(4), float("nan"))):
        assert was_direct(scale, monkeypatch, *arguments)
    assert scale(torch.ones(3), 3)[0] == 103
    assert not was_direct(scale, monkeypatch, torch.ones(3), 1 << 2000)


def test_guards_are_bounded_and_learning_ends(namespace):
    @ow.op(f"{namespace}::fixed", where="n <= 1000")
    def fixed(x: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
        return x * 2

    for n in range(1, 100):
        assert fixed(torch.ones(n)).sum() == 2 * n
    assert len(fixed._learner._guarded_calls) == 8
    assert fixed._learner._learned == 32
    fixed.python(lambda x: x * 3, name="k")
    assert fixed._learner._learned == 0
    assert fixed(torch.ones(3)).sum() == 9


def test_the_guard_that_took_the_fewest_calls_makes_room(namespace, monkeypatch):
    @ow.op(f"{namespace}::fixed", where="n <= 1000")
    def fixed(x: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
        return x * 2

    for n in range(1, 9):
        for _ in range(3 if n == 1 else 2 + n):
            fixed(torch.ones(n))
    fixed(torch.ones(20))
    assert not was_direct(fixed, monkeypatch, torch.ones(1))
    assert all(was_direct(fixed, monkeypatch, torch.ones(n)) for n in (*range(2, 9), 20))


def test_a_wrong_call_is_refused_after_a_right_one(scale):
    scale(torch.ones(3))
    with pytest.raises(ArgumentError):
        scale(torch.ones(3, 3))
    with pytest.raises(ArgumentError):
        scale(3.0)


class _Modes(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class _Functions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "context",
    [
        _Modes,
        _Functions,
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        forward_ad.dual_level,
        lambda: torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True),
        lambda: torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
    ],
    ids=["dispatch mode", "function mode", "autocast", "forward-mode", "fake tensors", "profiler"],
)
def test_who_listens_is_asked_again_each_time(scale, monkeypatch, context):
    x = torch.ones(3)
    scale(x)
    with context():
        assert not was_direct(scale, monkeypatch, x)
    assert was_direct(scale, monkeypatch, x)


def test_transforms_and_tracers_see_the_operator(scale):
    x = torch.ones(3)
    scale(x)
    assert torch.vmap(lambda row: scale(row))(torch.ones(2, 3)).shape == (2, 3)
    graph = torch.fx.experimental.proxy_tensor.make_fx(lambda x: scale(x))(x)
    assert "scale" in graph.code

    class Calls(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return scale(x)

    program = torch.export.export(Calls(), (x,))
    assert any("scale" in str(node.target) for node in program.graph.nodes)


def test_inference_mode_has_guarded_calls_of_its_own(scale, monkeypatch):
    x = torch.ones(3)
    scale(x)
    with torch.inference_mode():
        scale(x)
        assert was_direct(scale, monkeypatch, x)
    assert was_direct(scale, monkeypatch, x)


def test_a_new_kernel_and_a_restriction_take_effect(scale):
    x = torch.ones(3)
    assert scale(x)[0] == 102
    with scale.only("reference"):
        assert scale(x)[0] == 2
        assert scale(x)[0] == 2
    assert scale(x)[0] == 102
    scale.python(lambda x, a: x * 0, name="marked")
    assert scale(x)[0] == 0


def test_a_kernels_own_predicate_is_asked_each_time(namespace):
    @ow.op(f"{namespace}::twice")
    def twice(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x * 2

    allowed = [True]
    twice.python(lambda x: x * 0, name="picky", when=lambda x: allowed[0])
    x = torch.ones(3)
    assert [twice(x)[0], twice(x)[0]] == [0, 0]
    allowed[0] = False
    assert twice(x)[0] == 2


def test_a_plan_keeps_no_tensor_alive(scale):
    x = torch.ones(3)
    gone = weakref.ref(x)
    scale(x)
    del x
    gc.collect()
    assert gone() is None


def test_an_int_for_a_float_stays_a_float_to_the_kernel(namespace):
    @ow.op(f"{namespace}::kind")
    def kind(x: Float[Tensor, " n"], a: float) -> Float[Tensor, " n"]:
        return x * a

    seen = []
    kind.python(lambda x, a: seen.append(type(a)) or x * a, name="k")
    for _ in range(3):
        kind(torch.ones(3), 2)
        kind(torch.ones(3), 2.0)
    assert set(seen) == {float}


def test_a_plan_made_without_gradients_is_not_used_where_they_are_recorded(scale, monkeypatch):
    x = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        scale(x)
        assert was_direct(scale, monkeypatch, x)
    out = scale(x)
    assert out.requires_grad
    out.sum().backward()
    assert x.grad.tolist() == [2, 2, 2]


def test_a_kernel_that_no_call_needed_is_not_loaded(namespace):
    @ow.op(f"{namespace}::twice")
    def twice(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x * 2

    first_runs = [True]
    twice.python(lambda x: x * 0, name="first", when=lambda x: first_runs[0])
    twice.python(lambda x: x * 1, name="second")
    x = torch.ones(3)
    assert [twice(x)[0], twice(x)[0]] == [0, 0]
    assert not twice.kernels["second"].is_loaded
    first_runs[0] = False
    assert [twice(x)[0], twice(x)[0]] == [1, 1]


def test_a_call_that_failed_leaves_no_plan(namespace):
    @ow.op(f"{namespace}::twice")
    def twice(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x * 2

    def fail(x):
        raise ValueError("no")

    twice.python(fail, name="failing")
    with pytest.raises(ValueError, match="no"):
        twice(torch.ones(3))
    assert twice._learner._guarded_calls == ()


def test_a_tensor_that_is_passed_twice_is_distinguished_from_two(namespace, monkeypatch):
    @ow.op(f"{namespace}::minus")
    def minus(x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x - y

    x, y = torch.ones(3), torch.zeros(3)
    assert minus(x, x).sum() == 0
    assert was_direct(minus, monkeypatch, y, y)
    assert not was_direct(minus, monkeypatch, x, y)
    assert minus(x, y).sum() == 3
    assert was_direct(minus, monkeypatch, y, x)
    assert was_direct(minus, monkeypatch, x, x)
    assert minus(x, x).sum() == 0


# -- calls of one kernel by its name -------------------------------------------------------------------------------


def test_the_second_call_of_a_kernel_goes_straight_to_it(scale, monkeypatch):
    kernel = scale.kernels["marked"]
    assert not was_direct(kernel, monkeypatch, torch.ones(3), 2.0)
    assert kernel(torch.ones(3))[0] == 102
    assert was_direct(kernel, monkeypatch, torch.zeros(3), 2.0)
    assert was_direct(kernel, monkeypatch, torch.ones(4), 4.0)
    assert not was_direct(kernel, monkeypatch, torch.ones(4).double(), 2.0)
    assert kernel(torch.ones(3), a=4.0)[0] == 104
    assert kernel(torch.ones(3), 2)[0] == 102
    with _Modes():
        assert not was_direct(kernel, monkeypatch, torch.ones(3), 2.0)


def test_a_kernel_called_by_name_computes_no_gradient_the_second_time_either(scale):
    x = torch.ones(3, requires_grad=True)
    assert not any(scale.kernels["marked"](x).requires_grad for _ in range(3))
    with torch.no_grad():
        scale.kernels["marked"](x)
    assert not any(scale.kernels["marked"](x).requires_grad for _ in range(3))


def test_a_kernel_called_by_name_is_refused_after_a_call_like_it_ran(namespace):
    @ow.op(f"{namespace}::signed")
    def signed(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x + 1

    signed.python(lambda x: x + 100, name="positive", when=lambda x: bool(x[0] > 0))
    assert signed.kernels["positive"](torch.ones(3))[0] == 101
    with pytest.raises(KernelRefusedError, match="its `when` predicate is False"):
        signed.kernels["positive"](-torch.ones(3))
    assert signed.kernels["positive"](torch.ones(3))[0] == 101


def test_a_list_is_compared_by_value_and_a_kernel_gets_one_of_its_own(namespace, monkeypatch):
    @ow.op(f"{namespace}::flagged")
    def flagged(x: Float[Tensor, " n"], flags: list[bool], sizes: list[int]) -> Float[Tensor, " n"]:
        return x * sum(flags) + sum(sizes)

    def marked(x, flags, sizes):
        flags.append(True)  # the kernel's own list
        return x * (sum(flags) - 1) + sum(sizes) + 100

    flagged.python(marked, name="marked")
    x = torch.ones(3)
    flagged(x, [True, False], [])
    assert was_direct(flagged, monkeypatch, x, [True, False], [])
    for other in ([True, True], [True], [1, False], (True, False)):
        assert not was_direct(flagged, monkeypatch, x, other, [])
    flags = [True, False]
    for _ in range(3):
        assert flagged(x, flags, [])[0] == 101
        assert flagged(x, (True, False), [])[0] == 101
    assert flags == [True, False]
    flags[1] = True  # the guard has a copy
    assert flagged(x, flags, [])[0] == 102
    flagged(x, [True], [3])
    assert was_direct(flagged, monkeypatch, x, [True], [3])
    assert not was_direct(flagged, monkeypatch, x, [True], [4])
