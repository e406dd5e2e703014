"""New arrays of compiled NumPy are on the device of the arguments."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import opwright as ow
from opwright.backends.numpy import tracing
from opwright.backends.numpy.placement import _MadeOn, arrays_made_on
from opwright.errors import CompileError
from opwright.gallery.kmeans import kmeans_sums
from tests import sampled


def set_within(x):
    y = np.zeros(5)
    y[1:4] = x
    return y


FUNCTIONS = {
    "arange": lambda x: x + np.arange(3),
    "arange of a length": lambda x: x * np.arange(len(x))[:, None],
    "arange alone": lambda _: np.arange(4) / 2,
    "eye": lambda x: np.eye(3) @ x,
    "full": lambda x: x + np.full(3, 2.0),
    "index": lambda x: x[np.arange(2)],
    "indices": lambda x: x + np.indices((3,))[0],
    "set within": set_within,
    "tri": lambda x: np.tri(3) @ x,
    "where": lambda x: np.where(x > 1, np.zeros(3), 1.0),
    "zeros and ones": lambda x: x + np.zeros(3) + np.ones((3,)),
}
OF_LISTS = {
    "list": lambda x: x + np.array([1.0, 2.0, 3.0]),
    "list in a function": lambda x: np.concatenate([x, [1.0, 2.0]]),
    "list in an operator": lambda x: x * [1.0, 2.0, 3.0],
}
OUTSIDE = np.arange(3.0)


@pytest.fixture
def quick(monkeypatch):
    """Run traced graphs in Python."""
    monkeypatch.setattr(tracing, "generate", lambda graph, inputs: graph)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", sampled.quick(FUNCTIONS, every=4))
def test_what_numpy_makes_is_made_beside_the_arguments(name):
    function, x = FUNCTIONS[name], np.array([0.5, 1.5, 2.5], np.float32)
    expected = function(x)
    compiled = ow.compile_numpy(function)
    for around in (torch.device("cpu"), torch.device("meta")):
        with around:
            out = compiled(torch.ones(3, device="meta"))
        assert out.is_meta
        assert tuple(out.shape) == expected.shape
        assert str(out.dtype) == f"torch.{expected.dtype}"
    # The same function beside arrays, which stay on the CPU.
    np.testing.assert_array_equal(compiled(x), expected)
    with torch.device("meta"):
        np.testing.assert_array_equal(ow.compile_numpy(device="cpu")(function)(x), expected)


@pytest.mark.usefixtures("quick")
def test_the_gallerys_sums_are_traced_on_a_device_of_the_arguments():
    X, means = torch.ones(9, 2, device="meta"), torch.ones(4, 2, device="meta")
    by_decorator = ow.compile_numpy(kmeans_sums.contract.function)(X, means)
    by_kernel = kmeans_sums.kernels["numpy_compiled"].load()(X, means)
    for sums, counts in (by_decorator, by_kernel):
        assert (sums.device.type, sums.dtype, sums.shape) == ("meta", torch.float32, (4, 2))
        assert (counts.device.type, counts.dtype, counts.shape) == ("meta", torch.int64, (4,))


@pytest.mark.usefixtures("quick")
def test_an_array_of_the_cpu_that_is_no_argument_is_refused_beside_others():
    with pytest.raises(CompileError, match=r"(?s)test_placement.*two (different )?devices.*every array as an arg"):
        ow.compile_numpy(lambda x: x + OUTSIDE)(torch.ones(3, device="meta"))


def test_others_who_compile_numpy_notice_nothing():
    def makes(x):
        return torch.as_tensor(x.numpy() + np.arange(3))

    compiled = torch.compile(makes, fullgraph=True, backend="eager")
    with arrays_made_on(torch.device("meta")):
        pass
    with pytest.raises(Exception, match="device"):  # torch's own behaviour; if it changes, docs/numpy.md must
        compiled(torch.ones(3, device="meta"))
    assert compiled(torch.ones(3)).tolist() == [1, 2, 3]


def test_single_numbers_stay_constants_and_a_device_that_is_said_counts():
    with _MadeOn(torch.device("meta")):
        assert torch.as_tensor(3).is_cpu
        assert torch.as_tensor([3]).is_meta
        assert torch.zeros(2).is_meta
        assert torch.zeros(2, device="cpu").is_cpu


def test_a_block_for_the_cpu_hides_the_device_around_it():
    with torch.device("meta"), arrays_made_on(torch.device("cpu")):
        assert torch.zeros(1).is_cpu


@pytest.mark.slow
@pytest.mark.compiler
def test_lists_are_placed_too(run_python, tmp_path):
    """On tensors that report a GPU as their device: before torch 2.15, fake tensors take no list for ``meta``."""
    run_python(
        """
        import sys
        from pathlib import Path
        import torch
        from torch._subclasses import FakeTensorMode
        import opwright as ow
        from opwright.backends.numpy import tracing
        from opwright.backends.inductor.cuda_guard import provide_cuda_guard
        from opwright.machine import this_machine
        from tests.backends.numpy.test_placement import FUNCTIONS, OF_LISTS

        provide_cuda_guard(this_machine().cxx, Path(sys.argv[1]))
        tracing.generate = lambda graph, inputs: graph
        with FakeTensorMode():
            for name, function in {**FUNCTIONS, **OF_LISTS}.items():
                assert ow.compile_numpy(function)(torch.ones(3, device="cuda")).device.type == "cuda", name
        """,
        tmp_path,
    )


@pytest.mark.gpu
@pytest.mark.triton
@pytest.mark.parametrize("name", [*FUNCTIONS, *OF_LISTS])
def test_generated_code_makes_arrays_on_a_gpu(name):
    function, x = {**FUNCTIONS, **OF_LISTS}[name], np.array([0.5, 1.5, 2.5], np.float32)
    expected = function(x)
    on_gpu = ow.compile_numpy(function)(torch.from_numpy(x).cuda())
    assert on_gpu.is_cuda
    assert str(on_gpu.dtype) == f"torch.{expected.dtype}"
    np.testing.assert_allclose(on_gpu.cpu().numpy(), expected)
    with torch.device("cuda"):
        np.testing.assert_allclose(ow.compile_numpy(function)(x), expected)


@pytest.mark.gpu
@pytest.mark.triton
def test_the_gallerys_sums_run_on_a_gpu():
    generator = np.random.default_rng(0)
    X, means = generator.random((1000, 2)), generator.random((5, 2))
    expected = kmeans_sums.contract.function(X, means)
    on_gpu = torch.from_numpy(X).cuda(), torch.from_numpy(means).cuda()
    by_device = ow.compile_numpy(device="cuda")(kmeans_sums.contract.function)(X, means)
    by_kernel = kmeans_sums.kernels["numpy_compiled"](*on_gpu)
    assert all(t.is_cuda for t in by_kernel)
    for sums, counts in (by_device, tuple(t.cpu().numpy() for t in by_kernel)):
        np.testing.assert_allclose(sums, expected[0])
        np.testing.assert_array_equal(counts, expected[1])
