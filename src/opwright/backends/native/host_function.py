"""Compiles a source with a host function on tensors to a shared object, for C++ and CUDA."""

from __future__ import annotations

import secrets
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from opwright.backends.base import Artifact, KernelSpec
from opwright.backends.build_tools import BuildTools
from opwright.backends.compiler import run_compiler
from opwright.backends.compiler_inputs import BuildWatch, key_parts
from opwright.backends.native import aten_headers
from opwright.backends.native.abi import ABIS, ATEN, INCLUDE, TARGET_VERSION, TEMPLATES, abi_of
from opwright.backends.native.binding import binding_text, joint_binding_text, unique_name
from opwright.backends.native.declaration import compare_declaration
from opwright.backends.native.registrations import compare_schemas, registrations, without_registrations
from opwright.backends.native.tensor_access import python_headers
from opwright.backends.simulation import included_files
from opwright.cache import ArtifactKey
from opwright.contract.contract import Contract
from opwright.errors import CompileError, KernelError
from opwright.machine import Compiler
from opwright.read_files import ReadFiles

__all__ = ["TORCH", "Member", "Toolchain", "build", "check_options", "files", "label_of", "operators_in", "validate"]

# torch.utils.cpp_extension has these folders too, but searches for CUDA, and warns, when it is imported.
TORCH = Path(torch.__file__).parent
# The private operators that a shared object registers, each with the kernel that it is.
_NAMES = "operators.txt"
# A kernel in a source, and its operator.
Member = tuple[KernelSpec, Contract]


@dataclass(frozen=True)
class Toolchain:
    """A compiler with its standard flags.

    Attributes:
        native: the CPU, on which ``-march=native`` depends.
        library: the namespace of the private operator.
        is_shipped: for a package, which runs without opwright: for any Python, or none, and no precompiled headers.
        toolkit: the folder of headers and libraries that came with the compiler, beyond those of the system.
        more_headers: folders of CUDA's headers that are searched last, for what a small toolkit lacks.
    """

    compiler: Compiler
    flags: tuple[str, ...]
    libraries: tuple[str, ...]
    suffix: str
    native: str = ""
    library: str = "opwright_kernels"
    is_shipped: bool = False
    toolkit: Path | None = None
    more_headers: tuple[Path, ...] = ()


def files(source: Path) -> Iterator[Path]:
    """A source, and the headers that it includes."""
    source = source.absolute()
    yield source
    if source.is_file():
        yield from (header.absolute() for header in included_files(source.read_text(errors="replace"), source, ()))


def check_options(spec: KernelSpec, contract: Contract) -> None:
    """Refuse options that are not a list of compiler flags, and an ABI that there is not."""
    if spec.options.get("abi", ATEN.name) not in ABIS:
        raise KernelError(
            f"{contract.qualname}:{spec.name}: abi must be {' or '.join(map(repr, ABIS))}, got {spec.options['abi']!r}",
            fix="leave it out for torch's stable ABI",
        )
    flags = spec.options.get("options", ())
    if isinstance(flags, str) or not all(isinstance(flag, str) for flag in flags):
        raise KernelError(
            f"{contract.qualname}:{spec.name}: options must be a list of compiler flags, got {flags!r}",
            fix="write one string per flag, as in options=['-DN=4', '-ffast-math']",
        )


def validate(spec: KernelSpec, contract: Contract) -> None:
    """Refuse a file without the operator's host function, or that registers an operator of its name with another
    schema.

    Raises:
        KernelError, SignatureMismatchError: with the line, and what to write.
    """
    check_options(spec, contract)
    source = _source(spec)
    _refuse_aten_headers(spec, contract)
    compare_schemas(source.read_text(errors="replace"), source, contract)
    compare_declaration(spec, contract)


def _refuse_aten_headers(spec: KernelSpec, contract: Contract) -> None:
    if abi_of(spec) is ATEN:
        return
    source = _source(spec)
    header = aten_headers.used(source.read_text(errors="replace"))
    if header:
        raise KernelError(
            f"{contract.qualname}:{spec.name}: {source.name} uses ATen's tensors, of <{header}>, "
            "which are not in torch's stable ABI",
            fix="pass abi='aten', with which a build holds for one version of torch, or write it on "
            "torch::stable::Tensor (docs/porting.md)",
        )


def build(
    spec: KernelSpec, contract: Contract, tools: BuildTools, toolchain: Toolchain, others: Sequence[Member] = ()
) -> Artifact:
    """Compile one kernel's source with its binding, or take it from the cache.

    Args:
        others: kernels in the same source with the same options, which are compiled with it. If they cannot be, as one
            of them is wrong, the kernel is compiled alone.

    Raises:
        CompileError: with the first errors, their source lines and carets.
    """
    members = sorted([(spec, contract), *others], key=label_of)
    try:
        folder = _build(members, contract, tools, toolchain)
    except CompileError:
        if not others:
            raise
        folder = _build([(spec, contract)], contract, tools, toolchain)
    library = folder / f"{_source(spec).stem}.so"
    return Artifact(operators_in(library)[label_of((spec, contract))], file=library)


def operators_in(library: Path) -> dict[str, str]:
    """The private operators that a shared object registers which was built here, by the labels of the kernels that they
    are, sorted."""
    return dict(line.rsplit(" ", 1) for line in (library.parent / _NAMES).read_text().splitlines())


def label_of(member: Member) -> str:
    """A kernel as ``namespace::operator:kernel``."""
    spec, contract = member
    return f"{contract.qualname}:{spec.name}"


def _build(members: Sequence[Member], contract: Contract, tools: BuildTools, toolchain: Toolchain) -> Path:
    """The folder with the shared object of some kernels in one source."""
    spec = members[0][0]
    source = _source(spec)
    key = _key(members, toolchain)
    library = f"{source.stem}.so"

    def make(folder: Path) -> ReadFiles:
        # Builds of one key differ in the headers that they read, which the compiler tells only afterwards.
        salt = key.digest + secrets.token_hex(8)
        # An operator may have several kernels in one source.
        unique = [unique_name(its, f"{salt}{one.name}") for one, its in members]
        (folder / _NAMES).write_text("".join(f"{label_of(m)} {u}\n" for m, u in zip(members, unique, strict=True)))
        shutil.copy(source, folder)
        included = _without_registrations(source, folder, tools)
        binding = folder / f"{source.stem}.binding{toolchain.suffix}"
        binding.write_text(joint_binding_text(members, unique, source=included, library=toolchain.library))
        watch = BuildWatch(toolchain.compiler)
        flags, libraries = _flags(spec, toolchain), [f"-L{TORCH / 'lib'}", *toolchain.libraries]
        headers = _precompiled(spec, toolchain, tools)
        flags = [*headers, *flags]
        command = [toolchain.compiler.path, *flags, *watch.compile_flags, str(binding), "-o", str(folder / library)]
        command += [*libraries, *watch.link_flags]
        run_compiler(command, f"{contract.qualname}: {source.name}", environment=watch.environment)
        installed = [TORCH, *filter(None, [python_headers(), toolchain.toolkit]), *toolchain.more_headers]
        installed += [Path(flag[2:]) for flag in headers]
        return watch.read_files([*flags, *libraries], base=source.parent, built_in=folder, installed=installed)

    folder: Path = tools.cache.get_or_build(
        key,
        make,
        on_build=lambda: tools.notify(
            f"compiling {source.name} for {', '.join(dict.fromkeys(its.qualname for _, its in members))} with "
            f"{toolchain.compiler.version}; cached for next time"
        ),
        on_wait=lambda: tools.notify(f"waiting: another process compiles {source.name}"),
    )
    return folder


def _source(spec: KernelSpec) -> Path:
    assert isinstance(spec.source, Path)  # the backends that build take files only
    return spec.source


def _without_registrations(source: Path, folder: Path, tools: BuildTools) -> Path:
    """The source itself, or a copy without the operators that it registers."""
    text = source.read_text(errors="replace")
    found = list(registrations(text))
    if not found:
        return source
    for block in found:
        tools.notify(f"{source.name}:{block.line}: {block.title} is left out: opwright registers the operator")
    copy = folder / f"{source.stem}.without_registrations{source.suffix}"
    copy.write_text(without_registrations(text, source))
    return copy


def _flags(spec: KernelSpec, toolchain: Toolchain) -> list[str]:
    specific = _aten_flags(spec, toolchain) if abi_of(spec) is ATEN else _stable_flags(toolchain)
    own = [f"-I{_source(spec).parent}", f"-I{INCLUDE}"]
    last = [part for folder in toolchain.more_headers for part in ("-Xcompiler", f"-idirafter,{folder}")]
    return [*toolchain.flags, *own, *specific, f"-I{TORCH / 'include'}", *last, *spec.options.get("options", ())]


def _stable_flags(toolchain: Toolchain) -> list[str]:
    headers = python_headers()
    # Calls without the dispatcher need Python's headers.
    direct = [] if headers is None else ["-DOPWRIGHT_PYTHON", f"-I{TEMPLATES}", f"-I{headers}"]
    if direct and toolchain.is_shipped:  # for every Python from the oldest that opwright supports
        direct.append("-DPy_LIMITED_API=0x030b0000")
    return [f"-DTORCH_TARGET_VERSION={TARGET_VERSION}", *direct]


# With which torch builds extensions (COMMON_NVCC_FLAGS of its cpp_extension): CUDA's operators on __half make those on
# c10::Half ambiguous, and device code calls constexpr functions of ATen.
_TORCHS_NVCC_FLAGS = (
    "-D__CUDA_NO_HALF_OPERATORS__", "-D__CUDA_NO_HALF_CONVERSIONS__", "-D__CUDA_NO_BFLOAT16_CONVERSIONS__",
    "-D__CUDA_NO_HALF2_OPERATORS__", "--expt-relaxed-constexpr",
)  # fmt: skip


def _aten_flags(spec: KernelSpec, toolchain: Toolchain) -> list[str]:
    nvccs = list(_TORCHS_NVCC_FLAGS) if toolchain.suffix == ".cu" else []
    text = without_registrations(_source(spec).read_text(errors="replace"), _source(spec))
    frontend = f"-I{TORCH / 'include' / 'torch' / 'csrc' / 'api' / 'include'}"
    python = [f"-I{folder}" for folder in [python_headers()] if folder]
    if aten_headers.needs_all_headers(text):
        return [*nvccs, frontend, *python, "-DTORCH_EXTENSION_NAME=opwright"]
    few = [*aten_headers.prefer_few_headers(), frontend]
    return [*nvccs, *few, *(python if aten_headers.includes_python(text) else [])]


def _precompiled(spec: KernelSpec, toolchain: Toolchain, tools: BuildTools) -> list[str]:
    if abi_of(spec) is not ATEN or toolchain.suffix != ".cpp" or toolchain.is_shipped:
        return []
    frontend = TORCH / "include" / "torch" / "csrc" / "api" / "include"
    folders = [f"-I{folder}" for folder in (INCLUDE, TORCH / "include", frontend)]
    return aten_headers.precompiled(toolchain.compiler, [*toolchain.flags, *folders], tools)


def _key(members: Sequence[Member], toolchain: Toolchain) -> ArtifactKey:
    """What the shared object depends on besides the headers and libraries that its build reads."""
    spec, contract = members[0]
    source, flags = _source(spec), _flags(spec, toolchain)
    bindings = [binding_text(one, its, "", library=toolchain.library) for one, its in members]
    more = f"_and_{len(members) - 1}_more" * (len(members) > 1)
    return ArtifactKey(
        name=f"{contract.namespace}_{contract.name}{more}.{source.stem}",
        parts=(
            ("binding", "\n".join(bindings).replace(str(source), source.name)),
            ("source", source.read_text()),
            ("flags", " ".join(f for f in flags if not f.startswith("-I"))),
            *key_parts(toolchain.compiler, spec.options.get("options", ())),
            ("torch", torch.__version__),
            ("python", str(sys.implementation.cache_tag)),
            ("cpu", toolchain.native if any("native" in f for f in flags) else ""),
        ),
        base=source.parent,
    )
