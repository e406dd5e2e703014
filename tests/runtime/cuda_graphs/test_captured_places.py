"""Which variables and attributes a run of a function reads, and whether a change of one is noticed. No graph needed."""

from __future__ import annotations

import functools
import types

import pytest
import torch
from torch import nn

from opwright.runtime.cuda_graphs.places_search import find_places
from opwright.runtime.cuda_graphs.reads import observing
from tests.runtime.cuda_graphs.places_of import Scale, X, assert_noticed, places_of

table = torch.full((3,), 2.0)
factor = 2.0
settings = types.SimpleNamespace(scale=2.0, offsets=[torch.ones(3), torch.zeros(3)])


# -- changes that are noticed ----------------------------------------------------------------------------------------


def test_another_tensor_in_a_closure_is_noticed_and_the_old_one_is_kept():
    scale = torch.full((3,), 2.0)

    def function(x):
        return x * scale

    places = places_of(function)
    address = scale.data_ptr()
    assert [alias.data_ptr() for alias in places.aliases] == [address]

    def assign():
        nonlocal scale
        scale = torch.full((3,), 3.0)

    assert_noticed(places, assign)
    assert places.aliases[0].tolist() == [2.0] * 3


def test_a_number_in_a_closure_is_noticed_unless_it_is_equal():
    scale = 2.0

    def function(x):
        return x * scale

    def assign(value):
        nonlocal scale
        scale = value

    places = places_of(function)
    assign(float("2.0"))
    assert places.hold()
    assert_noticed(places, lambda: assign(2), "the variable scale of the closure of function")


@pytest.mark.parametrize("name", ["table", "factor"])
def test_another_value_of_a_global_variable_is_noticed(name, monkeypatch):
    def function(x):
        return x * table * factor

    places = places_of(function)
    value = torch.ones(3) if name == "table" else 3.0
    assert_noticed(places, lambda: monkeypatch.setitem(globals(), name, value), f"the global variable {name}")


def test_attributes_and_items_behind_a_global_variable_are_noticed(monkeypatch):
    def function(x):
        return x * settings.scale + settings.offsets[0]

    places = places_of(function)
    assert_noticed(places, lambda: monkeypatch.setattr(settings, "scale", 3.0), "the global variable settings.scale")
    places = places_of(function)
    monkeypatch.setattr(settings, "offsets", [torch.ones(3), settings.offsets[1]])
    assert places.change() == "the global variable settings.offsets"
    places = places_of(function)
    settings.offsets[0] = torch.ones(3)
    assert places.change() == "the global variable settings.offsets[0]"


def test_defaults_are_noticed():
    def function(x, scale=torch.ones(3), *, shift=1.0):  # noqa: B008
        return x * scale + shift

    for name, value in [("__defaults__", (torch.ones(3),)), ("__kwdefaults__", {"shift": 2.0})]:
        assert_noticed(places_of(function), lambda name=name, value=value: setattr(function, name, value))
    assert_noticed(places_of(function), lambda: function.__kwdefaults__.update(shift=3.0))


def test_other_code_of_a_function_and_of_a_helper_is_noticed(monkeypatch):
    def helper(x):
        return x.sin()

    def function(x):
        return helper(x)

    places = places_of(function)
    monkeypatch.setattr(helper, "__code__", (lambda x: x.cos()).__code__)
    assert places.change() == "the variable helper of the closure of function.__code__"


@pytest.mark.parametrize(
    ("assign", "label"),
    [
        (lambda m: setattr(m, "scale", 3.0), "Scale.scale"),
        (lambda m: setattr(m, "mask", torch.ones(3)), "Scale.mask"),
        (lambda m: m.parts.__setitem__(0, torch.ones(3)), "Scale.parts[0]"),
        (lambda m: m.parts[1].update(bias=torch.ones(3)), "Scale.parts[1]['bias']"),
        (lambda m: m.inner.append(nn.Tanh()), None),
        (lambda m: m.inner.__setitem__(0, nn.Linear(3, 3)), None),
        (lambda m: m.inner.__delitem__(1), None),
        (lambda m: setattr(m.inner[1], "p", 0.5), "Scale.inner.1.p"),
        (lambda m: m.inner[0].register_forward_hook(lambda *_: None), None),
        (lambda m: m.register_forward_pre_hook(lambda *_: None), None),
        (lambda m: setattr(m, "forward", lambda x: x), "Scale.forward"),
        (lambda m: setattr(m.inner[0], "forward", lambda x: x), "Scale.inner.0.forward"),
        (lambda m: setattr(m.inner[0], "weight", nn.Parameter(torch.ones(3, 3))), None),
        (lambda m: setattr(m.mask, "data", torch.zeros(3)), "the memory of a tensor"),
    ],
)  # fmt: skip
def test_a_change_of_a_module_is_noticed(assign, label):
    module = Scale()
    assert_noticed(places_of(module), lambda: assign(module), label)
    bound = Scale()
    assert_noticed(places_of(bound.forward), lambda: assign(bound))


def test_another_forward_of_a_class_is_noticed(monkeypatch):
    places = places_of(Scale())
    assert_noticed(places, lambda: monkeypatch.setattr(Scale, "forward", lambda self, x: x), "Scale.forward")
    places = places_of(nn.Sequential(nn.Linear(3, 3)))
    assert_noticed(places, lambda: monkeypatch.setattr(nn.Linear, "forward", lambda self, x: x), "Linear.forward")


def test_another_class_of_a_module_is_noticed():
    class Other(Scale):
        pass

    module = Scale()
    assert_noticed(places_of(module), lambda: setattr(module, "__class__", Other), "Scale.__class__")


@pytest.mark.parametrize(
    ("module", "inputs"),
    [
        (nn.LSTM(8, 8, 2), 1),
        (nn.MultiheadAttention(8, 2), 3),
        (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1),
        (nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)).eval(), 1),
        (nn.Sequential(nn.BatchNorm1d(6), nn.Conv1d(6, 6, 3), nn.Dropout()), 1),
    ],
)  # fmt: skip
def test_modules_of_torch_read_only_what_is_found_and_do_not_change_it(module, inputs):
    x = torch.ones(4, 6, 8)
    places = places_of(module, *[x] * inputs, known=list(module.parameters()))
    module(*[x] * inputs)
    assert places.hold()


def test_a_hook_of_all_modules_is_noticed():
    from torch.nn.modules.module import register_module_forward_hook

    places = places_of(Scale())
    hooks = []
    assert_noticed(places, lambda: hooks.append(register_module_forward_hook(lambda *_: None)))
    hooks[0].remove()


def test_a_hook_that_takes_the_place_of_another_is_noticed():
    module = Scale()
    hook = module.register_forward_hook(lambda *_: None)
    places = places_of(module)

    def assign():
        hook.remove()
        module.register_forward_hook(lambda *_: None)

    assert_noticed(places, assign)


def test_arguments_of_a_partial_are_noticed():
    def function(x, scale, shift):
        return x * scale[0] + shift

    scale = [torch.ones(3)]
    partial = functools.partial(function, scale=scale, shift=torch.zeros(3))
    assert_noticed(places_of(partial), lambda: scale.__setitem__(0, torch.zeros(3)))
    assert_noticed(places_of(partial), lambda: partial.keywords.update(shift=torch.ones(3)))


class Slotted:
    """An object without a dictionary, with a property."""

    __slots__ = ("_bias",)

    def __init__(self):
        self._bias = torch.ones(3)

    @property
    def bias(self):
        return self._bias

    def __call__(self, x):
        return x + self.bias


def test_attributes_of_any_object_are_noticed(monkeypatch):
    slotted = Slotted()
    assert_noticed(places_of(slotted), lambda: setattr(slotted, "_bias", torch.zeros(3)), "Slotted._bias")
    places = places_of(slotted)
    assert_noticed(places, lambda: monkeypatch.setattr(Slotted, "bias", property(lambda self: 0.0)), "Slotted.bias")


def test_a_variable_behind_a_decorator_is_noticed():
    scale = torch.ones(3)

    @torch.no_grad()
    def function(x):
        return x * scale

    def assign():
        nonlocal scale
        scale = torch.zeros(3)

    assert_noticed(places_of(function), assign)


def test_a_function_that_was_compiled_is_looked_into():
    scale = torch.ones(3)
    function = torch.compile(lambda x: (x * scale).sin(), backend="eager")

    def assign():
        nonlocal scale
        scale = torch.zeros(3)

    assert_noticed(places_of(function), assign)


def test_a_tensor_that_only_a_backward_reads_is_noticed():
    scale = torch.ones(3)

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * scale

    def function(x):
        return Scaled.apply(x)

    def assign():
        nonlocal scale
        scale = torch.zeros(3)

    x = X.clone().requires_grad_()
    with observing([x]) as reads:
        torch.autograd.grad(function(x).sum(), x)
    assert_noticed(find_places("f", function, reads), assign)


def test_a_number_on_a_cpu_is_a_constant_of_a_graph_on_a_gpu():
    scale = torch.tensor(2.0)

    def function(x):
        return x * scale

    places = places_of(function, device=torch.device("cuda"))
    assert_noticed(places, lambda: scale.fill_(3.0))
    places = places_of(function, device=torch.device("cpu"))
    scale.fill_(4.0)
    assert places.hold(), "the graph reads it"
