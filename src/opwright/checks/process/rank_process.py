"""The process of one rank: it runs the kernel that is checked, or its reference, together with the other ranks.

The checker process tells it who it is, and then asks as it asks a kernel's process (``kernel_process.py``). It asks
all processes of a group at the same time. A question that communicates ends with a fence (``ranks/world.py``). A
rank that does not return in time says where it is, and ends.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import FrameType
from typing import Any

import cloudpickle
import torch

from opwright import tree
from opwright.checks.comparison.operations import Operations, recorded
from opwright.checks.comparison.rounding import Errors, exactly, perturbed, to_double
from opwright.checks.comparison.terms import reduction_length
from opwright.checks.exceptions import place_of
from opwright.checks.kernel_calls import CallsHere
from opwright.checks.process.kernel_process import chosen_kernel, give_back, on_device, record_of_exception
from opwright.checks.process.messages import Job, job_from
from opwright.checks.process.setup import enter, load_operator, prepare_torch
from opwright.checks.ranks import world
from opwright.checks.ranks.joint import Question
from opwright.contract import derive
from opwright.contract.contract import Contract
from opwright.internals.process_groups import unwaited_collectives
from opwright.runtime.kernel import under_check
from opwright.runtime.languages import REFERENCE
from opwright.runtime.op import Op
from opwright.workers.wire import Connection, Ended, write_tensors

__all__ = ["Place", "Who", "main"]

# The exit code of a rank that did not return in time, and has said so.
_HUNG = 87


class Who(StrEnum):
    """What a rank runs."""

    KERNEL = "kernel"
    REFERENCE = "reference"
    BYSTANDER = "bystander"


@dataclass(frozen=True)
class Place:
    """The place of a process.

    Attributes:
        rank: in the group; -1 for the bystander.
        size: of the group.
        device: the type of the tensors' device.
        patience: seconds that a collective waits for other ranks.
        limit: seconds that the answer to a question may take.
    """

    who: Who
    rank: int
    size: int
    device: str
    patience: float
    limit: float


def main(connection: socket.socket) -> None:
    """Be one rank, until the checker process closes the connection."""
    link = Connection(connection)
    with contextlib.suppress(Ended):
        job, place = cloudpickle.loads(link.receive_bytes())
        job = job_from(job)
        enter(job)
        if place.who is Who.BYSTANDER:
            _stand_by(link, place)
            return
        operator = _loaded(link, place, job)
        if operator is not None:
            with operator.only(job.kernel if place.who is Who.KERNEL else REFERENCE), under_check():
                _Rank(link, operator, job, place).serve()


def _stand_by(link: Connection, place: Place) -> None:
    """Serve the store, and wait for what no rank may call."""
    store = world.open_store(place.size + 1)
    link.answer({"port": store.port})
    world.join(store.port, place.rank, place.size, place.device, place.patience)
    world.stand_by()


def _loaded(link: Connection, place: Place, job: Job) -> Op | None:
    operator, wrong = load_operator(job), ""
    prepare_torch()
    if isinstance(operator, str):
        wrong = operator
    elif place.who is Who.KERNEL and job.kernel != REFERENCE:
        try:
            operator.kernels[job.kernel].load()
        except Exception:  # importing a kernel's file runs the user's code, which may raise anything
            wrong = traceback.format_exc(limit=-3)
    link.answer({"wrong": wrong})
    return None if wrong or isinstance(operator, str) else operator


class _Rank:
    """Answers questions about one kernel, or its reference."""

    def __init__(self, link: Connection, operator: Op, job: Job, place: Place) -> None:
        self._link, self._operator, self._place = link, operator, place
        self._calls = CallsHere(operator, job.kernel if place.who is Who.KERNEL else REFERENCE, place.device)
        self._group: Any = None
        self._operations: tuple[int, Operations] = (-1, Operations())

    def serve(self) -> None:
        """Answer until the checker process has no more questions."""
        answers: Mapping[str, Callable[..., None]] = {
            "join": self._answer_join,
            "chosen": self._answer_chosen,
            "results": self._answer_results,
            "gradients": self._answer_gradients,
            "evaluate": self._answer_evaluate,
            "sharded": self._answer_sharded,
        }
        while True:
            try:
                kind, values = self._link.receive_question()
                answers[kind](**values)
            except Exception:  # a fault of the checker, which the kernel is not to blame for
                self._link.answer({"failed": traceback.format_exc(limit=-4)})

    def _answer_join(self, port: int) -> None:
        place = self._place
        group = world.join(port, place.rank, place.size, place.device, place.patience)
        assert group is not None  # it is not the bystander
        self._group = group.resolve()
        self._link.answer({"group": str(group), "fence": world.fence(self._group, place.device)})

    def _answer_chosen(self, arguments: Sequence[Any]) -> None:
        self._link.answer(chosen_kernel(self._calls, arguments, self._place.device))

    def _answer_results(self, arguments: tuple[Any, ...]) -> None:
        passed = on_device(arguments, self._place.device)
        before = unwaited_collectives()

        def run() -> tuple[dict[str, Any], Sequence[Any]]:
            outputs = self._calls.returned(passed)
            # Copied at once: what a collective that nothing waited for writes later is no result.
            copies = [o.detach().cpu().clone() if isinstance(o, torch.Tensor) else o for o in outputs]
            self._calls.synchronize()
            header, payload = write_tensors(copies)
            return {"outputs": header, "unwaited": unwaited_collectives() - before}, payload

        header, payload = self._in_step(run)
        give_back(passed, arguments)
        self._link.answer(header, payload)

    def _answer_gradients(
        self, arguments: Sequence[Any], incoming: Sequence[torch.Tensor | None], tracked: Sequence[bool]
    ) -> None:
        device = self._place.device

        def run() -> tuple[dict[str, Any], Sequence[Any]]:
            passed, grads = on_device(list(arguments), device), on_device(list(incoming), device)
            found = self._calls.gradients(passed, tracked, grads)
            if isinstance(found.of_inputs, str):
                return {"wrong": found.of_inputs, "undefined": found.is_undefined}, ()
            header, payload = write_tensors(found.of_inputs)
            return {"gradients": header, "undefined": found.is_undefined}, payload

        self._link.answer(*self._in_step(run))

    def _answer_sharded(
        self,
        arguments: Sequence[Any],
        axes: Sequence[int | None],
        tracked: Sequence[bool],
        incoming: Sequence[torch.Tensor | None],
    ) -> None:
        device = self._place.device

        def run() -> tuple[dict[str, Any], Sequence[Any]]:
            from torch.distributed.device_mesh import DeviceMesh

            from opwright.checks.ranks.tensors import run_sharded

            mesh = DeviceMesh.from_group(self._group, device)
            values, grads = on_device(list(arguments), device), on_device(list(incoming), device)
            found = run_sharded(self._operator, mesh, values, axes, tracked, grads)
            self._calls.synchronize()
            header, payload = write_tensors(found)
            return {"outputs": header}, payload

        self._link.answer(*self._in_step(run))

    def _answer_evaluate(self, question: Question, arguments: Sequence[Any]) -> None:
        self._link.answer(*self._in_step(lambda: self._evaluate(question, arguments)))

    def _in_step(self, run: Callable[[], tuple[dict[str, Any], Sequence[Any]]]) -> tuple[dict[str, Any], Sequence[Any]]:
        """What something that communicates gives, or raises; after it, all ranks are in step again."""
        with _limited(self._link, self._place.limit) as may_answer:
            try:
                header, payload = run()
            except Exception as error:  # of the kernel, or of torch because of another rank
                header, payload = {"raised": record_of_exception(self._calls.described(error))}, ()
            header["fence"] = world.fence(self._group, self._place.device)
            may_answer()
        return header, payload

    # -- the reference

    def _evaluate(self, question: Question, arguments: Sequence[Any]) -> tuple[dict[str, Any], Sequence[Any]]:
        contract, needs = self._operator.contract, question.needs
        if question.how == "terms":
            return {"terms": _terms(contract, arguments, needs)}, ()
        run = contract.reference if needs is None else _vjp_of(contract, needs)
        if question.how == "operations":
            found = recorded(lambda: run(arguments))
            self._operations = (question.number, found)
            return {"ends": list(found.ends), "are_seen": found.are_seen}, ()
        if question.how == "exact":
            with exactly():
                results = run(to_double(arguments))
        elif question.how == "perturbed":
            number, operations = self._operations
            if number != question.number:
                operations = Operations()
            seed = question.seed * self._place.size + self._place.rank
            errors = Errors(question.finest, question.coarsest, in_tf32=contract.tf32)
            with perturbed(arguments, operations, errors, seed) as perturbation:
                results = run(perturbation.arguments)
        else:
            results = run(arguments)
        described_results, payload = write_tensors(results)
        return {"outputs": described_results}, payload


def _vjp_of(contract: Contract, needs: Sequence[bool]) -> Callable[[Any], Sequence[torch.Tensor]]:
    form = contract.functional
    assert form is not None  # what has none is not asked for gradients

    def run(values: Any) -> Sequence[torch.Tensor]:
        arguments, grads = values
        with warnings.catch_warnings():
            # Without it, a collective that torch does not differentiate gives zeros in silence.
            warnings.filterwarnings("error", message=".*an autograd kernel was not registered.*")
            return derive.vjp(form, arguments, grads, needs)

    return run


def _terms(contract: Contract, arguments: Any, needs: Sequence[bool] | None) -> int:
    """The number of operations behind one element of a result, on this rank."""
    if needs is None:
        return reduction_length(contract, arguments, contract.reference(arguments))
    values, grads = arguments
    outputs = [g for g in grads if g is not None]
    by = [t for t, need in zip(tree.tensors(list(values)), needs, strict=True) if need]
    count, smallest = sum(o.numel() for o in tree.tensors(outputs)), min(max(1, t.numel()) for t in by)
    return 2 * reduction_length(contract, values, outputs) + math.ceil(count / smallest)


# -- ranks that do not return


@contextlib.contextmanager
def _limited(link: Connection, limit: float) -> Iterator[Callable[[], None]]:
    """End the process after ``limit`` seconds within the block, unless it has said that it may answer."""
    lock, over = threading.Lock(), threading.Event()
    thread = threading.main_thread().ident

    def watch() -> None:
        if over.wait(limit):
            return
        with lock:
            if over.is_set():
                return
            frame = sys._current_frames().get(thread or 0)
            link.answer({"hung": _where(frame), "communicates": _is_in_a_collective(frame)})
            os._exit(_HUNG)

    def may_answer() -> None:
        with lock:
            over.set()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield may_answer
    finally:
        may_answer()
        watcher.join()


def _where(frame: FrameType | None) -> str:
    return place_of(traceback.extract_stack(frame)) if frame is not None else ""


def _is_in_a_collective(frame: FrameType | None) -> bool:
    """Whether a thread waits in torch.distributed, or in one of its operators, which have no frame of their own."""
    if frame is None:
        return False
    files = [f.filename for f in traceback.extract_stack(frame)]
    last = traceback.extract_stack(frame)[-1]
    return any("torch/distributed/" in f for f in files) or "_c10d_functional" in (last.line or "")
