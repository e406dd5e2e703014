"""Kernels that Numba compiles: loops over NumPy arrays for a CPU, launchers around ``numba.cuda`` kernels for a GPU."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
import torch

from opwright.backends.base import Artifact, Backend, KernelSpec, Launch
from opwright.backends.build_tools import BuildTools
from opwright.backends.check_hooks import CheckHooks
from opwright.backends.gpu.recording import RecordableLauncher
from opwright.backends.numba.gpu_kernel import DTYPES, is_gpu_function, launches_are_ours
from opwright.backends.numba_jit.jit import (
    INSTALL,
    INSTALL_CUDA,
    first_line,
    has_numba,
    is_of_the_compiler,
    with_numba,
)
from opwright.contract.contract import Contract
from opwright.errors import CompileError, KernelError
from opwright.machine import Machine
from opwright.results import Accepted, Probe, Refused

__all__ = ["NumbaBackend"]


class _NumbaHooks(CheckHooks):
    has_barriers = True

    @staticmethod
    def under_check(order: int) -> contextlib.AbstractContextManager[None]:
        return _indices_checked()


class NumbaBackend(Backend):
    """For a CPU, a function on arrays, as Numba takes it; it may write arguments that the contract marks as mutated.
    ``parallel=True`` runs ``numba.prange`` on as many threads as torch uses, ``fastmath=True`` reorders sums.

    With ``devices=["cuda"]``, a launcher on tensors around functions that ``numba.cuda.jit`` decorates.
    """

    name = "numba"
    takes = frozenset({"callable"})
    default_devices = ("cpu",)
    # Numba knows no half precision on a CPU.
    dtypes = frozenset(
        {
            torch.float32, torch.float64, torch.complex64, torch.complex128, torch.bool, torch.int8, torch.int16,
            torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
        }
    )  # fmt: skip
    mutates = True
    not_packaged = (
        "opwright compiles it when it runs",
        "decorate it with numba.njit, and attach a function that calls it with op.python",
    )
    check_hooks = _NumbaHooks

    def available(self, machine: Machine) -> Probe:
        if not has_numba():
            return Refused("Numba is not installed", INSTALL)
        import numba

        return Accepted(f"compiled by Numba {numba.__version__}" + ("" if _has_numba_cuda() else "; CPU kernels only"))

    def tools_for(self, spec: KernelSpec, machine: Machine) -> Probe:
        if _is_for_gpu(spec) and has_numba() and not _has_numba_cuda():
            return Refused("Numba's kernels for GPUs need numba-cuda, which is not installed", INSTALL_CUDA)
        return super().tools_for(spec, machine)

    def dtypes_here(self, spec: KernelSpec, device: str, machine: Machine) -> Collection[torch.dtype] | None:
        return spec.dtypes if spec.dtypes is not None else DTYPES if _is_for_gpu(spec) else self.dtypes

    def validate(self, spec: KernelSpec, contract: Contract) -> None:
        super().validate(spec, contract)
        who = f"{contract.qualname}:{spec.name}"
        if len(spec.devices) != 1:
            raise KernelError(
                f"{who}: devices={list(spec.devices)}, but a function is for a CPU or a launcher for a GPU",
                fix='attach two kernels, the second with devices=["cuda"]',
            )
        if is_gpu_function(spec.source) or (_is_for_gpu(spec) and hasattr(spec.source, "py_func")):
            raise KernelError(
                f"{who} is a kernel itself, which needs a grid and its outputs",
                fix='attach, with devices=["cuda"], a launcher that allocates and launches kernel[grid, block](…)',
            )
        for option in ("parallel", "fastmath"):
            if _is_for_gpu(spec) and spec.options.get(option):
                raise KernelError(
                    f"{who}: {option}= is for CPU kernels",
                    fix="leave it out: a launcher's kernels have the options of cuda.jit",
                )
            if not isinstance(spec.options.get(option, False), bool):
                raise KernelError(
                    f"{contract.qualname}:{spec.name}: {option} must be a bool, got {spec.options[option]!r}",
                    fix="pass True or False",
                )

    def compile(self, spec: KernelSpec, contract: Contract, tools: BuildTools) -> Artifact:
        if _is_for_gpu(spec):
            return Artifact(spec.entry, payload=spec.source)
        return Artifact(spec.entry, payload=_Compiled(spec, contract, tools.notify))

    def load(self, artifact: Artifact, spec: KernelSpec, contract: Contract) -> Launch:
        if _is_for_gpu(spec):
            launcher = RecordableLauncher(
                _launcher(artifact.payload),
                written_by_user=artifact.payload,
                kernels=lambda value: () if is_gpu_function(value) else None,
                writes=bool(contract.signature.mutated),
            )
            return contract.signature.flat(launcher)
        launch: Launch = artifact.payload
        return launch


def _is_for_gpu(spec: KernelSpec) -> bool:
    return spec.devices == ("cuda",)


def _has_numba_cuda() -> bool:
    return importlib.util.find_spec("numba_cuda") is not None


def _launcher(function: Any) -> Launch:
    @functools.wraps(function)
    def launch(*arguments: Any, **keywords: Any) -> Any:
        with launches_are_ours():
            return function(*arguments, **keywords)

    return launch


# Within a check, indices are compared with the sizes.
_check_indices = False


@contextlib.contextmanager
def _indices_checked() -> Iterator[None]:
    global _check_indices
    before, _check_indices = _check_indices, True
    try:
        yield
    finally:
        _check_indices = before


class _Compiled:
    """One function; Numba compiles it for each pattern of types and layouts."""

    def __init__(self, spec: KernelSpec, contract: Contract, notify: Callable[[str], None]) -> None:
        self._spec = spec
        self._who = f"{contract.qualname}:{spec.name}"
        self._written = [argument.mutated for argument in contract.signature.arguments]
        self._flat = contract.signature.flat
        self._notify = notify
        self._jitted: dict[bool, Any] = {}

    def __call__(self, *arguments: Any) -> Any:
        arrays = [_array(a, written) for a, written in zip(arguments, self._written, strict=True)]
        with _threads_of_torch(bool(self._spec.options.get("parallel"))):
            result = self._run(self._function(), arrays)
        return tuple(map(_tensor, result)) if isinstance(result, tuple) else _tensor(result)

    def _function(self) -> Any:
        """The function with or without a comparison of indices; a function that is Numba's already is used as it is."""
        if hasattr(self._spec.source, "py_func"):
            return self._spec.source
        if _check_indices not in self._jitted:
            options: dict[str, Any] = {key: bool(self._spec.options.get(key)) for key in ("parallel", "fastmath")}
            assert callable(self._spec.source)  # ``takes`` has callables only
            self._jitted[_check_indices] = with_numba(
                self._spec.source, self._who, check_indices=_check_indices, **options
            )
        return self._jitted[_check_indices]

    def _run(self, function: Any, arrays: list[Any]) -> Any:
        known, start = len(function.signatures), time.perf_counter()
        try:
            result = self._flat(function)(*arrays)
        except Exception as error:
            if not is_of_the_compiler(error):
                raise
            raise CompileError(
                f"{self._who}: Numba cannot compile it: {first_line(error)}",
                log=str(error),
                fix="write it with what Numba supports; the whole message is in this exception's .log",
            ) from error
        if len(function.signatures) != known:
            self._notify(f"compiled {self._who} with Numba in {time.perf_counter() - start:.1f} s")
        return result


def _array(value: Any, is_written: bool) -> Any:
    """A tensor as an array on its memory; one that is only read is contiguous, as each layout is compiled anew."""
    if isinstance(value, list | tuple):
        return tuple(_array(v, is_written) for v in value)
    if not isinstance(value, torch.Tensor):
        return value
    tensor = value.detach()
    return (tensor if is_written else tensor.resolve_conj().resolve_neg().contiguous()).numpy()


def _tensor(value: Any) -> Any:
    if value is None:
        return None
    return torch.from_numpy(np.ascontiguousarray(value).reshape(np.shape(value)))


@contextlib.contextmanager
def _threads_of_torch(is_parallel: bool) -> Iterator[None]:
    """Let ``prange`` use as many threads as torch does, in this thread."""
    if not is_parallel:
        yield
        return
    import numba

    before = numba.get_num_threads()
    numba.set_num_threads(min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
    try:
        yield
    finally:
        numba.set_num_threads(before)
