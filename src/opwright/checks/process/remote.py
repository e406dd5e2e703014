"""The judge's side of the kernel's process: the same calls as in ``kernel_calls.py``, made there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from opwright.checks.context import Context
from opwright.checks.exceptions import Raised
from opwright.checks.kernel_calls import Call, Gradients, Layout, Meanwhile
from opwright.checks.process.messages import Doing, Found, Message, Notice, Suspected, Unchecked, message_of
from opwright.checks.process.wire import BrokenAnswer, Connection, Ended, dtype_named, read_tensors
from opwright.contract.signature import Signature
from opwright.errors import CheckError
from opwright.machine import in_simulator
from opwright.results import Finding, NotChecked, Status

__all__ = ["NotSimulated", "RemoteCalls", "SecondProcess", "raised_from"]

# The findings of a check that is run there.
_MOST_RESULTS = 200


class NotSimulated(BaseException):
    """The simulator does not have something that the kernel needs; no check may take it for an error of its own."""


class RemoteCalls:
    """Calls in the process of the kernel.

    Args:
        relay: called with the messages of that process: notices, and the steps of checks that run there.
    """

    def __init__(self, link: Connection, signature: Signature, relay: Callable[[Message], None]) -> None:
        self._link, self._signature, self._relay = link, signature, relay

    def why_unavailable(self) -> str | None:
        """Why the operator could not be loaded there, or None; the first answer."""
        return str(self.answer()[0].get("unavailable", "")) or None

    def what_went_wrong(self) -> str | None:
        """What the kernel's compilation raised, or None; the second answer. The third is of its loading."""
        return str(self.answer()[0].get("wrong", "")) or None

    def chosen(self, arguments: Sequence[Any]) -> str:
        self._link.ask("chosen", {"arguments": arguments})
        header, _ = self.answer()
        if "refused" in header:
            raise CheckError(str(header["refused"]))
        return str(header.get("chosen"))

    def observe(self, arguments: Sequence[Any]) -> Call:
        passed = self._link.ask("observe", {"arguments": tuple(arguments)})["arguments"]
        header, payload = self.answer()
        with _as_broken():
            changed = _changed(header)
            if "raised" in header:
                return Call(passed, raised_from(header["raised"]), changed=changed)
            promised = header["promised"]
            return Call(
                passed,
                tuple(read_tensors(header["outputs"], payload)),  # type: ignore[arg-type]  # none is None
                tuple(None if one is None else _layout(one) for one in header["layouts"]),
                promised if isinstance(promised, str) else tuple(map(_layout, promised)),
                str(header["shared"]),
                changed,
            )

    def results(self, arguments: Sequence[Any], *, seed: int | None = None) -> tuple[Any, ...]:
        passed = self._link.ask("results", {"arguments": tuple(arguments), "seed": seed})["arguments"]
        header, payload = self.answer()
        with _as_broken():
            if "raised" in header:
                raise raised_from(header["raised"])
            return (*read_tensors(header["outputs"], payload), *self._signature.written(passed))

    def gradients(
        self,
        arguments: Sequence[Any],
        tracked: Sequence[bool],
        incoming: Sequence[torch.Tensor | None],
        meanwhile: Meanwhile | None = None,
    ) -> Gradients:
        question = {"arguments": list(arguments), "incoming": list(incoming), "tracked": list(tracked)}
        also = None if meanwhile is None else [list(meanwhile.arguments), list(meanwhile.incoming)]
        sent = self._link.ask("gradients", {**question, "meanwhile": also})
        passed = sent["arguments"], sent["incoming"]
        header, payload = self.answer()
        with _as_broken():
            if "wrong" in header:
                return Gradients(passed, str(header["wrong"]), bool(header["undefined"]), changed=_changed(header))
            found, count = read_tensors(header["gradients"], payload), sum(tracked)
            raised = str(header["raised again"])
            if len(found) != (count if also is None or raised else 2 * count):
                raise BrokenAnswer(f"{len(found)} gradients in place of {count}")
            again = raised or tuple(found[count:])
            return Gradients(passed, tuple(found[:count]), again=again, changed=_changed(header))  # type: ignore[arg-type]  # each is a tensor or None

    def check(self, name: str, context: Context) -> Iterator[Finding | NotChecked]:
        """Run a check there. Its findings are the word of that process."""
        self._link.ask("check", {"name": name, **_known_by(context)})
        yield from self.results_of(name)

    def results_of(self, name: str) -> Iterator[Finding | NotChecked]:
        """The findings of a check that was asked for."""
        for _ in range(_MOST_RESULTS):
            result = self._next_result(name)
            if result is None:
                return
            yield result
        raise BrokenAnswer(f"more than {_MOST_RESULTS} findings")

    def _next_result(self, name: str) -> Finding | NotChecked | None:
        """The next finding of a check that runs there; None at its end."""
        while True:
            header, _ = self._link.receive_answer()
            if not isinstance(header, dict):
                raise BrokenAnswer("what is no answer")
            if "message" not in header:
                _raise_failure(header)
                if header.get("ended") != name:
                    raise BrokenAnswer("the answer to another question")
                return None
            match _message(header):
                case Found(finding) if finding.check == name:
                    return finding
                case Unchecked(what) if what.check == name:
                    return what
                case (Doing(check=check) | Suspected(finding=Finding(check=check))) as step if check == name:
                    self._relay(step)
                case Notice() as notice:
                    self._relay(notice)
                case other:
                    raise BrokenAnswer(f"a message that is not of the check {name!r} ({type(other).__name__})")

    def answer(self) -> tuple[dict[str, Any], bytes]:
        """The answer to the last question; notices that come before it are handed on."""
        while True:
            found = self.next_answer()
            if found is not None:
                _raise_failure(found[0])
                return found

    def next_answer(self) -> tuple[dict[str, Any], bytes] | None:
        """What comes next: an answer; None, if it was a notice, which is handed on."""
        header, payload = self._link.receive_answer()
        if not isinstance(header, dict):
            raise BrokenAnswer("what is no answer")
        if "message" not in header:
            return header, payload
        notice = _message(header)
        if not isinstance(notice, Notice):
            raise BrokenAnswer(f"a message between two checks ({type(notice).__name__})")
        self._relay(notice)
        return None


class SecondProcess:
    """A process of the kernel that runs some checks while the first one answers the judge's questions.

    It only saves time: what it does not pass, the first one runs, whose word counts. So nothing is found because there
    are two, as where a GPU, a port or a file is for one process only.

    Args:
        builds: whether there is a kernel to be built and loaded, or the reference runs.
    """

    def __init__(self, link: Connection, calls: RemoteCalls, *, builds: bool) -> None:
        self._link, self._calls, self._builds = link, calls, builds
        self._names: list[str] = []
        self._is_ready: bool | None = None

    @property
    def has_begun(self) -> bool:
        return bool(self._names)

    def start(self, job: bytes) -> None:
        """Let it load the kernel, which the first one has compiled."""
        with contextlib.suppress(Ended):  # it is not ready, then
            self._link.send_bytes(job)

    def begin(self, names: list[str], context: Context) -> None:
        """Let it run checks, in this order."""
        self._names = names
        with contextlib.suppress(Ended):
            self._link.ask("checks", {"names": names, **_known_by(context)})

    def passed(self, name: str) -> list[Finding | NotChecked] | None:
        """The results of the next check, if it runs there and passes, or has nothing to check; else None."""
        if name not in self._names or self._is_ready is False:
            return None
        try:
            self._is_ready = self._is_ready or self._is_able()
            results = [*self._calls.results_of(name)] if self._is_ready else []
        except (Ended, BrokenAnswer, CheckError, torch.OutOfMemoryError):
            self._is_ready = False
        if not self._is_ready:
            return None
        statuses = {r.status for r in results if isinstance(r, Finding)}
        return results if statuses == {Status.PASS} or not results else None

    def _is_able(self) -> bool:
        calls = self._calls
        if calls.why_unavailable() or (self._builds and (calls.what_went_wrong() or calls.what_went_wrong())):
            return False
        return "cannot" not in calls.answer()[0]


def _known_by(context: Context) -> dict[str, Any]:
    """What checks in another process need to know."""
    return {"cases": context.cases, "admitted": context.admitted, "slow": context.slow, "known": context.known}


def _raise_failure(header: Mapping[str, Any]) -> None:
    """Raise what kept the other process from answering, which is no fault of the kernel."""
    if "no memory" in header:
        raise torch.OutOfMemoryError(str(header["no memory"]))
    if "not simulated" in header and in_simulator():
        raise NotSimulated(str(header["not simulated"]))
    if "failed" in header:
        raise CheckError(f"the kernel's process could not answer:\n{header['failed']}")


def _message(header: Any) -> Message:
    with _as_broken():
        return message_of(header["message"])


def raised_from(record: Mapping[str, Any]) -> Raised:
    """An exception as it was sent."""
    return Raised(str(record["kind"]), str(record["text"]), str(record["at"]))


def _layout(record: Mapping[str, Any]) -> Layout:
    shape, strides = (tuple(None if n is None else int(n) for n in record[which]) for which in ("shape", "strides"))
    return Layout(shape, strides, dtype_named(record["dtype"]), str(record["device"]))


def _changed(header: Mapping[str, Any]) -> dict[str, str]:
    """The settings that a call left changed."""
    return {str(name): str(how) for name, how in header["changed"].items()}


@contextlib.contextmanager
def _as_broken() -> Iterator[None]:
    """What does not have the form of an answer is a fault of the process that sent it."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BrokenAnswer(f"what is no answer ({type(error).__name__})") from error
