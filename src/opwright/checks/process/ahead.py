"""The process that compiles ahead what a kernel's later cases need, while its first ones run.

In a simulator a Triton kernel is compiled for each size and dtype. The process goes through the cases from the last to
the first, and calls the launcher in a block in which launches only compile. So it fills the cache of artifacts. It
says nothing, and nobody waits for it: whatever the kernel does to it, the check is the same, only slower.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import tempfile

from opwright.checks.process.messages import Job, job_from
from opwright.checks.process.setup import enter, load_operator, prepare_torch
from opwright.checks.process.wire import Connection, Ended
from opwright.contract.inputs.arguments import arguments_of
from opwright.contract.inputs.case import Case
from opwright.contract.inputs.cases import cases
from opwright.runtime.kernel import Kernel, under_check
from opwright.runtime.op import Op

__all__ = ["longest_dim", "main"]

# It gives way to the check itself, and ends after so many seconds of work: a launcher may wait for results.
_NICENESS, _MOST_SECONDS = 10, 120


def main(connection: socket.socket) -> None:
    """Compile what the cases of one job need."""
    with contextlib.suppress(Ended):
        job = job_from(Connection(connection).receive_bytes())
        os.nice(_NICENESS)
        resource.setrlimit(resource.RLIMIT_CPU, (_MOST_SECONDS, _MOST_SECONDS))
        enter(job)
        os.environ["TMPDIR"] = job.temporary
        tempfile.tempdir = None  # it is read again
        operator = load_operator(job)
        if operator is not None:
            prepare_torch()
            kernel = operator.kernels[job.kernel]
            with operator.only(job.kernel), under_check(), kernel.compiling_only():
                for case in reversed(_cases(operator, kernel, job)):
                    _compile_for(operator, case)


def _cases(operator: Op, kernel: Kernel, job: Job) -> list[Case]:
    """Those that the judge would choose, if the kernel takes what its contract does."""
    return cases(operator.contract, job.level, kernel.spec.dtypes, longest=longest_dim(simulated=True), far=False)


def longest_dim(*, simulated: bool) -> int:
    """The longest dim of a kernel that runs slowly, in a simulator or in an interpreter."""
    return 65_537 if simulated else 2049


def _compile_for(operator: Op, case: Case) -> None:
    contract = operator.contract
    with contextlib.suppress(Exception):  # the judge's check reports what is wrong
        contract.signature.call(operator.with_saved, arguments_of(contract, case, "cpu"))
