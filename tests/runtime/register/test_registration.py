"""A redefinition replaces the old operator, in one process and across two; other libraries' names are not changed."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import Complex, Float
from torch import Tensor

import opwright as ow
from opwright.errors import NameClashError
from tests.sampled import sampled


def scale(namespace: str, factor: float, gradient: float | None = None) -> ow.Op:
    @ow.op(f"{namespace}::scale")
    def scale(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x * factor

    if gradient is not None:
        scale.register_autograd(lambda ctx, grad: grad * gradient)
    return scale


def test_a_new_body_is_what_every_way_runs(namespace: str) -> None:
    x = torch.ones(3)
    scale(namespace, 2.0)
    assert getattr(torch.ops, namespace).scale(x)[0] == 2
    op = scale(namespace, 3.0)
    assert op(x)[0] == 3
    assert getattr(torch.ops, namespace).scale(x)[0] == 3


def test_a_new_schema_replaces_the_old_one(namespace: str) -> None:
    scale(namespace, 2.0)

    @ow.op(f"{namespace}::scale")
    def scale_(x: Float[Tensor, " n"], a: float, b: float = 1.0) -> tuple[Float[Tensor, " n"], Float[Tensor, ""]]:
        return x * a, x.sum() * b

    assert getattr(torch.ops, namespace).scale(torch.ones(3), 5.0)[1] == 3


@pytest.mark.slow  # Inductor
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.compiler)])
@pytest.mark.parametrize("hand_written", [False, True])
def test_compiled_callers_follow_a_redefinition(backend: str, hand_written: bool, namespace: str) -> None:
    holder: dict[str, ow.Op] = {}

    def caller(x: Tensor) -> Tensor:
        return getattr(torch.ops, namespace).scale(x) + 0

    compiled = torch.compile(caller, fullgraph=True, backend=backend)
    for factor in (2.0, 3.0):
        holder["op"] = scale(namespace, factor, factor * 10 if hand_written else None)
        x = torch.ones(3, requires_grad=True)
        out = compiled(x)
        out.sum().backward()
        assert out[0] == factor
        assert x.grad[0] == (factor * 10 if hand_written else factor)


def test_a_compiled_caller_follows_a_gradient_registered_later(namespace: str) -> None:
    op = scale(namespace, 2.0)
    compiled = torch.compile(lambda x: op(x), fullgraph=True, backend="aot_eager")
    for gradient in (5.0, 6.0):
        op.register_autograd(lambda ctx, grad, g=gradient: grad * g)
        x = torch.ones(3, requires_grad=True)
        compiled(x).sum().backward()
        assert x.grad[0] == gradient


def test_a_compiled_caller_follows_a_kernel_attached_later(namespace: str) -> None:
    op = scale(namespace, 2.0)
    compiled = torch.compile(lambda x: op(x), fullgraph=True, backend="aot_eager")
    assert compiled(torch.ones(3))[0] == 2
    op.python(lambda x: x * 7, name="k")
    assert compiled(torch.ones(3))[0] == 7


def test_an_operator_whose_source_is_gone_keeps_no_other_from_being_compiled(namespace: str, tmp_path: Path) -> None:
    source = tmp_path / "gone.cpp"
    source.write_text("#include <opwright/tensor.h>\nTensor gone(const Tensor& x) { return x; }\n")

    @ow.op(f"{namespace}::gone")
    def gone(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x + 1

    gone.cpp(source, entry="gone")
    before = gone.fingerprint
    source.unlink()
    vars(gone).pop("fingerprint")
    assert gone.fingerprint != before
    op = scale(namespace, 2.0)
    compiled = torch.compile(lambda x: op(x), fullgraph=True, backend="aot_eager")
    assert compiled(torch.ones(3))[0] == 2


def test_the_earlier_object_says_that_it_was_replaced(namespace: str) -> None:
    earlier = scale(namespace, 2.0)
    scale(namespace, 3.0)
    for x in (torch.ones(3), torch.ones(3, requires_grad=True)):
        with pytest.raises(NameClashError, match="was redefined") as error:
            earlier(x)
        assert "import it again" in error.value.fix


MODULE = """
import torch
import opwright as ow
from jaxtyping import Complex, Float
from torch import Tensor

@ow.op("{namespace}::scale")
def scale(x: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    return x * {factor}
"""


def write_module(folder: Path, name: str, **fields: Any) -> None:
    (folder / f"{name}.py").write_text(MODULE.format(**{"namespace": name, **fields}))
    importlib.invalidate_caches()


def test_reloading_a_module_redefines_its_operators(
    tmp_path: Path, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    write_module(tmp_path, namespace, factor=2.0)
    module = importlib.import_module(namespace)
    compiled = torch.compile(lambda x: module.scale(x), backend="aot_eager")
    assert compiled(torch.ones(1)).item() == 2
    write_module(tmp_path, namespace, factor=30.0)
    importlib.reload(module)
    assert module.scale(torch.ones(1)).item() == 30
    assert compiled(torch.ones(1)).item() == 30


def test_the_same_name_in_another_file_is_refused(
    tmp_path: Path, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    write_module(tmp_path, namespace, factor=2.0)
    first = importlib.import_module(namespace)
    write_module(tmp_path, f"{namespace}_other", namespace=namespace, factor=3.0)
    with pytest.raises(NameClashError) as error:
        importlib.import_module(f"{namespace}_other")
    assert f"{namespace}::scale is defined twice" in error.value.message
    assert f"{namespace}.py" in error.value.message
    assert f"{namespace}_other.py" in error.value.message
    assert first.scale(torch.ones(1)).item() == 2, "the first is untouched"


def test_a_name_of_torch_s_own_is_refused() -> None:
    with pytest.raises(NameClashError, match="aten::relu is already registered") as error:

        @ow.op("aten::relu")
        def relu(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
            return x

    assert "your own namespace" in error.value.fix
    assert torch.ops.aten.relu(torch.tensor([-1.0])).item() == 0


def test_a_name_of_another_library_is_refused(namespace: str) -> None:
    library = torch.library.Library(namespace, "DEF")
    library.define("scale(Tensor x) -> Tensor")
    with pytest.raises(NameClashError, match="already registered"):
        scale(namespace, 2.0)
    library._destroy()


def test_a_name_that_the_gradient_needs_is_refused(namespace: str) -> None:
    @ow.op(f"{namespace}::scale_vjp")
    def scale_vjp(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x

    with pytest.raises(NameClashError, match=f"the gradient of {namespace}::scale would have this name"):
        scale(namespace, 2.0)
    assert scale_vjp(torch.ones(1)).item() == 1


def test_a_refused_redefinition_leaves_no_trace(namespace: str) -> None:
    with pytest.raises(NameClashError):
        scale("aten", 2.0) if hasattr(torch.ops.aten, "scale") else ow.op("aten::mul")(_mul)
    assert scale(namespace, 4.0)(torch.ones(1)).item() == 4


def _mul(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    return x


TRAINING = """
import torch, opwright as ow
from jaxtyping import Complex, Float
from torch import Tensor

FORWARD = {forward}
TABLE = {{"gradient": {gradient}}}

@ow.op("stale::scale")
def scale(x: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    return x * FORWARD

def backward(ctx, grad):
    return grad * TABLE["gradient"]

{register}

x = torch.ones(8, requires_grad=True)
out = torch.compile(lambda x: scale(x.sin()) * 2, fullgraph=True, dynamic={dynamic})(x)
out.sum().backward()
print("result", round(float(out[0] / x.sin()[0]), 3), round(float(x.grad[0] / x.cos()[0]), 3))
"""


@pytest.mark.compiler
@pytest.mark.slow
@pytest.mark.parametrize("dynamic", sampled([False, True], 2), ids=["static", "dynamic"])
@pytest.mark.parametrize("hand_written", sampled([True, False], 2), ids=["custom", "derived"])
def test_no_stale_gradient_from_a_cache_on_disk(
    hand_written: bool, dynamic: bool, run_python: Any, tmp_path: Path
) -> None:
    """torch.compile's caches know an operator by its name alone: torch uses the old backward."""
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "shared"), "TORCHINDUCTOR_FX_GRAPH_CACHE": "1"}
    register = "scale.register_autograd(backward)" if hand_written else ""
    seen = []
    for forward, gradient in ((2.0, 5.0), (2.0 if hand_written else 3.0, 7.0)):
        script = TRAINING.format(forward=forward, gradient=gradient, register=register, dynamic=dynamic)
        seen.append(run_python(script, env=cache).stdout.split()[-2:])
    expected = [["4.0", "10.0"], ["4.0", "14.0"]] if hand_written else [["4.0", "4.0"], ["6.0", "6.0"]]
    assert seen == expected


def test_a_lazy_conjugate_inside_a_reference_survives_torch_compile(namespace: str) -> None:
    @ow.op(f"{namespace}::product")
    def product(x: Complex[Tensor, " n"], y: Complex[Tensor, " n"]) -> Complex[Tensor, " n"]:
        return x * y.conj()

    x, y = torch.randn(2, 5, dtype=torch.complex64)
    compiled = torch.compile(lambda x, y: product(x, y), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, y), x * y.conj())


@pytest.mark.slow  # compiles with g++
@pytest.mark.compiler
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_inductor_keeps_the_operator_where_the_environment_says_ci(dynamic: bool, namespace: str, monkeypatch) -> None:
    """With ``CI`` in the environment, Inductor refuses a fall-back beside a decomposition."""
    monkeypatch.setenv("CI", "true")
    op = scale(namespace, 2.0)
    compiled = torch.compile(lambda x: op(x) + 1, fullgraph=True, dynamic=dynamic)
    x = torch.ones(5, requires_grad=True)
    out = compiled(x)
    out.sum().backward()
    assert out[0] == 3
    assert x.grad[0] == 2


def test_forward_mode_of_lists_is_refused_rather_than_zero(namespace: str) -> None:
    """``torch.library.register_autograd``, which lists need, drops tangents silently."""

    @ow.op(f"{namespace}::total")
    def total(xs: list[Float[Tensor, " n"]]) -> Float[Tensor, " n"]:
        return sum(x.sin() for x in xs)

    x = torch.randn(3)
    for call in (total, total.overload):
        with pytest.raises(NotImplementedError, match=r"(?s)total has no forward-mode derivative.*its reference"):
            torch.func.jvp(lambda x, call=call: call([x, x]), (x,), (x,))
    torch.testing.assert_close(total([x, x]), 2 * x.sin())
    reference = total.contract.function
    torch.testing.assert_close(torch.func.jvp(lambda x: reference([x, x]), (x,), (x,))[1], 2 * x * x.cos())
