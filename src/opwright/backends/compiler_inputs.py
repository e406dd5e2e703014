"""What a compiler and a linker have read, from their own reports: the headers, libraries and objects of one build.

Shared by everything that is built from C++ and CUDA. Nothing here reads a source to find what it includes, except to
find names that no report has (``named_files.py``).

The reports are ``SUNPRO_DEPENDENCIES`` of gcc, also under nvcc; ``--dependency-file`` of the linker; ``--MD`` of GNU's
assembler; and NVRTC's time trace (``cuda/nvrtc.py``). They also tell where a compiler looked first and found nothing: a
file that appears there counts. The user's files are compared by content, those of the compiler, the system and torch by
time and size.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from opwright.backends.build_reports import (
    assembler_lists_files,
    linked_files,
    linker_has_dependency_file,
    names_in_rules,
)
from opwright.backends.compiler_options import (
    expanded,
    library_folders,
    library_names,
    pieces,
    program_folders,
    split,
    values,
)
from opwright.backends.named_files import NamedFiles, named_files
from opwright.machine import Compiler
from opwright.read_files import ReadFiles, record_files

__all__ = ["BuildWatch", "SearchFolders", "key_parts", "read_by_build"]

# Variables that change what compilers read or make of it. A part of every key.
_VARIABLES = (
    "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX", "LD_RUN_PATH",
    "LDEMULATION", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN", "CCC_OVERRIDE_OPTIONS", "SDKROOT",
    "SOURCE_DATE_EPOCH",
)  # fmt: skip
_PROGRAMS = ("gcc", "as", "ld")  # which compilers start besides themselves, if they come first on the PATH
_OWN_PROGRAMS = ("as", "ld", "cc1plus", "cc1", "collect2", "lto-wrapper", "lto1", "specs")  # found in a folder of -B
_SOURCES = (".c", ".cc", ".cpp", ".cxx", ".cu", ".s", ".S")
_LINKED_ONLY = (".o", ".a", ".so")
_LINKED = (*_LINKED_ONLY, *_SOURCES)
_TIME_LIMIT_S = 60
_COMPILED = "compiled"  # the first part of the names of reports by compilers


@dataclass(frozen=True)
class SearchFolders:
    """The folders in which a compiler looks for headers, and its linker for libraries, in their order. Those that do
    not exist are among them; their place is not known, so they are the first."""

    headers: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()


def key_parts(compiler: Compiler | None, options: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Parts of a key for what is known before a build: the programs, the environment, the options' meaning.

    Args:
        compiler: None for one within this process.
        options: the user's. A relative path among them, or among the variables, makes the working folder count.
    """
    variables = [(name, os.environ[name]) for name in _VARIABLES if name in os.environ]
    named = [*pieces(expanded(options)), *(piece for _, value in variables for piece in re.split("[:= ]", value))]
    relative = any(not os.path.isabs(piece) and os.path.exists(piece or ".") for piece in named)
    programs = [] if compiler is None else [compiler.path, *filter(None, map(shutil.which, _PROGRAMS))]
    return (
        ("options", "\0".join(options)),
        ("environment", "\0".join(f"{name}={value}" for name, value in variables)),
        ("working folder", str(Path.cwd()) if relative else ""),
        ("programs", "\0".join(map(_identity, programs))),
        ("compiler", "" if compiler is None else compiler.version),
    )


def _identity(program: str) -> str:
    status = os.stat(program)
    return f"{os.path.realpath(program)} {status.st_size} {status.st_mtime_ns}"


class BuildWatch:
    """Watches what one build reads. Its compilers run with ``environment``, and its linker with ``link_flags``.

    gcc lists what each of its runs includes in the file that SUNPRO_DEPENDENCIES names; so does the gcc that nvcc
    starts. Unlike ``-MD``, that works for several sources in one command. clang takes ``-MD``. GNU's assembler lists
    what the last of its runs has read. Where that is not all, sources are searched for its directives.

    nvcc starts one gcc for each architecture at the same time (``--threads``), whose reports would end up in pieces
    within one another. So it finds a ``gcc`` on its PATH that gives each run a file of its own.
    """

    def __init__(self, compiler: Compiler) -> None:
        self.compiler = compiler
        self._folder = tempfile.TemporaryDirectory(prefix="opwright-inputs-")  # removed with this object
        self._compiled, self._assembled, self._linked = (
            Path(self._folder.name, name) for name in (f"{_COMPILED}.d", "assembled.d", "linked.d")
        )
        self._since_ns = time.time_ns()
        self._nvcc = compiler.version.startswith("nvcc")
        # gcc reads no further than a blank in SUNPRO_DEPENDENCIES.
        self._by_flag = "clang" in compiler.version or " " in self._folder.name

    @property
    def environment(self) -> Mapping[str, str]:
        if self._by_flag:
            return {**os.environ}
        report = {"SUNPRO_DEPENDENCIES": str(self._compiled)}
        if self._nvcc and self._host_compilers:
            report["PATH"] = f"{self._host_compilers}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        return {**os.environ, **report}

    @functools.cached_property
    def _host_compilers(self) -> str:
        """A folder with nvcc's host compilers, each run of which reports to a file of its own; empty if no program can
        be started from there. A compiler that ``-ccbin`` names is found elsewhere."""
        if os.statvfs(self._folder.name).f_flag & os.ST_NOEXEC:
            return ""
        folder = Path(self._folder.name, "host_compilers")
        folder.mkdir()
        for name in ("gcc", "g++"):
            if program := shutil.which(name):
                own_report = f"SUNPRO_DEPENDENCIES={shlex.quote(f'{self._folder.name}/{_COMPILED}')}.$$.d"
                (folder / name).write_text(f'#!/bin/sh\n{own_report} exec {shlex.quote(program)} "$@"\n')
                (folder / name).chmod(0o700)
        return str(folder)

    def _included_names(self) -> Iterator[str]:
        reports = Path(self._folder.name).glob(f"{_COMPILED}*.d")
        return (name for report in sorted(reports) for name in names_in_rules(report))

    @property
    def compile_flags(self) -> list[str]:
        if self._by_flag:
            return ["-MD", "-MF", str(self._compiled)]
        if self._nvcc or "," in str(self._assembled) or not assembler_lists_files(self.compiler.path):
            return []
        return [f"-Wa,--MD,{self._assembled}"]

    @property
    def link_flags(self) -> list[str]:
        if not self._reports_libraries:
            return []
        return ["-Xlinker", f"--dependency-file={self._linked}"]

    @functools.cached_property
    def _reports_libraries(self) -> bool:
        return linker_has_dependency_file("gcc" if self._nvcc else self.compiler.path)

    def included(self) -> list[str]:
        """The files that the compiler has included, absolute paths."""
        return [name for name in self._included_names() if os.path.isabs(name)]

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
    ) -> ReadFiles:
        """What the build has read.

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
        here = str(folder or Path.cwd())
        search = _search_folders(self.compiler, flags, here, os.environ)
        if search is None or not self._reported(flags, linked):
            return ReadFiles(complete=False)
        default = _default_folders(self.compiler)
        reported = [*self._included_names(), *(linked_files(self._linked) if self._linked.is_file() else ())]
        return read_by_build(
            [*(os.path.join(here, name) for name in reported), *map(str, others)],
            [*flags, *_flags_of_environment()],
            SearchFolders(search.headers, (*library_folders(expanded(flags, here)), *search.libraries)),
            base=base, built_in=built_in, here=here, since_ns=self._since_ns, texts=texts,
            assembled=self._assembled_files(flags, here), reports=self._folder.name,
            installed=[*map(str, installed), *default.headers, *default.libraries],
        )  # fmt: skip

    def _assembled_files(self, flags: Sequence[str], here: str) -> list[str] | None:
        """What the assembler has read; None if it made no report, or overwrote that of another run."""
        for flag in expanded(flags, here):
            is_a_file = not flag.startswith(("-", "@", self._folder.name)) and os.path.isfile(os.path.join(here, flag))
            if flag.startswith("-flto") or (is_a_file and not flag.endswith(_LINKED_ONLY)):
                return None
        if not self._assembled.is_file():
            return None
        # It also names its own source, and what the compiler calls the user's.
        paths = (os.path.join(here, name) for name in names_in_rules(self._assembled))
        return [path for path in paths if os.path.isfile(path)]

    def _reported(self, flags: Sequence[str], linked: bool) -> bool:
        """Whether the reports are there and whole. Of a linker that writes none, its options name the libraries."""
        overwritten = self._by_flag and any(flag.endswith(_SOURCES) for flag in flags)  # by that of another source
        return (
            any(Path(self._folder.name).glob(f"{_COMPILED}*.d"))
            and not overwritten
            and self._linked.is_file() == (linked and self._reports_libraries)
        )


def read_by_build(
    reported: Iterable[str],
    flags: Sequence[str],
    search: SearchFolders,
    *,
    base: Path,
    built_in: Path | None,
    here: str,
    since_ns: int,
    installed: Sequence[str],
    texts: Iterable[str] = (),
    assembled: Sequence[str] | None = None,
    reports: str = "",
) -> ReadFiles:
    """What a build has read, from the paths that its programs reported; see ``BuildWatch.read_files``.

    Args:
        assembled: the paths that the assembler reported; None if it did not.
        reports: the folder of the reports, which flags may name.

    A header of another name can be found first only in a folder that is searched. So each name that was found in one
    of the folders, or stands on a line for the preprocessor, is looked for in all of them.
    """
    options = list(expanded(flags, here))
    named = [p for p in (os.path.join(here, piece) for piece in pieces(options)) if os.path.isfile(p)]
    reported = [*reported, *(assembled or ())]
    made = tuple(f"{folder}{os.sep}" for folder in (built_in, reports) if folder)
    outside = [path for path in dict.fromkeys([*reported, *named]) if not path.startswith(made or "\0")]
    temporary = tempfile.gettempdir()
    if any(not os.path.exists(path) and os.path.dirname(path) != temporary for path in outside):
        return ReadFiles(complete=False)  # a file of the user's has gone meanwhile
    theirs = tuple(os.path.join(os.path.realpath(folder), "") for folder in installed)
    read = [path for path in outside if os.path.isfile(path)]
    own = [path for path in read if not os.path.realpath(path).startswith(theirs)]

    macros = (f"#define {macro.replace('=', ' ', 1)}" for macro in values(options, "-D", "--define-macro"))
    names = named_files([*texts, *map(_text, own), *(f"#{option}" for option in options), *macros])
    if assembled is not None:  # then the report has the names
        names = replace(names, assembled=frozenset(), has_all_assembled=True)
    if not (names.has_all_questions and names.has_all_assembled) or _specs_name_others(options, here):
        return ReadFiles(complete=False)
    folders = SearchFolders(
        tuple(dict.fromkeys([*map(os.path.dirname, own), *(os.path.join(here, f) for f in search.headers)])),
        tuple(dict.fromkeys(os.path.join(here, f) for f in search.libraries)),
    )
    choices = {
        *_named_choices(names, options, folders, here),
        *_searched_before(folders.headers, read),
        *_searched_before(folders.libraries, read),
        *_searched_before(
            [here, *(os.path.join(here, f) for f in values(options, "-I")), *folders.headers], assembled or ()
        ),
        *(member for path in own for member in _archive_members(path)),
        *(f"{path}.gch" for path in own),
    }
    looked_for = {path for path in choices if not path.startswith(made or "\0")}
    if any(path.endswith(".gch") and os.path.isdir(path) for path in looked_for):
        return ReadFiles(complete=False)  # of the files in it, the compiler takes the first that fits
    there = {path for path in looked_for if os.path.isfile(path)}
    if any(there.isdisjoint(_alternatives([here, *folders.headers], [name])) for name in names.assembled):
        return ReadFiles(complete=False)
    # Of the names on lines for the preprocessor, those count that are the user's: others are in the reports.
    own += [path for path in there - set(read) if not os.path.realpath(path).startswith(theirs)]
    return record_files(own, set(read) - set(own), looked_for - there, base=base, since_ns=since_ns)


def _specs_name_others(options: Sequence[str], here: str) -> bool:
    """Whether files of ``-specs`` include others, which no report has."""
    return any("%include" in _text(os.path.join(here, specs)) for specs in values(options, "-specs", "--specs"))


def _named_choices(names: NamedFiles, options: Sequence[str], folders: SearchFolders, here: str) -> Iterator[str]:
    """Where the files may be that texts and options name."""
    by_options = set(values(options, "-include", "--pre-include"))
    headers = {*_alternatives([here, *folders.headers], by_options), *_alternatives(folders.headers, names.included)}
    yield from headers
    # gcc takes a precompiled header instead, also of a header that is not there. It reports neither.
    yield from (f"{path}.gch" for path in headers)
    yield from _alternatives([here, *folders.headers], names.assembled)
    yield from _alternatives(folders.libraries, library_names(options))
    for prefix in program_folders(options):
        for program in _OWN_PROGRAMS:
            yield from (os.path.join(here, f"{prefix}{program}"), os.path.join(here, prefix, program))


def _alternatives(folders: Iterable[str], names: Iterable[str]) -> Iterator[str]:
    return (os.path.join(folder, name) for name in names for folder in folders)


def _searched_before(folders: Sequence[str], paths: Sequence[str]) -> Iterator[str]:
    """Where each file that was found in one of the folders would have been found before."""
    for position, folder in enumerate(folders):
        inside = os.path.join(folder, "")
        found = {path[len(inside) :] for path in paths if path.startswith(inside)}
        yield from _alternatives(folders[:position], found)


def _archive_members(path: str) -> list[str]:
    """The files to which a thin archive refers, which the linker reads and does not report."""
    try:
        with open(path, "rb") as file:
            data = file.read() if file.read(8) == b"!<thin>\n" else b""
    except OSError:
        return []
    names = re.search(rb"//\s+(\d+)\s*`\n", data)
    if names is None:
        return []
    table = data[names.end() : names.end() + int(names[1])]
    return [os.path.join(os.path.dirname(path), os.fsdecode(name)) for name in table.split(b"/\n") if name.strip()]


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return ""
    return "" if "\0" in text[:4096] else text  # a library or an object


@functools.cache
def _default_folders(compiler: Compiler) -> SearchFolders:
    """The folders of a compiler without options and variables."""
    environment = {name: value for name, value in os.environ.items() if name not in _VARIABLES}
    return _search_folders(compiler, (), "/", environment) or SearchFolders()


def _search_folders(
    compiler: Compiler, flags: Sequence[str], here: str, environment: Mapping[str, str]
) -> SearchFolders | None:
    """What ``-v`` says of a preprocessing of nothing; None if it fails."""
    flags = [flag for flag in flags if not flag.endswith(_LINKED)]
    verbose = ["-Xcompiler", "-v", "-x", "cu"] if compiler.version.startswith("nvcc") else ["-v", "-x", "c++"]
    try:
        done = subprocess.run(
            [compiler.path, *flags, "-E", *verbose, "/dev/null"], cwd=here, env=environment, capture_output=True,
            text=True, errors="replace", check=True, timeout=_TIME_LIMIT_S,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    listed = done.stderr.partition("search starts here:\n")[2].partition("End of search list.")[0]
    folders = [line.strip() for line in listed.splitlines() if line.startswith(" ")]
    absent = re.findall(r'ignoring nonexistent directory "(.+)"', done.stderr)
    libraries = re.search(r"(?m)^LIBRARY_PATH=(.*)$", done.stderr)
    return SearchFolders((*absent, *folders), tuple(libraries[1].split(":")) if libraries else ())


def _flags_of_environment() -> list[str]:
    return [f for name in ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS") for f in split(os.environ.get(name, ""))]
