"""A plain call like an earlier one runs its kernel directly; all other calls go through the dispatcher."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from jaxtyping import Complex, Float
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import opwright as ow
from opwright.internals.dispatch import is_plain_call


class Counted:
    """An operator that has learned a plain call, and how often its calls went through the dispatcher since then."""

    def __init__(self, namespace: str) -> None:
        @ow.op(f"{namespace}::add")
        def add(x: Float[Tensor, "*n"], y: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
            return x + y

        self.op, self.passes, through = add, 0, add._call

        def counting(*args: Any) -> Any:
            self.passes += 1
            return through(*args)

        add._call = counting  # type: ignore[method-assign]
        self.learn(torch.ones(3), torch.ones(3))

    def learn(self, *arguments: Tensor) -> None:
        """Have calls like this one go direct."""
        self.op(*arguments)
        self.passes = 0


@pytest.fixture
def counted(namespace: str) -> Counted:
    return Counted(namespace)


@pytest.mark.parametrize(
    "context", [torch.no_grad, torch.enable_grad, torch.inference_mode], ids=["no_grad", "grad mode", "inference mode"]
)
def test_plain_calls_go_direct(context: Callable[[], Any], counted: Counted) -> None:
    x, parameter = torch.ones(3), torch.nn.Parameter(torch.ones(3))
    with context():
        for arguments in ((x, x), (torch.ones(3), torch.ones(3))):
            counted.learn(*arguments)
        if not torch.is_grad_enabled():
            counted.learn(parameter, x)
        torch.testing.assert_close(counted.op(x, x), x + x)
        if not torch.is_grad_enabled():
            assert not counted.op(parameter, x).requires_grad
        counted.op(torch.ones(3), torch.ones(3))
    assert counted.passes == 0


def test_an_inference_tensor_is_plain_outside_inference_mode(counted: Counted) -> None:
    with torch.inference_mode():
        x = torch.ones(3)
    counted.learn(x, x)
    counted.op(x, x)
    assert counted.passes == 0


def test_another_thread_is_as_plain(counted: Counted) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        pool.submit(counted.op, torch.ones(3), torch.ones(3)).result()
    assert counted.passes == 0


class Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.ops: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops.append(str(func))
        return func(*args, **(kwargs or {}))


class SeenFunctions(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.functions: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.functions.append(str(func))
        return func(*args, **(kwargs or {}))


@contextmanager
def profiling() -> Iterator[Any]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        yield profile


def test_a_tensor_that_needs_a_gradient_goes_through(counted: Counted) -> None:
    x = torch.ones(3, requires_grad=True)
    assert counted.op(torch.ones(3), x).grad_fn is not None
    assert counted.passes == 1


def test_a_dispatch_mode_sees_the_operator(counted: Counted, namespace: str) -> None:
    with Seen() as mode:
        counted.op(torch.ones(3), torch.ones(3))
    assert f"{namespace}.add.default" in mode.ops


def test_a_function_mode_sees_the_operator(counted: Counted, namespace: str) -> None:
    with SeenFunctions() as mode:
        counted.op(torch.ones(3), torch.ones(3))
    assert any(f"{namespace}.add" in name for name in mode.functions)


def test_the_profiler_shows_the_operator(counted: Counted, namespace: str) -> None:
    with profiling() as profile:
        counted.op(torch.ones(3), torch.ones(3))
    assert f"{namespace}::add" in {event.key for event in profile.key_averages()}


def test_autocast_goes_through(counted: Counted) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        counted.op(torch.ones(3), torch.ones(3))
    assert counted.passes == 1


def test_deterministic_algorithms_go_through(counted: Counted) -> None:
    """torch fills new memory then."""
    torch.use_deterministic_algorithms(True)
    try:
        counted.op(torch.ones(3), torch.ones(3))
    finally:
        torch.use_deterministic_algorithms(False)
    assert counted.passes == 1


def test_vmap_goes_through(counted: Counted) -> None:
    torch.vmap(counted.op)(torch.ones(2, 3), torch.ones(2, 3))
    assert counted.passes == 1


def test_functionalisation_runs_the_reference(counted: Counted) -> None:
    out = torch.func.functionalize(counted.op)(torch.ones(3), torch.ones(3))
    torch.testing.assert_close(out, 2 * torch.ones(3))


def test_forward_mode_runs_the_reference(counted: Counted) -> None:
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(torch.ones(3), torch.ones(3))
        out = torch.autograd.forward_ad.unpack_dual(counted.op(dual, torch.ones(3)))
    torch.testing.assert_close(out.tangent, torch.ones(3))


def test_fake_and_meta_tensors_go_through(counted: Counted) -> None:
    with FakeTensorMode() as mode:
        fake = torch.ones(3)
        counted.op(fake, fake)
    counted.op(fake, fake)  # the mode is left, the tensor is still fake
    assert counted.passes == 2
    counted.op(torch.ones(3, device="meta"), torch.ones(3, device="meta"))
    assert counted.passes == 3
    assert mode is not None


def test_a_subclass_that_listens_to_torch_function_hears_of_the_operator(counted: Counted, namespace: str) -> None:
    intercepted = []

    class Listening(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            intercepted.append(str(func))
            return super().__torch_function__(func, types, args, kwargs)

    out = counted.op(torch.ones(3).as_subclass(Listening), torch.ones(3))
    assert f"{namespace}.add.default" in " ".join(intercepted)
    assert isinstance(out, Listening)


def test_a_subclass_that_listens_to_torch_dispatch_hears_of_the_operator(counted: Counted, namespace: str) -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    out = counted.op(TwoTensor(torch.ones(3), torch.zeros(3)), TwoTensor(torch.ones(3), torch.ones(3)))
    assert isinstance(out, TwoTensor)
    assert (out.a.sum(), out.b.sum()) == (6, 3)


def test_lazy_conjugates_and_negatives_are_resolved_before_a_kernel_sees_them(namespace: str) -> None:
    @ow.op(f"{namespace}::scale")
    def scale(x: Complex[Tensor, " n"]) -> Complex[Tensor, " n"]:
        return x * 2

    seen = []

    @scale.python
    def kernel(x: Tensor) -> Tensor:
        seen.append(x.is_conj() or x.is_neg())
        return x * 2

    x = torch.tensor([1 + 2j])
    assert scale(x.conj()).tolist() == [2 - 4j]

    @ow.op(f"{namespace}::real")
    def real(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x * 2

    @real.python
    def kernel_(x: Tensor) -> Tensor:
        seen.append(x.is_neg())
        return x * 2

    assert real(x.conj().imag).tolist() == [-4]
    assert seen == [False, False]


def test_calls_of_a_thread_that_ignores_conjugates_go_through_the_dispatcher(counted: Counted) -> None:
    C: Any = torch._C
    include, exclude = C._dispatch_tls_local_include_set(), C._dispatch_tls_local_exclude_set()
    with C._ForceDispatchKeyGuard(include, exclude.add(C.DispatchKey.Conjugate)):
        counted.op(torch.ones(3), torch.ones(3))
    assert counted.passes == 1


@pytest.mark.gpu
def test_calls_of_autograds_own_thread_go_direct(counted: Counted, namespace: str) -> None:
    @ow.op(f"{namespace}::twice")
    def twice(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x * 2

    twice.register_autograd(lambda ctx, grad: counted.op(grad, grad))
    x = torch.ones(3, device="cuda", requires_grad=True)
    torch.autograd.grad(twice(x), x, torch.ones(3, device="cuda"))
    counted.passes = 0  # the call in the backward was learned
    for _ in range(3):
        (gradient,) = torch.autograd.grad(twice(x), x, torch.ones(3, device="cuda"))
        assert gradient.tolist() == [2, 2, 2]
    assert counted.passes == 0


def test_tensors_in_lists_count(namespace: str) -> None:
    assert is_plain_call([[torch.ones(1), torch.ones(1)], 2.0, None, "a"])
    assert not is_plain_call([[torch.ones(1), torch.ones(1, requires_grad=True)]])


def test_torch_compile_sees_one_opaque_operator(counted: Counted) -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph

    x = torch.ones(3)
    torch.testing.assert_close(torch.compile(lambda x: counted.op(x, x), backend=backend, fullgraph=True)(x), x + x)
    assert counted.op.overload in {node.target for node in graphs[0].graph.nodes}
    assert counted.passes == 0


def test_make_fx_records_the_operator(counted: Counted) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(lambda x: counted.op(x, x))(torch.ones(3))
    assert counted.op.overload in {node.target for node in graph.graph.nodes}


def test_after_every_context_a_plain_call_is_plain_again(counted: Counted) -> None:
    with Seen(), SeenFunctions(), torch.autocast("cpu"):
        counted.op(torch.ones(3), torch.ones(3))
    counted.learn(torch.ones(3), torch.ones(3))
    counted.op(torch.ones(3), torch.ones(3))
    assert counted.passes == 0
