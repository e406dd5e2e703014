"""The one module through which opwright uses kernelsim, the simulators beside it: what runs kernels, and what both know
of CUDA's text, types and limits. The simulators get opwright's compiler, cache and messages; their errors become
opwright's.

kernelsim's names are imported when they are first used, so that a reader of text does not wait for what runs kernels.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opwright import errors
from opwright.backends.build_tools import BuildTools, build_tools
from opwright.backends.compiler import run_compiler
from opwright.backends.compiler_inputs import BuildWatch, key_parts
from opwright.cache import ArtifactKey
from opwright.internals.lookup import find
from opwright.machine import Compiler, Machine, own_cores
from opwright.results import Accepted, Probe, Refused
from opwright.target import Engine, engines_here

if TYPE_CHECKING:
    import torch

    from kernelsim.arguments import KernelStruct, Parameter, ParameterKind, dtypes_of_elements, typed_parameter
    from kernelsim.arguments import Packer as ArgumentPacker
    from kernelsim.cuda_sim.kernel import SimulatedKernel
    from kernelsim.cuda_sim.runtime_library import header_text
    from kernelsim.cuda_sim.variables import SharedVariables
    from kernelsim.launching import LARGEST_GRID, Extent, as_extent, check_cluster, check_launch, refuse_other_cluster
    from kernelsim.tensor_maps import TensorMap as SimulatedTensorMap
    from kernelsim.text.c_text import (
        closing_bracket,
        enclosing_scopes,
        opening_bracket,
        outside_brackets,
        split_commas,
    )
    from kernelsim.text.includes import find_header, included_files, source_text
    from kernelsim.text.library_headers import curand_folder, with_cutlass
    from kernelsim.text.members import members_of
    from kernelsim.text.options import parse_options
    from kernelsim.text.own_headers import DeviceFiles
    from kernelsim.text.parsed_source import ParsedSource, parsed, syntax_tree
    from kernelsim.text.source import CudaSource, check_name, full_name
    from kernelsim.text.torch_names import FUNCTION_OBJECT, TORCH_NAMES, torch_names_header, uses_torch_names
    from kernelsim.triton_sim.internals import autotuners_measure
    from kernelsim.triton_sim.simulate import with_left_out

__all__ = [
    "FUNCTION_OBJECT", "LARGEST_GRID", "TORCH_NAMES", "ArgumentPacker", "CudaSource", "DeviceFiles",
    "Extent", "KernelStruct", "Parameter", "ParameterKind", "ParsedSource",
    "SharedVariables", "SimulatedKernel", "SimulatedTensorMap", "as_extent", "autotuners_measure",
    "check_cluster", "check_launch", "check_name", "closing_bracket", "cuda_simulator",
    "curand_folder", "dtypes_of_elements", "enclosing_scopes", "find_header", "full_name",
    "header_text", "host", "included_files", "members_of", "opening_bracket", "order_cuda_threads", "our_errors",
    "outside_brackets", "parse_options", "parsed", "reading_only", "refuse_other_cluster", "run_simulated",
    "simulate_triton", "simulated_kernel", "source_text", "split_commas", "syntax_tree", "torch_names_header",
    "triton_launches_go_to", "typed_parameter", "uses_torch_names", "watches_writes", "with_cutlass", "with_left_out",
]  # fmt: skip

# What is passed on, by the module that defines it.
_NAMES_OF = {
    "kernelsim.arguments": ["KernelStruct", "Parameter", "ParameterKind", "dtypes_of_elements", "typed_parameter"],
    "kernelsim.cuda_sim.kernel": ["SimulatedKernel"],
    "kernelsim.cuda_sim.runtime_library": ["header_text"],
    "kernelsim.cuda_sim.variables": ["SharedVariables"],
    "kernelsim.launching": [
        "LARGEST_GRID", "Extent", "as_extent", "check_cluster", "check_launch", "refuse_other_cluster",
    ],
    "kernelsim.text.c_text": [
        "closing_bracket", "enclosing_scopes", "opening_bracket", "outside_brackets", "split_commas",
    ],
    "kernelsim.text.includes": ["find_header", "included_files", "source_text"],
    "kernelsim.text.library_headers": ["curand_folder", "with_cutlass"],
    "kernelsim.text.members": ["members_of"],
    "kernelsim.text.options": ["parse_options"],
    "kernelsim.text.own_headers": ["DeviceFiles"],
    "kernelsim.text.parsed_source": ["ParsedSource", "parsed", "syntax_tree"],
    "kernelsim.text.source": ["CudaSource", "check_name", "full_name"],
    "kernelsim.text.torch_names": ["FUNCTION_OBJECT", "TORCH_NAMES", "torch_names_header", "uses_torch_names"],
    "kernelsim.triton_sim.internals": ["autotuners_measure"],
    "kernelsim.triton_sim.simulate": ["with_left_out"],
}  # fmt: skip
_PLACE_OF = {name: (module, name) for module, names in _NAMES_OF.items() for name in names}
_PLACE_OF["SimulatedTensorMap"] = "kernelsim.tensor_maps", "TensorMap"  # opwright has a class of that name
_PLACE_OF["ArgumentPacker"] = "kernelsim.arguments", "Packer"  # here, too
# The functions whose errors a user may see.
_RAISING = frozenset({
    "as_extent", "check_cluster", "check_launch", "check_name", "full_name", "parse_options", "refuse_other_cluster",
    "with_cutlass",
})  # fmt: skip


if not TYPE_CHECKING:  # type checkers report missing names themselves

    def __getattr__(name: str) -> Any:
        if name not in _PLACE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, attribute = _PLACE_OF[name]
        value = getattr(importlib.import_module(module), attribute)
        globals()[name] = value = _with_our_errors(value) if name in _RAISING else value
        return value


# --- errors ---

# opwright's class for one of kernelsim's that has another name there.
_OURS = {"FindingError": "SimulatorError", "RefusedError": "KernelRefusedError", "KernelsimError": "KernelError"}


class _OurErrors:
    """A block whose errors are opwright's. (A class, as each launch is in such a block.)"""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: Any, traceback: Any) -> None:
        if kind is None:
            return
        from kernelsim.errors import KernelsimError

        if not isinstance(error, KernelsimError):
            return
        ours: type[errors.OpwrightError] = getattr(errors, _OURS.get(kind.__name__, kind.__name__))
        more = {key: getattr(error, key) for key in ("log", "findings") if hasattr(error, key)}
        raise ours(error.message, fix=error.fix, **more).with_traceback(traceback) from error.__cause__


_our_errors = _OurErrors()


def our_errors() -> contextlib.AbstractContextManager[None]:
    """A block whose errors are opwright's."""
    return _our_errors


def _with_our_errors(function: Callable[..., Any]) -> Callable[..., Any]:
    from kernelsim.errors import KernelsimError

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        try:
            return function(*arguments, **keywords)
        except KernelsimError:
            with our_errors():
                raise

    return call


# --- what the simulators get from opwright ---


@dataclass(frozen=True, eq=False)
class _Host:
    """opwright's compiler, cache and messages, as ``kernelsim.host.Host`` has them."""

    tools: BuildTools

    @property
    def compiler(self) -> Compiler | None:
        return self.tools.machine.cxx

    @property
    def system(self) -> str:
        return self.tools.machine.system

    @property
    def processor(self) -> str:
        return self.tools.machine.cpu_flags

    def calling(self) -> contextlib.AbstractContextManager[None]:
        return our_errors()

    def cores(self) -> int:
        return own_cores()

    def notify(self, message: str) -> None:
        self.tools.notify(message)

    def key_parts(self, compiler: Any, options: Sequence[str]) -> tuple[tuple[str, str], ...]:
        return key_parts(compiler, options)

    def get_or_build(
        self, key: Any, build: Callable[[Path], Any], *, on_build: Callable[[], None] | None = None
    ) -> Path:
        def build_with_our_errors(folder: Path) -> Any:
            with our_errors():
                return build(folder)

        artifact = ArtifactKey(key.name, key.parts, key.base)
        return self.tools.cache.get_or_build(artifact, build_with_our_errors, on_build=on_build)

    def watch(self, compiler: Any) -> BuildWatch:
        return BuildWatch(compiler)

    def run(
        self,
        command: Sequence[str],
        what: str,
        *,
        target: str = "",
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> str:
        from kernelsim.errors import CompileError

        try:
            return run_compiler(command, what, target=target, folder=folder, environment=environment)
        except errors.CompileError as error:
            raise CompileError(error.message, log=error.log, fix=error.fix) from None

    def triton_name(self, key: str) -> Any | None:
        return find(key)


def host(tools: BuildTools) -> _Host:
    """A host for the simulators that builds with these tools."""
    return _Host(tools)


@functools.cache
def _own_host() -> _Host:
    return _Host(build_tools())


# --- what a call may not write ---

# None outside of checks, unless a call has entered a block.
_read_only: ContextVar[tuple[torch.Tensor, ...] | None] = ContextVar("opwright_read_only", default=None)


def watches_writes() -> bool:
    """Whether calls tell the simulators which tensors they may only read: in checks, and where an engine is on."""
    return _read_only.get() is not None or Engine.SIMULATOR in engines_here()


@contextlib.contextmanager
def reading_only(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """A block in which no simulated kernel may write these tensors, nor those of a block around it."""
    token = _read_only.set((*(_read_only.get() or ()), *tensors))
    try:
        yield
    finally:
        _read_only.reset(token)


# --- CUDA ---


def cuda_simulator(machine: Machine) -> Probe:
    """Whether CUDA kernels can be simulated on a machine."""
    from kernelsim.cuda_sim.refusing import lacking

    missing = lacking(machine.cxx, machine.system)
    if missing is not None:
        return Refused(missing.reason, missing.remedy)
    return Accepted(machine.cxx.version if machine.cxx is not None else "")


@contextlib.contextmanager
def order_cuda_threads(seed: int) -> Iterator[None]:
    """A block in which the simulator runs CUDA kernels with blocks and threads in an order drawn with this seed."""
    from kernelsim.settings import options

    with our_errors(), options(seed=seed):
        yield


def run_simulated(
    source: CudaSource, name: str, configuration: Any, arguments: Sequence[Any], variables: SharedVariables
) -> None:
    """Run a CUDA kernel in the simulator, compiled on first use.

    Args:
        configuration: a ``Configuration`` of the GPU launcher.
        variables: of the kernel's module.

    Raises:
        SimulatorError: the kernel has errors; each finding names the source line.
        CompileError, KernelRefusedError: it does not compile as C++, or uses unsupported features.
    """
    from kernelsim.cuda_sim.simulate import Launch, simulate
    from kernelsim.settings import current_options

    launch = Launch(configuration.grid, configuration.block, configuration.shared_bytes, configuration.cluster)
    options = current_options()
    if kept := _read_only.get():
        options = dataclasses.replace(options, read_only=(*options.read_only, *kept))
    simulate(source, name, launch, arguments, _own_host(), options, variables)


def simulated_kernel(source: CudaSource, name: str) -> SimulatedKernel:
    """A kernel as the options of this block launch it, compiled if necessary."""
    from kernelsim.cuda_sim import simulate
    from kernelsim.settings import current_options

    return simulate.simulated_kernel(source, name, _own_host(), checked=current_options().checked)


# --- Triton ---


@contextlib.contextmanager
def simulate_triton(seed: int, given: Sequence[torch.Tensor]) -> Iterator[None]:
    """A block in which ``kernel[grid](...)`` runs Triton kernels on CPU tensors in the simulator.

    Args:
        seed: for the order of the programs.
        given: the arguments of the launcher; see ``kernelsim.triton_launches``.

    Raises, at a launch:
        SimulatorError: the kernel has errors; each finding names the source line.
        NotSimulatedError: it needs something that the simulator does not have, which is named.
    """
    from kernelsim.triton_sim.internals import launches_go_to
    from kernelsim.triton_sim.simulate import Simulation

    simulation = Simulation(checked=True, seed=seed, given=given, host=_own_host())

    def launched(*launch: Any) -> bool:
        return dataclasses.replace(simulation, read_only=_read_only.get() or ()).launch(*launch)

    with our_errors(), launches_go_to(launched, _own_host()):
        yield


@contextlib.contextmanager
def triton_launches_go_to(launch: Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], None]) -> Iterator[None]:
    """A block in which ``launch(function, grid, arguments, keywords)`` gets what ``kernel[grid](...)`` would launch,
    wherever it is called. An autotuned kernel has its first configuration.

    Raises:
        NotSimulatedError: this Triton has no launcher that can be replaced.
    """
    from kernelsim.triton_sim.internals import launches_go_to

    def launched(function: Any, grid: Any, arguments: Any, keywords: dict[str, Any]) -> bool:
        launch(function, grid, tuple(arguments), keywords)
        return True

    with our_errors(), launches_go_to(launched, _own_host()):
        yield
