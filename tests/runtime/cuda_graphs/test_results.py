"""What ``ow.cuda_graphed`` returns: arguments, views, and results that the caller holds."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import opwright as ow
from tests.runtime.cuda_graphs.stand_in import assert_equal, full, inputs, net

# -- results that are arguments ----------------------------------------------------------------------------------


def test_an_argument_that_is_returned_is_the_callers_own(on):
    def function(x, y):
        return {"x": x, "sum": x + y, "rest": (y, 3)}

    replayed = ow.cuda_graphed(function)
    for _ in range(2):
        x, y = inputs(on), inputs(on)
        found = replayed(x, y)
        assert found["x"] is x
        assert found["rest"][0] is y
        assert_equal(found["sum"], x + y)
        loss = (found["x"] * found["sum"]).sum() + found["rest"][0].sum()
        assert_equal(torch.autograd.grad(loss, [x, y]), (2 * x + y, x + 1))
    assert replayed.captured <= 2


def test_a_function_of_which_nothing_is_left_but_an_argument(on):
    module = nn.Dropout(0.5).eval()
    replayed = ow.cuda_graphed(module)
    for _ in range(2):
        x = inputs(on)
        assert replayed(x) is x


def test_a_parameter_or_buffer_that_is_returned_is_the_modules_own(on):
    class Returns(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(full(on, 2.0))
            self.register_buffer("total", full(on, 1.0))
            self.table = full(on, 3.0)

        def forward(self, x):
            return x * self.weight, self.weight, self.total, self.table, self.table[1:]

    module = Returns()
    replayed = ow.cuda_graphed(module)
    for _ in range(2):
        x = inputs(on)
        found = replayed(x)
        assert found[1] is module.weight
        assert found[2] is module.total
        assert found[3] is module.table
        assert found[4].data_ptr() == module.table[1:].data_ptr()
        assert_equal(list(found), list(module(x)))
    del found
    replayed(inputs(on))
    assert replayed.captured <= 2


def test_a_view_of_an_argument_is_refused(on):
    for function in (lambda x: x[1:], lambda x: (x + 1, x.t())):
        with pytest.raises(ow.errors.ArgumentError, match=r"(?s)returns a view of an argument.*\.clone\(\)"):
            ow.cuda_graphed(function)(inputs(on))
    x = inputs(on)
    assert_equal(ow.cuda_graphed(lambda x: (x + 1).t())(x), (x + 1).t())


# -- results that are held ---------------------------------------------------------------------------------------


def test_held_results_are_copies_beyond_a_bound(on):
    module = net(on)
    replayed = ow.cuda_graphed(module)
    xs = [inputs(on) for _ in range(40)]
    with torch.no_grad(), pytest.warns(UserWarning, match="the results of 8 calls are still in use") as caught:
        held = [replayed(x) for x in xs]
    assert_equal(held, [module(x).detach() for x in xs])
    assert len(caught) == 1
    assert replayed.captured == 9
    del held
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        first = replayed(xs[0])
        assert_equal(first, module(xs[0]))
    assert replayed.captured == 9


def test_calls_with_pending_backwards_run_without_graphs_beyond_a_bound(on):
    module = net(on)
    replayed = ow.cuda_graphed(module, max_pairs=3)
    x = inputs(on)

    def sequence(function):
        states = [x]
        for _ in range(6):
            states.append(function(states[-1]))
        return torch.autograd.grad(sum(s.sin().sum() for s in states), [x, *module.parameters()])

    with pytest.warns(UserWarning, match="3 calls with gradients are still in use") as caught:
        found = [sequence(replayed) for _ in range(2)]
    assert_equal(found, [sequence(module) for _ in range(2)])
    assert len(caught) == 1
    assert replayed.captured == 3


def test_results_that_are_dropped_are_not_copied(on):
    module = net(on)
    replayed = ow.cuda_graphed(module)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(20):
            x = inputs(on)
            assert_equal(replayed(x), module(x))
    assert replayed.captured == 1


def test_a_bound_of_pairs_must_be_positive():
    with pytest.raises(ow.errors.ArgumentError, match="max_pairs must be at least 1, got 0"):
        ow.cuda_graphed(nn.Linear(3, 3), max_pairs=0)


@pytest.mark.gpu
def test_two_hundred_held_results_hold_little_memory(way):
    module = nn.Sequential(*[nn.Linear(256, 256) for _ in range(8)]).cuda()
    replayed = ow.cuda_graphed(module)
    x = torch.randn(1024, 256, device="cuda")  # a result has 1 MiB
    with torch.no_grad():
        replayed(x)
        expected = module(x)
    torch.cuda.synchronize()
    before = torch.cuda.memory_reserved()
    with torch.no_grad(), pytest.warns(UserWarning, match="Further results are copies"):
        held = [replayed(x) for _ in range(200)]
    used = torch.cuda.memory_reserved() - before
    assert replayed.captured == 9
    assert used < (400 + 9 * 100) * 2**20, "each graph has memory for cuBLAS besides its own"
    assert all(torch.allclose(result, expected, rtol=1e-3, atol=1e-3) for result in held)
