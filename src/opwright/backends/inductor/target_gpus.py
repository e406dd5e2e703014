"""Properties of GPUs that code generators query, by architecture; no such GPU is needed.

Threads and shared memory follow from the architecture ("Compute Capabilities" in NVIDIA's CUDA Programming Guide, table
"Memory Information per Compute Capability": maximum threads per SM, maximum shared memory per thread block). The number
of multiprocessors is that of one product, from NVIDIA's architecture white papers of A100, GA102, AD102, H100 and RTX
Blackwell; that of B200 from its driver.
"""

from __future__ import annotations

from dataclasses import dataclass

from opwright.errors import KernelRefusedError

__all__ = ["TargetGpu", "target_gpu"]


@dataclass(frozen=True)
class TargetGpu:
    """One product of an architecture. ``shared_memory`` is the maximum of a block, in bytes."""

    arch: str
    name: str
    capability: tuple[int, int]
    multiprocessors: int
    threads: int
    shared_memory: int
    # The same for every architecture here.
    threads_per_block: int = 1024
    registers: int = 65536
    warp_size: int = 32


_KNOWN = (
    TargetGpu("sm_80", "NVIDIA A100-SXM4-80GB", (8, 0), 108, threads=2048, shared_memory=163 * 1024),
    TargetGpu("sm_86", "NVIDIA GeForce RTX 3090", (8, 6), 82, threads=1536, shared_memory=99 * 1024),
    TargetGpu("sm_89", "NVIDIA GeForce RTX 4090", (8, 9), 128, threads=1536, shared_memory=99 * 1024),
    TargetGpu("sm_90", "NVIDIA H100 80GB HBM3", (9, 0), 132, threads=2048, shared_memory=227 * 1024),
    TargetGpu("sm_100", "NVIDIA B200", (10, 0), 148, threads=2048, shared_memory=227 * 1024),
    TargetGpu("sm_120", "NVIDIA GeForce RTX 5090", (12, 0), 170, threads=1536, shared_memory=99 * 1024),
)


def target_gpu(arch: str) -> TargetGpu:
    """The properties of an architecture, such as ``sm_90``.

    Raises:
        KernelRefusedError: the architecture is not in the table; the message lists those that are.
    """
    for gpu in _KNOWN:
        if gpu.arch == arch:
            return gpu
    raise KernelRefusedError(
        f"the properties of {arch!r} are not known, and there is no such GPU to query",
        fix=f"use one of {', '.join(gpu.arch for gpu in _KNOWN)}",
    )
