"""``ow.judge``: kernels in the formats in which others publish them, checked against an inferred contract."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opwright.checks.limits.resident_memory import usual_limit
from opwright.checks.outputs import published_rule
from opwright.checks.run import Interrupted, check, executor_for
from opwright.errors import CheckError, OpwrightError
from opwright.judged.ask import contract_of, times_of
from opwright.judged.called import without_running_tasks
from opwright.judged.formats import read_tasks
from opwright.judged.infer_process import Contract, Request
from opwright.judged.sources import line_of
from opwright.judged.task import Candidate, Task
from opwright.machine import this_machine
from opwright.results import Status, Verdict
from opwright.results.judged import Judged, JudgeReport, Times
from opwright.runtime.op import Op
from opwright.runtime.targets import load_target
from opwright.sweep.events import QUIET, Events
from opwright.sweep.executor import usual_slots
from opwright.sweep.journal import open_journal
from opwright.workers.sandbox import sandbox_of_this_system

__all__ = ["CHECKS_OF_CANDIDATES", "judge"]

_GIB = 1 << 30
# One call at a time: the operators of two calls may have the same names, and torch has one operator of a name.
_alone = threading.Lock()

# Of the time that a contract may take, the share in which other values of constants are tried.
_SHARE_OF_TRIALS = 0.5

# A candidate is a forward on contiguous arguments, on the default stream. No format asks for derivatives, for another
# stream, or for what torch.library registers.
CHECKS_OF_CANDIDATES = (
    "contract", "memory", "values", "published rule", "special values", "inputs unchanged", "global state",
    "repeated calls", "execution context", "determinism", "configurations", "cheats", "far rows",
    "own work", "protected memory",
)  # fmt: skip


def judge(
    *paths: str | Path,
    format: str = "",
    references: str | Path | None = None,
    write_contract: str | Path | None = None,
    timeout: float = 60.0,
    sandbox: str = "auto",
    memory: float | None = None,
    times: bool = False,
    max_autotune: bool = False,
    events: Events = QUIET,
    **options: Any,
) -> JudgeReport:
    """Check kernels that were written without opwright, in the form in which they are.

    Each task's contract is inferred: the reference runs with other sizes, on tensors without memory, and what it
    accepts is part of the contract. The candidates are then checked as kernels of this operator.

    Args:
        paths: files and folders of one format, which is recognised.
        format: the format, if it is not recognised; ``opwright judge --help`` lists them.
        references: a folder or a file with the references, if they are not beside the candidates.
        write_contract: a folder that gets the contract of each task as a Python file.
        timeout: seconds that one step may take.
        sandbox: "on", "off", or "auto": on where the system allows it. Candidates then write into scratch folders and
            opwright's cache only, and have no network.
        memory: GiB that the processes of a candidate may have resident before they are ended; 0 for no limit. By
            default, each of those that run at a time may have an equal part of most of what is free.
        times: time the candidates that are right, beside the reference and torch.compile.
        max_autotune: also beside torch.compile with that mode, which may compile for minutes.
        events: functions that are called on the way.
        options: others of ``ow.check``.

    Returns:
        A report with a row for each candidate, the worst first.

    Raises:
        TargetError: the paths are of no format; CheckError: as ``ow.check``.
    """
    began = time.monotonic()
    is_confined, in_words = _sandbox(sandbox)
    limit = _limit(memory, options.get("jobs"))
    if write_contract is None and isinstance(resume := options.get("resume"), str | Path):
        write_contract = f"{resume}.contracts"  # verdicts belong to contracts in a folder that stays
    in_words += f"; at most {limit / _GIB:.3g} GiB of memory each" if limit else "; no limit on memory"
    with contextlib.ExitStack() as stack:
        stack.enter_context(_alone)
        stack.enter_context(without_running_tasks())
        folder = Path(write_contract or stack.enter_context(tempfile.TemporaryDirectory(prefix="opwright-judge-")))
        folder.mkdir(parents=True, exist_ok=True)
        given = Path(references) if references is not None else None
        found, unread = read_tasks([str(p) for p in paths], folder.resolve(), format, given)
        seconds = _SHARE_OF_TRIALS * timeout
        requests = [
            Request(task, folder.resolve(), is_confined, limit, max_autotune=max_autotune, seconds=seconds)
            for task in found
        ]
        contracts = dict[str, Contract]()
        try:
            for request in requests:
                contracts[request.task.name] = contract_of(request, timeout)
        except KeyboardInterrupt:
            stays = f"they stay in {write_contract}" if contracts and write_contract is not None else "nothing is kept"
            inferred = f"{len(contracts)} of {len(requests)} contracts were inferred"
            raise KeyboardInterrupt(f"interrupted: no candidate was checked, and {inferred}; {stays}") from None
        operators = [op for r in requests if (op := _loaded(r.file, contracts[r.task.name])) is not None]
        options.setdefault("checks", CHECKS_OF_CANDIDATES)
        verdicts, partial, unwritten = list[Verdict](), "", ""
        if operators:
            machine = executor_for(options.get("executor"), options.get("jobs")).machine
            options |= {"timeout": timeout, "sandbox": is_confined, "memory": limit / _GIB}
            with open_journal(options.pop("resume", None), machine, events.resumed, goes_on=True) as journal:
                try:
                    verdicts = [*check(*operators, resume=journal, events=events, **options)]
                except Interrupted as interrupted:
                    verdicts, partial = [*interrupted.report], interrupted.report.partial
                unwritten = journal.unwritten if journal is not None else ""
        timed = dict[tuple[str, str], Times]()
        if (times or max_autotune) and not partial:
            try:
                for key, found_times in times_of(requests, verdicts, options.get("device"), timeout):
                    timed[key] = found_times
            except KeyboardInterrupt:  # verdicts are worth more than times
                partial = f"interrupted: all were checked, and {len(timed)} were timed"
    if write_contract is None:
        verdicts = [_with_kept_contract(v, str(folder.resolve()), paths) for v in verdicts]
    by_kernel = {(v.op, v.kernel): v for v in verdicts}
    why_not = "it was not checked: the run ended before" if partial else "it was not checked"
    rows = [
        dataclasses.replace(
            _row(task, candidate, contracts[task.name], by_kernel.get((task.qualname, candidate.name)), why_not),
            times=timed.get((task.qualname, candidate.name)),
        )
        for task in found
        for candidate in task.candidates
    ]
    order = {status: i for i, status in enumerate(Status)}
    rows.sort(key=lambda row: order[row.status])
    seconds = time.monotonic() - began
    return JudgeReport(this_machine().to_json(), tuple(rows), tuple(unread), seconds, in_words, partial, unwritten)


def _with_kept_contract(verdict: Verdict, folder: str, paths: tuple[Any, ...]) -> Verdict:
    """The commands that repeat findings, with a folder that is not gone when the user runs them."""
    first = f"opwright judge {' '.join(map(str, paths))} --write-contract contracts && "
    findings = tuple(
        dataclasses.replace(f, reproduce=first + f.reproduce.replace(folder, "contracts")) if f.reproduce else f
        for f in verdict.findings
    )
    return dataclasses.replace(verdict, findings=findings)


def _sandbox(asked: str) -> tuple[bool, str]:
    """Whether candidates are confined, and what that means here.

    Raises:
        CheckError: this system cannot, or the word is another.
    """
    if asked not in ("auto", "on", "off"):
        raise CheckError(f"sandbox must be auto, on or off, got {asked!r}", fix="leave it out for auto")
    offered = sandbox_of_this_system()
    if asked == "off":
        return False, "no sandbox: it was switched off"
    if asked == "on" and not offered.version:
        raise CheckError(
            f"sandbox=on must be possible, got {offered.words}", fix="judge in a container, with sandbox=off"
        )
    return bool(offered.version), offered.words


def _limit(memory: float | None, jobs: int | None) -> int:
    """The bytes that the processes of a candidate may have; 0 for no limit.

    Raises:
        CheckError: it is negative.
    """
    if memory is None:
        return usual_limit(jobs or usual_slots(this_machine()))
    if memory < 0:
        raise CheckError(f"memory must be at least 0 GiB, got {memory:g}", fix="leave it out, or pass 0 for no limit")
    return int(memory * _GIB)


def _row(
    task: Task, candidate: Candidate, contract: Mapping[str, Any], verdict: Verdict | None, why_not: str
) -> Judged:
    """The row of one candidate, or why there is no verdict. One shape is too little coverage for a pass."""
    file, reference = candidate.origin or candidate.file, task.origin or task.file
    is_alone = sum(other.file == candidate.file for other in task.candidates) == 1
    shown = str(file) if is_alone else f"{file}:{candidate.entry}"
    row = Judged(
        task.format, shown, str(reference), Status.INCONCLUSIVE, candidate.claimed, published=candidate.published,
        line=line_of(file, candidate.entry),
    )  # fmt: skip
    if verdict is None:
        status = Status.REFUSED if "error" in contract else Status.INCONCLUSIVE
        return dataclasses.replace(row, status=status, reason=contract.get("error", why_not))
    status, reason = verdict.status, verdict.reason
    if contract["has_one_shape"] and status in (Status.PASS, Status.WARNING):
        status, reason = Status.THIN, "one shape only: the reference accepts no others"
    rule = next((f.message.split()[0] for f in verdict.findings if f.check == published_rule.NAME), "")
    if any(f.message.startswith(published_rule.WRONG_BY) for f in verdict.findings):
        rule = "wrong"
    return dataclasses.replace(
        row, status=status, by_rule=rule, reason=reason, contract=contract["declared"], fixed=tuple(contract["fixed"]),
        verdict=verdict,
    )  # fmt: skip


def _loaded(file: Path, contract: Contract) -> Op[..., Any] | None:
    """The operator of a contract file, which an earlier call in this process may have loaded with other contents. If it
    cannot be defined, the reason is added to the contract."""
    if "error" in contract:
        return None
    sys.modules.pop(file.stem, None)
    try:
        (operator,) = load_target(str(file))
    except OpwrightError as error:
        contract["error"] = str(error)
        return None
    return operator
