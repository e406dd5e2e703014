"""Sweeps on a cluster of Ray, or on one that is started on this machine for the purpose."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from opwright.cluster import worker
from opwright.cluster.artifact_store import ArtifactStore
from opwright.cluster.board import Board
from opwright.cluster.nodes import Node, can_run, units_at_a_time
from opwright.cluster.sweep import Sweep, Tasks, last_line
from opwright.cluster.warm import warm, warm_tasks
from opwright.errors import CheckError
from opwright.machine import Machine, this_machine
from opwright.sweep.executor import Results, usual_slots
from opwright.sweep.versions import versions_of
from opwright.sweep.work_item import Needs, OnStep, WorkItem

__all__ = ["RayCluster"]

_SECONDS_TO_REACH = 10.0


class RayCluster:
    """An executor for ``ow.check``, ``ow.bench``, ``ow.tune``, ``ow.mutate`` and ``ow.selftest``: each item of their
    work is one task of Ray, with the CPU or the GPU that it needs.

    A kernel under check still runs in a process of its own, beside its checker process; both end with Ray's worker. If
    a worker or machine dies, its item is tried again elsewhere; after the third time the result is inconclusive, and
    says so.

        with RayCluster() as cluster:
            ow.check("my_ops.py", executor=cluster)

    Args:
        address: as for ``ray.init``: ``"auto"``, ``"host:6379"``. Empty: a cluster is started on this machine.
        jobs: the number of items at a time on that one; by default as many as ``ow.check`` runs.
        checks: whether kernels will be checked, for which workers are made ready ahead.

    Attributes:
        nodes: the machines, as they were found at the start.
        differences: what is not equal on all machines, and which of them do not answer, in words.

    Raises:
        CheckError: Ray is not installed, there is no cluster at the address, or none of its machines answers.
    """

    def __init__(self, address: str = "", *, jobs: int | None = None, checks: bool = True) -> None:
        self._ray = _ray()
        try:
            if address:
                _reach(address)
                self._ray.init(address=address, log_to_driver=False)
            else:
                # Without "local", Ray would join a cluster that runs on this machine.
                self._ray.init(
                    "local", num_cpus=jobs or usual_slots(this_machine()), log_to_driver=False, include_dashboard=False
                )
        except Exception as error:  # Ray raises several kinds, also of its own
            raise CheckError(
                f"there is no cluster at {address!r}: {type(error).__name__}: {error}",
                fix="start one with `ray start --head`, or leave the address out for one on this machine",
            ) from error
        try:
            self._board, self._store = (
                self._ray.remote(num_cpus=0, max_restarts=-1)(actor).remote() for actor in (Board, ArtifactStore)
            )
            self._task = self._ray.remote(max_retries=0)(worker.do)
            # CUDA keeps the GPU that a process has used first; the next item may get another one.
            self._timed_task = self._ray.remote(max_retries=0, max_calls=1)(worker.do)
            if checks:
                self._warm_workers()
            self.nodes, silent = self._find_nodes() if address else (self._this_node(), [])
            self.differences = silent + self._find_differences()
        except BaseException:
            self.stop()
            raise

    @property
    def machine(self) -> Machine:
        """The first machine with a GPU; without one, the first."""
        with_gpu = [node.machine for node in self.nodes if node.machine.has_gpu]
        return (with_gpu or [self.nodes[0].machine])[0]

    @property
    def gpu_types(self) -> Sequence[str]:
        """The types of GPUs as Ray names them, such as ``H100``."""
        return sorted({node.gpu_type for node in self.nodes if node.gpu_type})

    def slots_for(self, needs: Needs) -> int:
        """How many items of a kind run at a time, on all machines."""
        if not can_run(needs, self.nodes):
            needs = dataclasses.replace(needs, gpus=1)
        return max(1, sum(units_at_a_time(needs, self.nodes)))

    @property
    def goes_in_order(self) -> bool:
        return False

    def run(self, items: Sequence[WorkItem[Any]], on_step: OnStep) -> Results:
        """Run items somewhere in the cluster."""
        tasks = Tasks(self._task, self._timed_task)
        sweep = Sweep(self._ray, tasks, self._board, self._store, self.nodes, items, on_step)
        try:
            yield from sweep.results()
        finally:
            sweep.cancel()

    def stop(self) -> None:
        """End the connection, and with it this command's tasks."""
        self._ray.shutdown()

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _warm_workers(self) -> None:
        """Let workers get ready, while the command goes on. Items wait for their places, and may get other workers."""
        for node in self._ray.nodes():
            if node["Alive"]:
                for options in warm_tasks(node["Resources"]):
                    self._on(node, max_retries=0, **options)(warm).remote(self._store)

    def _on(self, node: Any, **options: Any) -> Any:
        """Makes tasks that run on one machine."""
        on_it = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        return self._ray.remote(scheduling_strategy=on_it, **options)

    def _this_node(self) -> list[Node]:
        """The one of a cluster that was started here, of which no worker has to be asked."""
        host, machine = socket.gethostname(), this_machine()
        return [Node.of(node["NodeID"], host, machine, node["Resources"]) for node in self._ray.nodes()]

    def _find_nodes(self) -> tuple[list[Node], list[str]]:
        """Ask every machine for what it is, all at the same time. Also, which of them do not answer, in words."""
        # Its process is no good for items, because it is not warm.
        asked = [
            (node, self._on(node, num_cpus=0, max_calls=1)(worker.machine_here).remote(self._store))
            for node in self._ray.nodes()
            if node["Alive"]
        ]
        found, silent = [], []
        for node, ref in asked:
            try:
                host, machine = self._ray.get(ref)
            except self._ray.exceptions.RayError as error:  # it is gone, and Ray has not noticed yet
                silent.append(f"{node['NodeManagerHostname']} does not answer, and gets no work: {last_line(error)}")
                continue
            found.append(Node.of(node["NodeID"], host, machine, node["Resources"]))
        if not found:
            why = "; ".join(silent) or "none is alive"
            raise CheckError(f"no machine of the cluster can be used: {why}", fix="look at `ray status`, and try again")
        return found, silent

    def _find_differences(self) -> list[str]:
        """The versions of every machine, compared with those here."""
        here = versions_of(this_machine())
        return [
            f"{node.host} has {name} {there}, and this machine has {here[name]}"
            for node in self.nodes
            for name, there in versions_of(node.machine).items()
            if there != here[name]
        ]


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
