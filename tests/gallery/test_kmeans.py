"""gallery::kmeans_assign: exactly NumPy's result, with ties and NaN."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from opwright.gallery.kmeans import FLOATS, kmeans_assign

cpp = kmeans_assign.kernels["cpp"]


def by_numpy(X: torch.Tensor, means: torch.Tensor) -> torch.Tensor:
    """The reference's formula."""
    X, means = X.numpy(), means.numpy()
    return torch.from_numpy(np.argmin(np.linalg.norm(X - means[:, None], axis=2), axis=0))


def clusters(n: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """n points around (5, 5) and (10, 10), and these two: the data of PyTorch's post on compiled NumPy."""
    generator = torch.Generator().manual_seed(0)
    X = torch.tensor([[5.0, 5.0], [10.0, 10.0]], dtype=dtype).repeat_interleave(n // 2, dim=0)
    X += torch.randn(X.shape, dtype=dtype, generator=generator)
    return X, torch.tensor([[5.0, 5.0], [10.0, 10.0]], dtype=dtype)


@pytest.mark.compiler
@pytest.mark.parametrize("dtype", FLOATS)
def test_two_hundred_thousand_points_are_assigned_exactly_as_by_numpy(dtype):
    X, means = clusters(200_000, dtype)
    assert torch.equal(kmeans_assign(X, means), by_numpy(X, means))
    assert kmeans_assign.explain(X, means).chosen.kernel == "cpp"


@pytest.mark.compiler
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("d", [0, 1, 2, 3, 4, 5, 7, 8, 9, 31, 128, 129, 300])
def test_every_dimension_is_assigned_exactly_as_by_numpy(d, dtype):
    for n, k in itertools.product((0, 1, 255, 256, 257, 5000 if d < 10 else 600), (1, 2, 13)):
        X, means = torch.randn(n, d, dtype=dtype), torch.randn(k, d, dtype=dtype)
        assert torch.equal(cpp(X, means), by_numpy(X, means)), (n, k)


@pytest.mark.compiler
@pytest.mark.parametrize("dtype", FLOATS)
def test_of_equally_near_means_the_first_wins(dtype):
    grid = torch.cartesian_prod(torch.arange(8.0), torch.arange(8.0)).to(dtype)
    means = grid[torch.randperm(64)][:20].repeat(2, 1)
    assert torch.equal(cpp(grid, means), by_numpy(grid, means))


@pytest.mark.compiler
@pytest.mark.parametrize("dtype", FLOATS)
def test_means_whose_distances_round_to_one_root_are_a_tie(dtype):
    means = torch.ones(64, 2, dtype=dtype)
    means[:, 1] += torch.arange(64) * torch.finfo(dtype).eps
    squares = means.square().sum(1)
    roots = np.sqrt(squares.numpy())  # torch.sqrt may be a unit off
    nearer = next(i for i in range(63) if squares[i] < squares[i + 1] and roots[i] == roots[i + 1])
    X, means = torch.zeros(300, 2, dtype=dtype), means[[nearer + 1, nearer]]
    assert torch.equal(cpp(X, means), by_numpy(X, means))


@pytest.mark.compiler
@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_and_infinity_are_treated_as_by_numpy(dtype):
    values = (0.0, 1.0, float("nan"), float("inf"), -float("inf"), torch.finfo(dtype).max, torch.finfo(dtype).tiny)
    points = torch.tensor(list(itertools.product(values, repeat=2)), dtype=dtype)
    for means in (points, points.flip(0), points[:1], points[10:20]):
        with np.errstate(all="ignore"):
            expected = by_numpy(points, means)
        assert torch.equal(cpp(points, means), expected)


@pytest.mark.compiler
def test_the_layout_of_the_arguments_does_not_matter():
    X, means = torch.randn(2, 1000).T, torch.randn(7, 8)[:, ::4]
    assert torch.equal(cpp(X, means), by_numpy(X, means))
    assert cpp(X, means).is_contiguous()


@pytest.mark.compiler
def test_without_a_mean_there_is_no_answer():
    X, means = torch.randn(5, 2), torch.empty(0, 2)
    with pytest.raises(RuntimeError, match="there is no mean"):
        cpp(X, means)
    with kmeans_assign.only("reference"), pytest.raises(ValueError, match="empty sequence"):
        kmeans_assign(X, means)


def test_half_precision_is_left_to_numpy_itself():
    X, means = torch.randn(50, 2).half(), torch.randn(3, 2).half()
    assert kmeans_assign.explain(X, means).chosen.kernel == "reference"
    assert torch.equal(kmeans_assign(X, means), by_numpy(X, means))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FLOATS)
def test_the_same_numpy_function_compiled_gives_the_same_answer(device, dtype):
    X, means = clusters(20_000, dtype)
    out = kmeans_assign.kernels["numpy_compiled"](X.to(device), means.to(device))
    assert torch.equal(out.cpu(), by_numpy(X, means))


def test_it_compiles_without_a_graph_break(device, compiled):
    X, means = clusters(1000, torch.float64)
    out = compiled(lambda X, means: kmeans_assign(X, means) + 1)(X.to(device), means.to(device))
    assert torch.equal(out.cpu(), by_numpy(X, means) + 1)


def test_the_flop_counter_counts_each_pair():
    with FlopCounterMode(display=False) as counter:
        kmeans_assign(torch.randn(10, 2), torch.randn(3, 2))
    assert counter.get_total_flops() == 10 * 3 * (2 + 2 + 1 + 1 + 1)


@pytest.mark.slow
@pytest.mark.compiler
def test_twenty_million_points_are_assigned_exactly_as_by_numpy():
    X, means = clusters(20_000_000, torch.float64)
    kmeans_assign(X[:1000], means)  # builds the kernel

    def timed(function):
        start = time.perf_counter()
        return function(X, means), time.perf_counter() - start

    expected, numpy_seconds = timed(by_numpy)
    kmeans_assign(X, means)
    out, seconds = timed(kmeans_assign)
    assert torch.equal(out, expected)
    print(f"2e7 points: NumPy {numpy_seconds:.3f} s, C++ {seconds:.4f} s, {numpy_seconds / seconds:.0f} times as fast")
