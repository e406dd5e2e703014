"""nvcc's options, sorted by purpose for the two compilers of CUDA C++: NVRTC for a GPU, the simulator for a CPU."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelsim.errors import KernelError

__all__ = ["CudaOptions", "parse_options"]


@dataclass(frozen=True)
class CudaOptions:
    """Compiler options, sorted by purpose.

    Attributes:
        macros: ``-D`` and ``-U`` options, in order, each joined to one string.
        arch: of ``-arch``, such as ``sm_90a``.
        code: options that change the generated code or the language, each joined to one string.
        dropped: options of nvcc that do not apply to a just-in-time compiler, such as ``-O3`` and ``-Xcompiler``.
    """

    include_folders: tuple[Path, ...] = ()
    macros: tuple[str, ...] = ()
    arch: str | None = None
    code: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()

    def value(self, name: str, default: str) -> str:
        """The last value of an option in ``code``, such as ``--std``."""
        values = [c.partition("=")[2] for c in self.code if c.startswith(f"{name}=")]
        return values[-1] if values else default

    @property
    def preincluded(self) -> tuple[str, ...]:
        """Headers that are included before the source."""
        return tuple(c.partition("=")[2] for c in self.code if c.startswith("--pre-include="))

    @property
    def standard(self) -> int:
        """The C++ standard, such as 17."""
        return self._number("a C++ standard", r"(?:c|gnu)\+\+(\d+)", self.value("--std", "c++17"))

    @property
    def fuses(self) -> bool:
        """Whether a product and a sum may become one operation."""
        return self.value("--fmad", "true") == "true"

    @property
    def capability(self) -> int:
        """The compute capability, such as 90 (``__CUDA_ARCH__ / 10``)."""
        return self._number("an architecture", r"(?:sm|compute)_(\d+)[af]?", self.arch or "sm_90")

    @property
    def is_for_one_gpu(self) -> bool:
        """Whether code may use what only GPUs of this architecture have (``wgmma``): sm_90a, also the default."""
        return (self.arch or "sm_90a").endswith("a")

    def _number(self, what: str, pattern: str, value: str) -> int:
        found = re.fullmatch(pattern, value)
        if found is None:
            raise KernelError(f"{value!r} is not {what}", fix="write it as nvcc's documentation does")
        return int(found[1])


# Options with a value, in every way that nvcc writes them: ``-I dir``, ``-Idir``, ``--include-path=dir``.
_INCLUDE = ("-I", "--include-path", "-isystem", "--system-include")
_MACRO = {"-D": "-D", "--define-macro": "-D", "-U": "-U", "--undefine-macro": "-U"}
_ARCH = ("-arch", "--gpu-architecture")
# Options for nvcc's host compiler, its files, or several architectures; they do not apply to one device compilation.
_HOST_WITH_VALUE = (
    "-Xcompiler", "--compiler-options", "-ccbin", "--compiler-bindir", "-gencode", "--generate-code", "-x", "--x", "-t",
    "--threads", "-Xlinker", "--linker-options", "-o", "-l", "-L", "-code",
)  # fmt: skip
_HOST_ALONE = re.compile(
    r"-O[0-3s]?$|-g$|--optimize.*|-f(PIC|pic)$|-c$|-shared$|--compile$|-W.*|--expt-relaxed-constexpr$|-res-usage$"
)
_CODE_WITH_VALUE = ("-std", "--std", "-maxrregcount", "--maxrregcount", "-ftz", "--ftz", "-prec-div", "--prec-div",
                    "-prec-sqrt", "--prec-sqrt", "-fmad", "--fmad", "-Xptxas", "--ptxas-options", "-diag-suppress",
                    "--diag-suppress", "-diag-error", "--diag-error", "-include", "--pre-include")  # fmt: skip
_CODE_ALONE = {
    "-use_fast_math": "--use_fast_math", "--use_fast_math": "--use_fast_math",
    "-G": "-G", "--device-debug": "-G", "-lineinfo": "-lineinfo", "--generate-line-info": "-lineinfo",
    "--extended-lambda": "--extended-lambda", "--expt-extended-lambda": "--extended-lambda",
    "-extended-lambda": "--extended-lambda", "-expt-extended-lambda": "--extended-lambda",
    "-w": "-w", "--disable-warnings": "-w", "-default-device": "-default-device",
    "-restrict": "-restrict", "--restrict": "-restrict", "-extra-device-vectorization": "-extra-device-vectorization",
}  # fmt: skip


def parse_options(options: Sequence[str]) -> CudaOptions:
    """Sort nvcc's options by purpose.

    Raises:
        KernelError: an option that is not known: dropping it in silence could change what a kernel computes.
    """
    includes: list[Path] = []
    macros: list[str] = []
    code: list[str] = []
    dropped: list[str] = []
    arch = None
    for option, value in _with_values(options):
        if option in _INCLUDE:
            includes.append(Path(value))
        elif option in _MACRO:
            macros.append(_MACRO[option] + value)
        elif option in _ARCH:
            arch = value
        elif option in _CODE_WITH_VALUE:
            code.append(
                f"--{option.lstrip('-')}={value}".replace("--Xptxas", "--ptxas-options").replace(
                    "--include=", "--pre-include="
                )
            )
        elif option in _CODE_ALONE:
            code.append(_CODE_ALONE[option])
        else:
            dropped.append(f"{option} {value}".strip())
    return CudaOptions(tuple(includes), tuple(macros), arch, tuple(code), tuple(dropped))


def _with_values(options: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each option and its value, however the two were joined."""
    with_value = (*_INCLUDE, *_MACRO, *_ARCH, *_CODE_WITH_VALUE, *_HOST_WITH_VALUE)
    waiting = list(options)
    while waiting:
        option = waiting.pop(0)
        name, equals, value = option.partition("=")
        if option in with_value:
            if not waiting:
                raise KernelError(f"the CUDA option {option!r} needs a value", fix=f"write [{option!r}, VALUE]")
            yield option, waiting.pop(0)
        elif equals and name in with_value:
            yield name, value
        elif option[:2] in ("-I", "-D", "-U", "-l", "-L") and not option.startswith("--") and option not in _CODE_ALONE:
            yield option[:2], option[2:]
        elif option in _CODE_ALONE or _HOST_ALONE.match(option):
            yield option, ""
        else:
            raise KernelError(
                f"the CUDA option {option!r} is not known",
                fix="give one string an option, as in options=['-DTILE=32', '--use_fast_math', '-I', 'include']",
            )
