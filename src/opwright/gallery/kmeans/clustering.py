"""K-means as a whole, around the two operators: initial means, iterations, empty clusters, convergence."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from opwright.gallery.kmeans import kmeans_assign, kmeans_sums

__all__ = ["Clustering", "kmeans"]

# Initial means are drawn from at most this many points, which are enough to locate the clusters.
SAMPLE = 1 << 15


@dataclass(frozen=True)
class Clustering:
    """The result of K-means.

    Attributes:
        means: k × d.
        labels: for each point, the index of its mean.
        inertia: the sum of the points' squared distances from their means.
        iterations: their number.
        converged: whether the means were at rest before the limit of iterations.
    """

    means: Any
    labels: Any
    inertia: float
    iterations: int
    converged: bool


def kmeans(X, k, *, means=None, iterations=300, tolerance=1e-4, seed=0):
    """Cluster n points in d dims into k clusters (Lloyd's algorithm).

    Args:
        X: n × d, an array or a tensor on any device; means and labels are returned as the same kind.
        means: the initial means, k × d; by default drawn from the points by k-means++ (Arthur and Vassilvitskii, 2007).
        tolerance: the means are at rest when the squares of their shifts sum up to less than this share of the mean
            variance of a coordinate (as in scikit-learn).
        seed: the seed of the random initial means.

    A cluster that is left without points continues from the point that is farthest from its mean.
    """
    points = torch.from_numpy(X) if isinstance(X, np.ndarray) else X
    if points.dim() != 2 or not 0 < k <= len(points):
        raise ValueError(f"kmeans needs n × d points and 0 < k <= n, but got {list(points.shape)} and k={k}")
    if not bool(torch.isfinite(points.sum())):
        raise ValueError("kmeans needs finite points")
    if means is None:
        current = initial_means(points, k, torch.Generator().manual_seed(seed))
    else:
        current = torch.as_tensor(means, dtype=points.dtype, device=points.device)
    at_rest = tolerance * float(points.var(0, correction=0).mean())
    converged, done = False, 0
    while done < iterations and not converged:
        done += 1
        sums, counts = kmeans_sums(points, current)
        moved = sums / counts[:, None]
        if bool((counts == 0).any()):
            moved = refill(points, current, moved, counts)
        converged = float((moved - current).square().sum()) <= at_rest
        current = moved
    labels = kmeans_assign(points, current)
    inertia = sum(float(part.sum(dtype=torch.float64)) for part in squared_distances(points, current, labels))
    if isinstance(X, np.ndarray):
        return Clustering(current.numpy(), labels.numpy(), inertia, done, converged)
    return Clustering(current, labels, inertia, done, converged)


def initial_means(points, k, generator):
    """k of the points: each with a probability in proportion to its squared distance from those before it."""
    n = len(points)
    chosen = torch.randint(n, (min(n, SAMPLE),), generator=generator) if n > SAMPLE else torch.arange(n)
    sample = points[chosen.to(points.device)]
    means = sample[torch.randint(len(sample), (1,), generator=generator).to(points.device)]
    distances = (sample - means[0]).square().sum(1)
    while len(means) < k:
        weights = distances.double().cpu()
        if not bool(weights.sum() > 0):  # all points of the sample are means already
            weights = torch.ones_like(weights)
        drawn = torch.multinomial(weights, 1, generator=generator)
        means = torch.cat([means, sample[drawn.to(points.device)]])
        distances = torch.minimum(distances, (sample - means[-1]).square().sum(1))
    return means


def refill(points, current, moved, counts):
    """The moved means; those without points are replaced by the points that are farthest from their means."""
    empty = counts == 0
    labels = kmeans_assign(points, current)
    far = torch.cat(list(squared_distances(points, current, labels))).topk(int(empty.sum())).indices
    moved = moved.clone()
    moved[empty] = points[far]
    return moved


def squared_distances(points, means, labels):
    """The squared distances of points from their means, in parts, to use little memory."""
    for own, label in zip(points.split(1 << 20), labels.split(1 << 20), strict=True):
        yield (own - means[label]).square().sum(1)
