"""``ow.cuda_graphed`` on a GPU, and without one: there, a stand-in for a graph records torch's operations and runs them
again on the same memory. Each replays in Python and in native code."""

from __future__ import annotations

import copy
import gc
import re
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import opwright as ow
from opwright import tree
from opwright.backends.build_tools import build_tools
from opwright.backends.native import graph_step
from opwright.backends.native.on_request import OnRequest
from opwright.runtime.cuda_graphs import native_replay, replay
from tests.runtime.cuda_graphs.stand_in import assert_equal, gradients, inputs, net, stand_in_for_graphs

# -- results -----------------------------------------------------------------------------------------------------


def test_a_module_gives_what_it_gives_without_graphs(on):
    module = net(on)
    replayed = ow.cuda_graphed(module)
    for _ in range(3):
        x = inputs(on)
        assert_equal(replayed(x), module(x))
        assert_equal(gradients(replayed, x, module.parameters()), gradients(module, x, module.parameters()))
    assert replayed.captured == 1
    with torch.no_grad():
        assert_equal(replayed(x), module(x))
    assert replayed.captured == 2


def test_the_same_module_again_and_again_before_it_goes_back(on):
    """Results that ``torch.cuda.make_graphed_callables`` does not guarantee."""
    module = net(on)
    replayed = ow.cuda_graphed(module)

    def sequence(function):
        states = [x]
        for _ in range(5):
            states.append(function(states[-1]))
        return *states, *torch.autograd.grad(sum(s.sin().sum() for s in states), [x, *module.parameters()])

    for _ in range(3):
        x = inputs(on)
        assert_equal(sequence(replayed), sequence(module))
    assert replayed.captured == 5


def test_an_operator_with_any_nest_of_arguments_and_results(on):
    def function(pair, *, scale, names, deep):
        x, y = pair
        return {"sum": x + scale * y, "rest": [deep["x"] * 2, None, (names, x.argmax())], "kind": 3}

    replayed = ow.cuda_graphed(function)
    for scale in (2.0, 3.0, 2.0, 0.0, -0.0):
        x, y = inputs(on), inputs(on)
        given = {"scale": scale, "names": "rows", "deep": {"x": y}}
        found, expected = replayed((x, y), **given), function((x, y), **given)
        assert tree.form(found) == tree.form(expected)
        assert [v for v in tree.leaves(found) if not isinstance(v, torch.Tensor)] == [None, "rows", 3]
        assert_equal(tree.tensors(found), tree.tensors(expected))
        grads = [torch.autograd.grad(o["sum"].sum() + o["rest"][0].sum(), [x, y]) for o in (found, expected)]
        assert_equal(*grads)
        assert not found["rest"][2][1].requires_grad
    assert replayed.captured == 4, "0.0 is not -0.0"


def test_opwright_operators_are_replayed(on, namespace):
    from jaxtyping import Float
    from torch import Tensor

    @ow.op(f"{namespace}::scaled")
    def scaled(x: Float[Tensor, "*n"], a: float) -> Float[Tensor, "*n"]:
        return a * x.sin()

    replayed = ow.cuda_graphed(scaled)
    for a in (2.0, 2.0, 3.0):
        x = inputs(on)
        assert_equal(replayed(x, a), scaled(x, a))
        assert_equal(*[torch.autograd.grad(f(x, a).sum(), x) for f in (replayed, scaled)])
    assert replayed.captured == 2


def test_an_optimiser_is_seen_and_gradients_accumulate(on):
    plain = net(on)
    ours = copy.deepcopy(plain)
    replayed = ow.cuda_graphed(ours)
    optimisers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (plain, ours)]
    for turn in range(5):
        x = inputs(on)
        for function, optimiser in zip((plain, replayed), optimisers, strict=True):
            for _ in range(2):
                function(x).square().mean().backward()
            optimiser.step()
            optimiser.zero_grad(set_to_none=turn % 2 == 0)
    assert_equal([*ours.parameters()], [*plain.parameters()])


def test_what_was_lent_does_not_change_and_is_used_again_when_it_is_free(on):
    module = net(on)
    replayed = ow.cuda_graphed(module)
    with torch.no_grad():
        xs = [inputs(on) for _ in range(3)]
        held = [replayed(x)[:, 1:] for x in xs]
        assert_equal(held, [module(x)[:, 1:] for x in xs])
        assert replayed.captured == 3
        del held
        for x in xs:
            replayed(x)
    assert replayed.captured == 3
    loss = None
    for _ in range(4):  # the loss before is alive while the next is computed
        loss = replayed(inputs(on, requires_grad=False)).sum()
        loss.backward()
        module.zero_grad()
    assert loss is not None
    assert replayed.captured == 3 + 1


def test_a_backward_runs_twice_only_if_its_graph_is_retained(on):
    module = net(on)
    replayed = ow.cuda_graphed(module)
    x = inputs(on)
    found = []
    for function in (module, replayed):
        y = function(x)
        first = torch.autograd.grad(y.sum(), x, retain_graph=True)
        for _ in range(2):  # others do not take its memory
            function(x + 1).sum().backward()
        second = torch.autograd.grad((y**2).sum(), x, retain_graph=True)
        third = torch.autograd.grad(y.sin().sum(), x)
        found.append((*first, *second, *third))
        with pytest.raises(RuntimeError, match="retain_graph=True"):
            torch.autograd.grad(y.cos().sum(), x)
    assert_equal(*found)


# -- calls that need other graphs --------------------------------------------------------------------------------


def test_other_sizes_dtypes_and_modes_are_captured_anew(on):
    module = net(on)
    replayed = ow.cuda_graphed(module)
    for b in (1, 4, 7, 4):
        x = inputs(on, b, 3)
        assert_equal(replayed(x), module(x))
    assert replayed.captured == 3
    module.float()
    assert_equal(replayed(x.float()), module(x.float()))
    module.double()
    module[0].weight.requires_grad_(False)
    assert_equal(*[torch.autograd.grad(f(x).sum(), [x, module[0].bias]) for f in (replayed, module)])


def test_layouts_of_what_is_copied_make_no_further_graphs(on):
    module = net(on)
    replayed = ow.cuda_graphed(module)
    with torch.no_grad():
        x = inputs(on, requires_grad=False)
        for layout in (x, x.t().contiguous().t(), torch.cat([x, x], 1)[:, :3], x[:1].expand(4, 3)):
            assert_equal(replayed(layout), module(layout))
        assert replayed.captured == 1
        assert_equal(replayed(torch._neg_view(x)), module(-x))


def test_the_layout_that_comes_first_is_kept(on):
    convolution = nn.Conv2d(3, 4, 3).to(on, memory_format=torch.channels_last)
    replayed = ow.cuda_graphed(convolution)
    x = torch.randn(2, 3, 8, 8, device=on).to(memory_format=torch.channels_last)
    with torch.no_grad():
        for given in (x, x.contiguous()):
            found = replayed(given)
            assert found.is_contiguous(memory_format=torch.channels_last)
            torch.testing.assert_close(found, convolution(given))


def test_a_parameter_that_is_replaced_is_seen(on):
    module = net(on)
    replayed = ow.cuda_graphed(module)
    x = inputs(on)
    replayed(x)
    with torch.no_grad():
        module[0].weight = nn.Parameter(module[0].weight * 2)
        assert_equal(replayed(x), module(x))
        module[2] = nn.Linear(8, 3).to(x)
        assert_equal(replayed(x), module(x))
        module.load_state_dict(net(on).state_dict(), assign=True)
        assert_equal(replayed(x), module(x))


def test_a_module_in_evaluation_is_not_the_module_in_training(on):
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).to(on)
    plain = copy.deepcopy(module)
    replayed = ow.cuda_graphed(module)
    for turn in range(6):
        x = torch.randn(4, 3, device=on)
        for part in (module, plain):
            part[1].train(turn % 3 != 2)
        torch.testing.assert_close(replayed(x), plain(x))
    for name, buffer in plain.named_buffers():  # what capturing ran besides has left no trace
        torch.testing.assert_close(module.get_buffer(name), buffer)


def test_random_numbers_are_drawn_as_without_graphs(on):
    dropout = nn.Dropout()
    replayed = ow.cuda_graphed(dropout)
    x = torch.ones(1000, device=on)
    torch.manual_seed(0)
    first = dropout(x)
    torch.manual_seed(0)
    assert torch.equal(replayed(x), first)
    assert not torch.equal(replayed(x), replayed(x))


@pytest.fixture(scope="module")
def recurrent():
    """An operation with the arguments of cuDNN's recurrent networks."""
    with torch.library._scoped_library("tests_recurrent", "DEF") as library:
        library.define("rnn(Tensor x, float dropout, bool train, Tensor? dropout_state) -> Tensor")
        library.impl("rnn", lambda x, *_: x * 2, "CompositeExplicitAutograd")
        yield torch.ops.tests_recurrent.rnn


@pytest.mark.parametrize(("dropout", "train"), [(0.0, True), (0.5, False)])
def test_recurrent_networks_that_drop_nothing(on, recurrent, dropout, train):
    replayed = ow.cuda_graphed(lambda x: recurrent(x, dropout, train, torch.zeros(3, device=on)))
    with torch.no_grad():
        for value in range(3):
            x = torch.full((4,), float(value), device=on)
            assert_equal(replayed(x), x * 2)


def test_dropout_within_a_recurrent_network_is_refused(on, recurrent):
    replayed = ow.cuda_graphed(lambda x: recurrent(x, 0.5, True, torch.zeros(3, device=on)))
    with torch.no_grad(), pytest.raises(ow.errors.ArgumentError, match="dropout between the layers of a recurrent"):
        replayed(torch.ones(4, device=on))


@pytest.mark.gpu
def test_an_lstm_with_dropout_is_refused_in_training_only(way):
    lstm = nn.LSTM(8, 8, 2, dropout=0.5).cuda()
    replayed = ow.cuda_graphed(lstm)
    x = torch.randn(5, 4, 8, device="cuda")
    with torch.no_grad(), pytest.raises(ow.errors.ArgumentError, match="dropout between the layers of a recurrent"):
        replayed(x)
    lstm.eval()
    with torch.no_grad():
        torch.testing.assert_close(replayed(x)[0], lstm(x)[0], rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
def test_autocast_casts_in_each_replay(way):
    linear = nn.Linear(8, 8).cuda()
    replayed = ow.cuda_graphed(linear)
    x = torch.randn(4, 8, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        linear(x)  # its weight's cast is kept by autocast until the block ends
        replayed(x)
    with torch.no_grad():
        linear.weight.mul_(2)
    with torch.autocast("cuda", torch.bfloat16):
        torch.testing.assert_close(replayed(x), linear(x))
    torch.testing.assert_close(replayed(x), linear(x))
    assert replayed.captured == 2


def test_inference_mode(on):
    module = net(on)
    replayed = ow.cuda_graphed(module)
    x = inputs(on)
    for _ in range(2):
        with torch.inference_mode():
            assert_equal(replayed(x), module(x))
        with torch.no_grad():
            assert_equal(replayed(x), module(x))
        assert_equal(gradients(replayed, x, module.parameters()), gradients(module, x, module.parameters()))


# -- gradients ---------------------------------------------------------------------------------------------------


def test_gradients_that_have_no_memory_or_that_nothing_needs(on):
    def function(x, y, unused):
        return x * y, x + 1

    replayed = ow.cuda_graphed(function)
    x, y, unused = inputs(on), inputs(on), inputs(on)
    ones = torch.ones_like(x)
    zeros = torch._efficientzerotensor((4, 3), dtype=torch.float64, device=on)
    for given in ((ones, zeros), (zeros, ones), (ones, ones)):
        both = [torch.autograd.grad(f(x, y, unused), [x, y], given) for f in (replayed, function)]
        assert_equal(*both)
    for only in range(2):
        found, expected = (
            torch.autograd.grad(f(x, y, unused)[only].sum(), [x, y, unused], allow_unused=True)
            for f in (replayed, function)
        )
        assert found[2] is None
        assert_equal(found[0], expected[0])


def test_a_parameters_hook_runs_once(on):
    module = net(on)
    replayed = ow.cuda_graphed(module)
    module[0].weight.register_hook(lambda gradient: gradient * 2)
    x = inputs(on)
    for _ in range(2):
        found, expected = (gradients(f, x, [module[0].weight]) for f in (replayed, module))
        assert_equal(found, expected)


@pytest.mark.parametrize("what", ["output", "weight"])
def test_a_modification_of_what_the_backward_needs_is_an_error(what, on):
    module = nn.Sequential(nn.Linear(3, 3), nn.Sigmoid()).to(on, torch.float64)
    replayed = ow.cuda_graphed(module)
    for function in (module, replayed):
        y = function(inputs(on))
        with torch.no_grad():
            (y if what == "output" else module[0].weight).add_(1)
        with pytest.raises(RuntimeError, match=r"modified (in place|by an inplace operation)"):
            y.sum().backward()


def test_a_modification_of_what_the_backward_does_not_need_is_none(on):
    module = nn.Linear(3, 3).to(on, torch.float64)  # needs x and its weight: neither its result nor its bias
    replayed = ow.cuda_graphed(module)
    x = inputs(on)
    for function in (module, replayed):
        y = function(x)
        with torch.no_grad():
            y.add_(1)
            module.bias.add_(1)
        (gradient,) = torch.autograd.grad(y.sum(), module.weight)
        torch.testing.assert_close(gradient, x.detach().sum(0).expand(3, 3))


# -- errors ------------------------------------------------------------------------------------------------------


def test_without_a_gpu_it_says_so():
    replayed = ow.cuda_graphed(net("cpu"))
    with pytest.raises(ow.errors.ArgumentError, match="need every tensor on one GPU, but they are on cpu"):
        replayed(inputs("cpu"))


class Special(torch.Tensor):
    """A tensor subclass."""


def test_it_refuses_what_it_cannot_do(on):
    replayed = ow.cuda_graphed(net(on))
    x = inputs(on)
    with pytest.raises(ow.errors.ArgumentError, match="copy plain tensors, but one is a Special"):
        replayed(x.as_subclass(Special))
    with pytest.raises(ow.errors.ArgumentError, match="copy plain tensors, but one is a Special"):
        torch.autograd.grad(replayed(x), x, torch.ones_like(x).as_subclass(Special))
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(replayed(x).sum(), x, create_graph=True)
    with pytest.raises(ow.errors.CudaGraphError, match=r"torch\.func cannot trace"):
        torch.func.grad(lambda x: replayed(x).sum())(x.detach())
    with pytest.raises(ow.errors.CudaGraphError, match=r"torch\.func cannot trace"):
        torch.func.vmap(replayed)(torch.stack([x.detach()] * 2))
    with pytest.raises(
        ow.errors.ArgumentError, match="was called with a set, but CUDA graphs take tensors and constants only"
    ):
        ow.cuda_graphed(lambda x, names: x)(x, {1})
    with pytest.raises(ow.errors.ArgumentError, match="was called without a tensor"):
        ow.cuda_graphed(lambda: torch.ones(3))()
    with pytest.raises(ow.errors.ArgumentError, match="returns a set"):
        ow.cuda_graphed(lambda x: {x})(x)


def test_it_refuses_a_function_that_writes_an_argument(on):
    def normalise(x):
        x /= x.sum()
        return x

    with pytest.raises(ow.errors.ArgumentError, match="normalise writes into an argument"):
        ow.cuda_graphed(normalise)(inputs(on, requires_grad=False))


def test_it_refuses_a_function_whose_closure_wants_a_gradient(on):
    module = net(on)

    def forward(x):
        return module(x)

    with pytest.raises(
        ow.errors.ArgumentError, match=r"^forward depends on a tensor of shape .* that requires a gradient"
    ):
        ow.cuda_graphed(forward)(inputs(on, requires_grad=False))
    with torch.no_grad():
        x = inputs(on)
        assert_equal(ow.cuda_graphed(forward)(x), module(x))


# -- threads, copies, other captures -----------------------------------------------------------------------------


def test_threads_do_not_take_each_others_memory(on):
    module = net(on)
    replayed = ow.cuda_graphed(module)
    xs = [inputs(on) for _ in range(60)]
    with torch.no_grad():
        expected = [module(x) for x in xs]

    def results(_):
        with torch.no_grad():
            return [replayed(x).clone() for x in xs]

    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(results, range(4)):
            assert_equal(found, expected)


def test_a_copy_captures_its_own_and_reset_forgets(on):
    replayed = ow.cuda_graphed(net(on))
    x = inputs(on)
    replayed(x)
    other = copy.deepcopy(replayed)
    assert (replayed.captured, other.captured) == (1, 0)
    assert_equal(other(x), replayed(x))
    replayed.reset()
    assert replayed.captured == 0
    assert "Sequential" in repr(replayed)


@pytest.mark.slow
def test_hooks_on_registration_go_with_it():
    from torch.nn.modules import module as registration

    def count():
        gc.collect()
        return len(registration._global_parameter_registration_hooks)

    before = count()
    replayed = ow.cuda_graphed(net("cpu"))
    assert count() == before + 1
    del replayed
    assert count() == before


def test_a_backward_runs_after_its_graphs_were_reset_and_then_nothing_is_left(on):
    module = net(on)
    replayed = ow.cuda_graphed(module)
    x = inputs(on)
    y = replayed(x)
    memory = weakref.ref(replayed._kinds[0].steps[0].step.outputs[0])
    replayed.reset()
    assert_equal(torch.autograd.grad(y.sum(), x), torch.autograd.grad(module(x).sum(), x))
    del y
    gc.collect()
    assert memory() is None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Dynamo warns of what it does not trace
def test_compiled_autograd_calls_the_replay(on):
    torch.compiler.reset()
    module = net(on)
    replayed = ow.cuda_graphed(module)
    for _ in range(3):
        x = inputs(on)
        outputs = [function(x) for function in (replayed, module)]
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
            found, expected = (torch.autograd.grad(y.sin().sum(), x) for y in outputs)
        assert_equal(found, expected)
    y = replayed(x)
    torch.autograd.grad(y.sum(), x)
    with (
        torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")),
        pytest.raises(RuntimeError, match="retain_graph=True"),
    ):
        torch.autograd.grad(y.sum(), x)


@pytest.mark.filterwarnings("ignore")  # anomaly mode warns of itself
def test_anomaly_mode_finds_the_call_that_gave_nan(on):
    def root(x):
        return x.sqrt()

    replayed = ow.cuda_graphed(root)
    x = inputs(on)
    replayed(x)
    with torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="returned nan values"):
        replayed(-x.detach().abs().requires_grad_()).sum().backward()


@pytest.mark.compiler
@pytest.mark.slow  # builds the extension
def test_a_step_is_replayed_natively_where_that_has_been_built(monkeypatch):
    stand_in_for_graphs(monkeypatch)
    graph_step.graph_steps.load(build_tools(), build=True)
    on_request = OnRequest(graph_step.load_graph_steps)
    monkeypatch.setattr(native_replay, "graph_steps", on_request)
    module = net("cpu")
    replayed = ow.cuda_graphed(module)
    x = inputs("cpu")
    expected = gradients(module, x, module.parameters())
    for calls in range(1, 20):
        assert_equal(gradients(replayed, x, module.parameters()), expected)
        (kind,) = replayed._kinds
        assert [each.is_native for each in kind.steps] == [calls >= 16]


def test_without_a_compiler_python_replays(monkeypatch):
    stand_in_for_graphs(monkeypatch)
    monkeypatch.setattr(native_replay, "graph_steps", OnRequest(lambda tools, build: None))
    module = net("cpu")
    replayed = ow.cuda_graphed(module)
    for _ in range(20):
        x = inputs("cpu")
        assert_equal(gradients(replayed, x, module.parameters()), gradients(module, x, module.parameters()))
    assert not replayed._kinds[0].steps[0].is_native


@pytest.mark.parametrize("missing", ["holders", "guards", "retained"])
def test_without_torchs_private_names_results_are_the_same(missing, on, monkeypatch):
    from opwright.internals import cuda, guards

    if missing == "holders":
        monkeypatch.setattr(replay, "COUNTS_HOLDERS", False)
    elif missing == "guards":
        monkeypatch.setattr(guards, "_guards", None)
    else:
        monkeypatch.setattr(cuda, "_keeps_graph", lambda: None)
    module = net(on)
    replayed = ow.cuda_graphed(module)
    for _ in range(3):
        x = inputs(on)
        assert_equal(gradients(replayed, x, module.parameters()), gradients(module, x, module.parameters()))
    assert replayed.captured == 1
    held = [replayed(x + n) for n in range(3)]
    assert_equal(held, [module(x + n) for n in range(3)])


def test_torch_compile_takes_the_function(on):
    module = net(on)
    replayed = ow.cuda_graphed(module)
    x = inputs(on)
    compiled = torch.compile(lambda x: replayed(x) + 1, backend="eager", fullgraph=True)
    assert_equal(compiled(x), module(x) + 1)
    assert replayed.captured == 0


# -- on a GPU only -----------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_a_call_is_one_launch_each_way(way):
    module = net("cuda")
    replayed = ow.cuda_graphed(module)
    given = [inputs("cuda") for _ in range(2)]
    gradient = torch.ones(4, 3, dtype=torch.float64, device="cuda")
    for x in given:
        torch.autograd.grad(replayed(x), x, gradient)
    with torch.profiler.profile() as profile:
        torch.autograd.grad(replayed(given[0]), given[0], gradient)
        torch.cuda.synchronize()
    calls = [event.name for event in profile.events() if re.match("cu(da)?(Graph)?(Launch|Mem)", event.name)]
    assert calls == ["cudaGraphLaunch"] * 2


@pytest.mark.gpu
def test_what_cannot_be_captured_says_why_and_leaves_torch_as_it_was(way):
    def waits(x):
        return x * (2 if x.sum().item() > 0 else 1)

    x = inputs("cuda")
    replayed = ow.cuda_graphed(waits)
    for _ in range(2):
        with pytest.raises(
            ow.errors.CudaGraphError, match=r"(?s)waits cannot be captured as a CUDA graph: .*\.item\(\)"
        ):
            replayed(x)
        assert torch.randn(3, device="cuda").isfinite().all(), "torch's generator still draws"
    module = net("cuda")
    assert_equal(ow.cuda_graphed(module)(x), module(x))


@pytest.mark.gpu
def test_within_another_capture_it_is_the_function(way):
    module = net("cuda")
    replayed = ow.cuda_graphed(module)
    x = inputs("cuda", requires_grad=False)
    outer = torch.cuda.CUDAGraph()
    with torch.no_grad():
        module(x)
        torch.cuda.synchronize()
        with torch.cuda.graph(outer):
            y = replayed(x)
        x.mul_(2)
        outer.replay()
        assert_equal(y, module(x))
    assert replayed.captured == 0


@pytest.mark.gpu
def test_other_streams_have_graphs_of_their_own(way):
    module = net("cuda")
    replayed = ow.cuda_graphed(module)
    x = inputs("cuda", requires_grad=False)
    with torch.no_grad():
        first = replayed(x)
        other = torch.cuda.Stream()
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            second = replayed(x)
        other.synchronize()
    assert_equal(first, second)
    assert replayed.captured == 2


@pytest.mark.gpu
def test_it_stays_on_the_tensors_gpu_whatever_the_current_one_is(way):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    for number in (0, 1):
        module = net(f"cuda:{number}")
        replayed = ow.cuda_graphed(module)
        for current in (0, 1):
            with torch.cuda.device(current):
                x = inputs(f"cuda:{number}")
                both = [gradients(f, x, module.parameters()) for f in (replayed, module)]
                assert_equal(*both)


@pytest.mark.gpu
def test_replays_use_no_memory_of_cublas_that_others_may_free(way):
    module = nn.Sequential(*[layer for _ in range(2) for layer in (nn.Linear(512, 512), nn.GELU())]).cuda()
    replayed = ow.cuda_graphed(module)
    x = torch.randn(64, 512, device="cuda", requires_grad=True)

    def both(function):
        return gradients(function, x, module.parameters())

    both(replayed)
    torch._C._cuda_clearCublasWorkspaces()  # as torch.compile's CUDA graphs do
    held = [torch.full((2**20,), 7.0, device="cuda") for _ in range(64)]
    for _ in range(3):
        torch.testing.assert_close(both(replayed), both(module), rtol=1e-4, atol=1e-4)
    assert all((tensor == 7).all() for tensor in held), "the graphs wrote into memory of others"
    del held
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    both(replayed)
    torch.cuda.synchronize()
