"""What may change without another capture, which tensors have no place, and what an observed run restores."""

from __future__ import annotations

import functools
import threading

import pytest
import torch
from torch import nn

import opwright as ow
from opwright.runtime.cuda_graphs.reads import observing
from tests.runtime.cuda_graphs.places_of import Scale, X, assert_noticed, places_of

# -- what is left alone ----------------------------------------------------------------------------------------------


def test_what_the_code_does_not_read_may_change():
    module = Scale()
    places = places_of(module)
    for turn in range(3):
        module.counter = turn
        module.note = turn  # a new attribute
        Scale.unread = turn
        assert places.hold()
    module.counter = torch.ones(3)
    del module.note
    assert places.hold()


def test_an_attribute_that_a_function_only_sets_may_change():
    class Stashes(nn.Module):
        def forward(self, x):
            self.last = x.sin()
            return self.last_of(self)

        @staticmethod
        def last_of(module):
            return X + 1

    module = Stashes()
    places = places_of(module)
    module(X)
    assert places.hold()


def test_steps_of_an_optimiser_change_nothing():
    module = Scale()
    optimiser = torch.optim.Adam(module.parameters())
    places = places_of(module, known=list(module.parameters()))
    for _ in range(2):
        module(X).sum().backward()
        optimiser.step()
        optimiser.zero_grad()
        module.mask.mul_(2)
        assert places.hold()


def test_tensors_that_a_run_makes_have_no_place():
    def function(x):
        parts = [torch.zeros(3), torch.tensor([1.0, 2.0, 3.0]), x.new_ones(3), torch.arange(3)]
        return functools.reduce(torch.add, parts, x).view(-1)

    places = places_of(function)
    assert places.tensors == []


def test_a_view_of_a_tensor_in_a_closure_is_found():
    both = torch.ones(2, 3)

    def function(x):
        return x + both[1] + both.t()[:, 0]

    assert places_of(function).hold()


# -- refused ---------------------------------------------------------------------------------------------------------


def test_a_tensor_without_a_place_is_refused():
    @functools.lru_cache
    def mask(size):
        return torch.ones(size)

    def function(x):
        return x * mask(3)

    with pytest.raises(
        ow.errors.ArgumentError, match=r"^f reads a tensor of shape \(3,\) on cpu that is not an argument"
    ):
        places_of(function)


def test_a_tensor_of_a_thread_is_refused():
    of_thread = threading.local()
    of_thread.scale = torch.ones(3)

    with pytest.raises(ow.errors.ArgumentError, match="is not an argument"):
        places_of(lambda x: x * of_thread.scale)


def test_a_computed_name_of_a_tensor_is_found():
    module = Scale()

    def function(x):
        return x * getattr(module, "ma" + "sk")

    assert_noticed(places_of(function), lambda: setattr(module, "mask", torch.zeros(3)))


# -- writes ----------------------------------------------------------------------------------------------------------


def test_a_tensor_that_an_observed_run_writes_is_restored():
    count, norm = torch.zeros(3), nn.BatchNorm1d(3)

    def function(x):
        count.add_(1)
        count[1:].add_(1)
        torch.add(count[0], 1, out=count[0])
        return norm(x) + count

    with observing([X]) as reads, torch.no_grad():
        function(X.clone())
    assert count.tolist() == [0.0] * 3
    assert norm.running_mean.tolist() == [0.0] * 3
    assert norm.num_batches_tracked == 0
    assert {id(t) for t in reads.written}.issuperset(map(id, [count, *norm.buffers()]))


def launches_with(reads_of_run):
    """A function like Triton's ``JITFunction.run``: what it runs is no operation of torch."""
    variables = {"__name__": "triton.runtime.jit", "do": reads_of_run}
    exec("def run(*args, **kwargs):\n    do(*args, **kwargs)", variables)
    return variables["run"]


def test_arguments_of_a_triton_kernel_are_found_or_refused_and_restored():
    scale = torch.ones(3)
    run = launches_with(lambda x, y: y.numpy().fill(3.0))

    def function(x):
        run(x, scale)
        return x + 1

    with observing([X]) as reads:
        function(X)
    assert [tensor is scale for tensor in reads.written] == [True]
    assert scale.tolist() == [1.0] * 3

    def assign():
        nonlocal scale
        scale = torch.zeros(3)

    assert_noticed(places_of(function), assign)

    @functools.lru_cache
    def hidden():
        return torch.ones(3)

    with pytest.raises(ow.errors.ArgumentError, match="is not an argument"):
        places_of(lambda x: run(x, hidden()))


@pytest.mark.triton
def test_a_triton_kernel_is_launched_by_a_function_of_this_name():
    import inspect

    from triton.runtime.jit import JITFunction

    parameters = inspect.signature(JITFunction.run).parameters
    assert [p.name for p in parameters.values() if p.kind is p.VAR_POSITIONAL] == ["args"]
    assert [p.name for p in parameters.values() if p.kind is p.VAR_KEYWORD] == ["kwargs"]
