"""What CUDA allows of a launch: its grid, its block, its shared memory and its clusters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernelsim.errors import LaunchError

__all__ = [
    "LARGEST_BLOCK",
    "LARGEST_GRID",
    "Extent",
    "as_extent",
    "check_cluster",
    "check_launch",
    "refuse_other_cluster",
]

Extent = tuple[int, int, int]

# Limits of every GPU so far (CUDA C++ Programming Guide, technical specifications per compute capability).
LARGEST_GRID = (2**31 - 1, 65535, 65535)
LARGEST_BLOCK = (1024, 1024, 64)
_MOST_THREADS = 1024
# The blocks of a cluster: on every GPU that has clusters, and where a kernel allows sizes that are not portable.
_PORTABLE, _LARGEST = 8, 16
_EXAMPLE = "(grid_x, grid_y), (block_x, block_y)"


def as_extent(extent: Any, what: str, kernel: str) -> Extent:
    """A grid or a block as three numbers.

    Raises:
        LaunchError: it is not one to three non-negative integers.
    """
    numbers = (extent,) if isinstance(extent, int) else tuple(extent) if isinstance(extent, Sequence) else ()
    if not 1 <= len(numbers) <= 3 or not all(isinstance(n, int) and n >= 0 for n in numbers):
        raise LaunchError(
            f"{kernel}: the {what} must be an int or a tuple of up to three, not negative, got {extent!r}",
            fix=f"write it as in kernel[{_EXAMPLE}]",
        )
    x, y, z = (*numbers, 1, 1)[:3]
    return x, y, z


def check_launch(kernel: str, grid: Extent, block: Extent, shared_bytes: int, cluster: Extent | None) -> None:
    """Raise a LaunchError for a launch that no GPU makes."""
    threads = block[0] * block[1] * block[2]
    if threads == 0 or threads > _MOST_THREADS or _exceeds(block, LARGEST_BLOCK):
        raise LaunchError(
            f"{kernel}: the block must have 1 to {_MOST_THREADS} threads, at most {LARGEST_BLOCK} in each direction, "
            f"got {block}, {threads} threads",
            fix="launch more blocks of fewer threads",
        )
    if _exceeds(grid, LARGEST_GRID):
        raise LaunchError(
            f"{kernel}: the grid must be at most {LARGEST_GRID}, got {grid}",
            fix="launch fewer blocks, and let each step over the data by the size of the grid",
        )
    if not isinstance(shared_bytes, int) or shared_bytes < 0:
        raise LaunchError(
            f"{kernel}: the shared memory must be a number of bytes, got {shared_bytes!r}",
            fix="pass an int of 0 or more",
        )
    if cluster is not None:
        check_cluster(kernel, cluster, grid)


def _exceeds(extent: Extent, limit: Extent) -> bool:
    return any(e > m for e, m in zip(extent, limit, strict=True))


def check_cluster(kernel: str, cluster: Extent, grid: Extent) -> None:
    """Raise a LaunchError if no GPU has such a cluster, or if the grid is not a whole number of them."""
    blocks = cluster[0] * cluster[1] * cluster[2]
    if not 1 <= blocks <= _LARGEST:
        raise LaunchError(
            f"{kernel}: the cluster must have 1 to {_LARGEST} blocks, got {cluster}",
            fix=f"take at most {_PORTABLE} blocks: only some GPUs (an H100) have larger clusters",
        )
    if any(g % c for g, c in zip(grid, cluster, strict=True)):
        raise LaunchError(
            f"{kernel}: the grid must be a whole number of clusters of {cluster} blocks, got {grid}",
            fix="round the grid up to a multiple of the cluster in each direction, and let the blocks beyond the data "
            "do nothing (they still take part in the cluster's barriers)",
        )


def refuse_other_cluster(kernel: str, given: Extent, declared: Extent) -> None:
    """Raise a LaunchError for a launch with another cluster than the kernel's ``__cluster_dims__``."""
    if given != declared:
        raise LaunchError(
            f"{kernel} is launched with clusters of {given} blocks, and its __cluster_dims__ are {declared}",
            fix="leave the cluster out at the launch, or __cluster_dims__ out of the source",
        )
