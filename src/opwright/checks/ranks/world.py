"""Process groups for checks: a group of one process, and a group within a world that has one process more.

The group that an operator gets has the ranks from 1 on of its world. Rank 0, the *bystander*, runs no kernel: it waits
in a collective of the default group. So a kernel that uses the default group, or its rank there, is out of step or
wrong, and does not pass by chance.

In its debug level ``DETAIL``, torch compares the collectives of all ranks before each one runs, and raises in all of
them where they differ. A rank that has returned from a kernel enters one more collective, the *fence*, before it
answers. So a rank that waits in a collective that another one never calls is not stuck: it meets the other's fence, and
both know. Each rank then tries its fence again, and all are in step. (Before torch 2.13, that level refuses functional
collectives; there, ranks that are out of step are found when one has waited too long.)
"""

from __future__ import annotations

import contextlib
import datetime
import os
from typing import Any

import torch
import torch.distributed as dist

from opwright.contract.process_group import ProcessGroup
from opwright.internals.process_groups import can_compare_collectives

__all__ = ["fence", "join", "join_alone", "open_store", "stand_by"]

# What no kernel is likely to reduce: the shape and dtype tell the fence from a kernel's collectives.
_SHAPE, _DTYPE = (3, 5, 7), torch.int32
_MOST_TRIES = 32
_HOST = "127.0.0.1"
# torch's stubs lack some of its names.
c10d: Any = dist


def join_alone(device: str) -> None:
    """Make this process the only one of a default group."""
    if not dist.is_initialized():
        dist.init_process_group(_backend(device), store=c10d.HashStore(), rank=0, world_size=1)


def open_store(processes: int) -> Any:
    """The place where the processes of a world meet, which is served by this one; it has a ``port``."""
    return c10d.TCPStore(_HOST, 0, processes, is_master=True, wait_for_workers=False)


def join(port: int, rank: int, size: int, device: str, patience: float) -> ProcessGroup | None:
    """Join a world, and the group in it.

    Args:
        port: of ``open_store``.
        rank: in the group; -1 for the bystander.
        size: of the group.
        patience: seconds that a collective waits for other ranks.

    Returns:
        The group; None for the bystander.
    """
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all processes are on this machine
    if can_compare_collectives:
        c10d.set_debug_level(c10d.DebugLevel.DETAIL)
    if device == "cuda" and rank >= 0:
        torch.cuda.set_device(rank)
    # No collective of the default group may end while the bystander waits for it.
    wait = datetime.timedelta(seconds=patience) if rank >= 0 else datetime.timedelta(days=1)
    store = c10d.TCPStore(_HOST, port, size + 1, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank + 1, world_size=size + 1, timeout=wait)
    group = dist.new_group(
        [*range(1, size + 1)], backend=_backend(device), timeout=datetime.timedelta(seconds=patience)
    )
    return ProcessGroup(group) if rank >= 0 else None


def _backend(device: str) -> str:
    return "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"


def fence(group: Any, device: str) -> str:
    """Wait until all ranks are here. Returns torch's words, if other ranks were in another collective when this one
    came."""
    first = ""
    for _ in range(_MOST_TRIES):
        try:
            dist.all_reduce(torch.zeros(_SHAPE, dtype=_DTYPE, device=device), group=group)
            if device == "cuda":
                torch.cuda.synchronize()
            return first
        except Exception as error:  # torch raises RuntimeError, DistBackendError and others
            first = first or str(error)
            if "mismatch between collectives" not in str(error):  # some rank has ended, or does not come
                return first
    return first


def stand_by() -> None:
    """Wait in the default group for what no other rank may call. Does not return."""
    while True:
        with contextlib.suppress(Exception):
            fence(None, "cpu")
