"""The launcher of GPU binaries: CUDA C++, Mojo, and any other language that compiles to a cubin or to PTX.

It takes a binary, a grid, a block and arguments, checks them, and launches on torch's current stream of the
tensors' device. The stream object, the launch configuration and the loaded library are kept between launches: a new
stream object for each call costs as much as the rest of the launch.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from opwright.backends.gpu.arguments import Packer
from opwright.backends.gpu.device_code import DeviceCode, EntryPoint, Parameter
from opwright.backends.gpu.launch_attributes import (
    Extent,
    allow_cluster,
    check_cooperative,
    check_launched_cluster,
    declared_cluster,
    launch_with_attributes,
)
from opwright.backends.gpu.recording import PassedOn, Recorder, plain_number
from opwright.backends.native.native_call import ArgumentSource, GpuKernel, KernelArgument, NativeCall, NativeCalls
from opwright.backends.simulation import as_extent, check_launch
from opwright.errors import KernelRefusedError, LaunchError
from opwright.internals.cuda import current_device, current_stream

__all__ = ["Configuration", "DeviceFunction", "Extent", "as_extent", "copy_from_variable", "copy_to_variable"]

# The shared memory of a block for which the kernel's attribute need not be raised.
_DEFAULT_SHARED_BYTES = 48 * 1024


class Configuration:
    """A grid, a block, shared memory and a cluster for one kernel, checked against what every GPU allows.

    Attributes:
        cluster: in blocks; None if the launch does not say, so that it is the kernel's ``__cluster_dims__``, else one
            block.
    """

    __slots__ = ("block", "checked_devices", "cluster", "grid", "is_empty", "launchers", "native", "shared_bytes")

    def __init__(
        self, kernel: str, grid: Extent, block: Extent, shared_bytes: int, cluster: Extent | None = None
    ) -> None:
        self.grid, self.block, self.shared_bytes, self.cluster = grid, block, shared_bytes, cluster
        # An empty grid is not an error here; CUDA refuses it, and every launcher would have to test for it.
        self.is_empty = 0 in grid
        # The devices on which the kernel's own limits were checked against it.
        self.checked_devices: set[int] = set()
        # Its native launchers, by device (see ``DeviceFunction.launcher``).
        self.launchers: dict[int, Callable[..., None]] = {}
        # cuda-core's form of it, made at the first launch.
        self.native: Any = None
        check_launch(kernel, grid, block, shared_bytes, cluster)

    @property
    def threads(self) -> int:
        """The threads of one block."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def names_cluster(self) -> bool:
        """Whether the launch names a cluster of several blocks, for which the driver's plain call has no parameter."""
        return self.cluster is not None and self.cluster != (1, 1, 1)


class DeviceFunction:
    """One kernel of a binary, loaded when it is first launched."""

    def __init__(self, name: str, code: DeviceCode, entry: EntryPoint) -> None:
        self.name = name
        self.code = code
        self.entry = entry
        self._packer = Packer(name, entry.parameters)
        self._has_large_struct = any(p.kind == "struct" and p.size > 8 for p in entry.parameters)
        self._kernel: Any = None
        self._lock = threading.Lock()

    def launch(self, configuration: Configuration, arguments: Sequence[Any], device: int) -> None:
        """Launch on torch's current stream of a GPU, without waiting.

        Raises:
            LaunchError: an argument has the wrong type, or the block or the shared memory exceeds the kernel's limits.
        """
        packed = self._packer.pack(arguments, device)
        if configuration.is_empty:
            return
        if device != current_device():
            with torch.cuda.device(device):
                self.launch(configuration, arguments, device)
            return
        if device not in configuration.checked_devices:
            self._prepare(configuration, device)
        raw = current_stream(device)
        _ensure_context(device)
        if self._has_large_struct:
            _launch_with_structs(self._kernel, configuration, packed, raw, cooperative=self.entry.cooperative)
        else:
            _native_launch()(_streams(device)[raw], configuration.native, self._kernel, *packed)

    def launcher(
        self, configuration: Configuration, device: int, fallback: Callable[..., None], native: NativeCalls | None
    ) -> Callable[..., None] | None:
        """``launch`` for this configuration and device as one native function of the arguments alone.

        None before the first launch, which prepares it; without the native extension; and for parameters that the
        extension does not support.

        Args:
            fallback: called with arguments that are not as declared, or while another device is the current one.
        """
        made = configuration.launchers.get(device)
        if made is None and native is not None:
            made = self._native_launcher(native, configuration, device, fallback)
            if made is not None:
                configuration.launchers[device] = made
        return made

    def _native_launcher(
        self, native: NativeCalls, configuration: Configuration, device: int, fallback: Callable[..., None]
    ) -> Callable[..., None] | None:
        passed, runs = self._packer.native_arguments, self.prepared(configuration, device)
        if passed is None or runs is None:
            return None
        call = NativeCall(
            argument_count=len(passed), outputs=(), returns_tuple=False, kernel_arguments=passed,
            device=torch.device("cuda", device), runs=(runs,), fallback=fallback,
        )  # fmt: skip
        return native.function_for(call)

    def prepared(self, configuration: Configuration, device: int) -> GpuKernel | None:
        """The kernel for the native launcher; None before the first launch, for large structs as parameters, and for
        what the driver's plain call has no parameter for: a cluster that the launch names, a cooperative launch."""
        if device not in configuration.checked_devices or self._has_large_struct:
            return None
        if configuration.names_cluster or self.entry.cooperative:
            return None
        handle = int(self._kernel.handle)
        shape = configuration.grid, configuration.block, configuration.shared_bytes
        return GpuKernel(handle, *shape, parameters=len(self.entry.parameters))

    def recorded(
        self, arguments: Sequence[Any], device: int, recorder: Recorder
    ) -> list[KernelArgument | torch.Tensor]:
        """The arguments of a launch as a recorder takes them."""
        words = self._packer.pack([plain_number(argument) for argument in arguments], device)
        if any(type(argument) in (list, tuple) for argument in arguments):
            recorder.problem = recorder.problem or "a kernel gets a list of tensors"
        kinds = self._packer.native_arguments or [None] * len(words)
        parts = zip(arguments, words, self.entry.parameters, kinds, strict=True)
        return [_recorded(recorder, *each) for each in parts]

    def _load(self) -> Any:
        with self._lock:
            if self._kernel is None:
                with _outside_capture():
                    self._kernel = _library(self.code).get_kernel(self.entry.symbol)
        return self._kernel

    def _prepare(self, configuration: Configuration, device: int) -> None:
        """Prepare a first launch: load the kernel, compare the configuration with its limits, and raise its limit of
        shared memory if necessary."""
        from cuda.bindings import driver
        from cuda.core import LaunchConfig

        _ensure_context(device)
        kernel = self._kernel or self._load()
        attribute, handle = driver.CUfunction_attribute, driver.CUkernel(int(kernel.handle))
        number = _driver(driver.cuDeviceGet(device))
        max_threads = _driver(
            driver.cuKernelGetAttribute(attribute.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, handle, number)
        )
        if configuration.threads > max_threads:
            raise LaunchError(
                f"{self.name}: a block of {configuration.block} has {configuration.threads} threads, and the kernel "
                f"was compiled for at most {max_threads}",
                fix="take a smaller block, or declare __launch_bounds__ so that it limits the registers",
            )
        static = _driver(driver.cuKernelGetAttribute(attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, handle, number))
        properties: Any = torch.cuda.get_device_properties(device)  # not every torch annotates all of them
        limit = properties.shared_memory_per_block_optin - static
        if configuration.shared_bytes > limit:
            raise LaunchError(
                f"{self.name}: {configuration.shared_bytes} bytes of dynamic shared memory are requested, and this GPU "
                f"has {limit} besides {static} static bytes",
                fix="use a smaller tile",
            )
        if configuration.shared_bytes > _DEFAULT_SHARED_BYTES - static:
            dynamic_limit = attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            before = _driver(driver.cuKernelGetAttribute(dynamic_limit, handle, number))
            if configuration.shared_bytes > before:
                _driver(driver.cuKernelSetAttribute(dynamic_limit, configuration.shared_bytes, handle, number))
        declared = declared_cluster(handle, number)
        check_launched_cluster(self.name, configuration.cluster, declared, configuration.grid, device)
        allow_cluster(declared or configuration.cluster or (1, 1, 1), handle, number)
        if declared is not None:
            configuration.cluster = None  # the driver reads it from the kernel
        shape: dict[str, Any] = {"grid": configuration.grid}
        if configuration.names_cluster:  # cuda-core counts the grid in clusters then
            clusters = tuple(g // c for g, c in zip(configuration.grid, configuration.cluster or (), strict=True))
            shape = {"grid": clusters, "cluster": configuration.cluster}
        if self.entry.cooperative:
            check_cooperative(
                self.name, kernel.handle, configuration.grid, configuration.threads, configuration.shared_bytes, number
            )
            shape["is_cooperative"] = True
        configuration.native = LaunchConfig(**shape, block=configuration.block, shmem_size=configuration.shared_bytes)
        configuration.checked_devices.add(device)


def _recorded(
    recorder: Recorder, argument: Any, word: Any, parameter: Parameter, kind: KernelArgument | None
) -> KernelArgument | torch.Tensor:
    if type(argument) is PassedOn:  # asked first, as it answers no other question
        return recorder.number(argument, kind)
    if isinstance(argument, torch.Tensor):
        return recorder.aligned(argument, max(parameter.alignment, 1))
    return KernelArgument(ArgumentSource.CONSTANT, word)


@functools.cache
def _library(code: DeviceCode) -> Any:
    """The loaded binary, once per process: kernels of one source share its variables."""
    try:
        from cuda.core import ObjectCode
    except ImportError:
        raise KernelRefusedError(
            "GPU kernels are launched with cuda-core, which is not installed", fix="pip install 'opwright[cuda]'"
        ) from None
    make = ObjectCode.from_ptx if code.file.suffix == ".ptx" else ObjectCode.from_cubin
    return make(code.file.read_bytes())


def copy_to_variable(code: DeviceCode, symbol: str, device: int, data: torch.Tensor) -> None:
    """Write a variable of a binary in the order of torch's current stream, from contiguous memory of any device."""
    from cuda.bindings import driver

    with torch.cuda.device(device):
        address, size = _variable(code, symbol, device)
        assert size == data.nbytes, f"{symbol} has {size} bytes"
        copy = driver.cuMemcpyDtoDAsync if data.is_cuda else driver.cuMemcpyHtoDAsync
        _driver(copy(address, data.data_ptr(), size, current_stream(device)))
        if not data.is_cuda:  # the memory may be reused as soon as this returns
            torch.cuda.current_stream(device).synchronize()


def copy_from_variable(code: DeviceCode, symbol: str, device: int, size: int) -> bytes:
    """The bytes of a variable of a binary, after all that is queued on torch's current stream."""
    from cuda.bindings import driver

    with torch.cuda.device(device):
        address, _ = _variable(code, symbol, device)
        data = bytearray(size)
        buffer = (ctypes.c_char * size).from_buffer(data)
        _driver(driver.cuMemcpyDtoHAsync(ctypes.addressof(buffer), address, size, current_stream(device)))
        torch.cuda.current_stream(device).synchronize()
        return bytes(data)


def _variable(code: DeviceCode, symbol: str, device: int) -> tuple[Any, int]:
    from cuda.bindings import driver

    _ensure_context(device)
    library = driver.CUlibrary(int(_library(code).handle))
    status, address, size = driver.cuLibraryGetGlobal(library, symbol.encode())
    _driver((status,))
    return address, int(size)


@functools.cache
def _native_launch() -> Any:
    from cuda.core import launch

    return launch


def _ensure_context(device: int) -> None:
    from cuda.bindings import driver

    if int(_driver(driver.cuCtxGetCurrent())) == 0:
        _driver(driver.cuCtxSetCurrent(_primary_context(device)))


@functools.cache
def _primary_context(device: int) -> Any:
    from cuda.bindings import driver

    return _driver(driver.cuDevicePrimaryCtxRetain(_driver(driver.cuDeviceGet(device))))


class _Streams(dict[int, Any]):
    """cuda-core's stream objects for torch's streams on one device, by torch's handle."""

    def __missing__(self, raw: int) -> Any:
        from cuda.core import Stream

        if len(self) >= 1024:
            self.clear()
        stream = self[raw] = Stream.from_handle(raw)
        return stream


@functools.cache
def _streams(device: int) -> _Streams:
    # One for each device, because the default stream is 0 on each.
    return _Streams()


@contextlib.contextmanager
def _outside_capture() -> Iterator[None]:
    """A block in which this thread may load a library although a graph is being captured."""
    from cuda.bindings import driver

    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = _driver(driver.cuThreadExchangeStreamCaptureMode(relaxed))
    try:
        yield
    finally:
        _driver(driver.cuThreadExchangeStreamCaptureMode(before))


def _launch_with_structs(
    kernel: Any, configuration: Configuration, packed: Sequence[Any], raw_stream: int, *, cooperative: bool
) -> None:
    """Launch through the driver, for by-value parameters over eight bytes, which cuda-core 1.2 does not pass."""
    from cuda.bindings import driver

    # Each parameter's bytes; a parameter of fewer than eight reads the low ones.
    held = [ctypes.create_string_buffer(w, len(w)) if isinstance(w, bytes) else ctypes.c_int64(w) for w in packed]
    addresses = (ctypes.c_void_p * len(held))(*(ctypes.addressof(h) for h in held))
    function, parameters = driver.CUfunction(int(kernel.handle)), ctypes.addressof(addresses)
    if configuration.names_cluster or cooperative:
        cluster = configuration.cluster if configuration.names_cluster else None
        shape = configuration.grid, configuration.block, configuration.shared_bytes, raw_stream
        config = launch_with_attributes(*shape, cluster=cluster, cooperative=cooperative)
        _driver(driver.cuLaunchKernelEx(config, function, parameters, 0))
        return
    _driver(
        driver.cuLaunchKernel(
            function, *configuration.grid, *configuration.block, configuration.shared_bytes, raw_stream, parameters, 0
        )
    )


def _driver(outcome: tuple[Any, ...]) -> Any:
    """The value of a driver call, whose status must be success."""
    status, *values = outcome
    if int(status) != 0:
        raise LaunchError(f"a CUDA driver call failed: {status.name}")
    return values[0] if values else None
