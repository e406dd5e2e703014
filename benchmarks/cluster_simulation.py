"""A cluster of 64 and of 512 GPUs that is simulated: what our own scheduling costs, and how far from the ideal it is.

``python benchmarks/cluster_simulation.py FILE OVERHEAD`` writes the record. What runs is the code that gives units to
Ray (``opwright.cluster.sweep``), with real units and records of real verdicts as results; what is simulated is Ray: its
machines, the time that passes, and faults. Units take the seconds of a recorded check of the gallery on a GPU. Between
two units a GPU waits for what Ray needs to start one, from OVERHEAD, a record of ``cluster_overhead.py``. The driver's
own seconds pass in the simulated time too, so that a driver which is too slow shows.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import heapq
import json
import queue
import random
import resource
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray.exceptions
import records

from opwright.checks.scheduling.check_item import CheckItem
from opwright.checks.scheduling.plan import Task
from opwright.checks.scheduling.verdict import Settings
from opwright.cluster.nodes import Node
from opwright.cluster.sweep import Sweep, Tasks
from opwright.cluster.worker import Note
from opwright.gallery.add import add
from opwright.machine import this_machine
from opwright.report.pictures import canvas
from opwright.results import Verdict
from opwright.results.json_form import from_json
from opwright.sweep.work_item import no_step

_RECORDED = Path(__file__).parent / "results" / "2026-11-23-h200-gallery-check.json"
_GPUS_OF_A_NODE = 8
_UNITS = 100_000


@dataclass
class Faults:
    """How often workers and machines die: one worker in so many units, and so many machines in all."""

    units_of_a_death: int = 0
    machines: int = 0


@dataclass
class Cluster:
    """Ray as ``Sweep`` uses it, with machines, time and faults that are simulated."""

    gpus: int
    start_s: float
    lengths: list[float]
    verdicts: list[dict[str, Any]]
    faults: Faults
    draw: random.Random
    exceptions: Any = ray.exceptions
    now: float = 0.0
    work: float = 0.0
    lost_work: float = 0.0
    driver_s: float = 0.0
    # The share of GPU time in which no unit ran, until the last unit was given to a GPU.
    unused: float | None = None
    _left_at: float = field(default_factory=time.perf_counter)
    _free: list[tuple[int, int]] = field(default_factory=list)
    _waiting: deque[_Ref] = field(default_factory=deque)
    _events: list[tuple[float, int, Any]] = field(default_factory=list)
    _over: deque[Any] = field(default_factory=deque)
    _running: set[_Ref] = field(default_factory=set)
    _notes: list[Note] = field(default_factory=list)
    _started: int = 0
    _dead: set[int] = field(default_factory=set)
    _count: int = 0

    def __post_init__(self) -> None:
        self._free = [(node, gpu) for node in range(self.gpus // _GPUS_OF_A_NODE) for gpu in range(_GPUS_OF_A_NODE)]
        ideal = sum(self.lengths) / self.gpus
        for node in self.draw.sample(range(self.gpus // _GPUS_OF_A_NODE), self.faults.machines):
            self._at(self.draw.uniform(0.1, 0.9) * ideal, ("machine", node))

    def made_nodes(self) -> list[Node]:
        """The machines as the driver knows them."""
        resources = {"CPU": 128.0, "GPU": float(_GPUS_OF_A_NODE)}
        return [Node.of(str(n), f"node{n}", this_machine(), resources) for n in range(self.gpus // _GPUS_OF_A_NODE)]

    # -- what Sweep calls -------------------------------------------------------------------------------------------

    def put(self, value: Any) -> Any:
        return value

    def nodes(self) -> list[dict[str, Any]]:
        return [{"NodeID": str(n), "Alive": n not in self._dead} for n in range(self.gpus // _GPUS_OF_A_NODE)]

    def options(self, **options: Any) -> Cluster:
        return self

    def remote(self, bundle: Any = None, where: Any = None, *rest: Any) -> Any:
        ref = _Ref(where)
        if where is not None:
            self._waiting.append(ref)
        return ref

    def cancel(self, ref: Any, force: bool) -> None:
        ref.cancelled = True
        if ref in self._running:
            self._running.discard(ref)
            self._release(ref)

    @property
    def take(self) -> Cluster:
        """The board, which has a note of each unit that has begun."""
        return self

    def get(self, value: Any, timeout: float = 0.0) -> list[Any]:
        """What is asked of the board."""
        notes, self._notes = self._notes, []
        return notes

    # -- time -------------------------------------------------------------------------------------------------------

    def clock(self) -> float:
        return self.now

    def next_over(self) -> Any:
        """The next unit that is over; time passes until then."""
        spent = time.perf_counter() - self._left_at
        self.driver_s += spent
        self._advance(self.now + spent)
        while not self._over:
            if not self._events:
                raise queue.Empty
            self._advance(self._events[0][0])
        self._left_at = time.perf_counter()
        return None

    def _at(self, when: float, event: Any) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, event))

    def _advance(self, until: float) -> None:
        self._start_waiting()
        while self._events and self._events[0][0] <= until:
            self.now, _, (kind, what) = heapq.heappop(self._events)
            if kind == "machine":
                self._dead.add(what)
                self._free = [slot for slot in self._free if slot[0] != what]
                for ref in [ref for ref in self._running if ref.slot[0] == what]:
                    self._at(self.now, ("unit", ref))
            elif what in self._running:
                self._end(what)
            self._start_waiting()
        self.now = max(self.now, until)
        if self.unused is None and self._started >= len(self.lengths) and not self._waiting:
            done = self.work + self.lost_work + sum(max(0.0, self.now - ref.began) for ref in self._running)
            self.unused = 1 - done / (self.gpus * self.now)

    def _release(self, ref: _Ref) -> None:
        if ref.slot[0] not in self._dead:
            self._free.append(ref.slot)

    def _start_waiting(self) -> None:
        while self._waiting and self._free:
            ref = self._waiting.popleft()
            if not ref.cancelled:
                ref.slot = self._free.pop()
                ref.began = self.now + self.start_s
                dies = self.faults.units_of_a_death and self.draw.randrange(self.faults.units_of_a_death) == 0
                share = self.draw.random() if dies else 1.0
                ref.dies = bool(dies)
                self._running.add(ref)
                self._started += 1
                node = ref.slot[0]
                self._notes.append(Note(ref.where.number, ref.where.attempt, str(node), f"node{node}", "starts"))
                self._at(ref.began + share * self.lengths[ref.where.number], ("unit", ref))

    def _end(self, ref: _Ref) -> None:
        length = max(0.0, self.now - ref.began)
        self._running.discard(ref)
        self._release(ref)
        if ref.slot[0] in self._dead:
            self.lost_work += length
            ref.fail(ray.exceptions.NodeDiedError("simulated"))
        elif ref.dies:
            self.lost_work += length
            ref.fail(ray.exceptions.WorkerCrashedError())
        else:
            self.work += length
            number = ref.where.number
            verdict = from_json(Verdict, self.verdicts[number % len(self.verdicts)])
            ref.made.set_result(dataclasses.replace(verdict, seconds=length))


@dataclass(eq=False)
class _Ref:
    """One task: where it runs, and its future."""

    where: Any
    made: concurrent.futures.Future[Any] = field(default_factory=concurrent.futures.Future)
    slot: tuple[int, int] = (0, 0)
    began: float = 0.0
    dies: bool = False
    cancelled: bool = False

    def future(self) -> concurrent.futures.Future[Any]:
        return self.made

    def fail(self, error: Exception) -> None:
        self.made.set_exception(error)


class _Over:
    """The queue of what is over; to wait for it lets the simulated time pass."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def put(self, item: Any) -> None:
        self._cluster._over.append(item)

    def get(self, timeout: float) -> Any:
        if not self._cluster._over:
            self._cluster.next_over()
        return self._cluster._over.popleft()


def main() -> None:
    """Simulate each cluster, print a line for each, and write the record."""
    options = argparse.ArgumentParser()
    options.add_argument("file", type=Path)
    options.add_argument("overhead", type=Path)
    options.add_argument("--units", type=int, default=_UNITS)
    options.add_argument("--gpus", type=int, nargs="+", default=[8, 64, 128, 256, 512])
    options.add_argument("--picture", type=Path, help="a file to draw the runs in, .svg or .png")
    chosen = options.parse_args()
    start_s = json.loads(chosen.overhead.read_text())["overhead_ms_of_a_unit"] / 1e3
    recorded = [v for v in json.loads(_RECORDED.read_text())["verdicts"] if v["status"] != "refused"]
    rows = []
    for gpus in chosen.gpus:
        for faults in (Faults(), Faults(units_of_a_death=200, machines=gpus // _GPUS_OF_A_NODE // 8)):
            rows.append(_simulate(gpus, chosen.units, start_s, recorded, faults))
            print(json.dumps(rows[-1]), flush=True)
    lengths = [v["seconds"] for v in recorded]
    head = {
        "machine": this_machine().to_json(),
        "ray": ray.__version__,
        "simulated": "machines, time, faults, what Ray does; not simulated: the driver, its units and records",
        "lengths_of_units_s": {"from": _RECORDED.name, "least": min(lengths), "most": max(lengths)},
        "start_of_a_unit_ms": {"from": chosen.overhead.name, "value": start_s * 1e3},
    }
    records.write(chosen.file, {**head, "runs": rows})
    if chosen.picture is not None:
        chosen.picture.write_bytes(canvas.draw(chosen.picture.suffix[1:], _plot, rows))


def _plot(rows: list[dict[str, Any]]) -> Any:
    """The duration of the sweep by the number of GPUs, with and without faults, beside the ideal."""
    figure = canvas.make_figure(560, 330)
    axes = canvas.make_axes(figure, 70, 50, 470, 250)
    ideal = {r["gpus"]: r["ideal_s"] / 3600 for r in rows}
    axes.plot(list(ideal), list(ideal.values()), "--", color=canvas.NEUTRAL, label="work / GPUs")
    for i, name in enumerate(("no faults", "one worker in 200 units, and one machine in eight die")):
        took = {r["gpus"]: r["took_s"] / 3600 for r in rows if bool(r["worker_deaths"]) is bool(i)}
        style = {"color": canvas.COLORS[i], "marker": canvas.MARKERS[i], "markersize": 5, "label": name}
        axes.plot(list(took), list(took.values()), **style)
    axes.set_xlabel("GPUs")
    axes.set_ylabel("hours")
    canvas.tick(axes, "x", lambda value: f"{value:g}", base=2, most=8)
    canvas.tick(axes, "y", lambda value: f"{value:g}")
    axes.set_title(f"{rows[0]['units']:,} units, simulated", loc="left", fontsize=9.5)
    axes.legend(frameon=False)
    return figure


def _simulate(gpus: int, count: int, start_s: float, recorded: list[dict[str, Any]], faults: Faults) -> dict[str, Any]:
    draw = random.Random(gpus)
    lengths = [draw.choice(recorded)["seconds"] for _ in range(count)]
    cluster = Cluster(gpus, start_s, lengths, recorded, faults, draw)
    task = Task(add, next(iter(add.kernels)), "cuda")
    units = [CheckItem.of(task, Settings("quick", "", (), (), 60.0))] * count
    memory = _memory()
    tasks = Tasks(cluster, cluster)
    sweep = Sweep(
        cluster, tasks, cluster, None, cluster.made_nodes(), units, no_step, over=_Over(cluster), clock=cluster.clock
    )
    found = {done.number: (done.result, done.lost) for done in sweep.results()}
    # Without any overhead, on the machines that are left; the last units of a sweep cannot be spread evenly.
    ideal = max(sum(lengths) / gpus, max(lengths))
    return {
        "gpus": gpus,
        "units": count,
        "worker_deaths": faults.units_of_a_death and f"one in {faults.units_of_a_death} units",
        "machines_that_die": faults.machines,
        "results": len(found),
        "lost": sum(lost for _, lost in found.values()),
        "work_gpu_s": sum(lengths),
        "work_lost_to_faults_gpu_s": cluster.lost_work,
        "ideal_s": ideal,
        "took_s": cluster.now,
        "took_of_ideal": cluster.now / ideal,
        "unused_until_the_last_start": cluster.unused,
        "driver_ms_of_a_unit": cluster.driver_s / count * 1e3,
        "driver_busy": cluster.driver_s / cluster.now,
        "driver_memory_mib": {"before": memory, "at_most": _memory()},
    }


def _memory() -> float:
    """The most memory that this process has had so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
