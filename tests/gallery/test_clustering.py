"""K-means as a whole, its sums, and the sum of outer products."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from opwright.gallery.kmeans import FLOATS, kmeans_assign, kmeans_sums
from opwright.gallery.kmeans.clustering import initial_means, kmeans
from opwright.gallery.outer_sum import outer_sum

CENTRES = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0], [10.0, 10.0]])


def clouds(n: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """n points around four centres, which are far apart."""
    generator = torch.Generator().manual_seed(0)
    return CENTRES.repeat(n // 4, 1).to(dtype) + torch.randn(n, 2, dtype=dtype, generator=generator)


def ordered(means) -> torch.Tensor:
    means = torch.as_tensor(means).double().cpu()
    return means[(means @ torch.tensor([1.0, 100.0], dtype=torch.float64)).argsort()]


@pytest.mark.compiler
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.slow  # it compiles
def test_clusters_that_are_there_are_found(dtype):
    X = clouds(40_000, dtype)
    found = kmeans(X, 4)
    assert found.converged
    assert torch.allclose(ordered(found.means), ordered(CENTRES), atol=0.05)
    labels = kmeans_assign(X, found.means)
    assert torch.equal(found.labels, labels)
    assert found.inertia == pytest.approx(float((X.double() - found.means.double()[labels]).square().sum()), rel=1e-4)
    assert found.inertia < kmeans(X, 3).inertia


@pytest.mark.slow  # compiles NumPy
@pytest.mark.compiler
def test_arrays_give_arrays_and_the_same_clusters():
    X = clouds(4000)
    of_tensors, of_arrays = kmeans(X, 4), kmeans(X.numpy(), 4)
    assert type(of_arrays.means) is type(of_arrays.labels) is np.ndarray
    assert np.array_equal(of_arrays.means, of_tensors.means.numpy())
    assert np.array_equal(of_arrays.labels, of_tensors.labels.numpy())


@pytest.mark.slow  # whole clusterings
@pytest.mark.compiler
def test_every_iteration_lowers_the_sum_of_squares():
    X = torch.rand(5000, 3, generator=torch.Generator().manual_seed(1))
    inertias = [kmeans(X, 7, iterations=i, tolerance=0).inertia for i in range(6)]
    assert all(later < earlier for earlier, later in itertools.pairwise(inertias))
    assert not kmeans(X, 7, iterations=2, tolerance=0).converged
    assert kmeans(X, 7, iterations=2, tolerance=0).iterations == 2


@pytest.mark.compiler
@pytest.mark.slow  # imports scikit-learn and compiles each step
def test_an_empty_cluster_continues_from_the_farthest_point():
    X = clouds(4000)
    X[17] = torch.tensor([500.0, 500.0])
    far = torch.tensor([[0.0, 0.0], [10.0, 10.0], [1e6, 1e6]])  # nothing is nearest to the last
    once = kmeans(X, 3, means=far, iterations=1)
    assert torch.equal(once.means[2], X[17])
    assert bool((torch.bincount(kmeans(X, 3, means=far).labels, minlength=3) > 0).all())


@pytest.mark.slow
@pytest.mark.compiler
def test_means_that_are_given_are_where_it_begins():
    X = clouds(4000)
    found = kmeans(X, 4, means=CENTRES)
    assert torch.allclose(found.means, CENTRES, atol=0.15)
    assert kmeans(X, 4, means=CENTRES, iterations=0).iterations == 0


@pytest.mark.compiler
def test_equal_points_are_clustered_without_an_error():
    found = kmeans(torch.ones(10, 2), 3)
    assert found.inertia == 0
    assert torch.equal(found.means, torch.ones(3, 2))


def test_initial_means_are_points_far_apart():
    X = clouds(4000)
    means = initial_means(X, 4, torch.Generator().manual_seed(0))
    assert all(bool((m == X).all(1).any()) for m in means)
    assert torch.pdist(means).min() > 4  # one in each cloud


@pytest.mark.parametrize("wrong", [(torch.ones(3, 2), 4), (torch.ones(3, 2), 0), (torch.ones(3), 1)])
def test_what_cannot_be_clustered_is_refused(wrong):
    with pytest.raises(ValueError, match="needs n × d points"):
        kmeans(*wrong)
    with pytest.raises(ValueError, match="finite"):
        kmeans(torch.tensor([[float("nan")], [1.0]]), 1)


# -- sums ---------------------------------------------------------------------------------------------


def expected_sums(X, means):
    labels = kmeans_assign.contract.reference((X, means))[0]
    sums = torch.zeros(means.shape, dtype=torch.float64).index_add_(0, labels, X.double())
    return sums.to(X.dtype), torch.bincount(labels, minlength=len(means))


@pytest.mark.compiler
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("d", [1, 2, 3, 5, 9, 40])
def test_sums_and_counts_are_of_the_nearest_points(d, dtype):
    generator = torch.Generator().manual_seed(d)
    for n in (0, 1, 255, 4097, 50_000):
        X, means = (torch.randn(m, d, dtype=dtype, generator=generator) for m in (n, 6))
        sums, counts = kmeans_sums.kernels["cpp"](X, means)
        wanted, numbers = expected_sums(X, means)
        assert torch.equal(counts, numbers)
        torch.testing.assert_close(sums, wanted, rtol=1e-5, atol=1e-4 if dtype is torch.float32 else 1e-10)


@pytest.mark.compiler
def test_sums_do_not_depend_on_the_number_of_threads():
    X, means = torch.rand(100_000, 2), torch.rand(5, 2)
    threads = torch.get_num_threads()
    found = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        found.append(kmeans_sums.kernels["cpp"](X, means)[0])
    torch.set_num_threads(threads)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_the_gradient_of_the_sums_is_of_the_points():
    X = torch.rand(6, 2, dtype=torch.float64, requires_grad=True)
    means = torch.rand(3, 2, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda X: kmeans_sums(X, means)[0], (X,))


@pytest.mark.gpu
@pytest.mark.triton
@pytest.mark.parametrize("dtype", FLOATS)
def test_on_a_gpu_the_same_clusters_are_found(dtype):
    X = clouds(1_000_000, dtype)
    found = kmeans(X.cuda(), 4)
    assert found.labels.is_cuda
    assert torch.allclose(ordered(found.means), ordered(kmeans(X, 4).means), atol=1e-2)
    for d, k in ((1, 1), (2, 8), (3, 5), (7, 64)):
        points, means = torch.randn(50_000, d, dtype=dtype), torch.randn(k, d, dtype=dtype)
        sums, counts = kmeans_sums.kernels["triton"](points.cuda(), means.cuda())
        wanted, numbers = expected_sums(points, means)
        assert int((counts.cpu() - numbers).abs().sum()) <= 4  # a point may be as near to two means
        torch.testing.assert_close(sums.cpu(), wanted, rtol=1e-3, atol=10.0 if (counts.cpu() - numbers).any() else 0.05)
        labels = kmeans_assign.kernels["triton"](points.cuda(), means.cuda()).cpu()
        assert int((labels != kmeans_assign(points, means)).sum()) <= 2


# -- outer_sum ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_sum_of_outer_products_is_numpys(device, dtype):
    X, Y = (torch.randn(1000, k, dtype=dtype) for k in (3, 5))
    wanted = torch.from_numpy(np.sum(X.numpy()[:, :, None] * Y.numpy()[:, None, :], axis=0))
    out = outer_sum.kernels["matmul"](X.to(device), Y.to(device))
    torch.testing.assert_close(out.cpu(), wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FLOATS)
def test_the_same_line_compiled_is_numpys(device, dtype):
    X, Y = (torch.randn(1000, k, dtype=dtype) for k in (3, 5))
    wanted = torch.from_numpy(np.sum(X.numpy()[:, :, None] * Y.numpy()[:, None, :], axis=0))
    out = outer_sum.kernels["numpy_compiled"](X.to(device), Y.to(device))
    torch.testing.assert_close(out.cpu(), wanted, rtol=1e-4, atol=1e-3)


def test_its_gradient_is_right():
    X, Y = (torch.randn(4, k, dtype=torch.float64, requires_grad=True) for k in (2, 3))
    assert torch.autograd.gradcheck(outer_sum, (X, Y))
    out = outer_sum(X, Y)
    (grad,) = torch.autograd.grad(out.sum(), X)
    torch.testing.assert_close(grad, Y.sum(1, keepdim=True).expand(4, 2))
