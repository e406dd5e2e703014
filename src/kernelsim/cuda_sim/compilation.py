"""CUDA kernels for a CPU: the same source, compiled by the system's C++ compiler against the simulator's headers.

Two builds of each kernel: a fast one, and a checked one, of which the runtime checks every memory access. The runtime
(``simulator/runtime``) is compiled once, and linked into every kernel.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelsim.cuda_sim.assembly import instrumented
from kernelsim.cuda_sim.headers import RewrittenHeader, rewriters, rewritten_header
from kernelsim.cuda_sim.precompiled_header import included_by, precompiled_header
from kernelsim.cuda_sim.refusing import active_lines, is_active, lacking, refused
from kernelsim.cuda_sim.rewriting import (
    NO_PTX,
    USED_PTX,
    refusals,
    refused_ptx,
    rewrite,
    text_digest,
    without_includes,
)
from kernelsim.cuda_sim.runtime_library import (
    INCLUDE,
    SIMULATOR_HEADERS,
    SLOT,
    STACKS,
    UNGUARDED,
    UNITS,
    runtime,
    runtime_texts,
)
from kernelsim.errors import CompileError, KernelError, RefusedError
from kernelsim.host import Compiler, Host, Key
from kernelsim.text.includes import find_header
from kernelsim.text.library_headers import CURAND_HEADER, curand_folder
from kernelsim.text.options import CudaOptions, parse_options
from kernelsim.text.own_headers import OwnHeader
from kernelsim.text.parsed_source import ParsedSource, parsed
from kernelsim.text.source import CudaSource
from kernelsim.text.torch_names import FUNCTION_OBJECT, HEADERS, TORCH_NAMES, uses_torch_names

__all__ = ["SIMULATOR_HEADERS", "Built", "compile_kernel"]

_FOLDER = Path(__file__).parent
_HEADER = "kernelsim.h"
_ENTRY = "<kernel>"  # the file name of the generated entry point, in the compiler's messages

# CUDA code may alias memory as any type and relies on wrapping integers; it raises no exceptions.
_FLAGS = (
    *(
        "-fPIC",
        "-fvisibility=hidden",
        "-fno-strict-aliasing",
        "-fwrapv",
        "-fno-exceptions",
        "-fno-math-errno",
        "-pthread",
    ),
    # Lines and inlined functions only: -gdwarf-4 after -g1 would mean -g2.
    *("-ffunction-sections", "-fdata-sections", "-fno-finite-loops", "-gdwarf-4", "-g1", "-w"),
)
_FAST = ("-O2",)
# Little optimisation, so that accesses stay as in the source: not merged, not widened, not moved. Products and
# sums are fused as in the fast build.
_CHECKED = (
    *("-O1", "-fno-tree-vectorize", "-fno-tree-sink", "-fno-tree-dce", "-fno-dce", "-fsanitize-coverage=trace-pc"),
    *("-fsanitize=thread", "-fsanitize=alignment", "-fsanitize=integer-divide-by-zero"),
    # A copy of a few bytes that becomes instructions would not be examined; a call is (see assembly.py).
    *("-fno-builtin-memcpy", "-fno-builtin-memmove", "-fno-builtin-memset"),
)
_COMPILER_FLAGS = {  # flags of the checked build that differ between the two compilers
    "g++": ("-fsanitize=bounds", "-fexpensive-optimizations", "--param=tsan-distinguish-volatile=1"),
    "clang": (
        "-fsanitize=array-bounds",
        "-mllvm",
        "-tsan-distinguish-volatile=1",
        "-mllvm",
        "-tsan-instrument-read-before-write=1",
    ),
}
_G_PLUS_PLUS = (
    "-fno-gnu-unique",  # else shared arrays of the same name in two kernels are merged
    "-gstatement-frontiers",  # lines of statements without an instruction, as with -g2
    *("--param", "ggc-min-heapsize=524288"),  # KiB in use before g++ looks for what it may free, which takes it long
)
# The linker warns of functions that there are not: _USED_PTX.
_LINK = ("-shared", "-pthread", "-Wl,--gc-sections", "-Wl,-z,now", "-Wl,-z,defs", "-Wl,--warn-unresolved-symbols")
_NAME_OF_ITS_TYPE = "changes meaning of"  # using Array = Array<T, N>; in a class: CUTLASS's compilers take it
_USED_PTX = re.compile(rf"{USED_PTX}([0-9a-f]{{12}})_(\d+)")
_LIBRARY = 1_000_000  # characters of headers: more are a library's, of which the preprocessor reads a part


@dataclass(frozen=True)
class Built:
    """A compiled kernel: its name, its shared object, its source, whether it is the checked build, and the libraries
    for all kernels."""

    name: str
    file: Path
    source: CudaSource
    checked: bool
    stacks: Path
    slot: Path


def compile_kernel(source: CudaSource, expression: str, host: Host, *, checked: bool) -> Built:
    """Compile one kernel, or take it from the cache.

    ``expression`` names it in C++: ``kernel``, ``space::kernel``, or an instance such as ``add<float, 4>``.

    Raises:
        RefusedError: the source uses a feature that cannot be simulated, or this machine has no compiler.
        CompileError: with file, line, source line and caret of the first errors.
        KernelError: an option that is not known, or no kernel of that name.
    """
    missing = lacking(host.compiler, host.system)
    if missing is not None:
        raise RefusedError(f"{source.name}: {missing.reason}", fix=missing.remedy)
    build = _Build(source, expression, host, checked)
    key = build.key()

    def announce() -> None:
        host.notify(f"compiling {expression} of {source.name} for the simulator; cached for next time")

    folder = host.get_or_build(key, build.run, on_build=announce)
    libraries = runtime(build.compiler, host)
    return Built(
        expression, folder / "kernel.so", source, checked, *(libraries / f"{name}.so" for name in (STACKS, SLOT))
    )


def _any_code(test: Callable[[str], object], sources: Sequence[ParsedSource]) -> bool:
    """Whether a test finds something outside of comments and literals, which are looked for only if they matter."""
    return any(test(source.text) and test(source.code) for source in sources)


class _Build:
    """One compilation: a source, an expression, and the choice of build."""

    def __init__(self, source: CudaSource, expression: str, host: Host, checked: bool) -> None:
        assert host.compiler is not None  # refused by the caller
        self.source, self.expression, self.host, self.checked = source, expression, host, checked
        self.compiler: Compiler = host.compiler
        self.options: CudaOptions = parse_options(source.options)
        self.standard = max(17, self.options.standard)  # the simulator's headers need 17
        self.files = source.device_files(_is_ours, expression).with_one_kernel(expression)
        self.headers: Sequence[OwnHeader] = self.files.headers
        self.lenient: tuple[str, ...] = ()  # for a library's headers that g++ takes with a warning only
        self.rewritten_headers: dict[str, RewrittenHeader] = {}
        sources = self.files.sources
        self.uses_torch_names = _any_code(uses_torch_names, sources) or uses_torch_names(expression)
        self.uses_function_objects = _any_code(FUNCTION_OBJECT.search, sources)
        self.uses_curand = any(CURAND_HEADER in source.text for source in sources)

    def key(self) -> Key:
        """The cache key: what the shared object depends on besides the headers that its build reads."""
        options = self.options
        kept = (*self.macros(), *options.preincluded, str(self.standard), str(options.fuses))
        return Key(
            name=f"simulator.{'checked' if self.checked else 'fast'}.{Path(self.source.name).stem}.{self.expression}",
            parts=(
                ("source", self.source.text),
                ("rewritten", rewrite(self.files.source, checked=self.checked)),
                *(("header", header.text) for header in self.headers),
                *(rewriters() if self.headers else ()),
                ("name", self.source.name),  # part of the debug information
                ("kept options", " ".join(kept)),
                ("flags", " ".join(self.flags())),
                ("expression", self.expression),
                ("checked", str(self.checked)),
                *self.host.key_parts(self.compiler, self.source.options),
                *runtime_texts(),
            ),
            base=self.source.folder,
        )

    def flags(self) -> list[str]:
        """The compiler's flags, without include folders."""
        clang = "clang" in self.compiler.version
        build = list(_CHECKED if self.checked else _FAST)
        if self.checked:
            build += _COMPILER_FLAGS["clang" if clang else "g++"]
        if not clang:
            build += _G_PLUS_PLUS
        fused = ["-ffp-contract=fast" if self.options.fuses else "-ffp-contract=off"]
        instructions = ["-mfma"] if "fma" in self.host.processor.split() else []
        return [f"-std=c++{self.standard}", *_FLAGS, UNGUARDED, *build, *fused, *instructions]

    def macros(self) -> list[str]:
        capability = self.options.capability
        features = [f"-D__CUDA_ARCH_FEAT_SM{capability}_ALL=1", f"-D__CUDA_ARCH_SPECIFIC__={capability}0"]
        return [
            *("-D__CUDACC__=1", "-D__CUDACC_RTC__=1", f"-D__CUDA_ARCH__={capability}0", "-D__KERNELSIM__=1"),
            *("-D__CUDACC_VER_MAJOR__=13", "-D__CUDACC_VER_MINOR__=0"),  # headers ask for the instructions of a version
            *(features if self.options.is_for_one_gpu else ()),
            *self.options.macros,
        ]

    def run(self, folder: Path) -> Any:
        """Write kernel.so and its source into ``folder``."""
        made = runtime(self.compiler, self.host)
        objects = [str(made / f"{unit}.o") for unit in UNITS]
        self.precompiled = self.precompiled_header()
        self.watch = self.host.watch(self.compiler)
        self.headers = self.headers_read(folder)
        self.write_sources(folder)
        self.refuse_unsupported(folder)
        if self.checked:
            self.compile(folder, ["-S", "kernel.cpp", "-o", "kernel.s"])
            assembly = folder / "kernel.s"
            assembly.write_text(instrumented(assembly.read_text()))
            link = [self.compiler.path, "kernel.s", *objects, *_LINK, *self.watch.link_flags, "-o", "kernel.so"]
            log = self.host.run(link, f"{self.source.name} (linked)", target="the simulator", folder=folder)
            assembly.unlink()
        else:
            log = self.compile(folder, ["kernel.cpp", *objects, *_LINK, *self.watch.link_flags, "-o", "kernel.so"])
        self.refuse_used_ptx(log)
        within = [path for made in self.precompiled for path in included_by(made)]
        return self.watch.read_files(
            self.command(folder, [])[1:], base=self.source.folder, built_in=folder, folder=folder,
            installed=[_FOLDER, *self.precompiled], others=[*(header.path for header in self.headers), *within],
            texts=[self.source.text],
        )  # fmt: skip

    def headers_read(self, folder: Path) -> Sequence[OwnHeader]:
        """The user's headers without those that the preprocessor leaves out, if it takes long to rewrite them all."""
        if sum(len(header.text) for header in self.headers) < _LIBRARY:
            return self.headers
        source = folder / "included.cpp"
        before = [f'#include "{name}"' for name in self.options.preincluded]
        source.write_text("\n".join([*before, self.files.text]))
        command = [word for word in self.command(folder, ["-M", "-MG", source.name]) if not word.startswith("-Wa,")]
        try:
            rule = self.host.run(command, self.source.name, target="the simulator", folder=folder)
        except CompileError:
            return self.headers  # the compilation says why
        finally:
            source.unlink()
        read = {os.path.realpath(name) for name in re.findall(r"(?:\\.|[^\s\\])+", rule)}
        return [header for header in self.headers if str(header.path) in read]

    def write_sources(self, folder: Path) -> None:
        """Write the rewritten source and headers, and the originals, from which compilers quote lines."""
        lines = [f'#include "{name}"' for name in self.options.preincluded]
        source = self.files.source
        redirects = self.files.redirects(source, self.source.path, _is_ours)
        lines += [f'#line 1 "{self.source.name}"', rewrite(source, checked=self.checked, redirects=redirects)]
        lines += [
            f'#line 1 "{_ENTRY}"',
            '#include "kernelsim/entry.h"',
            f"KERNELSIM_KERNEL_ENTRY({self.source.defining(self.expression).globally_named(self.expression)})",
        ]
        (folder / "kernel.cpp").write_text("\n".join(lines) + "\n")
        (folder / self.source.name).write_text(self.source.text)
        for header in self.headers:
            rewritten = parsed(self.header(header).text)
            text = self.files.redirected(rewritten, header.path, _is_ours)
            (folder / header.copy).write_text(f'#line 1 "{header.path.name}"\n{text}')

    def header(self, header: OwnHeader) -> RewrittenHeader:
        """A header for the compiler, rewritten or read once."""
        if header.text not in self.rewritten_headers:
            self.rewritten_headers[header.text] = rewritten_header(
                header.source, self.host, checked=self.checked, of_library=header.of_library
            )
        return self.rewritten_headers[header.text]

    def refuse_unsupported(self, folder: Path) -> None:
        """Raise RefusedError for the first unsupported feature outside of inactive ``#if`` branches."""
        own = [(self.source.path, self.source.name, self.files.text, "kernel.cpp", refusals(self.files.source))]
        own += [(h.path, h.path.name, h.text, h.copy, list(self.header(h).refusals)) for h in self.headers]
        folders = self.options.include_folders
        suspicious = [
            (name, text, file, [r for r in found if not (r.header and find_header(r.header, path, folders))])
            for path, name, text, file, found in own
        ]
        if not any(found for *_, found in suspicious):
            return
        for _, _, file, found in suspicious:  # missing headers would stop the preprocessor
            lines = [r.line for r in found if r.what.startswith("#include")]
            if lines:
                before = 2 + len(self.options.preincluded) - 1 if file == "kernel.cpp" else 1
                kept = (folder / file).read_text()
                (folder / file).write_text(without_includes(kept, [line + before for line in lines]))
        self.compile(folder, ["-E", "kernel.cpp", "-o", "kernel.i"])
        preprocessed = (folder / "kernel.i").read_text(errors="replace")
        active = active_lines(preprocessed)
        asm = {int(line) for line in re.findall(rf"\b{NO_PTX}(\d+)", preprocessed)}  # a macro's is where it is used
        (folder / "kernel.i").unlink()
        for name, text, _, found in suspicious:
            for refusal in found:
                is_ptx = refusal.what.startswith("inline PTX")
                if refusal.line in asm if is_ptx else is_active(refusal, active.get((name, refusal.line), "")):
                    raise refused(name, text, refusal)
        self.write_sources(folder)

    def refuse_used_ptx(self, log: str) -> None:
        """Raise RefusedError for inline PTX of headers without a translation, if the linker found that the kernel
        uses it."""
        used = {(name[1], int(name[2])) for name in _USED_PTX.finditer(log)}
        for header in self.headers if used else ():
            for refusal in refused_ptx(header.source):
                if (text_digest(header.text), refusal.line) in used:
                    raise refused(header.path.name, header.text, refusal)

    def precompiled_header(self) -> list[Path]:
        """The folder of the simulator's precompiled header; none if the user's options might change the header."""
        if self.options.macros or self.options.include_folders or "clang" in self.compiler.version:
            return []
        flags = [*self.flags(), *self.macros(), *self.renamed_folders(), f"-I{INCLUDE}"]
        return [precompiled_header(INCLUDE / _HEADER, self.compiler, flags, runtime_texts(), self.host)]

    def renamed_folders(self) -> list[str]:
        return [f"-ffile-prefix-map={ours}={SIMULATOR_HEADERS}" for ours in (INCLUDE, HEADERS)]

    def command(self, folder: Path, arguments: list[str]) -> list[str]:
        places = [f"-ffile-prefix-map={folder}=.", *self.renamed_folders()]
        places += [f"-I{made}" for made in self.precompiled]
        here = [f"-iquote{self.source.path.parent}"] if self.source.path is not None else []
        include = [f"-I{INCLUDE}", *here, *(f"-I{path.absolute()}" for path in self.options.include_folders)]
        curand = curand_folder() if self.uses_curand else None
        include += [f"-idirafter{curand}"] if curand is not None else []
        before = ["-include", _HEADER]
        if self.uses_function_objects:
            before += ["-include", "functional"]
        if self.uses_torch_names:
            before += ["-include", str(HEADERS / TORCH_NAMES)]
        watched = self.watch.compile_flags
        return [
            self.compiler.path,
            *self.flags(),
            *self.lenient,
            *self.macros(),
            *places,
            *include,
            *before,
            *watched,
            *arguments,
        ]

    def compile(self, folder: Path, arguments: list[str]) -> str:
        try:
            return self.host.run(
                self.command(folder, arguments), self.source.name, target="the simulator", folder=folder,
                environment=self.watch.environment,
            )  # fmt: skip
        except CompileError as error:
            if "PCH" in error.log and self.precompiled:  # g++ could not map it where it was made
                self.precompiled = []
                return self.compile(folder, arguments)
            if _NAME_OF_ITS_TYPE in error.log and not self.lenient and any(h.of_library for h in self.headers):
                self.lenient = ("-fpermissive",)
                return self.compile(folder, arguments)
            raise self.explained(error) from None

    def explained(self, error: CompileError) -> KernelError:
        """The compiler's error, or its cause if it is known: no such kernel, or a function that the simulator lacks."""
        names = self.source.kernels
        base = re.split(r"[<:]", self.expression.split("<")[0])[-1].strip(" &")
        if base not in names and re.search(rf"(?m)^{_ENTRY}:", error.log):
            return KernelError(
                f"{self.source.name}: the kernel must be one of {list(names)}, got {self.expression!r}",
                fix="name one of them, or define it",
            )
        if "overloaded function" in error.log and f"{_ENTRY}:" in error.log:
            return KernelError(
                f"{self.source.name}: {self.expression!r} is overloaded, or its template arguments do not fit",
                fix="give the kernel that is meant a name of its own, or write other arguments",
            )
        unknown = re.search(r"‘(__\w+)’ was not declared|undeclared identifier '(__\w+)'", error.log)
        if unknown:
            name = unknown[1] or unknown[2]
            error.fix = (
                f"the simulator does not know {name}; docs/simulator.md lists the supported functions. {error.fix}"
            )
        return error


# --- the user's headers ---


def _is_ours(name: str) -> bool:
    return (INCLUDE / name).is_file()
