"""The operator object: parts, overrides, attaching kernels, copies."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import opwright as ow
from opwright.errors import ContractError, KernelError, SignatureMismatchError
from opwright.results import Origin


def double(namespace: str) -> ow.Op:
    @ow.op(f"{namespace}::double")
    def double(x: Float[Tensor, " n"], *, a: float = 2.0) -> Float[Tensor, " n"]:
        """Twice, by default."""
        return x * a

    return double


# -- parts and overrides --------------------------------------------------------------------------------


def test_every_part_starts_as_derived(namespace: str) -> None:
    parts = double(namespace).parts
    assert set(parts) == {
        "schema",
        "fake",
        "autograd",
        "vmap",
        "decomposition",
        "sharding",
        "flops",
        "bytes",
        "cpu",
        "cuda",
    }
    assert {part.origin for part in parts.values()} == {Origin.DERIVED}
    assert f"{namespace}::double_vjp" in parts["autograd"].how
    assert parts["cpu"].how == "the reference itself"


def test_a_gradient_is_missing_only_where_there_can_be_none(namespace: str) -> None:
    @ow.op(f"{namespace}::whole")
    def whole(x: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
        return x + 1

    @ow.op(f"{namespace}::complexes")
    def complexes(x: Complex[Tensor, " n"]) -> Complex[Tensor, " n"]:
        return x + 1

    assert whole.parts["autograd"].origin is Origin.MISSING
    assert complexes.parts["autograd"].origin is Origin.DERIVED


def test_hand_written_parts_take_effect_and_are_labelled(namespace: str) -> None:
    op, calls = double(namespace), []

    @op.register_fake
    def shape_only(x: Tensor, *, a: float = 2.0) -> Tensor:
        calls.append("fake")
        return x.new_empty(x.shape)

    def setup(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
        ctx.a = keyword_only_inputs["a"]

    def backward(ctx: Any, grad: Tensor) -> Tensor:
        calls.append("backward")
        return grad * ctx.a * 100

    op.register_autograd(backward, setup_context=setup)

    @op.register_vmap
    def rule(info: Any, in_dims: Any, x: Tensor, *, a: float) -> tuple[Tensor, int]:
        calls.append(f"vmap {in_dims} {info.batch_size}")
        return x * a, in_dims[0]

    @op.register_flops
    def counted(x: Tensor, *, a: float) -> int:
        return 7

    with FakeTensorMode():
        op(torch.ones(3), a=4.0)
    x = torch.ones(3, requires_grad=True)
    op(x, a=4.0).sum().backward()
    assert x.grad.tolist() == [400] * 3
    assert torch.vmap(op, in_dims=1)(torch.ones(3, 2)).shape == (2, 3)
    assert op.flops(torch.ones(3), a=2.0) == 7
    assert calls == ["fake", "backward", "vmap (1,) 2"]
    hand_written = {name for name, part in op.parts.items() if part.origin is Origin.CUSTOM}
    assert hand_written == {"fake", "autograd", "vmap", "flops"}
    assert op.parts["fake"].how == "register_fake (shape_only)"


def test_a_hand_written_gradient_works_under_torch_compile(namespace: str) -> None:
    op = double(namespace)
    op.register_autograd(lambda ctx, grad: grad * 10)
    x = torch.ones(3, requires_grad=True)
    torch.compile(lambda x: op(x), fullgraph=True, backend="aot_eager")(x).sum().backward()
    assert x.grad.tolist() == [10] * 3


def test_an_override_that_cannot_be_called_is_refused(namespace: str) -> None:
    with pytest.raises(KernelError, match="register_fake must be given a callable, got int"):
        double(namespace).register_fake(3)  # type: ignore[arg-type]


def test_kernels_show_in_the_parts(namespace: str) -> None:
    op = double(namespace)
    op.python(lambda x, *, a: x * a, name="k", devices=["cpu"])
    assert (op.parts["cpu"].origin, op.parts["cpu"].how) == (Origin.CUSTOM, "k")
    assert op.parts["cuda"].origin is Origin.DERIVED


# -- as an object -----------------------------------------------------------------------------------------


def test_it_looks_like_the_function_that_defined_it(namespace: str) -> None:
    op = double(namespace)
    assert op.__name__ == "double"
    assert op.__doc__ == "Twice, by default."
    assert repr(op) == f"<operator {namespace}::double(x: Float[n], *, a: float = 2.0), kernels: none>"
    assert {"python", "triton", "cpp", "numpy"} <= set(dir(op))
    with pytest.raises(AttributeError, match="the languages are"):
        op.fortran  # noqa: B018
    with pytest.raises(AttributeError, match="did you mean 'triton'"):
        op.tritn  # noqa: B018
    with pytest.raises(AttributeError, match=r"has no attribute 'register_kernel'; attach a kernel: op\.triton"):
        op.register_kernel  # noqa: B018
    with pytest.raises(ow.errors.ContractError, match="got 'mutates_args'\n  → mark what is written"):
        ow.op(f"{namespace}::f", mutates_args=("x",))  # type: ignore[arg-type]
    with pytest.raises(ow.errors.ContractError, match=r"an option of ow.op must be where, .*, got 'were'"):
        ow.op(f"{namespace}::f", were=["n > 1"])  # type: ignore[arg-type]


def test_a_module_that_holds_an_operator_can_be_copied(namespace: str) -> None:
    class Module(torch.nn.Module):
        def __init__(self, op: ow.Op) -> None:
            super().__init__()
            self.op = op

    op = double(namespace)
    op.python(lambda x, *, a: x * a, name="k")
    copied = copy.deepcopy(Module(op))
    assert copied.op is op
    assert op(torch.ones(2)).tolist() == [2, 2]


def test_keyword_only_arguments_reach_python_kernels_by_keyword(namespace: str) -> None:
    op = double(namespace)

    @op.python
    def kernel(x: Tensor, *, a: float) -> Tensor:
        return x * a

    assert op.kernels["kernel"](torch.ones(1), a=3.0).item() == 3
    assert op(torch.ones(1), a=5.0).item() == 5
    assert op.overload(torch.ones(1)).item() == 2


def test_opcheck_passes(namespace: str) -> None:
    op = double(namespace)
    torch.library.opcheck(op.overload, (torch.randn(3, requires_grad=True),), {"a": 3.0})

    @ow.op(f"{namespace}::stack")
    def stack(
        xs: list[Float[Tensor, " n"]], s: list[int], o: Float[Tensor, " n"] | None = None
    ) -> Float[Tensor, "_ n"]:
        return torch.stack(xs) * s[0]

    torch.library.opcheck(stack.overload, ([torch.randn(3, requires_grad=True), torch.randn(3)], [2, 1]))


# -- attaching --------------------------------------------------------------------------------------------


def test_attaching_returns_the_function_and_names_the_kernel_after_it(namespace: str) -> None:
    op = double(namespace)

    @op.python
    def fast(x: Tensor, *, a: float) -> Tensor:
        return x * a

    @op.python(name="named")
    def _(x: Tensor, *, a: float) -> Tensor:
        return x * a

    @op.python
    def _(x: Tensor, *, a: float) -> Tensor:
        return x * a

    assert fast(torch.ones(1), a=2.0).item() == 2
    assert list(op.kernels) == ["fast", "named", "python"]


@pytest.mark.parametrize(
    ("kernel", "came"),
    [
        (lambda x: x, "(x)"),
        (lambda y, *, a: y, "(y, *, a)"),
        (lambda x, a: x, "(x, a)"),
        (lambda x, *, a, b=1: x, "(x, *, a, b)"),
    ],
)
def test_a_kernel_with_other_parameters_is_refused_when_it_is_attached(kernel: Any, came: str, namespace: str) -> None:
    with pytest.raises(SignatureMismatchError) as error:
        double(namespace).python(kernel, name="k")
    assert f"{namespace}::double: the python kernel 'k' must take (x, *, a), got {came}" in str(error)
    assert "(x, *, a)" in error.value.fix


def test_a_kernel_may_take_whatever_comes_or_be_written_in_c(namespace: str) -> None:
    @ow.op(f"{namespace}::sub")
    def sub(x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x - y

    sub.python(torch.sub, name="torch")
    sub.python(lambda *args: args[0] - args[1], name="any")
    assert sub.kernels["torch"](torch.ones(1), torch.ones(1)).item() == 0
    assert sub.kernels["any"](torch.ones(1), torch.ones(1)).item() == 0


def test_sources_are_found_beside_a_reference_that_is_decorated(namespace: str) -> None:
    @ow.op(f"{namespace}::plain")
    def plain(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return x + 1

    @ow.op(f"{namespace}::decorated")
    @torch.no_grad()  # a function of torch's own file
    def decorated(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return x + 1

    assert decorated.contract.file == plain.contract.file == __file__


def test_mistakes_in_attaching_are_refused_with_a_remedy(namespace: str, tmp_path: Any) -> None:
    op = double(namespace)
    (tmp_path / "kernel.py").write_text("")
    attempts = {
        "must be one of name, devices, dtypes, when, got 'warps'": lambda: op.python(lambda x, *, a: x, warps=3),
        "op.python must be given a callable, got a file": lambda: op.python("kernel.py"),
        "op.cpp must be given a file, got a callable": lambda: op.cpp(lambda x, *, a: x),
        "op.cpp must be given a file that exists, got 'missing.cpp'": lambda: op.cpp("missing.cpp"),
        "must be given the name of a file, got source text": lambda: op.cpp("int main() {\n}\n"),
        "op.cpp must be given a .cpp or .cc or .cxx file, got 'kernel.py'": lambda: op.cpp(tmp_path / "kernel.py"),
        "devices must be types of torch's devices, got 'gpu'": lambda: op.python(lambda x, *, a: x, devices=["gpu"]),
        "dtypes must be of type torch.dtype, got 'half'": lambda: op.python(lambda x, *, a: x, dtypes=["half"]),
        "name must differ from the reference's, got 'reference'": lambda: op.python(
            lambda x, *, a: x, name="reference"
        ),
    }
    for expected_message, attempt in attempts.items():
        with pytest.raises(KernelError) as error:
            attempt()
        assert expected_message in error.value.message
        assert f"{namespace}::double" in error.value.message
        assert error.value.fix
    assert not op.kernels


def test_op_is_a_decorator_for_functions_only() -> None:
    with pytest.raises(ContractError, match="must decorate a function"):
        ow.op("demo::x")(torch.nn.ReLU)  # type: ignore[arg-type]


def test_operators_of_a_module_come_in_order_of_definition(namespace: str) -> None:
    from opwright.runtime.op import defined_in

    @ow.op(f"{namespace}::b")
    def b(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x

    @ow.op(f"{namespace}::a")
    def a(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x

    assert defined_in({"a": a, "b": b, "again": a, "other": 3}) == [b, a]


def test_a_kernel_that_returns_a_list_gives_the_tuple_that_the_contract_promises(namespace):
    @ow.op(f"{namespace}::halves")
    def halves(x: Float[Tensor, " n"]) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        return x / 2, x / 2

    @halves.python(name="listed")
    def _(x):
        return [x / 2, x / 2]

    assert type(halves(torch.ones(2))) is tuple
    assert type(halves.kernels["listed"](torch.ones(2))) is tuple


class _Wrapper(torch.Tensor):
    """A tensor whose elements are in another one, as a DTensor's are in its local part."""

    @staticmethod
    def __new__(cls, inner):
        wrapper = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        wrapper.inner = inner
        return wrapper

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*(a.inner if isinstance(a, cls) else a for a in args), **(kwargs or {}))


class _Named(torch.Tensor):
    """A tensor with memory of its own."""


@pytest.mark.parametrize("calls_before", [0, 3])
def test_a_kernel_called_by_name_refuses_tensors_whose_memory_is_elsewhere(namespace, calls_before):
    @ow.op(f"{namespace}::twice")
    def twice(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return 2 * x

    twice.python(lambda x: torch.from_numpy(x.numpy() * 2), name="by address")
    x = torch.randn(5)
    for _ in range(calls_before):
        twice.kernels["by address"](x)
    for tensor in (_Wrapper(x), FakeTensorMode().from_tensor(x)):
        with pytest.raises(ow.errors.KernelRefusedError, match=r"'x'.*has no memory of its own\n.*twice\.only"):
            twice.kernels["by address"](tensor)
    assert torch.equal(twice(_Wrapper(x)), 2 * x)
    for tensor in (x.as_subclass(_Named), torch.nn.Parameter(x)):
        assert torch.equal(twice.kernels["by address"](tensor.detach()), 2 * x)
