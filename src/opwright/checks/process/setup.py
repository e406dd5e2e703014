"""What both processes of a check do first: become the user's environment, and load the operator."""

from __future__ import annotations

import ctypes
import os
import sys

import torch

from opwright.checks.copies import WITHOUT_SHORTAGE, is_shortage
from opwright.checks.process.messages import Job
from opwright.checks.ranks import world
from opwright.machine import SIMULATOR
from opwright.results import Finding, Status
from opwright.runtime import serialization
from opwright.runtime.op import Op
from opwright.runtime.targets import import_operator

__all__ = ["enter", "error_of_check", "hide_memory", "join_alone", "load_operator", "prepare_torch"]


def enter(job: Job) -> None:
    """Take the folder, the import path and the environment variables of the process that checks."""
    os.chdir(job.cwd)
    sys.path[:] = job.sys_path
    os.environ.pop(SIMULATOR, None)  # a judge's kernel before this one may have been in the simulator
    os.environ.update(job.environment)


def hide_memory() -> None:
    """Keep other processes of the same user from reading the memory of this one."""
    set_dumpable = 4  # PR_SET_DUMPABLE of prctl(2)
    ctypes.CDLL(None).prctl(set_dumpable, 0, 0, 0, 0)


def load_operator(job: Job) -> Op | None:
    """The operator; None if its module defines another version by now. It raises whatever the user's module does."""
    if job.pickle:
        return serialization.load(job.pickle)
    assert job.import_path is not None  # a job has either
    operator = import_operator(job.import_path)
    return operator if operator is not None and operator.fingerprint == job.fingerprint else None


def join_alone(operator: Op, device: str) -> None:
    """Give an operator that communicates a group of this process only."""
    if operator.contract.signature.groups:
        world.join_alone(device)


def prepare_torch() -> None:
    """Set what makes results easier to judge."""
    # Memory from the allocator often holds an earlier, correct result. Filled with NaN, it cannot hide an
    # element that a kernel forgot to write.
    torch.use_deterministic_algorithms(True, warn_only=True)
    # By default, torch computes convolutions of float32 in TF32 on a GPU, and adds parts of products of float16 and
    # bfloat16 in these dtypes. A kernel that calls torch is judged by its own steps, not by these defaults.
    # A module of the user's may have frozen the attributes, as torch.testing._internal does.
    torch.backends.cudnn.set_flags(_allow_tf32=False)
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def error_of_check(check: str, traceback: str) -> Finding:
    """A check that did not end. That is never a pass; where memory was short, it is nobody's fault."""
    message = "the check itself failed with an error:\n" + traceback
    if is_shortage(traceback):
        return Finding(check, Status.INCONCLUSIVE, message=message, remedy=WITHOUT_SHORTAGE)
    return Finding(check, Status.FAIL, message=message)
