"""CUDA C++ to a cubin in a tenth of a second, with NVRTC, cached on disk. No GPU and no driver is needed.

NVRTC is called through cuda-bindings, and not through cuda-core's ``Program``: one compilation then gives the
cubin and the PTX behind it, and a machine without a driver can have both (cuda-core 1.2 asks the driver for its
version before it hands out PTX). Torch brings NVRTC, its headers and cuda-bindings with it; nothing of a CUDA
toolkit is needed.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import json
import os
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from opwright.backends.build_tools import BuildTools
from opwright.backends.compiler import compile_error
from opwright.backends.compiler_inputs import SearchFolders, key_parts, read_by_build
from opwright.backends.cuda.nvrtc_headers import PRELUDE, header_texts, missing_headers
from opwright.backends.cuda.nvrtc_process import NvrtcDiedError, NvrtcResult, run_nvrtc
from opwright.backends.gpu.device_code import DeviceCode, EntryPoint, Parameter, Resources, demangle, entries_in_ptx
from opwright.backends.gpu.device_code import typed_parameters as with_types
from opwright.backends.gpu.ptxas import read_resources
from opwright.backends.simulation import (
    CudaSource,
    DeviceFiles,
    ParsedSource,
    curand_folder,
    members_of,
    opening_bracket,
    parse_options,
    parsed,
    split_commas,
)
from opwright.cache import ArtifactKey
from opwright.contract.dtypes import short
from opwright.errors import CompileError, KernelRefusedError
from opwright.read_files import ReadFiles
from opwright.results import Accepted, Probe, Refused

__all__ = ["available", "compile_device_code", "cuda_include_folders"]

# Added to every source: its instances carry the types of a kernel's parameters in their names, also of a kernel
# whose own name does not (extern "C").
_SIGNATURE = "opwright_signature"
_BUILT_IN = "__nv_nvrtc_builtin_header"
_PROBE = f"\ntemplate <class F> __global__ void {_SIGNATURE}() {{}}\n"


@functools.cache
def available() -> Probe:
    """Whether CUDA C++ can be compiled in this process."""
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bindings") is None:
        return Refused("cuda-bindings is not installed", "pip install 'opwright[cuda]'")
    try:
        major, minor = _version()
    except Exception as error:  # what is missing has many names; each is a reason, none a crash
        return Refused(f"NVRTC cannot be loaded ({error})".replace("\n", " "), "pip install 'opwright[cuda]'")
    if not _has_runtime_headers():
        return Accepted(
            f"NVRTC {major}.{minor}, without headers: cuda_fp16.h is not found; pip install 'opwright[cuda]'"
        )
    return Accepted(f"NVRTC {major}.{minor}, headers in {_shortened(cuda_include_folders()[0])}")


@functools.cache
def _version() -> tuple[int, int]:
    from cuda.bindings import nvrtc

    _, major, minor = nvrtc.nvrtcVersion()
    return int(major), int(minor)


@functools.cache
def cuda_include_folders() -> tuple[Path, ...]:
    """Folders with ``cuda_fp16.h`` and with CCCL's ``<cuda/…>`` and ``<cub/…>``: from pip packages, else a toolkit.

    Those of NVRTC's own major version come first: half types are declared differently from one to the next.
    """
    found = [f for f in _candidate_folders() if (f / "cuda_fp16.h").is_file()]
    chosen = found[:1]
    cccl = [f / "cccl" for f in found if (f / "cccl" / "cuda").is_dir()] or [
        f for f in found if (f / "cuda" / "std").is_dir()
    ]
    # wmma's declarations, which pip's runtime headers include and do not bring.
    crt = (
        []
        if any((f / "crt" / "mma.h").is_file() for f in chosen)
        else [f for f in found if (f / "crt" / "mma.h").is_file()]
    )
    curand = [folder] if (folder := curand_folder()) is not None else []
    return tuple(dict.fromkeys(chosen + cccl[:1] + crt[:1] + curand))


def _candidate_folders() -> Iterator[Path]:
    nvidia = importlib.util.find_spec("nvidia")
    for package in (nvidia.submodule_search_locations or ()) if nvidia else ():
        yield Path(package) / f"cu{_version()[0]}" / "include"  # CUDA 13 and later: one folder for all
        yield Path(package) / "cuda_runtime" / "include"  # CUDA 12
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield Path(os.environ[variable]) / "include"
    yield Path("/usr/local/cuda/include")


def _has_runtime_headers() -> bool:
    return bool(cuda_include_folders())


def _shortened(folder: Path) -> str:
    parts = folder.parts
    return str(Path("…", *parts[parts.index("site-packages") :])) if "site-packages" in parts else str(folder)


def compile_device_code(source: CudaSource, instances: Sequence[str], arch: str, tools: BuildTools) -> DeviceCode:
    """Compile a source, or take it from the cache.

    Args:
        instances: templates to instantiate, as C++ writes them: ``add<float, 4>``. Kernels that are not templates
            are always in the result.
        arch: such as ``sm_90``; an ``-arch`` among the source's options goes first.

    Raises:
        CompileError: the source does not compile, or has no such template; with file, line, source line and caret.
        KernelRefusedError: NVRTC is not here, or does not know the architecture.
    """
    usable = available()
    if isinstance(usable, Refused):
        raise KernelRefusedError(f"{source.name}: {usable.reason}", fix=usable.remedy)
    options = parse_options(source.options)
    arch = options.arch or arch
    _refuse_unknown_arch(source, arch)
    files = source.device_files(lambda name: name in header_texts(), instances=instances)
    flags = _flags(source, files, arch, instances)

    def build(folder: Path) -> ReadFiles:
        began = time.time_ns()
        made = _compile(_Job(source, files, flags), instances)
        (folder / "kernels.cubin").write_bytes(made.cubin)
        (folder / "kernels.ptx").write_text(made.ptx)
        (folder / "entries.json").write_text(json.dumps([_to_json(e) for e in made.entries], indent=1))
        return _read_files(source, flags, [*made.headers, *_paths(files)] if made.headers is not None else None, began)

    folder = tools.cache.get_or_build(
        _key(source, files, instances, flags),
        build,
        on_build=lambda: tools.notify(f"compiling {source.name} for {arch} with NVRTC; cached for next time"),
        on_wait=lambda: tools.notify(f"waiting: another process compiles {source.name}"),
    )
    entries = tuple(_from_json(e) for e in json.loads((folder / "entries.json").read_text()))
    return DeviceCode(folder / "kernels.cubin", arch, entries, ptx=folder / "kernels.ptx")


def _refuse_unknown_arch(source: CudaSource, arch: str) -> None:
    from cuda.bindings import nvrtc

    _, known = nvrtc.nvrtcGetSupportedArchs()
    number = re.fullmatch(r"sm_(\d+)[af]?", arch)
    if number is None or int(number[1]) not in known:
        names = ", ".join(f"sm_{k}" for k in known)
        raise KernelRefusedError(
            f"{source.name}: arch must be one of {names}, got {arch!r}",
            fix=f"choose one that NVRTC {'.'.join(map(str, _version()))} compiles for, or install another NVRTC",
        )


def _paths(files: DeviceFiles) -> list[str]:
    """The user's headers whose copies are compiled."""
    return [str(header.path) for header in files.headers]


def _flags(source: CudaSource, files: DeviceFiles, arch: str, instances: Sequence[str]) -> tuple[str, ...]:
    options = parse_options(source.options)
    folders = [source.folder, *options.include_folders, *cuda_include_folders()]
    standard = () if any(c.startswith("--std") for c in options.code) else ("--std=c++17",)
    named = [*files.sources, parsed("\n".join(instances))]  # a type may be named as a template's argument only
    return (
        f"--gpu-architecture={arch}",
        *standard,
        "-lineinfo",
        "--ptxas-options=-v",
        *(f"--pre-include={name}" for name in (PRELUDE, *missing_headers(named))),
        *options.macros,
        *(c for c in options.code if c != "-lineinfo"),
        *(("-default-device",) if _has_plain_constexpr(files) else ()),
        *(f"-I{folder}" for folder in folders),
    )


def _all_text(files: DeviceFiles) -> str:
    return "\n".join(source.text for source in files.sources)


def _has_plain_constexpr(files: DeviceFiles) -> bool:
    """Whether there is a constexpr function without an execution space, which nvcc takes and NVRTC refuses. Headers are
    read up to the first one: those of CUTLASS take seconds."""
    return any(
        re.search(r"\bconstexpr\b", head) and not re.search(r"\b__(?:device|global)__", head)
        for source in files.sources
        for head in _heads(source)
    )


def _heads(source: ParsedSource) -> Iterator[str]:
    """Those of functions, classes and members."""
    for item in source.items:
        if item.kind in ("function", "class"):
            yield item.head
        yield from (member.head for member in members_of(item, source.statements)[0])


def _key(source: CudaSource, files: DeviceFiles, instances: Sequence[str], flags: Sequence[str]) -> ArtifactKey:
    return ArtifactKey(
        name=f"cuda.{source.path.stem if source.path else 'source'}",
        parts=(
            ("source", source.text),
            ("instances", "\n".join(instances)),
            ("flags", " ".join(f for f in flags if not f.startswith("-I"))),
            *key_parts(None, source.options),
            ("compiler", f"NVRTC {'.'.join(map(str, _version()))}"),
            ("record", "cooperative"),  # what is kept of each kernel besides its parameters
            ("torch", torch.__version__),  # which brings the headers
            ("prelude", "\n".join(f"{name}\n{text}" for name, text in header_texts().items())),
            ("device text", _all_text(files)),
        ),
        base=source.folder,
    )


def _read_files(source: CudaSource, flags: Sequence[str], headers: Sequence[str] | None, began: int) -> ReadFiles:
    """What a compilation has read. Headers of an NVRTC that does not list them are not known."""
    if headers is None:
        includes = re.search(r"include|embed", source.text.replace("\\\n", ""))
        return ReadFiles(complete=not includes and not parse_options(source.options).preincluded)
    return read_by_build(
        headers,
        source.options,
        SearchFolders(tuple(flag[2:] for flag in flags if flag.startswith("-I"))),
        base=source.folder, built_in=None, here=str(Path.cwd()), since_ns=began,
        installed=[str(folder) for folder in cuda_include_folders()], texts=[source.text],
        assembled=(),  # no assembler of PTX includes files
    )  # fmt: skip


@dataclass(frozen=True)
class _Job:
    """What is compiled: a source, its device code, and the flags."""

    source: CudaSource
    files: DeviceFiles
    flags: tuple[str, ...]


@dataclass(frozen=True)
class _Compiled:
    cubin: bytes
    ptx: str
    entries: tuple[EntryPoint, ...]
    headers: list[str] | None


_TRACES = (12, 8)  # the first version with --fdevice-time-trace
_HEADER = "Processing Header File"  # the event for a header in the trace


def _compile(job: _Job, instances: Sequence[str]) -> _Compiled:
    headers = None
    # Names are looked up in the global namespace: a library that the source uses whole may have the same ones.
    asked = {instance: job.source.defining(instance).globally_named(instance) for instance in instances}
    if _version() < _TRACES:
        first = _run_nvrtc(job, [*asked.values()])
    else:
        # The only list of headers that NVRTC gives: it says how long each took.
        with tempfile.TemporaryDirectory(prefix="opwright-inputs-") as folder:
            traced = dataclasses.replace(job, flags=(*job.flags, f"--fdevice-time-trace={folder}/trace"))
            first = _run_nvrtc(traced, [*asked.values()])
            headers = _traced_headers(Path(folder, "trace.json"), [header.copy for header in job.files.headers])
    # Kernels whose own symbol does not carry the types of their parameters: a second pass asks for them.
    plain = [e.symbol for e in entries_in_ptx(first.ptx) if demangle(e.symbol) == e.symbol]
    probes = {name: f"{_SIGNATURE}<decltype(::{name})>" for name in plain}
    types = _run_nvrtc(job, [*asked.values(), *probes.values()]).symbols if plain else {}
    entries = []
    for entry in entries_in_ptx(first.ptx):
        declared = demangle(types[probes[entry.symbol]] if entry.symbol in probes else entry.symbol)
        instance = next((i for i, name in asked.items() if first.symbols[name] == entry.symbol), None)
        name = instance or (entry.symbol if entry.symbol in probes else _bare_name(declared))
        parameters = with_types(entry, _parameter_types(declared))
        entries.append(
            EntryPoint(entry.symbol, name, parameters, read_resources(first.log, entry.symbol), entry.cooperative)
        )
    return _Compiled(first.cubin, first.ptx, tuple(entries), headers)


def _traced_headers(trace: Path, copies: Sequence[str]) -> list[str] | None:
    """The headers in NVRTC's time trace, without those that are built in or copies; None if there is no such trace."""
    try:
        events = json.loads(trace.read_text(errors="surrogateescape"))["traceEvents"]
        headers = [event["args"]["detail"] for event in events if event.get("name") == _HEADER]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    # Each compilation begins with a header that is built in: a trace without it has other names for its events.
    here = os.getcwd()
    names = (*header_texts(), *copies)
    ours = {*names, *(f"./{name}" for name in names)}
    files = [h for h in headers if not h.startswith(_BUILT_IN) and h not in ours]
    return [os.path.join(here, h) for h in files] if headers else None


def _run_nvrtc(job: _Job, expressions: Sequence[str]) -> NvrtcResult:
    source = job.source
    # A library's headers are read where they are.
    files = dataclasses.replace(job.files, headers=tuple(h for h in job.files.headers if not h.of_library))

    def compiled(source: ParsedSource, path: Path | None) -> str:
        return files.redirected(source, path, lambda name: name in header_texts())

    # Headers without host code are read where they are. (NVRTC 13 crashes on a #line in a header that is no file.)
    copies = {h.copy: compiled(h.source, h.path) for h in files.headers} if files.changed else {}
    text = (compiled(files.source, source.path) if files.changed else files.text) + _PROBE
    try:
        result = run_nvrtc(text, source.name, {**header_texts(), **copies}, job.flags, expressions)
    except NvrtcDiedError as error:
        if expressions:  # an error in a template that is instantiated: without the instance NVRTC can report it
            _run_nvrtc(job, ())
        raise CompileError(
            f"{source.name}: NVRTC crashed ({error}) while it compiled {', '.join(expressions) or 'this source'}",
            log=str(error),
            fix="the fault is NVRTC's: leave out what you changed last, or compile the file with nvcc",
        ) from None
    if not result.succeeded:
        log = result.log or result.status
        for header in files.headers:
            log = log.replace(header.copy, header.path.name)
        raise _compile_error(source, log, expressions)
    return result


def _compile_error(source: CudaSource, log: str, expressions: Sequence[str]) -> CompileError:
    """The first errors with their source lines and carets; of a missing template, what there is instead."""
    asked = [e.removeprefix("::") for e in expressions if not e.startswith(_SIGNATURE)]
    missing = re.search(r'name expression "?([^"\n]+?)"?(?: |$)|error: .*"(\w+)" is undefined', log)
    defined = source.kernels
    if missing and (unknown := [name for e in asked if (name := e.split("<")[0].strip()) not in defined]):
        return CompileError(
            f"{source.name}: the kernel must be one of {list(defined)}, got {unknown[0]!r}",
            log=log,
            fix="name one of them, or define it",
        )
    # NVRTC writes a file of its own for the names that were asked for.
    log = re.sub(r"__nv_name_map\(\d+\)", f"instance {', '.join(asked)}(1)", log).replace(
        "#pragma nv_mangled_name ", ""
    )
    return compile_error(log, source.name)


def _bare_name(declaration: str) -> str:
    """``void ns::add<float, 4>(float const*)`` → ``ns::add<float, 4>``."""
    name = declaration[: _opening_of_parameters(declaration)]
    return name.removeprefix("void ").replace("(anonymous namespace)::", "").strip()


def _parameter_types(declaration: str) -> list[str]:
    """The parameter types of a demangled kernel, or of the function type that the probe was instantiated with."""
    if probe := re.fullmatch(rf"void {_SIGNATURE}<void \((.*)\)>\(\)", declaration):
        inner = probe[1]
    else:
        inner = declaration[_opening_of_parameters(declaration) + 1 : declaration.rindex(")")]
    return [part for part in split_commas(inner) if part != "void"]


def _opening_of_parameters(declaration: str) -> int:
    """Where the parameters begin that a demangled declaration ends with."""
    closing = declaration.rfind(")")
    opening = opening_bracket(declaration, closing) if closing >= 0 else None
    return len(declaration) if opening is None else opening


def _to_json(entry: EntryPoint) -> dict[str, Any]:
    record = dataclasses.asdict(entry)
    for parameter in record["parameters"]:
        parameter["dtypes"] = [short(d) for d in parameter["dtypes"]]
    return record


def _from_json(record: dict[str, Any]) -> EntryPoint:
    parameters = tuple(
        Parameter(**{**p, "dtypes": tuple(getattr(torch, d) for d in p["dtypes"])}) for p in record["parameters"]
    )
    resources = Resources(**record["resources"]) if record["resources"] else None
    return EntryPoint(record["symbol"], record["name"], parameters, resources, record["cooperative"])
