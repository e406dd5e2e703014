"""Generates Inductor's code for a target GPU in a process of its own.

``python -m opwright.runtime.inspect.inductor_child FOLDER`` reads the job that ``generate_in_child`` wrote there and
writes the answer beside it.

Inductor has no public way to generate code for a GPU that is not there (torch 2.11 to 2.15). While it turns a finished
graph into code, a record answers its questions about the device. Tracing and rewriting before that run without the
record, because they would allocate on the device or time it.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

from opwright.backends.build_tools import build_tools
from opwright.backends.inductor.cuda_guard import provide_cuda_guard
from opwright.backends.inductor.stages import Compilable, Generated, generate_for
from opwright.backends.inductor.target_gpus import target_gpu
from opwright.contract.inputs.arguments import arguments_of
from opwright.contract.inputs.text import parse_case
from opwright.errors import KernelRefusedError, OpwrightError
from opwright.runtime import serialization
from opwright.runtime.languages import REFERENCE
from opwright.runtime.op import Op
from opwright.runtime.targets import ImportPath, find_import_path, import_operator

__all__ = ["compilable_of", "generate_in_child"]

_JOB, _ANSWER = "job", "answer"
_TIME_LIMIT_S = 600.0  # seconds; code for one kernel takes about ten


@dataclass(frozen=True)
class _Job:
    """``cases`` are the calls to make; the code of the last one is returned. The operator is imported, or sent by
    value."""

    kernel: str
    arch: str
    cases: tuple[str, ...]
    run_triton: bool
    fingerprint: str
    import_path: ImportPath | None
    by_value: bytes | None = None
    sys_path: tuple[str, ...] = field(default_factory=lambda: tuple(sys.path))


def compilable_of(operator: Op, kernel: str) -> Compilable:
    """The reference, or one of the NumPy kernels, for Inductor."""
    contract = operator.contract
    if kernel == REFERENCE:
        return Compilable(contract.qualname, contract, contract.function, contract.signature.language)
    spec = operator.kernels[kernel].spec
    assert callable(spec.source)  # NumPy kernels take callables only
    default = spec.options.get("default_float_dtype", "float64")
    return Compilable(f"{contract.qualname}:{kernel}", contract, spec.source, "numpy", default)


def generate_in_child(
    operator: Op, kernel: str, arch: str, cases: tuple[str, ...], *, run_triton: bool
) -> tuple[Generated, ...]:
    """Inductor's code for a target architecture, generated in a process of its own.

    Args:
        cases: the case (``contract/cases.py``) of each call; the code of the last one is returned.
        run_triton: also compile each kernel with Triton.

    Raises:
        CompileError: torch.compile cannot trace the function.
        KernelRefusedError: code for that architecture cannot be generated here.
    """
    path = find_import_path(operator)
    job = _Job(kernel, arch, cases, run_triton, operator.fingerprint, path)
    answer = _run(job, operator) if path is not None else None
    if answer is None:
        answer = _run(replace(job, import_path=None, by_value=_dump(operator)), operator)
    if isinstance(answer, OpwrightError):
        raise answer
    assert answer is not None  # an operator by value is always found
    return answer


def _dump(operator: Op) -> bytes:
    try:
        return serialization.dump(operator)
    except Exception as error:  # cloudpickle raises whatever the objects' own reducers do
        raise KernelRefusedError(
            f"{operator.contract.qualname} cannot be sent to the process that generates code: {error}",
            fix="define it in a file or a module",
        ) from error


_Answer = tuple[Generated, ...] | OpwrightError | None


def _run(job: _Job, operator: Op) -> _Answer:
    # Without a GPU, so that the code is the same on a machine that has another one.
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "0"}
    environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    with tempfile.TemporaryDirectory() as folder:
        environment["TRITON_CACHE_DIR"] = folder  # an earlier cache contains paths of deleted files
        (Path(folder) / _JOB).write_bytes(pickle.dumps(job))
        command = [sys.executable, "-m", "opwright.runtime.inspect.inductor_child", folder]
        try:
            done = subprocess.run(
                command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                timeout=_TIME_LIMIT_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return _refusal(job, operator, f"was stopped after {_TIME_LIMIT_S:g} s")
        if done.returncode == 0:
            answer: _Answer = pickle.loads((Path(folder) / _ANSWER).read_bytes())
            return answer
    last_line = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return _refusal(job, operator, f"ended with {done.returncode}: {last_line}")


def _refusal(job: _Job, operator: Op, what: str) -> KernelRefusedError:
    return KernelRefusedError(
        f"{operator.contract.qualname}: the process that generates code for {job.arch} {what}",
        fix=f"use a machine with {job.arch}",
    )


def _main(folder: Path) -> None:
    job: _Job = pickle.loads((folder / _JOB).read_bytes())
    sys.path[:] = job.sys_path
    answer: _Answer
    try:
        answer = _answer(job, folder)
    except OpwrightError as error:
        answer = error
    (folder / _ANSWER).write_bytes(pickle.dumps(answer))


def _answer(job: _Job, folder: Path) -> tuple[Generated, ...] | None:
    operator = _load_operator(job)
    if operator is None:
        return None
    provide_cuda_guard(build_tools().machine.cxx, folder)
    calls = [arguments_of(operator.contract, parse_case(operator.contract, c), "meta") for c in job.cases]
    compilable = compilable_of(operator, job.kernel)
    return generate_for(target_gpu(job.arch), compilable, calls, run_triton=job.run_triton)


def _load_operator(job: _Job) -> Op | None:
    if job.by_value is not None:
        return serialization.load(job.by_value)
    assert job.import_path is not None  # a job has either
    operator = import_operator(job.import_path)
    return operator if operator is not None and operator.fingerprint == job.fingerprint else None


if __name__ == "__main__":
    # Imported under its own name, because pickle cannot find classes of ``__main__``.
    from opwright.runtime.inspect import inductor_child

    inductor_child._main(Path(sys.argv[1]))
