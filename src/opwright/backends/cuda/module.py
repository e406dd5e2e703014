"""CUDA C++ kernels called from Python: ``module["kernel"][grid, block](...)``, as in Triton, CuPy and Numba."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from opwright.backends.build_tools import build_tools
from opwright.backends.cuda import nvrtc
from opwright.backends.cuda.simulated import telling_limits_from_errors
from opwright.backends.cuda.variables import CpuMemory, DeviceVariable, GpuMemory, in_code, no_variable
from opwright.backends.gpu.arguments import KernelStruct
from opwright.backends.gpu.cuda_launches import who_takes_cuda_launches
from opwright.backends.gpu.device_code import DeviceCode, EntryPoint, Parameter
from opwright.backends.gpu.launcher import Configuration, DeviceFunction, as_extent
from opwright.backends.gpu.recording import Recorder, plain_number, recorder_of_this_thread
from opwright.backends.native.native_call import native_calls
from opwright.backends.simulation import (
    CudaSource,
    SharedVariables,
    check_name,
    full_name,
    parse_options,
    run_simulated,
    simulated_kernel,
    source_text,
    with_cutlass,
)
from opwright.contract.fingerprint import digest
from opwright.errors import KernelError, LaunchError

__all__ = ["CudaKernel", "CudaModule", "cdiv", "cuda_module", "kernels"]


def cdiv(a: int, b: int) -> int:
    """``a / b`` rounded up: the number of blocks of ``b`` that cover ``a``."""
    return -(-a // b)


def cuda_module(source: str | Path, *, options: Sequence[str] = (), instances: Sequence[str] = ()) -> CudaModule:
    """CUDA C++ kernels, compiled by NVRTC for the GPU at hand when they are first launched, and cached on disk.

    Args:
        source: a file (looked for beside the caller's file, then in the working directory), or CUDA C++ itself.
        options: as for nvcc, one string each: ``["-DTILE=32", "--use_fast_math", "-I", "include"]``. Options that
            concern only nvcc or a host compiler (``-O3``, ``-Xcompiler …``) are accepted and have no effect.
        instances: templates to compile together with the other kernels, as C++ writes them. Any other instance is
            compiled when it is first asked for; naming it here matters only where a source has variables of its own
            (``__device__ int counter;``), of which every compilation has a copy.

    Raises:
        KernelError: no such file, an unknown option, a source without a kernel.
    """
    caller = _caller_folder()
    if _is_source(source):
        made = CudaSource(inspect.cleandoc(str(source)) + "\n", None, tuple(options))
    else:
        path = _find(source, caller)
        made = CudaSource(source_text(path), path, tuple(options))
    return CudaModule(with_cutlass(made), tuple(instances))


def _caller_folder() -> Path | None:
    """The folder of the file that called ``cuda_module``."""
    frame = inspect.currentframe()
    caller = frame.f_back.f_back if frame and frame.f_back else None
    file = Path(caller.f_code.co_filename) if caller else None
    return file.parent if file is not None and file.is_file() else None


def _is_source(source: str | Path) -> bool:
    return isinstance(source, str) and ("\n" in source or "__global__" in source)


def _find(source: str | Path, beside: Path | None) -> Path:
    folders = [f for f in (beside, Path.cwd()) if f is not None]
    for folder in folders:
        if (folder / source).is_file():
            return (folder / source).resolve()
    raise KernelError(
        f"ow.cuda_module must be given a file that exists, or text with a __global__ function, got {str(source)!r}",
        fix=f"write the file to {' or to '.join(map(str, folders))}",
    )


# The result of ``Tensor.get_device`` for a CPU tensor.
_CPU = -1


def overloaded(source: str, name: str, overloads: Sequence[Sequence[Parameter]]) -> KernelError:
    """The error for a name that several kernels have."""
    declared = [f"{name}({', '.join(p.type_name for p in parameters)})" for parameters in overloads]
    return KernelError(
        f"{source}: {name!r} is overloaded: {', '.join(declared)}",
        fix="give the kernel that is meant a name of its own, or call it from one that has",
    )


class CudaModule:
    """The kernels of one CUDA C++ source. Nothing is compiled before it is needed."""

    def __init__(self, source: CudaSource, instances: tuple[str, ...] = (), *, needs_kernels: bool = True) -> None:
        self.source = source
        self.instances = instances
        self.defined = source.kernels
        parse_options(source.options)  # refuses an option that is not known
        if needs_kernels and not self.defined:
            raise KernelError(
                f"{source.name} must define a __global__ function, got none", fix="define one, or name another file"
            )
        for instance in instances:
            check_name(source, instance)
        self._kernels: dict[str, CudaKernel] = {}
        self.simulated_variables = SharedVariables()

    @functools.cached_property
    def fingerprint(self) -> str:
        """Changes with the text, its own headers, the options and the instances."""
        headers = [header.text for header in self.source.headers().values()]
        return digest("cuda", self.source.text, *headers, *self.source.options, *self.instances)

    def __getitem__(self, name: str) -> CudaKernel:
        """A kernel by its name, or an instance of a template: ``module["add<float, 4>"]``. A namespace may be left out
        where that is not ambiguous.

        Raises:
            KernelError: there is none of that name, or several.
        """
        kernel = self._kernels.get(name)
        if kernel is None:
            full = full_name(self.source, name)
            kernel = self._kernels.get(full) or CudaKernel(self, full)
            self._kernels[name] = self._kernels[full] = kernel
        return kernel

    def variable(self, name: str, device: torch.device | str | None = None) -> DeviceVariable:
        """A ``__device__`` or ``__constant__`` variable, to ``set`` and ``get``.

        Args:
            name: as in the source, without namespaces.
            device: the GPU whose copy is meant, or ``"cpu"`` for the simulator's; by default the current GPU, else the
                simulator.

        Raises:
            KernelError: no kernel of the source uses such a variable.
        """
        given = torch.device(device) if device is not None else None
        on_gpu = given.type == "cuda" if given is not None else torch.cuda.is_available()
        index = (given.index if given and given.index is not None else torch.cuda.current_device()) if on_gpu else _CPU
        declared = self.source.parsed.variables.get(name)
        find = functools.partial(self._variable_memory, name, index)
        find()  # an unknown name is an error now
        return DeviceVariable(name, self.source.name, declared.type if declared is not None else "", find)

    def _variable_memory(self, name: str, device: int) -> CpuMemory | GpuMemory:
        known = self.source.parsed.variables
        if device == _CPU:
            plain = [k for k in self.defined if not self.source.defining(k).is_template(k)]
            candidates = [*self._kernels, *self.instances, *plain]
            for kernel in dict.fromkeys(k for k in candidates if "<" in k or k in plain):
                memory = self.simulated_variables.memory(simulated_kernel(self.source, kernel), name)
                if memory is not None:
                    return CpuMemory(memory)
            raise no_variable(self.source.name, name, [*known])
        arch = _arch_of(device)
        apart = [k for k in self._kernels if "<" in k and k not in self.instances and not self.variables]
        found = in_code([self.compile(arch), *(self.compile(arch, k) for k in apart)], name, device)
        if found is None:
            raise no_variable(self.source.name, name, [*known])
        return found

    def compile(self, arch: str, name: str | None = None) -> DeviceCode:
        """The binary for an architecture such as ``sm_90``, from the cache or compiled now; needs no GPU.

        Args:
            name: an instance of a template that is to be in it, besides ``instances``.
        """
        return nvrtc.compile_device_code(self.source, self._instances_with(name), arch, build_tools())

    def entry(self, arch: str, name: str) -> tuple[DeviceCode, EntryPoint]:
        """The binary that holds a kernel, and the kernel in it."""
        name = full_name(self.source, name)
        code = self.compile(arch, name)
        found = code.entry(name)
        if found is not None and sum(e.name == found.name for e in code.entries) > 1:
            raise overloaded(self.source.name, name, [e.parameters for e in code.entries if e.name == found.name])
        if found is None:  # a template that was named without its arguments, or a kernel behind an #if
            compiled = [e.name for e in code.entries]
            raise KernelError(
                f"{self.source.name} defines {name!r}, but it is not among what was compiled: {compiled}",
                fix=f"a template needs its arguments, as in module['{name}<float>']",
            )
        return code, found

    @functools.cached_property
    def variables(self) -> tuple[str, ...]:
        """The variables that kernels of the source may write. Each compilation has a copy."""
        return tuple(v.name for v in self.source.parsed.variables.values() if v.is_writable)

    def _instances_with(self, name: str | None) -> tuple[str, ...]:
        if name is None or "<" not in name or name in self.instances:
            return self.instances
        if self.variables:
            raise KernelError(
                f"{self.source.name} has the device variable {self.variables[0]!r}, and {name!r} is compiled apart "
                "from the other kernels, so it would have a copy of its own",
                fix=f"name it from the start: ow.cuda_module(..., instances=[{name!r}])",
            )
        return (name,)

    def __reduce__(self) -> tuple[Any, ...]:
        return CudaModule, (self.source, self.instances)

    def __repr__(self) -> str:
        return f"<CUDA module {self.source.name}: {', '.join(self.defined)}>"


class CudaKernel:
    """One kernel, or one instance of a template. ``kernel[grid, block, shared_bytes, cluster]`` makes it callable."""

    def __init__(self, module: CudaModule, name: str) -> None:
        self.module = module
        self.name = name
        self._configured: dict[Any, Any] = {}
        self._functions: dict[int, DeviceFunction] = {}

    def __getitem__(self, launch: Any) -> Any:
        """Bind a grid (blocks), a block (threads) and, as a third and fourth, bytes of dynamic shared memory and a
        cluster (blocks).

        Each of grid, block and cluster is an int or a tuple of up to three. An empty grid launches nothing. Without a
        cluster it is the kernel's ``__cluster_dims__``, else one block.
        """
        taken_over = who_takes_cuda_launches()
        if taken_over is not None:
            return functools.partial(taken_over, self, launch)
        recorder = recorder_of_this_thread()
        if recorder is not None:
            return functools.partial(self._launch_recorded, recorder, launch)
        try:
            return self._configured[launch]
        except KeyError:
            pass
        configured = functools.partial(self._launch, launch, self._configuration(launch))
        if len(self._configured) >= 1024:  # a bound, should sizes change with every call
            self._configured.clear()
        self._configured[launch] = configured
        return configured

    def _configuration(self, launch: Any) -> Configuration:
        if not isinstance(launch, tuple) or not 2 <= len(launch) <= 4:
            raise LaunchError(
                f"{self.name}: a launch must be [grid, block] with at most two more, got {launch!r}",
                fix=f"write {self.name}[grid, block](...), or {self.name}[grid, block, shared_bytes, cluster](...)",
            )
        grid, block, *rest = launch
        shared_bytes = rest[0] if rest else 0
        cluster = rest[1] if len(rest) > 1 else None
        return Configuration(
            self.name,
            as_extent(grid, "grid", self.name),
            as_extent(block, "block", self.name),
            shared_bytes,
            None if cluster is None else as_extent(cluster, "cluster", self.name),
        )

    def _launch(self, launch: Any, configuration: Configuration, *arguments: Any) -> None:
        """The first launch with a configuration, and any that the function which it leaves behind cannot make."""
        first = arguments[0] if arguments else None
        device = first.get_device() if type(first) is torch.Tensor and first.is_cuda else self._device_of(arguments)
        if device == _CPU:
            source, variables = self.module.source, self.module.simulated_variables
            with telling_limits_from_errors(source, self.name):
                run_simulated(source, self.name, configuration, arguments, variables)
            return
        function = self._functions.get(device)
        if function is None:
            function = self._functions[device] = self._compile_for(device)
        function.launch(configuration, arguments, device)
        self._keep_launcher(launch, configuration, function, device)

    def _launch_recorded(self, recorder: Recorder, launch: Any, *arguments: Any) -> None:
        configuration = self._configuration(launch)
        with recorder.launching():
            plain = tuple(map(plain_number, arguments))
            self._launch(launch, configuration, *plain)
            device = self._device_of(plain)
            function = self._functions.get(device)
            if function is not None and not configuration.is_empty:
                passed = function.recorded(arguments, device, recorder)
                recorder.launched(function.prepared(configuration, device), passed)

    def _keep_launcher(self, launch: Any, configuration: Configuration, function: DeviceFunction, device: int) -> None:
        """For the next ``kernel[grid, block]``, which is likely to be on the same device."""
        fallback = functools.partial(self._launch, launch, configuration)
        launcher = function.launcher(configuration, device, fallback, native_calls(build_tools()))
        if launcher is not None:
            self._configured[launch] = launcher

    def _device_of(self, arguments: Sequence[Any]) -> int:
        """The GPU of the first tensor; ``_CPU`` for a CPU tensor, whose place is the simulator."""
        for one in arguments:
            argument = one.tensor if isinstance(one, KernelStruct) else one
            if isinstance(argument, torch.Tensor):
                if argument.device.type in ("cuda", "cpu"):
                    return argument.get_device()
                raise LaunchError(
                    f"{self.name}: tensors must be on a GPU, or on the CPU for a simulation, got {argument.device}",
                    fix="move them to one device",
                )
        return torch.cuda.current_device() if torch.cuda.is_available() else _CPU

    def _compile_for(self, device: int) -> DeviceFunction:
        code, entry = self.module.entry(_arch_of(device), self.name)
        return DeviceFunction(self.name, code, entry)

    def __call__(self, *arguments: Any) -> Any:
        raise LaunchError(
            f"{self.name} must be called with a grid and a block, got neither",
            fix=f"write {self.name}[grid, block](...): blocks, then threads of a block",
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return self.module.__getitem__, (self.name,)

    @property
    def fingerprint(self) -> str:
        """Changes with the module and the name."""
        return digest(self.module.fingerprint, self.name)

    def __repr__(self) -> str:
        return f"<CUDA kernel {self.name} of {self.module.source.name}>"


def kernels(value: Any) -> Iterable[tuple[Any, str, Any]] | None:
    """What else launches of a value's kernels depend on (``RecordableLauncher``): nothing; None for other values."""
    return () if type(value) in (CudaModule, CudaKernel) else None


def _arch_of(device: int) -> str:
    """The architecture of a GPU with what is its own, such as ``sm_90a`` (``wgmma``): code for this GPU only."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}" + ("a" if major >= 9 else "")
