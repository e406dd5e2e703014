"""What each worker of a check does first: become the user's environment, and load the operator."""

from __future__ import annotations

import ctypes
import os
import sys
import traceback

import torch

from opwright.captured.replay import use_recorded
from opwright.checks.limits.shortage import WITHOUT_SHORTAGE, is_shortage
from opwright.checks.process.messages import Job
from opwright.checks.ranks import world
from opwright.checks.request import Request
from opwright.results import Finding, Status
from opwright.runtime import serialization
from opwright.runtime.op import Op
from opwright.runtime.targets import import_operator
from opwright.target import use_engine

__all__ = ["enter", "error_of_check", "hide_memory", "load_operator", "prepare_torch", "request_of"]


def enter(job: Job) -> None:
    """Take the folder, the import path, the environment variables and the engine that the checking process gives."""
    os.chdir(job.cwd)
    sys.path[:] = job.sys_path
    os.environ.update(job.environment)
    use_engine(job.target.engine)


def request_of(job: Job) -> Request:
    """What a job asks of the checks."""
    return Request(job.level, job.asked, job.timeout, job.reproduce, shrinks=not job.case, overlaps=job.overlaps)


def hide_memory() -> None:
    """Keep other processes of the same user from reading the memory of this one."""
    set_dumpable = 4  # PR_SET_DUMPABLE of prctl(2)
    ctypes.CDLL(None).prctl(set_dumpable, 0, 0, 0, 0)


def load_operator(job: Job, group_on: str = "") -> Op | str:
    """The operator; or why there is none: its module raises something, or defines another version by now.

    Args:
        group_on: the type of the device on which an operator that communicates gets a group of this process only.
    """
    try:
        if job.pickle:
            operator = serialization.load(job.pickle)
        else:
            assert job.import_path is not None  # a job has either
            found = import_operator(job.import_path)
            if found is None or found.fingerprint != job.fingerprint:
                return "the module that defines it holds another version"
            operator = found
        use_recorded(operator, job.inputs)
        if group_on and operator.contract.signature.groups:
            world.join_alone(group_on)
    except Exception:  # the user's module may raise anything; the operator may be sent by value instead
        return traceback.format_exc(limit=-3)
    return operator


# Inductor's, which it sets when it first compiles something (torch/_inductor/compile_fx.py).
_RECURSION_LIMIT = 2000


def prepare_torch() -> None:
    """Set what makes results easier to compare, and what torch sets at some time, which no kernel has changed."""
    sys.setrecursionlimit(max(_RECURSION_LIMIT, sys.getrecursionlimit()))
    # Memory from the allocator often holds an earlier, correct result. Filled with NaN, it cannot hide an
    # element that a kernel forgot to write.
    torch.use_deterministic_algorithms(True, warn_only=True)
    # By default, torch computes convolutions of float32 in TF32 on a GPU, and adds parts of products of float16 and
    # bfloat16 in these dtypes. A kernel that calls torch is judged by its own steps, not by these defaults.
    # A module of the user's may have frozen the attributes, as torch.testing._internal does.
    torch.backends.cudnn.set_flags(_allow_tf32=False)
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def error_of_check(check: str, error: str) -> Finding:
    """A check that raised an error of its own. Nothing is known then, which is neither a pass nor a fault of the
    kernel."""
    message = "the check itself failed with an error:\n" + error
    remedy = WITHOUT_SHORTAGE if is_shortage(error) else _DEFECT_OF_OURS
    return Finding(check, Status.INCONCLUSIVE, message=message, remedy=remedy)


_DEFECT_OF_OURS = "report this error to opwright: it says nothing about the kernel"
