"""Running the reference: torch and NumPy, outputs, and the functions that a reference calls."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor

import opwright as ow
from opwright.contract.contract import Contract
from opwright.contract.definition.define import make_contract
from opwright.contract.numpy.ufuncs import UFUNCS
from opwright.contract.reference import fresh_outputs, replace_globals
from opwright.errors import ContractError

FACTOR = 3.0


def helper(x: np.ndarray) -> np.ndarray:
    return np.tanh(x) * FACTOR


def contract_of(function: object) -> Contract:
    return make_contract("demo::f", function, globals())  # type: ignore[arg-type]


def test_a_numpy_reference_runs_by_numpy_itself_on_plain_cpu_tensors() -> None:
    seen = []

    def f(x: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        seen.append(type(x))
        return helper(x)

    contract, x = contract_of(f), torch.randn(5)
    seen.clear()
    (out,) = contract.reference([x])
    assert seen == [np.ndarray]
    np.testing.assert_array_equal(out.numpy(), np.tanh(x.numpy()) * np.float32(3))


def test_the_traceable_form_of_a_numpy_reference_agrees_and_differentiates() -> None:
    def f(x: Float[np.ndarray, " n"], k: int) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, ""]]:
        y = helper(x) ** k
        return y, y.sum()

    contract = contract_of(f)
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    y, total = contract.traceable([x, 2])
    for ours, numpys in zip((y, total), contract.reference([x.detach(), 2]), strict=True):
        torch.testing.assert_close(ours.detach(), numpys)
    total.backward()
    torch.testing.assert_close(x.grad, 18 * torch.tanh(x.detach()) * (1 - torch.tanh(x.detach()) ** 2))


def test_a_numpy_reference_takes_a_view_that_numpy_reverses() -> None:
    def f(x: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        return x[::-1]

    (out,) = contract_of(f).reference([torch.arange(3.0)])
    assert out.tolist() == [2, 1, 0]
    assert out.is_contiguous()


def test_numpy_scalars_become_tensors() -> None:
    def f(x: Float[np.ndarray, " n"]) -> Float[np.ndarray, ""]:
        return x.sum()

    (out,) = contract_of(f).reference([torch.ones(3, dtype=torch.float64)])
    assert out.shape == ()
    assert out.dtype == torch.float64


def test_a_conjugated_complex_tensor_reaches_numpy() -> None:
    def f(x: Complex[np.ndarray, " n"]) -> Complex[np.ndarray, " n"]:
        return x * 1

    x = torch.tensor([1 + 2j]).conj()
    (out,) = contract_of(f).reference([x])
    assert out.tolist() == [1 - 2j]


def test_outputs_are_contiguous_and_alias_nothing() -> None:
    def f(x: Float[Tensor, "n k"]) -> tuple[Float[Tensor, "k n"], Float[Tensor, "n k"], Float[Tensor, "n k"]]:
        return x.T, x, x

    x = torch.randn(2, 3)
    outputs = contract_of(f).reference([x])
    assert all(o.is_contiguous() for o in outputs)
    pointers = {t.untyped_storage().data_ptr() for t in (x, *outputs)}
    assert len(pointers) == 4


def test_fresh_outputs_copies_only_what_is_shared() -> None:
    own, argument = torch.randn(3), torch.randn(3)
    first, second = fresh_outputs([own, argument], [argument])
    assert first is own
    assert second is not argument
    assert torch.equal(second, argument)


@pytest.mark.parametrize("returned", ["1.0", "(x, x)", "None", "[x, 2]"])
def test_a_reference_that_breaks_its_promise_is_reported(returned: str) -> None:
    scope = {"Float": Float, "Tensor": Tensor, "__name__": __name__}
    exec(f"def f(x: Float[Tensor, 'n']) -> Float[Tensor, 'n']:\n  return {returned}", scope)
    with pytest.raises(ContractError, match=r"demo::f: the reference returned \(") as error:
        contract_of(scope["f"]).reference([torch.ones(2)])
    assert "annotation promises 1 tensor" in error.value.message


def test_a_list_of_tensors_reaches_a_numpy_reference_as_arrays() -> None:
    def f(xs: list[Float[np.ndarray, " n"]]) -> Float[np.ndarray, " n"]:
        return np.add(xs[0], xs[1])

    contract, xs = contract_of(f), [torch.ones(2), torch.ones(2)]
    assert contract.reference([xs])[0].tolist() == [2, 2]
    assert contract.traceable([xs])[0].tolist() == [2, 2]


def test_an_absent_optional_reaches_a_numpy_reference_as_none() -> None:
    def f(x: Int[np.ndarray, " n"], y: Int[np.ndarray, " n"] | None = None) -> Int[np.ndarray, " n"]:
        return x if y is None else x + y

    contract = contract_of(f)
    assert contract.reference([torch.ones(1, dtype=torch.int64), None])[0].tolist() == [1]
    assert contract.traceable([torch.ones(1, dtype=torch.int64), None])[0].tolist() == [1]


def test_replacing_globals_reaches_closures_helpers_and_recursion() -> None:
    old, new = object(), object()
    scope: dict[str, object] = {"THING": old}
    exec(
        "def helper(n): return THING if n == 0 else helper(n - 1)\n"
        "def make(inner):\n  def f(*, n=2): return helper(n), inner\n  return f",
        scope,
    )
    f = scope["make"](old)  # type: ignore[operator]
    assert replace_globals(f, {id(old): new})() == (new, new)
    assert f() == (old, old)


def test_arrays_that_a_numpy_reference_makes_are_beside_its_arguments():
    @ow.op("testreference::own")
    def own(x: Float[np.ndarray, " n"], k: int) -> Float[np.ndarray, "k n"]:
        return np.where(x > np.arange(k)[:, None], x, x * 0)

    (out,) = own.contract.traceable((torch.zeros(5, device="meta"), 3))
    assert out.device.type == "meta"
    assert out.shape == (3, 5)


def test_steps_on_tensors_that_differ_from_numpy_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient is derived from these steps."""

    def f(x: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        return np.square(x)

    contract = contract_of(f)
    x = torch.ones(3, requires_grad=True)
    contract.traceable([x])
    monkeypatch.setitem(UFUNCS, "square", lambda x: x * 3)
    with pytest.raises(ContractError, match=r"gives something else: .* is 3.0, NumPy's 1.0"):
        contract.traceable([x.double()])  # a dtype that was not compared before


def test_an_element_is_a_copy_in_gradients_and_vmap() -> None:
    def swap(a: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        a = a * 1
        t = a[0]
        a[0] = a[1]
        a[1] = t
        a -= a[0]
        return a * a[1]

    contract = contract_of(swap)
    x = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64, requires_grad=True)
    (out,) = contract.traceable([x])
    assert out.tolist() == contract.reference([x.detach()])[0].tolist() == [-0.0, 1.0, -2.0]
    assert torch.autograd.gradcheck(lambda x: contract.traceable([x])[0], (x,))
    rows = torch.arange(12.0, dtype=torch.float64).reshape(4, 3)
    mapped = torch.vmap(lambda row: contract.traceable([row])[0])(rows)
    assert torch.equal(mapped, torch.stack([contract.reference([row])[0] for row in rows]))
