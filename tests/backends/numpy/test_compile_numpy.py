"""``ow.compile_numpy``: NumPy's results, dtypes and side effects, or an error with the reason."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import opwright as ow
from opwright.backends.numpy import tracing
from opwright.errors import ArgumentError, CompileError, ContractError
from tests import sampled


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run traced graphs in Python: for tests of everything except the generated code."""
    monkeypatch.setattr(tracing, "generate", lambda graph, inputs: graph)


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    output: list[str] = []

    class Tools:
        notify = staticmethod(output.append)

    for file in ("compile_numpy", "torch_compiled", "numba_compiled"):
        monkeypatch.setattr(f"opwright.backends.numpy.{file}.build_tools", Tools)
    return output


def nearest(X, means):  # type: ignore[no-untyped-def]
    return np.argmin(np.linalg.norm(X - means[:, None], axis=2), axis=0)


def same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and a.dtype == b.dtype and np.array_equal(a, b)


# -- arrays and tensors -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.compiler
def test_generated_code_gives_numpys_answer_for_every_size() -> None:
    compiled = ow.compile_numpy(nearest)
    for n in (1, 2, 10, 1000):
        X, means = np.random.default_rng(n).random((n, 2)), np.random.default_rng(0).random((5, 2))
        assert same(compiled(X, means), nearest(X, means))


@pytest.mark.usefixtures("quick")
def test_arrays_give_arrays_and_tensors_tensors() -> None:
    compiled = ow.compile_numpy(lambda x, y: (x + y, {"sum": np.sum(x)}, 3, None))
    x = np.arange(4.0)
    total, named, three, none = compiled(x, y=x)
    assert same(total, x + x)
    assert same(named["sum"], np.float64(6.0))
    assert (three, none) == (3, None)
    total, named, three, none = compiled(torch.arange(4.0), y=torch.arange(4.0))
    assert torch.equal(total, 2 * torch.arange(4.0))
    assert torch.equal(named["sum"], torch.tensor(6.0))


@pytest.mark.usefixtures("quick")
def test_arrays_and_tensors_in_one_call_are_refused() -> None:
    with pytest.raises(ArgumentError, match="must be given arrays or tensors, got both"):
        ow.compile_numpy(lambda x, y: x + y)(np.ones(2), torch.ones(2))


@pytest.mark.usefixtures("quick")
def test_memory_is_shared_both_ways() -> None:
    x = np.arange(6.0)
    out = ow.compile_numpy(lambda x: x[::2])(x)
    assert np.shares_memory(out, x)  # a view of NumPy's is a view
    x[0] = 9
    assert out[0] == 9
    t = torch.arange(6.0)
    assert ow.compile_numpy(lambda x: x[1:])(t).untyped_storage().data_ptr() == t.untyped_storage().data_ptr()


class Copies(TorchDispatchMode):
    """Lists copies, to another device or within one."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func.overloadpacket in (torch.ops.aten._to_copy, torch.ops.aten.copy_, torch.ops.aten.clone):
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("make", [torch.arange, np.arange])
def test_nothing_is_copied_on_the_way(make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = ow.compile_numpy(verify="never", mode="compiled")(lambda x: x * 2 + np.ones(1, dtype=np.float64))
    x = make(6) * 1.0 if make is np.arange else torch.arange(6, dtype=torch.float64)
    copies = Copies()
    run = tracing.generate
    monkeypatch.setattr(tracing, "generate", lambda graph, inputs: _watched(run(graph, inputs), copies))
    compiled(x)
    assert copies.found == []
    # ... and the test would see one.
    copying = ow.compile_numpy(verify="never", mode="compiled")(lambda x: x.astype(np.float32))
    copying(x)
    assert copies.found == ["aten._to_copy.default"]


def _watched(run: Callable[..., Any], copies: Copies) -> Callable[..., Any]:
    def watched(*inputs: Any) -> Any:
        with copies:
            return run(*inputs)

    return watched


def _transfers(call: Callable[[], Any]) -> list[str]:
    """The copies between host and GPU that a call makes."""
    with torch.profiler.profile() as profile:
        call()
        torch.cuda.synchronize()
    return [e.name for e in profile.events() if "Memcpy" in e.name and ("HtoD" in e.name or "DtoH" in e.name)]


@pytest.mark.gpu
@pytest.mark.triton
def test_on_a_gpu_tensors_stay_there_and_arrays_come_back() -> None:
    compiled = ow.compile_numpy(nearest)
    X, means = torch.rand(1000, 2, device="cuda"), torch.rand(5, 2, device="cuda")
    expected = nearest(X.cpu().numpy(), means.cpu().numpy())
    out = compiled(X, means)
    assert out.is_cuda
    assert np.array_equal(out.cpu().numpy(), expected)
    assert _transfers(lambda: compiled(X, means)) == []
    assert _transfers(lambda: compiled(X, means).cpu()) != [], "a copy to the host would not be seen"
    with torch.device("cuda"):
        assert same(compiled(X.cpu().numpy(), means.cpu().numpy()), expected)
    assert same(ow.compile_numpy(device="cuda")(nearest)(X.cpu().numpy(), means.cpu().numpy()), expected)


class Lent:
    """An array of some other library, lent by the standard's protocol."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()

    def __array_namespace__(self) -> Any:
        class Namespace:
            from_dlpack = staticmethod(lambda tensor: Lent(np.from_dlpack(tensor)))

        return Namespace


@pytest.mark.usefixtures("quick")
def test_an_array_of_another_library_comes_back_as_one() -> None:
    x = np.arange(3.0)
    out = ow.compile_numpy(lambda x: x[1:])(Lent(x))
    assert isinstance(out, Lent)
    assert np.shares_memory(out.array, x)


@pytest.mark.usefixtures("quick")
def test_gradients_go_through() -> None:
    compiled = ow.compile_numpy(lambda x: np.sum(x**2))
    x = torch.arange(4.0, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(compiled, (x,))


# -- NumPy's rules ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick")
def test_dtypes_are_numpys() -> None:
    def everything(i, s):  # type: ignore[no-untyped-def]
        return i / 2, np.sqrt(i), np.zeros(3), np.mean(i), np.arange(3), np.argmin(i), s * 2, s * 2.0, i + np.float32(1)

    i, s = np.arange(1, 4), np.arange(3, dtype=np.float32)
    for ours, numpys in zip(ow.compile_numpy(everything)(i, s), everything(i, s), strict=True):
        assert same(ours, numpys)


@pytest.mark.usefixtures("quick")
def test_a_default_float_dtype_is_of_one_function_only() -> None:
    def made(i):  # type: ignore[no-untyped-def]
        return i / 2, np.zeros(3), np.mean(i)

    single, double = ow.compile_numpy(default_float_dtype="float32")(made), ow.compile_numpy(made)
    for _ in range(2):
        assert [a.dtype for a in single(np.arange(3))] == [np.float32] * 3
        assert [a.dtype for a in double(np.arange(3))] == [np.float64] * 3
    assert torch._dynamo.config.numpy_default_float == "float64"
    assert torch.get_default_dtype() is torch.float32
    with pytest.raises(ContractError, match=r"default_float_dtype must be .*, got 'half'"):
        ow.compile_numpy(default_float_dtype="half")(made)  # type: ignore[call-overload]


@pytest.mark.usefixtures("quick")
def test_a_numpy_number_keeps_its_dtype_and_a_python_number_has_none() -> None:
    compiled = ow.compile_numpy(lambda x, a: x * a)
    x = np.arange(3, dtype=np.float32)
    for a in (np.float64(2), 2.0, 2, np.float32(2)):
        assert same(compiled(x, a), x * a)


@pytest.mark.usefixtures("quick")
def test_writes_to_arguments_are_seen_as_with_numpy() -> None:
    def write(x):  # type: ignore[no-untyped-def]
        x[0] = 7
        x += 1
        return x.sum()

    compiled = ow.compile_numpy(write)
    for make in (lambda: np.zeros(3), lambda: np.zeros(3)[::-1], lambda: np.zeros(6)[::2], lambda: np.zeros(3, ">f8")):
        ours, numpys = make(), make()
        assert compiled(ours) == write(numpys)
        assert np.array_equal(ours, numpys)
    fixed = np.zeros(3)
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        compiled(fixed)
    assert not fixed.any()


@pytest.mark.usefixtures("quick")
def test_out_is_written() -> None:
    def into(x, out):  # type: ignore[no-untyped-def]
        return np.add(x, 1, out=out)

    out = np.zeros(3)
    assert np.array_equal(ow.compile_numpy(into)(np.arange(3.0), out), [1, 2, 3])
    assert np.array_equal(out, [1, 2, 3])


@pytest.mark.usefixtures("quick")
def test_an_array_given_twice_is_one_array() -> None:
    def write(x, y):  # type: ignore[no-untyped-def]
        x += 1
        return y * 2

    x = np.zeros(3)
    assert np.array_equal(ow.compile_numpy(write)(x, x), [2, 2, 2])


@pytest.mark.usefixtures("quick")
def test_a_write_that_another_argument_should_see_is_refused() -> None:
    def write(x, y):  # type: ignore[no-untyped-def]
        x += 1
        return y * 2

    x = np.zeros(4)
    with pytest.raises(ArgumentError, match="memory another argument shares"):
        ow.compile_numpy(write)(x[:3], x[1:])
    ow.compile_numpy(lambda x, y: x + y)(x[:3], x[1:])  # without a write, there is nothing to see


@pytest.mark.usefixtures("quick")
def test_an_array_that_torch_cannot_hold_is_refused_by_name() -> None:
    with pytest.raises(ArgumentError, match="no array of dtype object"):
        ow.compile_numpy(lambda x: x)(np.array([None]))


# -- refusals -----------------------------------------------------------------------------------------


def uses_interp(x):  # type: ignore[no-untyped-def]
    return np.interp(x, x, x)


def calls_one_that_does(x):  # type: ignore[no-untyped-def]
    return uses_interp(x) + 1


def test_a_function_that_is_lacking_is_named_before_anything_is_compiled() -> None:
    line = uses_interp.__code__.co_firstlineno + 1
    for function in (uses_interp, calls_one_that_does):
        with pytest.raises(CompileError) as refused:
            ow.compile_numpy(function)
        assert f"np.interp, used in uses_interp at {__file__}:{line}" in str(refused.value)
        assert "np.searchsorted" in str(refused.value)


def test_random_numbers_are_refused_with_the_reason() -> None:
    with pytest.raises(CompileError, match=r"np\.random\.rand.*draws random numbers") as refused:
        ow.compile_numpy(lambda x: x + np.random.rand(3))
    assert "pass them as an argument" in str(refused.value)


def branches(x):  # type: ignore[no-untyped-def]
    y = x * 2
    if y.sum() > 0:
        return y
    return -y


def prints(x):  # type: ignore[no-untyped-def]
    print("hello")
    return x


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("function", "line", "cause", "instead"),
    [
        (branches, 2, "branching", "np.where"),
        (prints, 1, "print", "outside of the compiled function"),
    ],
)
def test_a_graph_break_is_named_with_function_line_cause_and_remedy(function, line, cause, instead) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(CompileError) as refused:
        ow.compile_numpy(function)(np.ones(3))
    place = f"(in {function.__name__} at {__file__}:{function.__code__.co_firstlineno + line})"
    assert place in str(refused.value)
    assert cause in refused.value.message
    assert instead in str(refused.value.fix)
    assert "torch" in refused.value.log  # the original exception is attached


@pytest.mark.usefixtures("quick")
def test_breaks_that_are_allowed_are_warned_of_once() -> None:
    compiled = ow.compile_numpy(allow_breaks=True)(branches)
    with pytest.warns(UserWarning, match=r"branches is not compiled whole.*: it branches on a value .*:\d+"):
        assert np.array_equal(compiled(np.ones(3)), [2, 2, 2])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.array_equal(compiled(-np.ones(3)), [2, 2, 2])
        assert torch.equal(compiled(torch.ones(3)), 2 * torch.ones(3))


@pytest.mark.usefixtures("quick")
def test_with_breaks_allowed_a_lacking_function_runs_in_python() -> None:
    compiled = ow.compile_numpy(allow_breaks=True)(calls_one_that_does)
    with pytest.warns(UserWarning, match=r"np\.interp"):
        assert np.array_equal(compiled(np.arange(3.0)), [1, 2, 3])


@pytest.mark.usefixtures("quick")
def test_an_error_of_the_function_itself_is_told() -> None:
    def wrong(x):  # type: ignore[no-untyped-def]
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        ow.compile_numpy(wrong)(np.ones(3))


# -- what is compiled, and why again --------------------------------------------------------------------


@pytest.mark.usefixtures("quick")
def test_sizes_become_symbols_and_recompiles_are_counted_and_explained(messages: list[str]) -> None:
    compiled = ow.compile_numpy(mode="compiled")(nearest)
    means = np.zeros((3, 2))
    assert "not compiled yet" in compiled.explain()
    for n in (5, 6, 7, 8, 50, 1000):
        compiled(np.ones((n, 2)), means)
    assert compiled.recompiles == 1
    assert compiled.compilations[1].reason == "X was float64[5, 2]"
    compiled(np.ones((5, 2), dtype=np.float32), means)
    assert compiled.recompiles == 2
    assert "X was float64[5, 2]" in compiled.explain()
    assert messages[0] == "compiling nearest (torch.compile); this call waits for it"
    assert "for (X: float64[5, 2], means: float64[3, 2]) in " in messages[1]
    assert len(messages) == 6


@pytest.mark.usefixtures("quick")
def test_dynamic_sizes_from_the_start_need_no_second_compilation() -> None:
    compiled = ow.compile_numpy(dynamic=True)(lambda x: x * 2)
    for n in (5, 6, 7):
        compiled(np.ones(n))
    assert compiled.recompiles == 0


@pytest.mark.usefixtures("quick")
@pytest.mark.slow  # compiles many patterns
def test_no_number_of_patterns_ends_in_torchs_recompile_limit() -> None:
    compiled = ow.compile_numpy(lambda x, k: x * k)
    for n in range(1, 5):
        for dtype in (np.float32, np.float64, np.int32, np.int64, np.bool_):
            for k in (2, 2.5):
                x = np.ones((n, 3), dtype=dtype)
                assert same(compiled(x, k), x * k)


@pytest.mark.usefixtures("quick")
def test_inside_another_graph_it_is_part_of_that() -> None:
    inner = ow.compile_numpy(lambda x: x * 2)
    outer = ow.compile_numpy(lambda x: inner(x) + 1)
    assert np.array_equal(outer(np.ones(2)), [3, 3])
    assert inner.compilations == []


@pytest.mark.slow
@pytest.mark.compiler
def test_caches_on_disk_know_which_float_was_asked_for(run_python, tmp_path) -> None:  # type: ignore[no-untyped-def]
    script = """
        import sys, numpy as np, opwright as ow

        def f(i):
            return i / 2 + np.zeros(1)

        compiled = ow.compile_numpy(default_float_dtype=sys.argv[1])(f)
        assert compiled(np.arange(3)).dtype == sys.argv[1], sys.argv[1]
    """
    for default in ("float32", "float64", "float32"):
        run_python(script, default, env={"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")})


@pytest.mark.parametrize("compiler", sampled.quick(["torch", "numba"], 1))
@pytest.mark.parametrize("zero", sampled.quick([0.0, 0j, np.float64(0.0)], 0), ids=repr)
def test_zeros_of_both_signs_are_other_numbers(compiler, zero):
    """Guards of torch.compile take them for one."""
    if compiler == "numba":
        pytest.importorskip("numba")

    def times(x, a):
        return x * a

    fast, x = ow.compile_numpy(compiler=compiler, mode="compiled")(times), np.ones(3)
    for a in (zero, zero, -zero, zero, -zero, -zero):
        assert np.array_equal(np.signbit(fast(x, a).real), np.signbit(times(x, a).real)), a


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("side", ["left", "right"])
def test_searches_in_arrays_that_end_in_nan_are_numpys(side):
    def search(a, v):
        return np.searchsorted(a, v, side=side)

    compiled = ow.compile_numpy(mode="compiled")(search)
    compiled(np.array([1.0, 2.0]), np.array([1.5]))
    sought = np.array([np.nan, np.inf, -np.inf, -0.0, 1.0, 2.5])
    for values in ([1, 2, np.nan], [1, np.inf, np.nan, np.nan], [np.nan], [-np.inf, 0, 1, 1], []):
        array = np.array(values, np.float64)
        np.testing.assert_array_equal(compiled(array, sought), search(array, sought), strict=True)
