"""A CUDA C++ source and the options it is compiled with, as both the GPU's compiler and the simulator take them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from opwright.errors import KernelError

__all__ = ["CudaSource", "Meaning", "blank_out", "kernels_in", "read_options"]


@dataclass(frozen=True)
class CudaSource:
    """Text with ``__global__`` functions.

    Attributes:
        text: the source.
        path: the file that it came from, for messages and for the headers next to it; None for a string.
        options: the compiler's options, spelt as for NVRTC or nvcc.
    """

    text: str
    path: Path | None = None
    options: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.path.name if self.path is not None else "kernel.cu"


@dataclass(frozen=True)
class Meaning:
    """What a list of options says, in so far as it can mean something off the GPU.

    Attributes:
        macros: definitions and undefinitions, in their order, as ``-DNAME=value`` and ``-UNAME``.
        folders: where headers are looked for, in order.
        preincluded: headers included before the source.
        standard: the C++ standard, such as 17.
        fmad: whether a product and a sum may become one fused operation.
        architecture: the compute capability that the code is for, such as 90 (the value of ``__CUDA_ARCH__`` / 10).
    """

    macros: tuple[str, ...] = ()
    folders: tuple[Path, ...] = ()
    preincluded: tuple[str, ...] = ()
    standard: int = 17
    fmad: bool = True
    architecture: int = 90


# Each long spelling, and nvcc's or NVRTC's shorter ones.
_VALUED = {
    "--define-macro": "-D",
    "--undefine-macro": "-U",
    "--include-path": "-I",
    "--pre-include": "-include",
    "--std": "-std",
    "--gpu-architecture": "-arch",
    "--fmad": "-fmad",
}
# Known, and without a meaning where there is no GPU: optimisation, debugging, registers, diagnostics.
_IGNORED = re.compile(
    r"-O[0-3]?|-g|-G|-w|-lineinfo|--generate-line-info|--device-debug|--dopt(=\w+)?|-dopt(=\w+)?"
    r"|(--?)(use_fast_math|restrict|ftz=\w+|prec-div=\w+|prec-sqrt=\w+|maxrregcount=\d+|extra-device-vectorization"
    r"|default-device|device-as-default-execution-space|expt-relaxed-constexpr|expt-extended-lambda|extended-lambda"
    r"|extensible-whole-program|resource-usage|minimal|no-source-include|disable-warnings|display-error-number"
    r"|no-display-error-number|builtin-move-forward=\w+|builtin-initializer-list=\w+|diag-\w+=[\w,-]+"
    r"|relocatable-device-code=\w+|rdc=\w+|split-compile=\d+|time=.*|ptxas-options=.*|optimize=\d|jump-table-density=\d+)"
)
_IGNORED_WITH_VALUE = {"-Xptxas", "--ptxas-options", "-Xcompiler", "--compiler-options", "-maxrregcount"}


def read_options(options: Sequence[str]) -> Meaning:
    """What NVRTC's or nvcc's options say. Raises KernelError for one that is not known."""
    macros: list[str] = []
    folders: list[Path] = []
    preincluded: list[str] = []
    standard, fmad, architecture = Meaning.standard, Meaning.fmad, Meaning.architecture
    for name, value in _spelt_alike(options):
        match name:
            case "-D" | "-U":
                macros.append(name + value)
            case "-I":
                folders.append(Path(value))
            case "-include":
                preincluded.append(value)
            case "-std":
                standard = max(17, _number(r"(?:c|gnu)\+\+(\d+)", name, value))  # the simulator's headers need 17
            case "-arch":
                architecture = _number(r"(?:sm|compute)_(\d+)[af]?", name, value)
            case "-fmad":
                fmad = value == "true"
    return Meaning(tuple(macros), tuple(folders), tuple(preincluded), standard, fmad, architecture)


def _spelt_alike(options: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each option that means something, with its value, whichever way it was written."""
    left = iter(options)
    for option in left:
        if option in _IGNORED_WITH_VALUE:
            next(left, None)
            continue
        if _IGNORED.fullmatch(option):
            continue
        name, equals, value = option.partition("=")
        name = _VALUED.get(name, name)
        if name in ("-std", "-arch", "-fmad", "-include", "-D", "-U", "-I"):
            yield name, value if equals else next(left, "")
        elif option[:2] in ("-D", "-U", "-I"):
            yield option[:2], option[2:]
        else:
            raise KernelError(
                f"{option!r} is no option that the simulator knows",
                fix="leave it out for the simulator, or write it as NVRTC's documentation does",
            )


def _number(pattern: str, name: str, value: str) -> int:
    found = re.fullmatch(pattern, value)
    if found is None:
        raise KernelError(f"{name}={value} says nothing that the simulator understands")
    return int(found[1])


_COMMENT_OR_STRING = re.compile(
    r"""//(?:\\\n|[^\n])*|/\*.*?\*/|R"(?P<mark>[^\s()\\]{0,16})\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'""",
    re.DOTALL,
)


def blank_out(text: str) -> str:
    """The text with comments and literals as spaces: what is left is code, and stands where it stood."""

    def blank(found: re.Match[str]) -> str:
        if found[0][0] == "'" and text[found.start() - 1 : found.start()].isalnum():
            return found[0]  # 1'000'000: a digit separator
        return re.sub(r"[^\n]", " ", found[0])

    return _COMMENT_OR_STRING.sub(blank, text)


def kernels_in(text: str) -> list[str]:
    """The names of the ``__global__`` functions that a source declares."""
    pattern = r"__global__\b[^;{}()]*?(?:__launch_bounds__\s*\([^)]*\)[^;{}()]*?)?\b(\w+)\s*\("
    return sorted(set(re.findall(pattern, blank_out(text))))
