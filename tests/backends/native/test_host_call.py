"""Host functions called without the dispatcher: the same values, the same errors, and only if that is allowed."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.backends.native import host_function, python_function, tensor_access
from opwright.backends.native.host_call import HostFunction

pytestmark = pytest.mark.compiler

HEAD = """
#include <torch/csrc/stable/tensor.h>
#include <torch/csrc/stable/ops.h>
#include <chrono>
#include <optional>
#include <stdexcept>
#include <thread>
#include <tuple>
using torch::stable::Tensor;
"""
MIXED = (
    HEAD
    + """
static Tensor filled(const Tensor& like, double value) {
  Tensor out = torch::stable::empty_like(like);
  for (int64_t i = 0; i < like.numel(); ++i) out.mutable_data_ptr<float>()[i] = value;
  return out;
}
std::tuple<Tensor, Tensor> mixed(const Tensor& x, std::optional<Tensor> y, int64_t times, double a, bool flag,
                                 std::optional<double> b) {
  if (times == 13) throw std::runtime_error("thirteen");
  if (times == 14) throw std::out_of_range("fourteen");
  if (times == 15) throw 15;
  const double first = x.const_data_ptr<float>()[0] * times + (y ? y->const_data_ptr<float>()[0] : 0);
  return {filled(x, first), filled(x, (flag ? a : -a) + b.value_or(100))};
}
"""
)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> ow.Op:
    @ow.op("test_host_call::mixed")
    def mixed(
        x: Float[Tensor, " n"],
        y: Float[Tensor, " n"] | None,
        times: int,
        a: float,
        *,
        flag: bool = False,
        b: float | None = None,
    ) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        first = x[:1] * times + (0 if y is None else y[:1])
        second = (a if flag else -a) + (100 if b is None else b)
        return first.expand_as(x).clone(), torch.full_like(x, second)

    source = tmp_path_factory.mktemp("mixed") / "mixed.cpp"
    source.write_text(MIXED)
    mixed.cpp(source, name="native")
    return mixed


def direct_of(op: ow.Op):
    launch = op.kernels["native"].load()
    assert isinstance(launch, HostFunction)
    return launch._direct


@pytest.mark.slow
@pytest.mark.parametrize("with_y", [True, False])
@pytest.mark.parametrize(("flag", "b"), [(True, 0.5), (False, None)])
def test_every_kind_of_argument_arrives_as_through_the_dispatcher(mixed, with_y, flag, b):
    x, y = torch.randn(5), torch.randn(5) if with_y else None
    expected = mixed.contract.function(x, y, 3, 0.25, flag=flag, b=b)
    direct = direct_of(mixed)
    assert direct is not None
    for got in (
        direct(x, y, 3, 0.25, flag, b),
        *(mixed(x, y, 3, 0.25, flag=flag, b=b) for _ in range(3)),
        mixed.overload(x, y, 3, 0.25, flag=flag, b=b),
    ):
        assert type(got) is tuple
        torch.testing.assert_close(got, expected)


def test_what_the_kernel_throws_is_an_error_on_either_way(mixed):
    x = torch.ones(3)
    for times, kind in ((13, RuntimeError), (14, IndexError)):
        with pytest.raises(kind):
            direct_of(mixed)(x, x, times, 1.0, True, None)
        with pytest.raises(kind):
            mixed(x, x, times, 1.0)
    with pytest.raises(RuntimeError, match=r"not a std::exception"):
        direct_of(mixed)(x, x, 15, 1.0, True, None)
    with pytest.raises(TypeError):
        direct_of(mixed)(x, x, "n", 1.0, True, None)
    with pytest.raises(TypeError, match="takes 6 arguments, got 2"):
        direct_of(mixed)(x, x)
    assert torch.equal(direct_of(mixed)(x, x, 1, 1.0, True, None)[0], 2 * x)


def test_tensors_are_neither_lost_nor_kept(mixed):
    x = torch.ones(3)
    before = x.data_ptr()
    counts = [torch._C._storage_Use_Count(x.untyped_storage()._cdata)]
    for _ in range(100):
        first, second = direct_of(mixed)(x, x, 1, 1.0, True, None)
    del first, second
    counts.append(torch._C._storage_Use_Count(x.untyped_storage()._cdata))
    assert counts[0] == counts[1]
    assert x.data_ptr() == before
    assert x.tolist() == [1, 1, 1]


@pytest.mark.slow  # compiles twice
def test_an_edited_source_is_another_function(namespace, tmp_path):
    @ow.op(f"{namespace}::times")
    def times(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x * 2

    x = torch.ones(3)
    for factor in (2, 3):
        (tmp_path / "times.cpp").write_text(
            MIXED.split("std::tuple<Tensor, Tensor> mixed")[0]
            + f"Tensor times(const Tensor& x) {{ return filled(x, {factor} * x.const_data_ptr<float>()[0]); }}"
        )
        times.cpp(tmp_path / "times.cpp", name="native")
        assert direct_of(times)(x).tolist() == [factor] * 3
        assert [times(x)[0], times(x)[0]] == [factor] * 2


def test_what_is_no_plain_tensor_goes_through_the_dispatcher(mixed, monkeypatch):
    class Own(torch.Tensor):
        pass

    x = torch.ones(3)
    loaded, through = mixed.kernels["native"].load(), []
    launch = direct_of(mixed)
    monkeypatch.setattr(loaded, "_through_dispatcher", lambda *a: through.append(a) or launch(*a))
    rest = (1, 1.0, *mixed.contract.tails[4])
    loaded(x, torch.nn.Parameter(x), *rest)
    assert not through
    loaded(x.as_subclass(Own), x, *rest)
    assert len(through) == 1


@pytest.mark.slow
def test_other_threads_run_while_a_kernel_does(namespace, tmp_path):
    @ow.op(f"{namespace}::wait")
    def wait(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x

    (tmp_path / "wait.cpp").write_text(
        HEAD + "Tensor wait(const Tensor& x) {"
        "std::this_thread::sleep_for(std::chrono::milliseconds(200)); return torch::stable::clone(x); }"
    )
    wait.cpp(tmp_path / "wait.cpp", name="native")
    direct, x = direct_of(wait), torch.ones(3)
    thread = threading.Thread(target=direct, args=(x,))
    start = time.perf_counter()
    thread.start()
    direct(x)
    thread.join()
    assert time.perf_counter() - start < 0.35


@pytest.mark.slow  # compiles anew
def test_without_pythons_headers_or_on_another_torch_there_is_the_dispatcher(namespace, tmp_path, monkeypatch):
    @ow.op(f"{namespace}::same")
    def same(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x

    (tmp_path / "same.cpp").write_text(HEAD + "Tensor same(const Tensor& x) { return torch::stable::clone(x); }")
    monkeypatch.setattr(host_function, "python_headers", lambda: None)
    same.cpp(tmp_path / "same.cpp", name="native")
    x = torch.randn(3)
    assert direct_of(same) is None
    for _ in range(3):
        assert torch.equal(same(x), x)
    monkeypatch.undo()
    same.cpp(tmp_path / "same.cpp", name="native")
    assert direct_of(same) is not None
    monkeypatch.setattr(python_function, "access_to_tensors", lambda: None)
    same.cpp(tmp_path / "same.cpp", name="native")
    assert direct_of(same) is None
    assert torch.equal(same(x), x)


@pytest.mark.slow
def test_a_list_of_tensors_goes_through_the_dispatcher(namespace, tmp_path):
    @ow.op(f"{namespace}::first")
    def first(xs: list[Float[Tensor, " n"]]) -> Float[Tensor, " n"]:
        return xs[0].clone()

    (tmp_path / "first.cpp").write_text(
        HEAD + "#include <vector>\nTensor first(const std::vector<Tensor>& xs) { return torch::stable::clone(xs[0]); }"
    )
    first.cpp(tmp_path / "first.cpp", name="native")
    x = torch.randn(3)
    for _ in range(3):
        assert torch.equal(first([x, x]), x)
    assert direct_of(first) is None


def test_where_a_tensor_is_held_is_found_in_this_torch():
    access = tensor_access.access_to_tensors()
    assert access is not None
    assert tensor_access._offset_of_tensor() is not None
