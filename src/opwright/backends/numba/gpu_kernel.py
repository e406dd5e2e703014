"""Kernels of ``numba.cuda``, launched as those of every other language are: on torch's current stream of the tensors'
device, with tensors for arrays. Numba compiles them to PTX, most of them without a GPU."""

from __future__ import annotations

import contextlib
import functools
import importlib
import operator
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from opwright.backends.build_tools import BuildTools, build_tools
from opwright.backends.gpu.device_code import DeviceCode, EntryPoint, Parameter, entries_in_ptx
from opwright.backends.gpu.launcher import Configuration, DeviceFunction, as_extent
from opwright.backends.gpu.recording import recorder_of_this_thread
from opwright.backends.numba_jit.jit import first_line
from opwright.cache import ArtifactKey
from opwright.contract.dtypes import short
from opwright.errors import CompileError, KernelError, LaunchError

__all__ = ["DTYPES", "GpuKernel", "compile_for", "is_gpu_function", "launches_are_ours"]

# The dtypes for which Numba has a type on a GPU.
DTYPES = frozenset(
    {
        torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128, torch.bool, torch.int8,
        torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
    }
)  # fmt: skip
_INTEGER = Parameter("integer", 8, "long long")
_THREADS = 256  # of a block that ``kernel.forall`` chooses
# Options of ``cuda.jit`` that compiling to PTX takes, and those that change nothing in it. Any other that is not at its
# default is refused.
_TAKEN = ("lineinfo", "fastmath", "opt", "launch_bounds")
_WITHOUT_EFFECT = ("device", "lto")
_DEFAULTS = (None, False, 0, (), "never")
_KERNEL = "_opwright_kernel"  # an attribute of Numba's function


def is_gpu_function(value: Any) -> bool:
    """Whether ``numba.cuda.jit`` made it."""
    return type(value).__module__ == "numba.cuda.dispatcher"


# -- launches ---------------------------------------------------------------------------------------------------------

_in_launcher: ContextVar[bool] = ContextVar("in_launcher", default=False)


@contextlib.contextmanager
def launches_are_ours() -> Iterator[None]:
    """A block in which this thread's ``kernel[grid, block]`` and ``kernel.forall`` launch through opwright."""
    _divert()
    token = _in_launcher.set(True)
    try:
        yield
    finally:
        _in_launcher.reset(token)


@functools.cache
def _divert() -> None:
    """Let Numba's class ask, for each launch, whether it is made in such a block."""
    from numba.cuda.dispatcher import CUDADispatcher

    numbas: Any = CUDADispatcher

    def diverted(theirs: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(theirs)
        def launch(self: Any, *arguments: Any, **keywords: Any) -> Any:
            return (ours(_kernel_of(self)) if _in_launcher.get() else theirs.__get__(self))(*arguments, **keywords)

        return launch

    numbas.__getitem__ = diverted(numbas.__getitem__, lambda kernel: kernel.__getitem__)
    numbas.configure = diverted(numbas.configure, lambda kernel: kernel.configure)
    numbas.forall = diverted(numbas.forall, lambda kernel: kernel.forall)


def _kernel_of(function: Any) -> GpuKernel:
    found: GpuKernel | None = getattr(function, _KERNEL, None)
    if found is None:
        found = GpuKernel(function)
        setattr(function, _KERNEL, found)
    return found


class GpuKernel:
    """A function of ``numba.cuda.jit``. ``kernel[grid, block, stream, shared_bytes](*arguments)`` launches it."""

    def __init__(self, function: Any) -> None:
        self.name = str(function.py_func.__name__)
        self._function = function
        # By device and types of the arguments; configurations besides by launch.
        self._compiled: dict[Any, DeviceFunction] = {}
        self._configurations: dict[Any, Configuration] = {}
        self._lock = threading.Lock()

    def __getitem__(self, launch: Any) -> Callable[..., None]:
        """Bind a grid (blocks), a block (threads) and, as a fourth, bytes of dynamic shared memory."""
        if not isinstance(launch, tuple) or not 2 <= len(launch) <= 4:
            raise LaunchError(
                f"{self.name}: a launch must be [grid, block] with at most two more, got {launch!r}",
                fix=f"write {self.name}[grid, block](...), or {self.name}[grid, block, 0, shared_bytes](...)",
            )
        return self.configure(*launch)

    def configure(self, griddim: Any, blockdim: Any, stream: Any = 0, sharedmem: int = 0) -> Callable[..., None]:
        """The same by Numba's names."""
        if stream:
            raise LaunchError(
                f"{self.name} is launched on a stream of its own, {stream!r}",
                fix=f"leave it out, as in {self.name}[grid, block](...): it is torch's current stream",
            )
        grid, block = (as_extent(_plain(e), w, self.name) for e, w in ((griddim, "grid"), (blockdim, "block")))
        return functools.partial(self._launch, (grid, block, sharedmem))

    def forall(self, ntasks: int, tpb: int = 0, stream: Any = 0, sharedmem: int = 0) -> Callable[..., None]:
        """Bind so many blocks that there is a thread for each task."""
        if ntasks < 0:
            raise LaunchError(f"{self.name}.forall({ntasks!r})", fix="give a number of tasks that is not negative")
        block = tpb or _THREADS
        return self.configure(-(-ntasks // block), block, stream, sharedmem)

    def _launch(self, launch: Any, *arguments: Any) -> None:
        device = self._device_of(arguments)
        kinds = tuple(map(_kind, arguments))
        function = self._compiled_for(kinds, device)
        configuration = self._configuration(launch, kinds, device)
        passed = [word for argument in arguments for word in _words(argument)]
        recorder = recorder_of_this_thread()
        if recorder is None:
            function.launch(configuration, passed, device)
            return
        with recorder.launching():
            function.launch(configuration, passed, device)
            if not configuration.is_empty:
                recorded = function.recorded(passed, device, recorder)
                recorder.launched(function.prepared(configuration, device), recorded)

    def _device_of(self, arguments: Sequence[Any]) -> int:
        tensor = next((a for a in arguments if isinstance(a, torch.Tensor)), None)
        if tensor is None or tensor.device.type != "cuda":
            came = "no tensor" if tensor is None else f"a tensor on {tensor.device}"
            raise LaunchError(f"{self.name} got {came}", fix="pass CUDA tensors: Numba's kernels run on a GPU only")
        return tensor.get_device()

    def _configuration(self, launch: Any, kinds: Any, device: int) -> Configuration:
        key = (launch, kinds, device)
        found = self._configurations.get(key)
        if found is None:
            found = Configuration(self.name, *launch)
            if len(self._configurations) >= 1024:  # a bound, should sizes change with every call
                self._configurations.clear()
            self._configurations[key] = found
        return found

    def _compiled_for(self, kinds: tuple[Any, ...], device: int) -> DeviceFunction:
        with self._lock:
            function = self._compiled.get((kinds, device))
            if function is None:
                code = compile_for(self._function, kinds, torch.cuda.get_device_capability(device), build_tools())
                function = self._compiled[kinds, device] = DeviceFunction(self.name, code, code.entries[0])
            return function


def _plain(extent: Any) -> Any:
    """Numba takes sizes of NumPy and of torch as well."""
    if isinstance(extent, Sequence):
        return tuple(map(_plain, extent))
    return operator.index(extent) if hasattr(extent, "__index__") else extent


# -- arguments --------------------------------------------------------------------------------------------------------

# A tensor's dtype, number of dims and layout, or the type of a number; a tuple of them for a tuple.
Kind = Any


def _kind(argument: Any) -> Kind:
    """What Numba's type of an argument depends on."""
    if isinstance(argument, torch.Tensor):
        return argument.dtype, argument.dim(), "C" if argument.is_contiguous() else "A"
    if isinstance(argument, tuple):
        return tuple(map(_kind, argument))
    if type(argument) in (bool, int, float):
        return type(argument)
    raise LaunchError(
        f"a kernel of Numba gets {argument!r}, {type(argument).__name__}",
        fix="pass tensors, numbers of Python (bool, int, float), or tuples of them",
    )


def _words(argument: Any) -> Iterator[Any]:
    """The parameters for an argument: Numba passes an array as its memory, sizes and strides in bytes."""
    if isinstance(argument, tuple):
        for each in argument:
            yield from _words(each)
    elif isinstance(argument, torch.Tensor):
        size = argument.element_size()
        yield from (0, 0, argument.numel(), size, argument, *argument.shape)
        yield from (stride * size for stride in argument.stride())
    else:
        yield argument


def _parameters(kind: Kind) -> Iterator[Parameter]:
    """The parameters that ``_words`` are for."""
    if kind is bool:
        yield Parameter("bool", 1, "bool")
    elif kind is int:
        yield _INTEGER
    elif kind is float:
        yield Parameter("floating", 8, "double", (torch.float64,))
    elif kind and isinstance(kind[0], torch.dtype):
        dtype, dims, _ = kind
        yield from (_INTEGER,) * 4
        yield Parameter("pointer", 8, f"{short(dtype)}[]", (dtype,), dtype.itemsize)
        yield from (_INTEGER,) * (2 * dims)
    else:
        for each in kind:
            yield from _parameters(each)


def _numba_type(kind: Kind) -> Any:
    from numba import types
    from numba.np.numpy_support import from_dtype

    if kind in (bool, int, float):
        return {bool: types.boolean, int: types.int64, float: types.float64}[kind]
    if kind and isinstance(kind[0], torch.dtype):
        dtype, dims, layout = kind
        if dtype not in DTYPES:
            raise LaunchError(f"Numba has no type on a GPU for {short(dtype)}", fix="convert the tensor first")
        return types.Array(from_dtype(np.dtype(short(dtype))), dims, layout)
    return types.BaseTuple.from_types([_numba_type(each) for each in kind])


# -- compiling --------------------------------------------------------------------------------------------------------


def compile_for(function: Any, kinds: Sequence[Kind], capability: tuple[int, int], tools: BuildTools) -> DeviceCode:
    """A kernel's PTX for arguments of such kinds.

    Raises:
        CompileError: Numba cannot compile it; its message is in ``log``.
        KernelError: it was decorated with an option that is not taken.
    """
    name = str(function.py_func.__name__)
    _refuse_options(function, name)
    ptx = _ptx(function, name, kinds, capability)
    (found,) = entries_in_ptx(ptx)
    parameters = tuple(p for kind in kinds for p in _parameters(kind))
    if [p.size for p in found.parameters] != [p.size for p in parameters]:
        raise CompileError(
            f"{name}: this Numba passes {len(found.parameters)} parameters where {len(parameters)} are known",
            fix="use numba-cuda 0.30",
        )
    arch = f"sm_{capability[0]}{capability[1]}"
    key = ArtifactKey(f"{name}-{arch}", (("ptx", ptx),))

    def write(into: Path) -> None:
        (into / "kernel.ptx").write_text(ptx)

    folder = tools.cache.get_or_build(key, write)
    entry = EntryPoint(found.symbol, name, parameters, cooperative=found.cooperative)
    return DeviceCode(folder / "kernel.ptx", arch, (entry,), ptx=folder / "kernel.ptx")


def _refuse_options(function: Any, name: str) -> None:
    for option, value in function.targetoptions.items():
        if option not in (*_TAKEN, *_WITHOUT_EFFECT) and value not in _DEFAULTS and value != []:
            raise KernelError(f"{name}: cuda.jit({option}={value!r}) is not taken", fix="leave it out")
    if not getattr(function, "_can_compile", True):
        raise KernelError(
            f"{name}: cuda.jit has a signature, and kernels are compiled for the arguments of each launch",
            fix="leave the signature out",
        )


def _ptx(function: Any, name: str, kinds: Sequence[Kind], capability: tuple[int, int]) -> str:
    cuda: Any = importlib.import_module("numba.cuda")  # its names are not those that type checkers see
    options = {key: function.targetoptions.get(key) for key in _TAKEN}
    try:
        ptx, _ = cuda.compile(
            function.py_func, tuple(map(_numba_type, kinds)), device=False, abi="numba", cc=capability, output="ptx",
            **{key: value for key, value in options.items() if value is not None},
        )  # fmt: skip
    except LaunchError:
        raise
    except Exception as error:  # any class of Numba's
        if _is_of_an_import(error):
            raise KernelError(
                f"numba-cuda {metadata.version('numba-cuda')} cannot be imported with NumPy {np.__version__}: {error}",
                fix="install versions of the two that fit",
            ) from error
        raise CompileError(
            f"{name}: Numba cannot compile it: {first_line(error)}",
            log=str(error),
            fix="write it with what numba.cuda supports; the whole message is in this exception's .log",
        ) from error
    return str(ptx)


def _is_of_an_import(error: BaseException) -> bool:
    """Whether a module raised it while it was imported. Numba imports most of itself with the first compilation."""
    return any(frame.f_code.co_name == "<module>" for frame, _ in traceback.walk_tb(error.__traceback__))
