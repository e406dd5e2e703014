"""The checker's side of the kernel's process: the same calls as in ``kernel_calls.py``, made there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from opwright.checks.context import Context
from opwright.checks.exceptions import Raised, simulates
from opwright.checks.kernel_calls import Call, Gradients, Layout, Meanwhile
from opwright.checks.process.messages import KINDS, Compiled, Doing, Found, Message, Notice, Unchecked, Unconfirmed
from opwright.contract.contract import Contract
from opwright.errors import CheckError, CompileTimeoutError
from opwright.results import Finding, NotChecked
from opwright.workers.messages import message_of
from opwright.workers.wire import BrokenAnswer, Connection, dtype_named, read_tensors

__all__ = ["NotSimulated", "RemoteCalls", "raised_from"]

# The findings of a check that is run there.
_MOST_RESULTS = 200


class NotSimulated(BaseException):
    """The simulator does not have something that the kernel needs; no check may take it for an error of its own."""


@dataclass(frozen=True)
class _Begun:
    """A call that runs: its arguments, and the copies that the other process has."""

    arguments: Sequence[Any]
    passed: Any


class RemoteCalls:
    """Calls in the process of the kernel.

    Args:
        relay: called with the messages of that process: notices, and the steps of checks that run there.
    """

    def __init__(self, link: Connection, contract: Contract, relay: Callable[[Message], None]) -> None:
        self._link, self._contract, self._relay = link, contract, relay
        self._begun: _Begun | None = None

    def why_unavailable(self) -> str | None:
        """Why the operator could not be loaded there, or None; the first answer."""
        return str(self.answer()[0].get("unavailable", "")) or None

    def what_went_wrong(self) -> str | None:
        """What the kernel's compilation raised, or None; the second answer. The third is of its loading."""
        return str(self.answer()[0].get("wrong", "")) or None

    def chosen(self, arguments: Sequence[Any]) -> str:
        self._ask("chosen", {"arguments": arguments})
        header, _ = self.answer()
        if "refused" in header:
            raise CheckError(str(header["refused"]))
        return str(header.get("chosen"))

    def begin(self, arguments: Sequence[Any]) -> None:
        self._begun = _Begun(arguments, self._ask("observe", {"arguments": tuple(arguments)})["arguments"])

    def observe(self, arguments: Sequence[Any]) -> Call:
        if self._begun is None or self._begun.arguments is not arguments:
            self.begin(arguments)
        begun, self._begun = self._begun, None
        assert begun is not None
        passed, (header, payload) = begun.passed, self.answer()
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
        passed = self._ask("results", {"arguments": tuple(arguments), "seed": seed})["arguments"]
        header, payload = self.answer()
        with _as_broken():
            if "raised" in header:
                raise raised_from(header["raised"])
            return (*read_tensors(header["outputs"], payload), *self._contract.signature.written(passed))

    def gradients(
        self,
        arguments: Sequence[Any],
        tracked: Sequence[bool],
        incoming: Sequence[torch.Tensor | None],
        meanwhile: Meanwhile | None = None,
    ) -> Gradients:
        question = {"arguments": list(arguments), "incoming": list(incoming), "tracked": list(tracked)}
        also = None if meanwhile is None else [list(meanwhile.arguments), list(meanwhile.incoming)]
        sent = self._ask("gradients", {**question, "meanwhile": also})
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
        self._ask("check", {"name": name, "cases": context.cases, "records": context.records})
        for _ in range(_MOST_RESULTS):
            result = self._next_result(name)
            if result is None:
                return
            yield result
        raise BrokenAnswer(f"more than {_MOST_RESULTS} findings")

    def _next_result(self, name: str) -> Finding | NotChecked | None:
        """The next finding of a check that runs there; None at its end."""
        while True:
            header, _ = self._receive()
            if "message" not in header:
                _raise_failure(header, self._contract)
                if header.get("ended") != name:
                    raise BrokenAnswer("the answer to another question")
                return None
            match _message(header):
                case Found(finding) if finding.check == name:
                    return finding
                case Unchecked(what) if what.check == name:
                    return what
                case Doing(check=check, case=doing, at=at) if check == name:
                    self._relay(Doing(check, doing, at=at))  # only the checker process says that the reference runs
                case Unconfirmed(finding=Finding(check=check)) as failure if check == name:
                    self._relay(failure)
                case Notice() | Compiled() as notice:
                    self._relay(notice)
                case other:
                    raise BrokenAnswer(f"a message that is not of the check {name!r} ({type(other).__name__})")

    def _ask(self, kind: str, values: Any) -> Any:
        """Ask, once what was begun has been answered; nobody waits for that any more, and whoever does calls again."""
        if self._begun is not None:
            self._begun = None
            with contextlib.suppress(torch.OutOfMemoryError, CompileTimeoutError, CheckError):
                self.answer()
        return self._link.ask(kind, values)

    def answer(self) -> tuple[dict[str, Any], bytes]:
        """The answer to the last question; notices that come before it are handed on."""
        while True:
            found = self.next_answer()
            if found is not None:
                _raise_failure(found[0], self._contract)
                return found

    def next_answer(self) -> tuple[dict[str, Any], bytes] | None:
        """What comes next: an answer; None, if it was a notice, which is handed on."""
        header, payload = self._receive()
        if "message" not in header:
            return header, payload
        notice = _message(header)
        if not isinstance(notice, Notice | Compiled):
            raise BrokenAnswer(f"a message between two checks ({type(notice).__name__})")
        self._relay(notice)
        return None

    def _receive(self) -> tuple[dict[str, Any], bytes]:
        header, payload = self._link.receive_answer()
        if not isinstance(header, dict):
            raise BrokenAnswer("a malformed answer")
        return header, payload


def _raise_failure(header: Mapping[str, Any], contract: Contract) -> None:
    """Raise what kept the other process from answering, which is no fault of the kernel."""
    if "no memory" in header:
        raise torch.OutOfMemoryError(str(header["no memory"]))
    if "not simulated" in header and simulates(contract):
        raise NotSimulated(str(header["not simulated"]))
    if "compiled too long" in header:
        raise CompileTimeoutError(str(header["compiled too long"]))
    if "failed" in header:
        raise CheckError(f"the kernel's process could not answer:\n{header['failed']}")


def _message(header: Any) -> Message:
    with _as_broken():
        message: Message = message_of(header["message"], KINDS)
        return message


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
        raise BrokenAnswer(f"a malformed answer ({type(error).__name__})") from error
