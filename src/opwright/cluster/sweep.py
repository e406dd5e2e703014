"""Gives items to Ray, a few more than can run at a time, and takes their results, losses and notes."""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from opwright.cluster import worker
from opwright.cluster.attempts import Attempts, Loss, LossKind
from opwright.cluster.bundle import Packer
from opwright.cluster.nodes import Node, can_run, cores_for, options_for
from opwright.errors import OpwrightError
from opwright.sweep.work_item import Done, Needs, OnStep, WorkItem

__all__ = ["Sweep", "Tasks", "last_line"]

# So many tasks are with Ray at a time for each that can run: one runs, and the next is on its way.
_AHEAD = 2
_SECONDS_BETWEEN_READS, _SECONDS_BETWEEN_LOOKS = 0.5, 5.0
# After a loss, the notes are waited for so long: without the one of the lost item, nobody knows which machine it ended.
_SECONDS_FOR_NOTES = 30.0


@dataclass(frozen=True)
class Tasks:
    """``worker.do`` as tasks of Ray.

    Attributes:
        usual: in a process that runs one item after the other.
        timed: in a process of its own, for items that use the GPU there.
    """

    usual: Any
    timed: Any

    def of(self, needs: Needs) -> Any:
        """The one for a work item."""
        return self.timed if needs.gpu and needs.alone else self.usual


class Sweep:
    """The items of one run, and which of them are with Ray.

    Args:
        ray: the module.
        board, store: the actors of ``Board`` and ``ArtifactStore``.
        over: the queue of what is over; a simulation has its own, and its own clock.
    """

    def __init__(
        self,
        ray: Any,
        tasks: Tasks,
        board: Any,
        store: Any,
        nodes: Sequence[Node],
        items: Sequence[WorkItem[Any]],
        on_step: OnStep,
        *,
        over: Any = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ray, self._tasks, self._board, self._store = ray, tasks, board, store
        self._nodes, self._items, self._on_step = list(nodes), items, on_step
        self._packer = Packer(ray.put)
        self._attempts: dict[int, Attempts] = {}
        # All losses of the parts of each item.
        self._of_wholes: dict[str, Attempts] = {}
        self._running: dict[int, Any] = {}
        self._running_on_gpus = 0
        # The newest note of each item that has begun.
        self._notes: dict[int, worker.Note] = {}
        self._over, self._clock = queue.SimpleQueue() if over is None else over, clock
        self._reading: Any = None
        self._read_next = self._look_next = 0.0

    def results(self) -> Iterator[Done]:
        """Each item when it is over."""
        waiting = {gpu: deque(i for i, u in enumerate(self._items) if u.needs.gpu is gpu) for gpu in (True, False)}
        while any(waiting.values()) or self._running:
            for gpu, numbers in waiting.items():
                while numbers and self._has_room(gpu):
                    if (done := self._start(numbers.popleft())) is not None:
                        yield done
            yield from self._look_at_nodes()
            if self._running and (done := self._next_over()) is not None:
                yield done

    def cancel(self) -> None:
        """End the tasks that run."""
        for ref in self._running.values():
            self._cancel(ref)
        self._running.clear()

    def _cancel(self, ref: Any) -> None:
        with contextlib.suppress(Exception):  # the cluster may be gone
            self._ray.cancel(ref, force=True)

    def _has_room(self, gpu: bool) -> bool:
        running = self._running_on_gpus if gpu else len(self._running) - self._running_on_gpus
        return running < _AHEAD * max(1, sum(node.gpus if gpu else node.cpus for node in self._nodes))

    # -- one item ---------------------------------------------------------------------------------------------------

    def _start(self, number: int) -> Done | None:
        """Give a work item to Ray. Returns it if it is over at once."""
        item, attempts = self._items[number], self._attempts.get(number, Attempts())
        if (of_all := self._of_wholes.get(item.needs.whole)) is not None and of_all.has_ended_machines:
            return Done(number, item.without_result(of_all.describe(), of_all.remedy()), lost=True)
        if item.needs.here:
            return Done(number, item.run(lambda step: self._on_step(item, step)))
        if not can_run(dataclasses.replace(item.needs, gpus=1), self._nodes):
            what = f"a GPU {item.needs.gpu_type}".rstrip() if item.needs.gpu else "a processor for tasks"
            why = "".join([f"no machine of the cluster has {what}", *(f"\n  {loss}" for loss in attempts.losses)])
            return Done(number, item.without_result(why, "add one, or choose another --device"), lost=True)
        try:
            bundle, operators = self._packer.pack(item)
        except Exception as error:  # whatever the reducers of the user's objects raise
            why = f"it cannot be sent to the cluster: {type(error).__name__}: {error}"
            return Done(number, item.without_result(why, "run it on this machine, without --ray"), lost=True)
        options = options_for(item.needs, self._nodes, attempts.nodes_to_avoid)
        where = worker.Where(number, attempts.number, item.needs.gpu, cores_for(item.needs, self._nodes))
        task = self._tasks.of(item.needs).options(**options)
        ref = task.remote(bundle, where, self._board, self._store, *operators)
        self._running[number] = ref
        self._running_on_gpus += item.needs.gpu
        # Called in a thread of Ray's, with the result or the error.
        ref.future().add_done_callback(lambda future: self._over.put((number, ref, future)))
        again = f", attempt {attempts.number + 1}" if attempts.number else ""
        self._on_step(item, f"waits for a machine{again}")
        return None

    def _forget(self, number: int) -> None:
        """It does not run any more."""
        del self._running[number]
        self._running_on_gpus -= self._items[number].needs.gpu

    def _next_over(self) -> Done | None:
        """Wait for the next item that is over, for a moment; read notes meanwhile."""
        self._read_board()
        try:
            number, ref, future = self._over.get(timeout=_SECONDS_BETWEEN_READS)
        except queue.Empty:
            return None
        if self._running.get(number) is not ref:  # it was taken back, and given to Ray again
            return None
        error = future.exception()
        if error is not None:
            return self._lose(number, error)
        self._forget(number)
        self._attempts.pop(number, None)
        self._notes.pop(number, None)
        return Done(number, future.result())

    # -- losses -----------------------------------------------------------------------------------------------------

    def _lose(self, number: int, error: BaseException) -> Done | None:
        """Try a work item again, or give what stands in place of its result."""
        loss = self._loss(number, error)
        if loss is not None:
            return self._try_again(number, loss)
        self._forget(number)
        cause = getattr(error, "cause", None)
        why, remedy = (cause.message, cause.fix) if isinstance(cause, OpwrightError) else (last_line(error), "")
        result = self._items[number].without_result(f"it could not be run there: {why}", remedy or "")
        return Done(number, result, lost=True)

    def _try_again(self, number: int, loss: Loss) -> Done | None:
        item = self._items[number]
        self._forget(number)
        attempts = self._attempts.setdefault(number, Attempts())
        records = [attempts]
        if item.needs.whole:
            records.append(self._of_wholes.setdefault(item.needs.whole, Attempts()))
        for record in records:
            record.losses.append(loss)
            record.see_dead_machines(self._alive(default=record.nodes_to_avoid))
        if not attempts.is_over:
            self._on_step(item, str(loss))
            return self._start(number)
        return Done(number, item.without_result(attempts.describe(), attempts.remedy()), lost=True)

    def _loss(self, number: int, error: BaseException) -> Loss | None:
        """What an error of Ray means; None if the item itself raised it, so that no machine would do better."""
        errors = self._ray.exceptions
        self._read_board(wait=True)
        note = self._notes.pop(number, None)
        node, host, step = (note.node, note.host, note.step) if note is not None else ("", "", "")
        if isinstance(error, errors.RayTaskError):
            cause = getattr(error, "cause", None)
            return Loss(LossKind.UNFIT, str(cause), node, host) if isinstance(cause, worker.UnfitMachine) else None
        if isinstance(error, errors.RuntimeEnvSetupError | errors.TaskUnschedulableError):
            return None
        kind = LossKind.MACHINE if isinstance(error, errors.NodeDiedError) else LossKind.WORKER
        return Loss(kind, f"{type(error).__name__}: {last_line(error)}", node, host, step)

    def _look_at_nodes(self) -> Iterator[Done]:
        """From time to time: if a machine is gone, give the items that it ran to others, and take back those that wait,
        which may have asked for just this machine. Ray says nothing of a worker that outlives its machine's control."""
        now = self._clock()
        if now < self._look_next:
            return
        self._look_next = now + _SECONDS_BETWEEN_LOOKS
        alive = self._alive(default={node.id for node in self._nodes})
        left = [node for node in self._nodes if node.id in alive]
        if not left:
            return
        is_one_gone, self._nodes = len(left) < len(self._nodes), left
        if is_one_gone:
            self._read_board(wait=True)
        for number, ref in list(self._running.items()):
            note = self._notes.get(number)
            if note is None and is_one_gone:
                self._cancel(ref)
                self._forget(number)
                done = self._start(number)
            elif note is not None and note.node not in alive:
                self._cancel(ref)
                del self._notes[number]
                loss = Loss(LossKind.MACHINE, "it answers no more", note.node, note.host, note.step)
                done = self._try_again(number, loss)
            else:
                continue
            if done is not None:
                yield done

    def _alive(self, default: set[str]) -> set[str]:
        with contextlib.suppress(Exception):  # its control process may be restarting
            return {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
        return default

    # -- notes ------------------------------------------------------------------------------------------------------

    def _read_board(self, *, wait: bool = False) -> None:
        """Show the steps that tasks have noted: those that have come since the last time, or with ``wait`` all that the
        board has now."""
        if self._reading is not None:
            self._take_notes(timeout=_SECONDS_FOR_NOTES if wait else 0.0)
        now = self._clock()
        if self._reading is None and (wait or now >= self._read_next):
            self._read_next = now + _SECONDS_BETWEEN_READS
            self._reading = self._board.take.remote()
            if wait:
                self._take_notes(timeout=_SECONDS_FOR_NOTES)

    def _take_notes(self, timeout: float) -> None:
        try:
            notes = self._ray.get(self._reading, timeout=timeout)
        except self._ray.exceptions.GetTimeoutError:
            return
        except self._ray.exceptions.RayError:  # the board has died, and is started again
            notes = []
        self._reading = None
        for note in notes:
            attempts = self._attempts.get(note.number, Attempts())
            if note.number in self._running and note.attempt == attempts.number:
                self._notes[note.number] = note
                self._on_step(self._items[note.number], f"{note.step} [{note.host}]")


def last_line(error: BaseException) -> str:
    """What an error of Ray says at its end, without the traces before."""
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__
