"""Kernels in Mojo: one source, compiled to a library for the CPU and to PTX for a GPU.

A kernel is a Mojo function that takes its outputs, then the operator's arguments: for each tensor a pointer and its
sizes, for each number the number. It may have compile-time parameters; each set of them is one artifact. docs/mojo.md
describes the whole convention.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from opwright.backends.base import Artifact, Backend, KernelSpec, Launch
from opwright.backends.build_tools import BuildTools
from opwright.backends.check_hooks import CheckHooks
from opwright.backends.mojo import compiler as mojo_compiler
from opwright.backends.mojo import prebuilt
from opwright.backends.mojo.call import BuildTarget, CpuCall, GpuCall, Grid
from opwright.backends.mojo.compiler import INSTALL, MojoUnit, is_gpu
from opwright.backends.mojo.prebuilt import Recipe
from opwright.backends.mojo.source import (
    DTYPES,
    Declaration,
    check_declaration,
    cpu_entry_text,
    gpu_entry_text,
    literal,
    read_declaration,
    size_condition,
    slots_of,
)
from opwright.backends.native.native_call import native_calls
from opwright.contract.contract import Contract
from opwright.errors import KernelError, KernelRefusedError
from opwright.machine import Machine
from opwright.results import Accepted, Probe, Refused
from opwright.target import Target

__all__ = ["MojoBackend"]

_NO_MOJO = "Mojo is not installed"
_NO_CC = Refused("Mojo links with a C compiler called cc, and there is none", "install gcc (apt install gcc)")


def _dtypes_on(spec: KernelSpec, device: str, machine: Machine) -> Collection[torch.dtype]:
    """The dtypes in which a kernel can run: without Mojo, on a GPU those of its PTX."""
    taken = spec.dtypes if spec.dtypes is not None else DTYPES
    built = _dtypes_of_ptx(spec) if machine.mojo is None and device == "cuda" else None
    return taken if built is None else [d for d in taken if d in built]


class _MojoHooks(CheckHooks):
    computes_itself = True
    has_barriers = True

    def unchecked_dtypes(self, machine: Machine) -> dict[torch.dtype, str]:
        spec = self.spec
        taken = spec.dtypes if spec.dtypes is not None else DTYPES
        here = _dtypes_on(spec, self.target.device, machine)
        why = f"{_NO_MOJO}, and {spec.options.get('prebuilt')} holds no PTX of {spec.entry} for it"
        return {d: why for d in taken if d not in here}


class MojoBackend(Backend):
    """A function in a ``.mojo`` file. Options:

    - ``params``: compile-time parameters by name; each a number, a string, a dtype, or a function of the arguments.
    - ``grid``, ``block``: for a GPU kernel; each a number, a tuple, or a function of the arguments.
    - ``alignment``: required alignment of the arguments' addresses in bytes; other arguments are copied.
    - ``prebuilt``: a folder beside the source that holds PTX.
    - ``options``: flags for the Mojo compiler.
    """

    name = "mojo"
    allocates_itself = False
    not_packaged = "opwright launches Mojo kernels", "write it in C++ or Triton as well"
    check_hooks = _MojoHooks
    takes = frozenset({"file"})
    suffixes = (".mojo",)
    default_devices = ("cpu",)
    dtypes = frozenset(DTYPES)

    def available(self, machine: Machine) -> Probe:
        if machine.mojo is None:
            return Refused(_NO_MOJO, INSTALL)
        if not machine.cc and not machine.has_gpu:
            return _NO_CC
        if machine.mojo_lacks:
            lacking = f"{machine.mojo_lacks[0]} is not installed ({INSTALL})"
            return Accepted(f"{machine.mojo.version}; CPU kernels only, as {lacking}")
        return Accepted(machine.mojo.version)

    def probe(self, spec: KernelSpec, target: Target, machine: Machine) -> Probe:
        language = super().probe(spec, target, machine)
        if isinstance(language, Accepted) and target.device == "cpu" and not machine.cc:
            return _NO_CC
        if machine.mojo is None and target.device == "cuda" and "cuda" in spec.devices and machine.has_gpu:
            return _probe_prebuilt(spec)
        return language

    def dtypes_here(self, spec: KernelSpec, device: str, machine: Machine) -> Collection[torch.dtype] | None:
        return _dtypes_on(spec, device, machine)

    def validate(self, spec: KernelSpec, contract: Contract) -> None:
        where = f"{contract.qualname}:{spec.name}: {_source(spec).name}"
        _check_options(spec, where)
        text = _source(spec).read_text()
        check_declaration(
            read_declaration(text, spec.entry), list(_params(spec)), contract, where, spec.entry,
            re.findall(r"(?m)^(?:def|fn)\s+(\w+)", text), raising=not _is_for_gpu(spec),
        )  # fmt: skip

    def condition(self, spec: KernelSpec, contract: Contract) -> Callable[..., Probe] | None:
        """A constant parameter with the name of a dim fixes that size: the kernel refuses other sizes."""
        return size_condition(_params(spec), contract)

    def files(self, spec: KernelSpec) -> Iterator[Path]:
        """Everything in Mojo beside the source, which may import it."""
        yield from super().files(spec)
        yield from _source(spec).absolute().parent.glob("*.mojo")

    def generate(self, spec: KernelSpec, contract: Contract) -> str:
        return _source(spec).read_text()

    def compile(self, spec: KernelSpec, contract: Contract, tools: BuildTools) -> Artifact:
        if tools.machine.mojo is None and not spec.options.get("prebuilt"):
            raise KernelRefusedError(f"{contract.qualname}:{spec.name}: {_NO_MOJO}", fix=INSTALL)
        # Parameters and dtypes may depend on a call's arguments, so the kernel is compiled at the call.
        return Artifact(spec.entry, payload=_Specialisation(spec, contract, tools))

    def load(self, artifact: Artifact, spec: KernelSpec, contract: Contract) -> Launch:
        made: _Specialisation = artifact.payload
        native = functools.partial(native_calls, made.tools)
        common = (spec.name, contract, made.slots, made, spec.options.get("alignment", 1), native)
        if _is_for_gpu(spec):
            return GpuCall(*common, grid=Grid(spec.options["grid"], spec.options["block"]))
        return CpuCall(*common, raises=made.declaration.raises)

    def prebuild(
        self,
        spec: KernelSpec,
        contract: Contract,
        tools: BuildTools,
        archs: Sequence[str],
        calls: Sequence[Sequence[Any]],
    ) -> list[Path]:
        """Raises KernelRefusedError if Mojo is not installed."""
        folder, compiler = spec.options.get("prebuilt"), tools.machine.mojo
        where = f"{contract.qualname}:{spec.name}"
        if folder is None:
            raise KernelError(f"{where} has no folder for PTX", fix='attach it with prebuilt="prebuilt"')
        if compiler is None:
            raise KernelRefusedError(f"{where}: {_NO_MOJO}", fix=INSTALL)
        made = _Specialisation(spec, contract, tools)

        def each() -> Iterator[tuple[Recipe, MojoUnit, str]]:
            for arguments in calls:
                call = GpuCall(spec.name, contract, made.slots, made, 1, grid=Grid(1, 1))
                dtypes = call.dtypes_of(arguments)
                for arch in archs:
                    parameters = made.parameters(arguments, dtypes)
                    unit = made.unit(parameters, BuildTarget(arch, dtypes))
                    yield Recipe(parameters, arch), unit, mojo_compiler.build(unit, tools).read_text()

        manifest = prebuilt.manifest_of(_source(spec), spec.entry, folder)
        return prebuilt.write(manifest, each(), compiler.version)


def _source(spec: KernelSpec) -> Path:
    assert isinstance(spec.source, Path)  # the backend takes files only
    return spec.source


def _params(spec: KernelSpec) -> Mapping[str, Any]:
    params: Mapping[str, Any] = spec.options.get("params", {})
    return params


def _is_for_gpu(spec: KernelSpec) -> bool:
    return spec.devices == ("cuda",)


def _check_options(spec: KernelSpec, where: str) -> None:
    """Refuse invalid options, before anything is compiled."""
    if len(spec.devices) != 1 or spec.devices[0] not in ("cpu", "cuda"):
        raise KernelError(
            f"{where}: devices must be ['cpu'] or ['cuda'], got {list(spec.devices)}",
            fix='attach two kernels, the second with devices=["cuda"], grid=... and block=...',
        )
    launches = [option for option in ("grid", "block") if option in spec.options]
    if _is_for_gpu(spec) and len(launches) < 2:
        raise KernelError(
            f"{where}: a GPU kernel must have grid= and block=, got {' and '.join(launches) or 'neither'}",
            fix="write them as in grid=lambda x: ow.cdiv(x.numel(), 256), block=256",
        )
    if not _is_for_gpu(spec) and (launches or "prebuilt" in spec.options):
        option = [*launches, "prebuilt"][0]
        raise KernelError(
            f"{where}: {option} must be left out for a CPU kernel, got {spec.options[option]!r}",
            fix='leave it out, or add devices=["cuda"]',
        )
    if not re.fullmatch(r"[A-Za-z_]\w*", _source(spec).stem):
        raise KernelError(
            f"{where}: the file's name must be one that Mojo can import, got {_source(spec).name!r}",
            fix="use letters, digits and _",
        )
    params = spec.options.get("params", {})
    if not isinstance(params, Mapping):
        raise KernelError(
            f"{where}: params must be a dict of compile-time parameters, got {params!r}",
            fix='write params={"width": 4}',
        )
    for name, value in params.items():
        if not callable(value) and literal(value) is None:
            raise KernelError(
                f"{where}: params[{name!r}] must be a number, a string or a dtype that Mojo has, got {value!r}",
                fix="pass one, or a function of the arguments that returns one",
            )
    alignment = spec.options.get("alignment", 1)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise KernelError(
            f"{where}: alignment must be a power of two, got {alignment!r}", fix="pass it in bytes, as in alignment=16"
        )
    flags = spec.options.get("options", ())
    if isinstance(flags, str) or not all(isinstance(flag, str) for flag in flags):
        raise KernelError(
            f"{where}: options must be a list of flags, got {flags!r}", fix='write options=["-D", "NAME=1"]'
        )


def _probe_prebuilt(spec: KernelSpec) -> Probe:
    folder = spec.options.get("prebuilt")
    if folder is None:
        return Refused(_NO_MOJO, INSTALL)
    try:
        holds = prebuilt.holds_ptx(prebuilt.manifest_of(_source(spec), spec.entry, folder))
    except KernelError as error:
        return Refused(error.message, error.fix or INSTALL)
    if not holds:
        return Refused(f"{_NO_MOJO}, and {folder} holds no PTX of {spec.entry}", INSTALL)
    return Accepted("PTX that was built before")


def _dtypes_of_ptx(spec: KernelSpec) -> set[torch.dtype] | None:
    """The dtypes that PTX was built for; None if its sets of parameters differ in more than the dtype."""
    folder = spec.options.get("prebuilt")
    if folder is None:
        return None
    sets = prebuilt.parameter_sets(prebuilt.manifest_of(_source(spec), spec.entry, folder))
    if any(parameters.keys() != {"dtype"} for parameters in sets):
        return None
    return {dtype for dtype, name in DTYPES.items() if name in [parameters["dtype"] for parameters in sets]}


@dataclass(frozen=True)
class _Specialisation:
    """Compiles the artifact for a call's arguments and target."""

    spec: KernelSpec
    contract: Contract
    tools: BuildTools

    @functools.cached_property
    def declaration(self) -> Declaration:
        found = read_declaration(_source(self.spec).read_text(), self.spec.entry)
        if found is None:  # it was there when the kernel was attached
            raise KernelError(f"{self.contract.qualname}: {_source(self.spec)} lost its function {self.spec.entry!r}")
        return found

    @functools.cached_property
    def slots(self) -> Any:
        return slots_of(self.contract, self.spec.name)

    def __call__(self, arguments: Sequence[Any], target: BuildTarget) -> Path:
        unit = self.unit(self.parameters(arguments, target.dtypes), target)
        if is_gpu(target.arch):
            return self._ptx(unit)
        return mojo_compiler.build(unit, self.tools)

    def _ptx(self, unit: MojoUnit) -> Path:
        """The prebuilt PTX, if it was built from this source; otherwise compiled here."""
        folder = self.spec.options.get("prebuilt")
        manifest = prebuilt.manifest_of(unit.source, self.spec.entry, folder) if folder else None
        found = prebuilt.find(manifest, unit) if manifest else None
        if found is not None and (found[1] == unit.target or self.tools.machine.mojo is None):
            return found[0]
        if self.tools.machine.mojo is None and manifest is not None:
            raise KernelRefusedError(
                f"{unit.of}: Mojo is not installed, and the PTX in {manifest.parent.name} was built for other "
                "parameters or GPUs, or from another version of the source",
                fix=f"{INSTALL}, or run `opwright prebuild` where there is Mojo",
            )
        return mojo_compiler.build(unit, self.tools)

    def parameters(self, arguments: Sequence[Any], dtypes: Sequence[torch.dtype]) -> dict[str, str]:
        """The compile-time parameters as Mojo writes them, in the order of the declaration."""
        values = dict(_params(self.spec))
        found = {}
        for name in self.declaration.parameters:
            if name in values:
                value = values[name](*arguments) if callable(values[name]) else values[name]
                written = literal(value)
                if written is None:
                    raise KernelError(
                        f"{self.contract.qualname}:{self.spec.name}: params[{name!r}] returned {value!r}",
                        fix="return a number, a string, or a dtype that Mojo has",
                    )
                found[name] = written
            elif name == "dtype":
                found[name] = DTYPES[_main_dtype(dtypes[len(self.slots[0]) :])]
        return found

    def unit(self, parameters: Mapping[str, str], target: BuildTarget) -> MojoUnit:
        source, entry = _source(self.spec), self.spec.entry
        values = ", ".join(f"{n}={v.removeprefix('DType.')}" for n, v in parameters.items())
        of = f"{self.contract.qualname}:{self.spec.name}" + (f" [{values}]" if values else "")
        slots = (*self.slots[0], *self.slots[1])
        label = f"{self.contract.qualname}:{self.spec.name}"
        if is_gpu(target.arch):
            text = gpu_entry_text(source.stem, entry, parameters, slots, target.dtypes, label)
        else:
            text = cpu_entry_text(source.stem, entry, parameters, slots, target.dtypes, self.declaration.raises, label)
        return MojoUnit(of, source, text, target.arch, tuple(self.spec.options.get("options", ())))


def _main_dtype(dtypes: Sequence[torch.dtype]) -> torch.dtype:
    """The value of a parameter called ``dtype``: the floating dtype of the arguments, else that of the first."""
    return next((d for d in dtypes if d.is_floating_point), dtypes[0])
