"""Checks on a cluster of Ray, or on one that is started on this machine for the purpose."""

from __future__ import annotations

import concurrent.futures
import socket
from types import TracebackType
from typing import Any

from opwright.checks.plan import Task
from opwright.checks.unit import Settings, check_unit
from opwright.cluster import work
from opwright.errors import CheckError
from opwright.machine import this_machine
from opwright.results import Finding, Status, Verdict

__all__ = ["RayCluster"]

# A unit whose worker or machine has died is tried again so many times, elsewhere if there is another one.
_RETRIES = 3
_SECONDS_TO_REACH = 10.0


class RayCluster:
    """An executor for ``ow.check``: each kernel is one task of Ray, with the CPU or the GPU that it needs.

    A kernel still runs in a process of its own, beside its judge; both end with Ray's worker. A worker or machine that
    dies takes one unit with it, which is tried again; after the third time the verdict is inconclusive, and says so.

        with RayCluster() as cluster:
            ow.check("my_ops.py", executor=cluster)

    Args:
        address: as for ``ray.init``: ``"auto"``, ``"ray://host:10001"``. Empty: a cluster is started on this machine.
        jobs: the number of kernels checked at a time on that one; by default one for each core, at most four.

    Attributes:
        slots: the number of kernels checked at a time, on all machines.
        differences: what is not equal on all machines, in words.

    Raises:
        CheckError: Ray is not installed, or there is no cluster at the address.
    """

    def __init__(self, address: str = "", *, jobs: int | None = None) -> None:
        self._ray = _ray()
        try:
            if address:
                _reach(address)
                self._ray.init(address=address, log_to_driver=False)
            else:
                self._ray.init(num_cpus=jobs or _jobs_here(), log_to_driver=False, include_dashboard=False)
        except Exception as error:  # Ray raises several kinds, also of its own
            raise CheckError(
                f"there is no cluster at {address!r}: {type(error).__name__}: {error}",
                fix="start one with `ray start --head`, or leave the address out for one on this machine",
            ) from error
        resources = self._ray.cluster_resources()
        self.slots = max(1, int(resources.get("CPU", 1)) + int(resources.get("GPU", 0)))
        self.differences = self._find_differences()

    def run(self, task: Task, settings: Settings) -> Verdict:
        """Check one kernel somewhere in the cluster."""
        if task.refused is not None:  # known without running anything
            return check_unit(task, settings)
        settings.progress(task, "sent to the cluster")
        needs = {"num_gpus": 1} if task.device == "cuda" else {"num_cpus": 1}
        remote = self._ray.remote(max_retries=_RETRIES, **needs)(work.do)
        try:
            verdict: Verdict = self._ray.get(remote.remote(work.work_for(task, settings)))
        except (KeyboardInterrupt, concurrent.futures.CancelledError):
            raise
        except Exception as error:  # what a task raised, or the end of its worker or machine
            return _without_result(task, error, died=not isinstance(error, self._ray.exceptions.RayTaskError))
        return verdict

    def stop(self) -> None:
        """End the connection, and with it this check's tasks."""
        self._ray.shutdown()

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _find_differences(self) -> list[str]:
        """The versions of every machine, compared with those here."""
        here = work.versions_here()
        found = []
        for node in self._ray.nodes():
            if not node["Alive"]:
                continue
            on_it = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            ask = self._ray.remote(num_cpus=0, scheduling_strategy=on_it)(work.versions_here)
            there = self._ray.get(ask.remote())
            found += [
                f"{node['NodeManagerHostname']} has {name} {there[name]}, and this machine has {version}"
                for name, version in here.items()
                if name != "GPU" and there[name] != version
            ]
        return found


def _ray() -> Any:
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError:
        raise CheckError("Ray is not installed", fix="pip install 'opwright[ray]'") from None
    return ray


def _reach(address: str) -> None:
    """Raise at once if nothing listens there; Ray would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdigit():
        socket.create_connection((host, int(port)), timeout=_SECONDS_TO_REACH).close()


def _jobs_here() -> int:
    return max(1, min(4, this_machine().cores))


def _without_result(task: Task, error: Exception, *, died: bool) -> Verdict:
    """The verdict on a kernel whose unit raised, or whose workers have died."""
    cause = str(error).strip().splitlines()[-1:] or [type(error).__name__]
    message = (
        f"the worker or the machine that checked it died {1 + _RETRIES} times: {type(error).__name__}: {cause[0]}"
        if died
        else f"it could not be checked there: {cause[0]}"
    )
    remedy = "check it on this machine, without a cluster, to see what it does" if died else ""
    finding = Finding("start", Status.INCONCLUSIVE, message=message, remedy=remedy)
    return Verdict(
        op=task.op.contract.qualname,
        kernel=task.kernel,
        backend=task.backend,
        device=task.where,
        status=Status.INCONCLUSIVE,
        reason=message,
        parts={name: part.origin.value for name, part in task.op.parts.items()},
        findings=(finding,),
    )
