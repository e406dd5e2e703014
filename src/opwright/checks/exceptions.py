"""Exceptions of a kernel, whose class and text are the user's: in words, and with the line that raised them."""

from __future__ import annotations

import functools
import importlib.util
import linecache
import os
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from opwright.contract.contract import Contract
from opwright.errors import CompileTimeoutError, NotSimulatedError
from opwright.target import Engine, engines_here

__all__ = [
    "Raised", "in_words", "is_beyond_hardware", "is_lost_gpu", "is_refusal", "pass_on_refusal", "place_of", "simulates",
    "text_of", "where_raised",
]  # fmt: skip


class Raised(Exception):
    """An exception of the kernel, in the words of the process in which it ran.

    Attributes:
        kind: the name of its class.
        at: the line of the user's that raised it, on lines of its own; or empty.
    """

    def __init__(self, kind: str, text: str, at: str = "") -> None:
        super().__init__(text)
        self.kind, self.at = kind, at

    def __str__(self) -> str:
        return f"{self.kind}: {self.args[0]}{self.at}"


_LOST_GPU = ("illegal memory access", "misaligned address", "unspecified launch failure", "device-side assert")
# What is raised of blocks that need more shared memory, registers or threads than there are; and of Triton's blocks of
# more than 2**20 elements.
_BEYOND_HARDWARE = (
    ("OutOfResources", "out of resource"),
    ("CompilationError", "exceeds triton maximum tensor numel"),
    ("AcceleratorError", "too many resources requested for launch"),
)


def is_lost_gpu(text: str) -> bool:
    """Whether an error says that CUDA answers the process nothing but this error from now on."""
    return "CUDA error" in text and any(words in text for words in _LOST_GPU)


def is_beyond_hardware(raised: Raised) -> bool:
    """Whether a kernel could not be launched because the hardware, or its compiler, has no blocks that are so large.

    Only the classes count that Triton and CUDA raise: a kernel must not choose by a text which sizes are checked.
    """
    return any(raised.kind == kind and words in str(raised) for kind, words in _BEYOND_HARDWARE)


_REFUSALS = frozenset(
    {
        "AssertionError",
        "CompilationError",  # Triton's, and those that follow
        "CompileTimeAssertionFailure",
        "LaunchError",
        "NotImplementedError",
        "RuntimeError",
        "UnsupportedLanguageConstruct",
        "ValueError",
    }
)
_REFUSED_LAUNCHES = ("CUDA error: invalid argument", "CUDA error: invalid configuration argument")


def is_refusal(raised: Raised) -> bool:
    """Whether an exception may say that a kernel does not take its arguments: no error of a simulator or of an access,
    and of a compiler only Triton's, which compiles a kernel again for each size that is a constant of it."""
    if raised.kind == "AcceleratorError":
        return str(raised.args[0]).startswith(_REFUSED_LAUNCHES)
    if raised.kind == "KernelError":
        return str(raised.args[0]).startswith("Triton does not compile")
    return raised.kind in _REFUSALS and not is_lost_gpu(str(raised))


def text_of(error: BaseException) -> str:
    """The text of an exception, whose ``__str__`` may raise another one."""
    try:
        return str(error)
    except Exception as wrong:  # the class is the user's
        return f"(its __str__ raises {type(wrong).__name__})"


def in_words(error: BaseException) -> str:
    """The class and the text of an exception."""
    return f"{type(error).__name__}: {text_of(error)}"


def where_raised(error: BaseException) -> str:
    """The last line of the user's that ran, on lines of its own; or empty."""
    return place_of(frame for part in _with_causes(error) for frame in traceback.extract_tb(part.__traceback__))


def place_of(frames: Iterable[traceback.FrameSummary]) -> str:
    """The last line of the user's among some frames, on lines of its own; or empty."""
    own = [f for f in frames if f.lineno and _is_the_users(f.filename)]
    if not own:
        return ""
    line = linecache.getline(own[-1].filename, own[-1].lineno or 0).strip()
    return f"\n{Path(own[-1].filename).name}:{own[-1].lineno}:\n    {line}"


def simulates(contract: Contract | None = None) -> bool:
    """Whether kernels for GPUs run without one, so that there may be what no simulator has: in a simulator, and those
    of a published task in any language, if the contract is of one."""
    is_published = contract is not None and contract.own_inputs.may_refuse
    return Engine.SIMULATOR in engines_here() or (is_published and not torch.cuda.is_available())


def pass_on_refusal(error: Exception, contract: Contract | None = None) -> None:
    """Raise what says nothing about the kernel: a simulator does not have it, or its compilation was stopped."""
    if (isinstance(error, NotSimulatedError) and simulates(contract)) or isinstance(error, CompileTimeoutError):
        raise error


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    """An exception and those that it was raised from, as Triton's interpreter wraps what a line of a kernel raises."""
    known: BaseException | None = error
    while known is not None:
        yield known
        known = known.__cause__


def _is_the_users(file: str) -> bool:
    parts = Path(file).parts
    in_python = file.startswith(_python()) and "site-packages" not in parts
    is_called = file.startswith(_called()) and "gallery" not in parts
    return Path(file).is_file() and not in_python and not is_called


@functools.cache
def _python() -> str:
    """The folder of Python's own modules."""
    return sysconfig.get_path("stdlib") + os.sep


@functools.cache
def _called() -> tuple[str, ...]:
    """The folders of packages that kernels call."""
    found = map(importlib.util.find_spec, ("torch", "triton", "numpy", "opwright", "kernelsim"))
    return tuple(str(Path(spec.origin).parent) + os.sep for spec in found if spec is not None and spec.origin)
