"""``ow.cuda_graphed`` of functions that read more than their arguments."""

from __future__ import annotations

import functools
import gc

import pytest
import torch
from torch import nn

import opwright as ow
from tests.runtime.cuda_graphs.stand_in import assert_equal, full, gradients, inputs, net

table = None  # a global variable that tests set


def assert_follows(replayed, function, x, captured):
    with torch.no_grad():
        for _ in range(2):
            assert_equal(replayed(x), function(x))
    assert replayed.captured == captured


# -- tensors that the function reads besides its arguments -------------------------------------------------------


def test_another_tensor_in_a_closure_is_read(on):
    scale = full(on, 2.0)

    def function(x):
        return x * scale

    replayed = ow.cuda_graphed(function)
    x = inputs(on)
    assert_follows(replayed, function, x, 1)
    address = scale.data_ptr()
    scale = full(on, 3.0)
    assert scale.data_ptr() != address, "the graph keeps the old tensor"
    assert_follows(replayed, function, x, 2)
    scale.fill_(4.0)
    assert_follows(replayed, function, x, 2)


def test_another_tensor_in_a_global_variable_is_read(on, monkeypatch):
    def function(x):
        return x + table

    monkeypatch.setitem(globals(), "table", full(on, 1.0))
    replayed = ow.cuda_graphed(function)
    x = inputs(on)
    assert_follows(replayed, function, x, 1)
    monkeypatch.setitem(globals(), "table", full(on, 2.0))
    assert_follows(replayed, function, x, 2)


class Masked(nn.Module):
    """Has a tensor that is no buffer, and a number."""

    def __init__(self, on):
        super().__init__()
        self.linear = nn.Linear(3, 3).to(on, torch.float64)
        self.mask, self.scale, self.calls = full(on, 1.0), 2.0, 0

    def forward(self, x):
        return self.linear(x) * self.mask * self.scale


@pytest.mark.parametrize("of", ["module", "bound method", "partial"])
def test_another_attribute_of_a_module_is_read(of, on):
    module = Masked(on).requires_grad_(of == "module")
    function = {"module": module, "bound method": module.forward, "partial": functools.partial(module)}[of]
    replayed = ow.cuda_graphed(function)
    x = inputs(on)
    assert_follows(replayed, function, x, 1)
    module.mask = full(on, 3.0)
    assert_follows(replayed, function, x, 2)
    module.scale = 4.0
    assert_follows(replayed, function, x, 3)
    module.linear = nn.Linear(3, 3).to(on, torch.float64).requires_grad_(of == "module")
    assert_follows(replayed, function, x, 4)
    module.linear.register_forward_hook(lambda module, args, output: output + 1)
    assert_follows(replayed, function, x, 5)
    for _ in range(2):
        assert_equal(*[torch.autograd.grad(f(x).sum(), x) for f in (replayed, function)])


def test_another_forward_of_a_module_is_called(on):
    module = net(on)
    replayed = ow.cuda_graphed(module)
    x = inputs(on)
    assert_follows(replayed, module, x, 1)
    module[1].forward = lambda x: x.cos()
    assert_follows(replayed, module, x, 2)
    module.forward = lambda x: x + 1
    assert_follows(replayed, module, x, 3)
    del module.forward
    assert_follows(replayed, module, x, 3)


def test_a_module_that_is_inserted_into_a_list_or_removed_from_it_is_seen(on):
    class Layers(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(2)).to(on, torch.float64)

        def forward(self, x):
            for layer in self.layers:
                x = layer(x).sin()
            return x

    module = Layers()
    replayed = ow.cuda_graphed(module)
    x = inputs(on)
    assert_follows(replayed, module, x, 1)
    module.layers.insert(0, nn.Linear(3, 3).to(on, torch.float64))  # of which torch's hooks do not tell
    assert_follows(replayed, module, x, 2)
    assert_equal(*[gradients(f, x, module.parameters()) for f in (replayed, module)])
    del module.layers[1]
    with torch.no_grad():
        assert_equal(replayed(x), module(x))


def test_what_the_code_does_not_read_and_what_an_optimiser_writes_is_no_reason_to_capture_again(on):
    module = Masked(on)
    replayed = ow.cuda_graphed(module)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    for turn in range(4):
        module.calls = turn
        x = inputs(on)
        assert_equal(replayed(x), module(x))
        replayed(x).sum().backward()
        optimiser.step()
        optimiser.zero_grad()
    assert replayed.captured == 1


def test_a_value_that_keeps_changing_is_right_bounded_and_reported_once(on):
    module = Masked(on)
    replayed = ow.cuda_graphed(module)
    x = inputs(on)

    def calls():
        for turn in range(12):
            module.scale = 0.5 + turn
            with torch.no_grad():
                assert_equal(replayed(x), module(x))

    with pytest.warns(UserWarning, match=r"is captured again whenever Masked\.scale changes") as caught:
        calls()
    assert len(caught) == 1
    assert replayed.captured == 8


def test_a_graph_keeps_what_its_backward_reads(on):
    scale = full(on, 2.0, 4, 3)

    def function(x):
        return x * scale

    replayed = ow.cuda_graphed(function)
    x = inputs(on)
    y = replayed(x)
    replayed.reset()
    scale = None
    gc.collect()
    others = [full(on, 7.0, 4, 3) for _ in range(8)]
    assert_equal(torch.autograd.grad(y.sum(), x)[0], full(on, 2.0, 4, 3))
    assert all((other == 7).all() for other in others)


def test_a_tensor_that_the_function_writes_is_written_once_a_call(on):
    total = full(on, 0.0)

    def function(x):
        total.add_(x.sum(0))
        return total * 2

    replayed = ow.cuda_graphed(function)
    x = full(on, 1.0, 4, 3)
    for turn in range(1, 4):
        assert_equal(replayed(x), full(on, 8.0 * turn))
        assert_equal(total, full(on, 4.0 * turn))
    assert replayed.captured <= 2


@pytest.mark.gpu
def test_modules_of_torch_are_replayed_and_followed(way):
    lstm, attention = nn.LSTM(8, 8, 2).cuda(), nn.MultiheadAttention(8, 2).cuda()
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).cuda()
    x = torch.randn(4, 6, 8, device="cuda")
    for module, given in ((lstm, [x]), (attention, [x] * 3), (layer, [x])):
        replayed = ow.cuda_graphed(module)
        with torch.no_grad():
            for _ in range(2):
                torch.testing.assert_close(replayed(*given), module(*given), rtol=1e-3, atol=1e-4)
            for parameter in module.parameters():
                parameter.mul_(0.5)
            torch.testing.assert_close(replayed(*given), module(*given), rtol=1e-3, atol=1e-4)
        assert replayed.captured <= 3  # a plain call in between changes an LSTM's own lists, which are captured anew
    layer.norm_first = True
    with torch.no_grad():
        torch.testing.assert_close(replayed(x), layer(x), rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
def test_a_number_on_the_cpu_is_captured_again_when_it_is_written(way):
    scale = torch.tensor(2.0, dtype=torch.float64)

    def function(x):
        return x * scale

    replayed = ow.cuda_graphed(function)
    x = inputs("cuda")
    assert_follows(replayed, function, x, 1)
    scale.fill_(3.0)
    assert_follows(replayed, function, x, 2)


@pytest.mark.gpu
def test_a_replaced_tensor_whose_memory_others_take_is_not_read(way):
    scale = torch.full((2**20,), 2.0, device="cuda")

    def function(x):
        return x * scale

    replayed = ow.cuda_graphed(function)
    x = torch.ones(2**20, device="cuda")
    assert torch.equal(replayed(x), x * 2)
    scale = torch.full((2**20,), 3.0, device="cuda")
    others = [torch.full((2**20,), 7.0, device="cuda") for _ in range(64)]
    assert torch.equal(replayed(x), x * 3)
    assert all((other == 7).all() for other in others)


def test_a_compiled_function_inside_is_captured_as_compiled(on):
    calls = []

    def backend(graph, example):
        calls.append(1)
        return graph.forward

    scale = full(on, 2.0)
    inner = torch.compile(lambda x: x.sin() * scale, backend=backend)

    def function(x):
        return inner(x) + 1

    replayed = ow.cuda_graphed(function)
    x = inputs(on, requires_grad=False)
    assert_follows(replayed, function, x, 1)
    assert calls == [1]
    scale = full(on, 3.0)
    assert_follows(replayed, function, x, 2)


# -- what is refused ---------------------------------------------------------------------------------------------


def test_it_refuses_a_tensor_whose_place_it_does_not_find(on):
    @functools.lru_cache
    def mask():
        return full(on, 2.0)

    def function(x):
        return x * mask()

    with pytest.raises(
        ow.errors.ArgumentError, match=r"(?s)function reads a tensor of shape \(3,\).*register it as a buffer"
    ):
        ow.cuda_graphed(function)(inputs(on))


def test_it_refuses_a_function_that_changes_what_it_reads(on):
    class Remembers(nn.Module):
        def __init__(self, state):
            super().__init__()
            self.state = state

        def forward(self, x):
            self.state = self.state * 0.5 + 1
            return x * self.state

    with pytest.raises(ow.errors.ArgumentError, match=r"changes Remembers\.state when it runs"):
        ow.cuda_graphed(Remembers(1.0))(inputs(on))
    with pytest.raises(ow.errors.ArgumentError, match=r"(?s)reads a tensor of shape \(3,\) .* write into it in place"):
        ow.cuda_graphed(Remembers(full(on, 1.0)))(inputs(on))


def test_an_attribute_that_a_function_only_sets_is_no_reason_to_refuse(on):
    class Stashes(nn.Module):
        def forward(self, x):
            self.last = x.sin()
            return x.cos()

    module = Stashes()
    assert_follows(ow.cuda_graphed(module), module, inputs(on), 1)
