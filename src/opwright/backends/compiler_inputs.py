"""What a compiler and a linker have read, from their own reports: the headers, libraries and objects of one build.

Shared by everything that is built from C++ and CUDA. Nothing here reads a source to find what it includes, except to
find names that no report has: of files that were looked for and were not there.
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
from dataclasses import dataclass
from pathlib import Path

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
_SOURCES = (".c", ".cc", ".cpp", ".cxx", ".cu", ".s", ".S")
_LINKED = (".o", ".a", ".so", *_SOURCES)
_TIME_LIMIT_S = 60
# A name on a line for the preprocessor, whatever it is for: an include, a macro that is included, __has_include.
_DIRECTIVE = re.compile(r"#[^\n]*")
_NAME = re.compile(r'"([^"\n]+)"|<([^<>\n]+)>')
# What the assembler reads is in no report; the name may be in a C string, where its quotes are escaped.
_INCBIN = re.compile(r'\.incbin\b(?:\s+\\?"([^"\\\n]+)\\?")?|\.include\s+\\?"([^"\\\n]+)\\?"')


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
    named = [*_pieces(_expanded(options)), *(piece for _, value in variables for piece in re.split("[:= ]", value))]
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
    starts. Unlike ``-MD``, that works for several sources in one command. clang takes ``-MD``.
    """

    def __init__(self, compiler: Compiler) -> None:
        self.compiler = compiler
        self._folder = tempfile.TemporaryDirectory(prefix="opwright-inputs-")  # removed with this object
        self._compiled, self._linked = (Path(self._folder.name, name) for name in ("compiled.d", "linked.d"))
        self._since_ns = time.time_ns()
        self._nvcc = compiler.version.startswith("nvcc")
        # gcc reads no further than a blank in SUNPRO_DEPENDENCIES.
        self._by_flag = "clang" in compiler.version or " " in self._folder.name

    @property
    def environment(self) -> Mapping[str, str]:
        return {**os.environ} if self._by_flag else {**os.environ, "SUNPRO_DEPENDENCIES": str(self._compiled)}

    @property
    def compile_flags(self) -> list[str]:
        return ["-MD", "-MF", str(self._compiled)] if self._by_flag else []

    @property
    def link_flags(self) -> list[str]:
        if not self._reports_libraries:
            return []
        return ["-Xlinker", f"--dependency-file={self._linked}"]

    @functools.cached_property
    def _reports_libraries(self) -> bool:
        return _linker_has_dependency_file("gcc" if self._nvcc else self.compiler.path)

    def included(self) -> list[str]:
        """The files that the compiler has included, absolute paths."""
        return [name for name in _names_in_rules(self._compiled) if os.path.isabs(name)]

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
        reported = [*_names_in_rules(self._compiled), *(_linked_files(self._linked) if self._linked.is_file() else ())]
        return read_by_build(
            [*(os.path.join(here, name) for name in reported), *map(str, others)],
            [*flags, *_flags_of_environment()],
            SearchFolders(search.headers, (*_library_folders(flags, here), *search.libraries)),
            base=base, built_in=built_in, here=here, since_ns=self._since_ns, texts=texts,
            installed=[*map(str, installed), *default.headers, *default.libraries],
        )  # fmt: skip

    def _reported(self, flags: Sequence[str], linked: bool) -> bool:
        """Whether the reports are there and whole. Of a linker that writes none, its options name the libraries."""
        overwritten = self._by_flag and any(flag.endswith(_SOURCES) for flag in flags)  # by that of another source
        return (
            self._compiled.is_file()
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
) -> ReadFiles:
    """What a build has read, from the paths that its programs reported; see ``BuildWatch.read_files``.

    A header of another name can be found first only in a folder that is searched. So each name that was found in one
    of the folders, or stands on a line for the preprocessor, is looked for in all of them.
    """
    expanded = list(_expanded(flags, here))
    named = [p for p in (os.path.join(here, piece) for piece in _pieces(expanded)) if os.path.isfile(p)]
    reported = list(reported)
    made = (f"{built_in}{os.sep}",) if built_in is not None else ()
    outside = [path for path in dict.fromkeys([*reported, *named]) if not path.startswith(made or "\0")]
    temporary = tempfile.gettempdir()
    if any(not os.path.exists(path) and os.path.dirname(path) != temporary for path in outside):
        return ReadFiles(complete=False)  # a file of the user's has gone meanwhile
    theirs = tuple(os.path.join(os.path.realpath(folder), "") for folder in installed)
    read = [path for path in outside if os.path.isfile(path)]
    own = [path for path in read if not os.path.realpath(path).startswith(theirs)]

    names, assembled = set[str](), set[str]()
    for text in (*texts, *map(_text, own), *(f"#{flag}" for flag in expanded)):
        for line in _DIRECTIVE.findall(text.replace("\\\n", "")):
            names.update(quoted or angled for quoted, angled in _NAME.findall(line))
        assembled.update(one or other for one, other in _INCBIN.findall(text))
    headers = list(dict.fromkeys([*map(os.path.dirname, own), *(os.path.join(here, f) for f in search.headers)]))
    libraries = list(dict.fromkeys(os.path.join(here, f) for f in search.libraries))
    looked_for = {
        *_alternatives(headers, {*names, *assembled}),
        *_alternatives([here], {*assembled, *_values(expanded, "-include", "--pre-include")}),
        *_alternatives(libraries, _library_names(expanded)),
        *_searched_before(headers, read),
        *_searched_before(libraries, read),
        *(f"{path}.gch" for path in own),  # a precompiled header is taken instead
    }
    looked_for = {path for path in looked_for if not path.startswith(made or "\0")}
    there = {path for path in looked_for if os.path.isfile(path)}
    if any(there.isdisjoint(_alternatives([here, *headers], [name])) for name in assembled):
        return ReadFiles(complete=False)  # an .incbin of which only the preprocessor knows the name
    # Of the names on lines for the preprocessor, those count that are the user's: others are in the reports.
    own += [path for path in there - set(read) if not os.path.realpath(path).startswith(theirs)]
    return record_files(own, set(read) - set(own), looked_for - there, base=base, since_ns=since_ns)


def _alternatives(folders: Iterable[str], names: Iterable[str]) -> Iterator[str]:
    return (os.path.join(folder, name) for name in names for folder in folders)


def _searched_before(folders: Sequence[str], paths: Sequence[str]) -> Iterator[str]:
    """Where each file that was found in one of the folders would have been found before."""
    for position, folder in enumerate(folders):
        inside = os.path.join(folder, "")
        found = {path[len(inside) :] for path in paths if path.startswith(inside)}
        yield from _alternatives(folders[:position], found)


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return ""
    return "" if "\0" in text[:4096] else text  # a library or an object


# --- the reports ---


def _names_in_rules(report: Path) -> Iterator[str]:
    """The prerequisites of the rules that a compiler wrote for make: ``a.o: a.cpp dir/with\\ blank.h``."""
    text = report.read_text(errors="surrogateescape").replace("\\\n", " ")
    for line in text.splitlines():
        for name in re.findall(r"(?:\\[ #]|\$\$|[^\s])+", line.partition(": ")[2]):
            yield name.replace("\\ ", " ").replace("\\#", "#").replace("$$", "$")


def _linked_files(report: Path) -> list[str]:
    """The same of a linker, which writes one name a line, as it is."""
    lines = report.read_text(errors="surrogateescape").split("\n\n")[0].split(" \\\n")
    return [line.strip() for line in lines[1:]]


@functools.cache
def _linker_has_dependency_file(driver: str) -> bool:
    try:
        done = subprocess.run(
            [driver, "-Wl,--help"], capture_output=True, text=True, timeout=_TIME_LIMIT_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return "--dependency-file" in done.stdout


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


# --- options ---


def _flags_of_environment() -> list[str]:
    return [f for name in ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS") for f in _split(os.environ.get(name, ""))]


def _expanded(options: Iterable[str], here: str = "", depth: int = 0) -> Iterator[str]:
    """The options, with those in files that options name (``@file``, nvcc's ``--options-file``) after them."""
    before = ""
    for option in options:
        yield option
        name = option.partition("=")[2] if option.startswith(("-optf=", "--options-file=")) else option.lstrip("@")
        path = os.path.join(here, name)
        if (name != option or before in ("-optf", "--options-file")) and depth < 8 and os.path.isfile(path):
            yield from _expanded(_split(_text(path)), here, depth + 1)
        before = option


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _pieces(options: Iterable[str]) -> Iterator[str]:
    """Every part of an option that may be a path: ``-Idir``, ``@flags.txt``, ``-specs=file``, ``-Wl,-T,script``."""
    for option in options:
        yield from {option, option[1:], option[2:], *re.split("[=,]", option)} - {""}


def _library_folders(flags: Iterable[str], here: str) -> list[str]:
    return [*_values(_expanded(flags, here), "-L", "--library-path"), *_paths("LIBRARY_PATH")]


def _library_names(flags: Iterable[str]) -> Iterator[str]:
    for name in _values(flags, "-l", "--library"):
        yield from [name[1:]] if name.startswith(":") else [f"lib{name}.so", f"lib{name}.a"]


def _values(flags: Iterable[str], short: str, long: str) -> Iterator[str]:
    """The values of an option, however they are joined to it."""
    before = ""
    for flag in flags:
        if before in (short, long):
            yield flag
        elif flag.startswith((f"{short}=", f"{long}=")):
            yield flag.partition("=")[2]
        elif flag.startswith(short) and len(flag) > len(short):
            yield flag[len(short) :]
        before = flag


def _paths(variable: str) -> list[str]:
    return [path or "." for path in os.environ.get(variable, "").split(":")] if os.environ.get(variable) else []
