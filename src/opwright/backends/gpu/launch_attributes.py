"""Attributes of launches, clusters of thread blocks and cooperative grids: what may be asked for, and how the driver is
asked."""

from __future__ import annotations

from typing import Any

import torch

from opwright.backends.simulation import Extent, check_cluster, refuse_other_cluster
from opwright.errors import LaunchError

__all__ = [
    "Extent",
    "allow_cluster",
    "check_cooperative",
    "check_launched_cluster",
    "declared_cluster",
    "launch_with_attributes",
]

_PORTABLE = 8  # the blocks of a cluster on every GPU that has clusters
_FIRST_CAPABILITY = 9  # Hopper


def check_launched_cluster(
    kernel: str, given: Extent | None, declared: Extent | None, grid: Extent, device: int
) -> None:
    """Compare the cluster of a launch with the kernel's own and with the GPU.

    Raises:
        LaunchError: they differ, the grid is not a whole number of clusters, or the GPU has none.
    """
    if declared is not None and given is not None:
        refuse_other_cluster(kernel, given, declared)
    if declared is not None:
        check_cluster(kernel, declared, grid)
    cluster = declared or given or (1, 1, 1)
    if cluster != (1, 1, 1) and torch.cuda.get_device_capability(device)[0] < _FIRST_CAPABILITY:
        raise LaunchError(
            f"{kernel}: clusters of {cluster} blocks are asked for, and this GPU has none",
            fix="clusters need compute capability 9.0 (Hopper) or higher",
        )


def declared_cluster(kernel: Any, device: Any) -> Extent | None:
    """The ``__cluster_dims__`` of a kernel that is loaded, by the driver's handles."""
    from cuda.bindings import driver

    names = driver.CUfunction_attribute
    width, height, depth = (
        _value(driver.cuKernelGetAttribute(one, kernel, device))
        for one in (
            names.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH,
            names.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT,
            names.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH,
        )
    )
    return (width, max(height, 1), max(depth, 1)) if width else None


def allow_cluster(cluster: Extent, kernel: Any, device: Any) -> None:
    """Let a kernel be launched with a cluster of a size that is not portable."""
    from cuda.bindings import driver

    if cluster[0] * cluster[1] * cluster[2] > _PORTABLE:
        allowed = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        _value(driver.cuKernelSetAttribute(allowed, 1, kernel, device))


def check_cooperative(kernel: str, handle: Any, grid: Extent, threads: int, shared_bytes: int, device: Any) -> None:
    """Raise a LaunchError if the GPU cannot run all blocks of a grid at once, as a barrier of the grid needs."""
    from cuda.bindings import driver

    function, attribute = driver.CUfunction(int(handle)), driver.CUdevice_attribute
    each = _value(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, threads, shared_bytes))
    fitting = each * _value(driver.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device))
    blocks = grid[0] * grid[1] * grid[2]
    if blocks > fitting:
        raise LaunchError(
            f"{kernel} waits for its whole grid (grid.sync()), and {blocks} blocks of {threads} threads do not fit",
            fix=f"this GPU runs at most {fitting} of them at once; launch fewer blocks, and let each thread step over "
            "the data by the size of the grid",
        )


def launch_with_attributes(
    grid: Extent, block: Extent, shared_bytes: int, stream: int, *, cluster: Extent | None, cooperative: bool
) -> Any:
    """The driver's form of a launch; its grid is in blocks."""
    from cuda.bindings import driver

    attributes = []
    if cluster is not None:
        attributes.append(driver.CUlaunchAttribute())
        attributes[-1].id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        dim = attributes[-1].value.clusterDim
        dim.x, dim.y, dim.z = cluster
    if cooperative:
        attributes.append(driver.CUlaunchAttribute())
        attributes[-1].id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        attributes[-1].value.cooperative = 1
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid
    config.blockDimX, config.blockDimY, config.blockDimZ = block
    config.sharedMemBytes, config.hStream = shared_bytes, driver.CUstream(stream)
    config.attrs, config.numAttrs = attributes, len(attributes)
    return config


def _value(outcome: tuple[Any, ...]) -> int:
    status, *values = outcome
    if int(status) != 0:
        raise LaunchError(f"a CUDA driver call failed: {status.name}")
    return int(values[0]) if values else 0
