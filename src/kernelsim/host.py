"""What the simulators need of their surroundings, which may be passed in: a C++ compiler and how it is run, a cache of
what was built, and a place for messages. ``own_host`` is kernelsim's own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

__all__ = ["Compiler", "Host", "Key", "KeyParts", "Watch"]

# (label, value), in their order.
KeyParts = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Key:
    """What is built, besides the files that its build reads.

    Attributes:
        name: readable.
        parts: all that the result depends on: the compiler, its flags, the source.
        base: the folder of the source.
    """

    name: str
    parts: KeyParts
    base: Path | None = None


class Compiler(Protocol):
    """A C++ compiler: its path, and the first line of its version."""

    @property
    def path(self) -> str: ...

    @property
    def version(self) -> str: ...


class Watch(Protocol):
    """Watches what one build reads: its compilers run with ``environment`` and ``compile_flags``, its linker with
    ``link_flags``."""

    @property
    def environment(self) -> Mapping[str, str]: ...

    @property
    def compile_flags(self) -> list[str]: ...

    @property
    def link_flags(self) -> list[str]: ...

    def included(self) -> list[str]:
        """The files that the compiler has included, absolute paths."""
        ...

    def read_files(
        self,
        flags: Sequence[str],
        *,
        base: Path,
        built_in: Path,
        installed: Sequence[Path],
        folder: Path | None = None,
        others: Iterable[Path] = (),
        texts: Iterable[str] = (),
        linked: bool = True,
    ) -> Any:
        """What the build has read, in a form that ``Host.get_or_build`` understands.

        Args:
            flags: all flags of the compiler and the linker.
            base: the folder of the source.
            built_in: the folder that the build fills.
            installed: folders of what was installed and is not the user's.
            folder: the working folder of its programs.
            others: files that were read before the compiler ran.
            texts: sources that are in none of the files.
            linked: whether a linker was among its programs.
        """
        ...


class Host(Hashable, Protocol):
    """The surroundings of a simulator."""

    @property
    def compiler(self) -> Compiler | None: ...

    @property
    def system(self) -> str:
        """The name of the operating system, such as ``Linux``."""
        ...

    @property
    def processor(self) -> str:
        """The names of the processor's instruction sets, separated by blanks."""
        ...

    def calling(self) -> AbstractContextManager[None]:
        """A block around each launch, in which a host may raise errors of its own in place of kernelsim's."""
        ...

    def cores(self) -> int:
        """The number of cores that a launch may use."""
        ...

    def notify(self, message: str) -> None:
        """Tell the user what takes long."""
        ...

    def key_parts(self, compiler: Compiler, options: Sequence[str]) -> KeyParts:
        """Parts of a key for the compiler, its environment and the user's options."""
        ...

    def get_or_build(
        self, key: Key, build: Callable[[Path], Any], *, on_build: Callable[[], None] | None = None
    ) -> Path:
        """The folder with what was built for a key. If there is none, ``build(folder)`` fills an empty one.

        ``build`` returns what its ``Watch`` says it has read; None if the key covers all of that.
        """
        ...

    def watch(self, compiler: Compiler) -> Watch:
        """Watch one build."""
        ...

    def run(
        self,
        command: Sequence[str],
        what: str,
        *,
        target: str = "",
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> str:
        """Run a compiler or a linker to its end, and return its output.

        Args:
            what: what is compiled; error messages begin with it.
            target: what it is compiled for, in error messages.
            folder: its working directory.

        Raises:
            CompileError: it failed.
        """
        ...

    def triton_name(self, key: str) -> Any | None:
        """One of Triton's private names (``triton_sim/internals.py``); None if this Triton lacks it."""
        ...
