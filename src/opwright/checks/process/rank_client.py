"""The checker's side of the processes of a group: it asks all at the same time, each within its time."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import torch

from opwright.checks.exceptions import Raised
from opwright.checks.process.kernel_client import RemoteCalls, raised_from
from opwright.checks.process.messages import Job, Message, write_job
from opwright.checks.process.rank_process import Place, Who
from opwright.checks.ranks.answers import RankAnswer, RankError
from opwright.checks.ranks.joint import Evaluation, Question
from opwright.contract.contract import Contract
from opwright.workers.wire import BrokenAnswer, Connection, Ended, read_tensors

__all__ = ["RemoteRanks", "processes_of"]

# The shares of a step's time: that a collective waits for other ranks, in which a rank answers, and after which the
# checker gives it up.
_PATIENCE, _LIMIT, _GIVEN_UP = 0.4, 0.6, 0.8
# Imports of the user's module, and builds, may take so many times as long.
_OF_STARTING = 8


def processes_of(ranks: int) -> int:
    """How many processes check a group of so many ranks: they and a bystander, once for the kernel and once for its
    reference."""
    return 2 * (ranks + 1) if ranks else 0


class _Late(Exception):
    """A rank has not answered in time."""


class RemoteRanks:
    """Ranks in processes of their own, forked and not told anything yet.

    Args:
        sockets: of ``processes_of`` processes.
        relay: called with their notices.
        how_ended: how the process with this number has ended, in words.
    """

    def __init__(
        self,
        job: Job,
        sockets: Sequence[socket.socket],
        contract: Contract,
        relay: Callable[[Message], None],
        how_ended: Callable[[int], str],
    ) -> None:
        self.size = job.ranks
        half = len(sockets) // 2
        self._worlds = {
            Who.KERNEL: _World(job, Who.KERNEL, sockets[:half], contract, relay, lambda i: how_ended(i)),
            Who.REFERENCE: _World(job, Who.REFERENCE, sockets[half:], contract, relay, lambda i: how_ended(half + i)),
        }
        self._signature = contract.signature
        self._groups: list[str] = []
        self._broken = ""

    def groups(self) -> list[str]:
        self._refuse_broken()
        if not self._groups:
            found = self._start(Who.KERNEL, Who.REFERENCE)
            if found[0] != found[1]:
                self._broken = f"groups have other names in processes of the reference: {found}"
            self._refuse_broken()
            self._groups = found[0]
        return self._groups

    def start(self) -> None:
        self._refuse_broken()
        if not self._groups:
            (self._groups,) = self._start(Who.KERNEL)

    def _refuse_broken(self) -> None:
        if self._broken:
            raise RankError(self._broken)

    def _start(self, *who: Who) -> list[list[str]]:
        """Start the processes of the kernel, or of its reference; the names of their groups."""
        worlds = [self._worlds[w] for w in who]
        try:
            for world in worlds:
                world.load()
            return [world.join() for world in worlds]
        except RankError as error:
            self._broken = str(error)
            raise

    def chosen(self, arguments: Sequence[Any]) -> list[str]:
        answers = self._ask(Who.KERNEL, "chosen", [{"arguments": a} for a in arguments])
        return [str(header.get("chosen", header.get("refused", ""))) for header, _, _ in answers]

    def results(self, arguments: Sequence[Any]) -> list[RankAnswer]:
        answers = self._ask(Who.KERNEL, "results", [{"arguments": a} for a in arguments])
        return [self._answer(header, payload, "outputs", sent["arguments"]) for header, payload, sent in answers]

    def gradients(
        self, arguments: Sequence[Any], tracked: Sequence[bool], incoming: Sequence[Sequence[torch.Tensor | None]]
    ) -> list[RankAnswer]:
        questions = [
            {"arguments": list(a), "incoming": list(i), "tracked": list(tracked)}
            for a, i in zip(arguments, incoming, strict=True)
        ]
        answers = self._ask(Who.KERNEL, "gradients", questions)
        return [self._answer(header, payload, "gradients", None) for header, payload, _ in answers]

    def sharded(
        self,
        arguments: Sequence[Any],
        axes: Sequence[int | None],
        tracked: Sequence[bool],
        incoming: Sequence[torch.Tensor | None],
    ) -> list[RankAnswer]:
        self.start()
        question = {"arguments": list(arguments), "axes": axes, "tracked": tracked, "incoming": list(incoming)}
        answers = self._ask(Who.KERNEL, "sharded", [question] * self.size)
        return [self._answer(header, payload, "outputs", None) for header, payload, _ in answers]

    def evaluate(self, question: Question, arguments: Sequence[Any]) -> list[Evaluation]:
        self._refuse_broken()
        questions = [{"question": question, "arguments": a} for a in arguments]
        answers = self._ask(Who.REFERENCE, "evaluate", questions)
        for rank, (header, _, _) in enumerate(answers):
            if "raised" in header:
                error = raised_from(header["raised"])
                raise Raised(error.kind, f"on rank {rank}: {error.args[0]}", error.at)
            if header.keys() & {"ended", "hung", "failed"}:
                self._broken = f"rank {rank} of the reference {_how(header)}"
                raise RankError(self._broken)
        return [_evaluation(header, payload) for header, payload, _ in answers]

    def _answer(self, header: Any, payload: bytes, key: str, passed: Any) -> RankAnswer:
        common: dict[str, Any] = {
            name: header[name] for name in ("fence", "unwaited", "wrong", "undefined") if name in header
        }
        if "failed" in header:
            raise RankError(f"a rank could not answer:\n{header['failed']}")
        if "ended" in header:
            return RankAnswer(ended=str(header["ended"]))
        if "hung" in header:
            return RankAnswer(hung=str(header["hung"]), communicates=bool(header["communicates"]))
        if "raised" in header:
            return RankAnswer(raised_from(header["raised"]), **common)
        outputs = read_tensors(header[key], payload) if key in header else []
        written = self._signature.written(passed) if passed is not None else []
        return RankAnswer((*outputs, *written), **common)

    def _ask(self, who: Who, kind: str, values: Sequence[Any]) -> list[tuple[Any, bytes, Any]]:
        answers = self._worlds[who].ask(kind, values)
        if not self._broken and any(header.keys() & {"ended", "hung"} for header, _, _ in answers):
            self._broken = "the ranks have ended before"
        return answers


def _how(header: Any) -> str:
    if "ended" in header:
        return str(header["ended"])
    if "hung" in header:
        return f"did not return{header['hung']}"
    return f"could not answer:\n{header['failed']}"


def _evaluation(header: Any, payload: bytes) -> Evaluation:
    if "terms" in header:
        return Evaluation(terms=int(header["terms"]))
    if "are_seen" in header:
        return Evaluation(ends=tuple(map(float, header["ends"])), are_seen=bool(header["are_seen"]))
    return Evaluation(tuple(read_tensors(header["outputs"], payload)))  # type: ignore[arg-type]  # all are tensors


class _World:
    """The processes that run the kernel, or its reference: first the bystander, then the ranks."""

    def __init__(
        self,
        job: Job,
        who: Who,
        sockets: Sequence[socket.socket],
        contract: Contract,
        relay: Callable[[Message], None],
        how_ended: Callable[[int], str],
    ) -> None:
        self._job, self._who, self._how_ended = job, who, how_ended
        self._sockets = sockets
        self._links = [Connection(s) for s in sockets]
        self._calls = [RemoteCalls(link, contract, relay) for link in self._links]

    def load(self) -> None:
        """Let each process load the operator, all at the same time. Raises RankError."""
        device = self._job.target.device if self._who is Who.KERNEL else "cpu"
        for number, link in enumerate(self._links):
            who = self._who if number else Who.BYSTANDER
            times = self._job.timeout * _PATIENCE, self._job.timeout * _LIMIT
            place = Place(who, number - 1, self._job.ranks, device, *times)
            link.send_bytes(cloudpickle.dumps((write_job(self._job), place)))

    def join(self) -> list[str]:
        """Make the group; its name on each rank. Raises RankError."""
        headers = [
            self._receive(i, time.monotonic() + _OF_STARTING * self._job.timeout)[0] for i in range(len(self._links))
        ]
        for number, header in enumerate(headers):
            if "ended" in header or header.get("wrong"):
                what = header.get("wrong") or f"the process {header['ended']}"
                raise RankError(f"{self._name(number)} cannot be started: {what}", of_kernel=self._who is Who.KERNEL)
        answers = [h for h, _, _ in self.ask("join", [{"port": headers[0]["port"]}] * (len(self._links) - 1))]
        for number, header in enumerate(answers):
            if "group" not in header or header["fence"]:
                raise RankError(
                    f"{self._name(number + 1)} cannot join its group: {header.get('fence') or _how(header)}"
                )
        return [str(header["group"]) for header in answers]

    def _name(self, number: int) -> str:
        of = " of the reference" if self._who is Who.REFERENCE else ""
        return f"rank {number - 1}{of}" if number else "the process beside the group"

    def ask(self, kind: str, values: Sequence[Any]) -> list[tuple[Any, bytes, Any]]:
        """The answer of each rank, with the values as they were sent, which it may have written."""
        sent = []
        for link, each in zip(self._links[1:], values, strict=True):
            try:
                sent.append(link.ask(kind, each))
            except Ended:
                sent.append(each)
        deadline = time.monotonic() + _GIVEN_UP * self._job.timeout
        return [(*self._receive(i + 1, deadline), sent[i]) for i in range(len(sent))]

    def _receive(self, number: int, deadline: float) -> tuple[Any, bytes]:
        try:
            while True:
                self._wait(number, deadline)
                answer = self._calls[number].next_answer()
                if answer is not None:
                    return answer
        except Ended:
            return {"ended": self._how_ended(number)}, b""
        except _Late:
            return {"hung": "", "communicates": False}, b""
        except BrokenAnswer as broken:
            return {"ended": f"sent {broken}"}, b""

    def _wait(self, number: int, deadline: float) -> None:
        ready, _, _ = select.select([self._sockets[number]], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise _Late
