"""Calls through torch.ops go to torch's dispatcher; in code that Inductor generates they may be fast."""

from __future__ import annotations

import copy
from typing import Annotated

import pytest
import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import opwright as ow


@pytest.fixture(params=["torch.ops.namespace.name", "torch.ops.namespace.name.default"])
def scaling(request):
    """A function that makes an operator with a kernel, and returns it and torch's object for it."""

    def make(name, kernel):
        @ow.op(f"torch_ops::{name}")
        def scale(x: Float[Tensor, " n"], a: float, flag: bool = True) -> Float[Tensor, " n"]:
            return a * x

        scale.python(kernel, name="kernel")
        packet = getattr(torch.ops.torch_ops, name)
        return scale, packet.default if request.param.endswith("default") else packet

    return make


class Seen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_the_objects_are_torchs_own(scaling):
    op, called = scaling("own", lambda x, a, flag: x * a)
    for _ in range(3):
        called(torch.ones(3), 2.0, True)
        op(torch.ones(3), 2.0)
    assert type(called) in (torch._ops.OpOverloadPacket, torch._ops.OpOverload)


@pytest.mark.parametrize("before", [True, False], ids=["before any call", "after fast calls"])
@pytest.mark.parametrize("key", ["CPU", "AutogradCPU", "CompositeExplicitAutograd", "Autograd"])
def test_somebody_elses_kernel_counts_at_once_and_until_it_is_removed(scaling, before, key):
    name = f"overridden_{key}_{before}"
    op, called = scaling(name, lambda x, a, flag: x * a)
    x = torch.ones(3)
    for _ in range(0 if before else 5):
        assert op(x, 2.0)[0] == 2
    library = torch.library.Library("torch_ops", "FRAGMENT")
    library.impl(name, lambda x, a, flag=True: x * 100, key)
    for _ in range(3):
        assert (called(x, 2.0)[0], op(x, 2.0)[0]) == (100, 100)
    library._destroy()
    for _ in range(3):
        assert (called(x, 2.0)[0], op(x, 2.0)[0]) == (2, 2)


def test_other_sizes_numbers_keywords_and_defaults_are_right_too(scaling):
    _, called = scaling("other", lambda x, a, flag: x * a)
    for _ in range(2):
        for n, a in ((5, 2.0), (6, 2.0), (5, 3.0)):
            assert torch.equal(called(torch.ones(n), a), torch.full((n,), a))
            assert torch.equal(called(torch.ones(n), a, True), torch.full((n,), a))
            assert torch.equal(called(x=torch.ones(n), a=a), torch.full((n,), a))
    with pytest.raises((TypeError, RuntimeError, ow.errors.ArgumentError)):
        called(torch.ones(5))
    with pytest.raises((RuntimeError, ow.errors.ArgumentError)):
        called(torch.ones(5, 5), 2.0, True)


def test_a_kernel_gets_the_dispatcher_s_types(scaling):
    seen = []
    _, called = scaling("converted", lambda x, a, flag: seen.append(type(a)) or x * a)
    for _ in range(3):
        assert called(torch.ones(2), 2, True).tolist() == [2.0] * 2
    assert set(seen) == {float}


def test_modes_see_the_operator_after_a_guard_was_made(scaling):
    _, called = scaling("modes", lambda x, a, flag: x * a)
    x = torch.ones(4)
    called(x, 2.0, True)
    with Seen() as seen:
        called(x, 2.0, True)
    assert seen.names[0] == "torch_ops.modes.default"
    assert called(x.to("meta"), 2.0, True).device.type == "meta"


def test_gradients_and_transforms(scaling):
    _, called = scaling("tracked", lambda x, a, flag: x * a)
    for _ in range(3):
        x = torch.ones(4, requires_grad=True)
        called(x, 3.0, True).sum().backward()
        assert x.grad.tolist() == [3.0] * 4
        with torch.no_grad():
            assert not called(x, 3.0, True).requires_grad
    assert torch.func.vmap(lambda x: called(x, 3.0, True))(torch.ones(2, 4)).shape == (2, 4)
    assert torch.func.grad(lambda x: called(x, 3.0, True).sum())(torch.ones(4)).tolist() == [3.0] * 4


def test_a_redefined_operator_is_the_new_one(scaling):
    _, old = scaling("again", lambda x, a, flag: x * a)
    x = torch.ones(3)
    old(x, 2.0, True)
    _, new = scaling("again", lambda x, a, flag: x * a + 1)
    assert new(x, 2.0, True).tolist() == [3.0] * 3
    assert torch.ops.torch_ops.again(x, 2.0, True).tolist() == [3.0] * 3


def test_compile_export_and_copies_know_it(scaling):
    _, called = scaling("compiled", lambda x, a, flag: x * a)
    assert copy.deepcopy(called) is called
    assert str(called) in ("torch_ops.compiled", "torch_ops.compiled.default")
    assert isinstance(called, torch._ops.OpOverloadPacket | torch._ops.OpOverload)

    def twice(x):
        return called(called(x, 2.0, True), 2.0, True)

    x = torch.ones(3)
    assert torch.compile(twice, fullgraph=True, backend="aot_eager")(x).tolist() == [4.0] * 3

    class Module(torch.nn.Module):
        def forward(self, x):
            return twice(x)

    program = torch.export.export(Module(), (x,))
    assert program.module()(x).tolist() == [4.0] * 3
    assert torch.fx.symbolic_trace(Module())(x).tolist() == [4.0] * 3


def test_saved_outputs_are_returned():
    @ow.op("torch_ops::saves")
    def saves(
        x: Float[Tensor, " n"],
    ) -> tuple[Float[Tensor, " n"], Annotated[Float[Tensor, " n"], ow.saved_for_backward]]:
        return x.exp(), x

    for _ in range(3):
        assert len(torch.ops.torch_ops.saves(torch.ones(2))) == 2
        assert isinstance(saves(torch.ones(2)), Tensor)


@pytest.mark.filterwarnings("ignore")
def test_tracers_of_torchscript_record_the_operator(scaling):
    _, called = scaling("traced", lambda x, a, flag: x * a)
    x = torch.ones(3)
    called(x, 2.0, True)
    traced = torch.jit.trace(lambda x: called(x, 2.0, True) + 1, (x,))
    assert "torch_ops::traced" in str(traced.graph)
    assert traced(torch.zeros(3)).tolist() == [1.0] * 3


@pytest.mark.compiler
@pytest.mark.slow  # compiles with Inductor
def test_code_of_inductor_does_not_pass_the_dispatcher():
    calls = []

    def kernel(x, a, flag):
        calls.append(torch.is_grad_enabled())
        return x * a

    @ow.op("torch_ops::in_inductor")
    def scale(x: Float[Tensor, " n"], a: float) -> Float[Tensor, " n"]:
        return a * x

    scale.python(lambda x, a: kernel(x, a, True), name="kernel")
    weight = torch.ones(4, requires_grad=True)

    @torch.compile(fullgraph=True)
    def step(x):
        return scale(scale(x, 2.0) * weight, 3.0) + 1

    def trained(x):
        weight.grad = None
        y = step(x)
        y.sum().backward()
        return y.tolist(), weight.grad.tolist()

    expected = ([7.0] * 4, [6.0] * 4)
    for _ in range(3):
        assert trained(torch.ones(4)) == expected
    calls.clear()
    scale.overload._op = None  # what the dispatcher would be called by
    assert trained(torch.ones(4)) == expected
    assert calls == [False, False]
