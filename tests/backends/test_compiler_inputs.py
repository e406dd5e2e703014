"""What a build has read: each way to name a file makes a new artifact when that file changes, and nothing else does."""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from opwright.backends import compiler_inputs
from opwright.backends.compiler import run_compiler
from opwright.backends.compiler_inputs import BuildWatch, key_parts
from opwright.cache import ArtifactCache, ArtifactKey
from opwright.machine import this_machine
from opwright.read_files import ReadFiles

pytestmark = pytest.mark.compiler
VALUE = 'extern "C" int value() { return VALUE; }\n'


@dataclass
class Project:
    """A folder with one small source, built as kernels are built, with plain C++ so that it takes a tenth of a second.
    It is also the working folder."""

    folder: Path
    text: str = VALUE
    options: tuple[str, ...] = ()
    builds: int = 0
    compiler = this_machine().cxx
    records: list[ReadFiles] = field(default_factory=list)

    def write(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text)

    def value(self) -> int:
        """What the library computes: from the cache, as a new process would load it, or built."""
        assert self.compiler is not None
        source = self.folder / "src" / "main.cpp"
        self.write({"src/main.cpp": self.text})

        def build(folder: Path) -> ReadFiles:
            self.builds += 1
            watch = BuildWatch(self.compiler)
            flags = ["-shared", "-fPIC", *self.options]
            command = [self.compiler.path, *watch.compile_flags, str(source), *flags, *watch.link_flags]
            run_compiler([*command, "-o", str(folder / "lib.so")], "main.cpp", environment=watch.environment)
            read = watch.read_files(flags, base=source.parent, built_in=folder, installed=[], others=[source])
            self.records.append(read)
            return self.records[-1]

        parts = (("source", self.text), *key_parts(self.compiler, self.options))
        cache = ArtifactCache(self.folder / "cache")
        folder = cache.get_or_build(ArtifactKey("main", parts, base=source.parent), build)
        return int(ctypes.CDLL(str(folder / "lib.so")).value())


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    for variable in ("CPATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path)


def define(value: int) -> str:
    return f"#define VALUE {value}\n"


def function(value: int) -> str:
    return f'extern "C" int number() {{ return {value}; }}\n'


INCLUDE = '#include "value.h"\n' + VALUE
ANGLED = "#include <value.h>\n" + VALUE
NEXT = {"inc/value.h": "#include_next <value.h>\n"}
INCBIN = """
asm(".pushsection .rodata\\n.globl blob\\nblob: .incbin \\"value.bin\\"\\n.popsection");
extern "C" const char blob __attribute__((visibility("hidden")));
extern "C" int value() { return blob - '0'; }
"""

# What names the file: the source's text, options, variables, the file that changes, files that stay.
WAYS: dict[str, tuple[str, tuple[str, ...], dict[str, str], str, dict[str, str]]] = {
    "beside": (INCLUDE, (), {}, "src/value.h", {}),
    "above": ('#include "../value.h"\n' + VALUE, (), {}, "value.h", {}),
    "through another": ('#include "sub/a.h"\n' + VALUE, (), {}, "src/sub/value.h",
                        {"src/sub/a.h": '#include "value.h"\n'}),
    "-I": (ANGLED, ("-Iinc",), {}, "inc/value.h", {}),
    "-I with a blank": (ANGLED, ("-I", "inc"), {}, "inc/value.h", {}),
    "-isystem": (ANGLED, ("-isystem", "inc"), {}, "inc/value.h", {}),
    "-iquote": (INCLUDE, ("-iquote", "inc"), {}, "inc/value.h", {}),
    "-idirafter": (ANGLED, ("-idirafter", "inc"), {}, "inc/value.h", {}),
    "a folder with a blank": (ANGLED, ("-Isome inc",), {}, "some inc/value.h", {}),
    "-include": (VALUE, ("-include", "inc/value.h"), {}, "inc/value.h", {}),
    "-imacros": (VALUE, ("-imacros", "inc/value.h"), {}, "inc/value.h", {}),
    "CPATH": (ANGLED, (), {"CPATH": "inc"}, "inc/value.h", {}),
    "CPLUS_INCLUDE_PATH": (ANGLED, (), {"CPLUS_INCLUDE_PATH": "inc"}, "inc/value.h", {}),
    "a macro": ('#define HEADER "value.h"\n#include HEADER\n' + VALUE, (), {}, "src/value.h", {}),
    "a macro of an option": ("#include HEADER\n" + VALUE, ('-DHEADER="value.h"',), {}, "src/value.h", {}),
    "#import": ('#import "value.h"\n' + VALUE, (), {}, "src/value.h", {}),
    "a line that goes on": ('#inc\\\nlude "val\\\nue.h"\n' + VALUE, (), {}, "src/value.h", {}),
    "a comment within": ('/* */ # /* */ include /* */ "value.h"\n' + VALUE, (), {}, "src/value.h", {}),
    "a digraph": ('%:include "value.h"\n' + VALUE, (), {}, "src/value.h", {}),
    "#include_next": (ANGLED, ("-Iinc", "-Imore"), {}, "more/value.h", NEXT),
    ".incbin": (INCBIN, (), {}, "value.bin", {}),
    "another source": ('extern "C" int number();\nextern "C" int value() { return number(); }\n', ("other/a.cpp",), {},
                       "other/value.h", {"other/a.cpp": '#include "value.h"\n' + function(0).replace("0", "VALUE")}),
    "a response file": (VALUE, ("@flags.txt",), {}, "flags.txt", {}),
    "a folder in a response file": (ANGLED, ("@flags.txt",), {}, "inc/value.h", {"flags.txt": "-I inc"}),
}  # fmt: skip


def changed(way: str, value: int) -> str:
    return {".incbin": str(value), "a response file": f"-DVALUE={value}"}.get(way, define(value))


@pytest.mark.parametrize("way", WAYS)
def test_a_changed_file_is_built_anew_however_it_is_named(
    way: str, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.text, project.options, variables, name, others = WAYS[way]
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    project.write({**others, name: changed(way, 1)})
    assert project.value() == 1
    project.write({str(Path(name).parent / "unrelated.h"): "1", "src/unrelated.h": "2"})
    assert (project.value(), project.builds) == (1, 1), "the same again, and other files beside it, build nothing"
    project.write({name: changed(way, 2)})
    assert (project.value(), project.builds) == (2, 2)
    project.write({name: changed(way, 1)})
    assert (project.value(), project.builds) == (1, 2), "the first is still there"
    assert all(record.complete for record in project.records)


def shared_into(options: tuple[str, ...]) -> tuple[str, ...]:
    """Options for a static library, of which the linker takes everything."""
    return ("-Wl,--whole-archive", *options, "-Wl,--no-whole-archive")


LIBRARIES: dict[str, tuple[tuple[str, ...], dict[str, str], str]] = {
    "an object": (("lib/number.o",), {}, "lib/number.o"),
    "a library": (shared_into(("lib/libnumber.a",)), {}, "lib/libnumber.a"),
    "-L and -l": (shared_into(("-Llib", "-lnumber")), {}, "lib/libnumber.a"),
    "-L and -l with blanks": (shared_into(("-L", "lib", "-l", "number")), {}, "lib/libnumber.a"),
    "-l:": (shared_into(("-Llib", "-l:libnumber.a")), {}, "lib/libnumber.a"),
    "LIBRARY_PATH": (shared_into(("-lnumber",)), {"LIBRARY_PATH": "lib"}, "lib/libnumber.a"),
    "an option of the linker": (("-Wl,--whole-archive,lib/libnumber.a,--no-whole-archive",), {}, "lib/libnumber.a"),
    "a response file": (("@flags.txt",), {}, "lib/libnumber.a"),
}
CALLS = 'extern "C" int number();\nextern "C" int value() { return number(); }\n'


def make_library(project: Project, name: str, value: int) -> None:
    assert project.compiler is not None
    path = project.folder / name
    project.write({f"{name}.cpp": function(value)})
    target = path.with_suffix(".o")
    subprocess.run([project.compiler.path, "-c", "-fPIC", f"{path}.cpp", "-o", str(target)], check=True)
    if path.suffix == ".a":
        path.unlink(missing_ok=True)
        subprocess.run(["ar", "rcs", str(path), str(target)], check=True)


@pytest.mark.parametrize("way", LIBRARIES)
def test_a_changed_library_is_linked_anew_however_it_is_named(
    way: str, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, variables, name = LIBRARIES[way]
    project.text, project.options = CALLS, options
    project.write({"flags.txt": " ".join(shared_into(("-L", "lib", "-lnumber")))})
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    for value in (1, 2):
        make_library(project, name, value)
        assert (project.value(), project.builds) == (value, value)
        assert (project.value(), project.builds) == (value, value)


OPTIONAL = '#if __has_include("extra.h")\n#define VALUE 2\n#else\n#define VALUE 1\n#endif\n' + VALUE
OPTIONAL_MACRO = "#define EXTRA <extra.h>\n#if __has_include(EXTRA)\n#include EXTRA\n#else\n#define VALUE 1\n#endif\n"
NEW_FILES: dict[str, tuple[str, tuple[str, ...], str]] = {
    "in an earlier folder": (ANGLED, ("-Iearly", "-Iinc"), "early/value.h"),
    "in an earlier folder that was not there": (ANGLED, ("-Inone", "-Iinc"), "none/value.h"),
    "beside the source": (INCLUDE, ("-Iinc",), "src/value.h"),
    "a header of the system": ("#include <climits>\n" + ANGLED, ("-Iearly", "-Iinc"), "early/climits"),
    "within one of the system": ("#include <string.h>\n" + ANGLED, ("-Iearly", "-Iinc"), "early/strings.h"),
    "__has_include": (OPTIONAL, ("-Iearly",), "early/extra.h"),
    "__has_include of a macro": (OPTIONAL_MACRO + VALUE, ("-Iearly",), "early/extra.h"),
}


@pytest.mark.parametrize("where", NEW_FILES)
def test_a_new_file_that_is_found_first_is_built_anew(where: str, project: Project) -> None:
    project.text, project.options, name = NEW_FILES[where]
    project.write({"inc/value.h": "#ifndef VALUE\n#define VALUE 1\n#endif\n", "early/other.h": ""})
    assert project.value() == 1
    project.write({"early/unrelated.h": define(3), "src/unrelated.h": define(3), "inc/unrelated.h": define(3)})
    assert (project.value(), project.builds) == (1, 1)
    project.write({name: define(2)})
    assert (project.value(), project.builds) == (2, 2)
    (project.folder / name).unlink()
    if "none" in name:  # a folder that is searched and was not there
        (project.folder / "none").rmdir()
    assert (project.value(), project.builds) == (1, 2)


def test_a_new_library_that_is_found_first_is_linked_anew(project: Project) -> None:
    project.text, project.options = CALLS, shared_into(("-Learly", "-Llib", "-lnumber"))
    (project.folder / "early").mkdir()
    make_library(project, "lib/libnumber.a", 1)
    assert project.value() == 1
    make_library(project, "early/libnumber.a", 2)
    assert (project.value(), project.builds) == (2, 2)


def test_a_library_for_the_loader_comes_before_a_static_one(project: Project) -> None:
    project.text, project.options = CALLS, shared_into(("-Llib", "-lnumber"))
    make_library(project, "lib/libnumber.a", 1)
    assert project.value() == 1
    record = project.records[0]
    assert "libnumber.so" in dict(record.missing)[f"{project.folder}/lib"]


def test_a_variable_that_changes_what_is_read_is_part_of_the_key(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.text = ANGLED
    project.write({"one/value.h": define(1), "two/value.h": define(2)})
    for folder, value in (("one", 1), ("two", 2), ("one", 1)):
        monkeypatch.setenv("CPATH", folder)
        assert project.value() == value
    assert project.builds == 2


def test_a_relative_option_means_another_folder_elsewhere(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.text, project.options = ANGLED, ("-Iinc",)
    project.write({"inc/value.h": define(1), "elsewhere/inc/value.h": define(2)})
    assert project.value() == 1
    monkeypatch.chdir(project.folder / "elsewhere")
    assert project.value() == 2


def test_a_project_that_moves_takes_its_artifacts_along_but_not_its_neighbours(project: Project) -> None:
    project.text = INCLUDE
    project.write({"src/value.h": define(1)})
    assert project.value() == 1
    moved = Project(project.folder / "moved", INCLUDE)
    moved.write({"src/value.h": define(1)})
    os.rename(project.folder / "cache", moved.folder / "cache")
    assert (moved.value(), moved.builds) == (1, 0)
    moved.write({"src/value.h": define(2)})
    assert (moved.value(), moved.builds) == (2, 1)


def test_what_changes_under_the_compiler_is_not_kept(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.text = INCLUDE
    project.write({"src/value.h": define(1)})
    read_files = BuildWatch.read_files

    def edited_meanwhile(watch: BuildWatch, *args: object, **options: object) -> ReadFiles:
        project.write({"src/value.h": define(2)})
        return read_files(watch, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(BuildWatch, "read_files", edited_meanwhile)
    assert project.value() == 1
    assert not project.records[0].complete
    monkeypatch.undo()
    monkeypatch.chdir(project.folder)
    assert (project.value(), project.builds) == (2, 2)


def test_an_incbin_that_only_the_preprocessor_can_name_is_never_kept(project: Project) -> None:
    project.text = INCBIN.replace('\\"value.bin\\"', '" FILE "').replace("asm", '#define FILE "\\"value.bin\\""\nasm')
    for value in (1, 2):
        project.write({"value.bin": str(value)})
        assert (project.value(), project.builds) == (value, value)
    assert not any(record.complete for record in project.records)


def test_without_a_report_nothing_is_kept(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BuildWatch, "environment", property(lambda watch: dict(os.environ)))
    project.text = INCLUDE
    for value in (1, 2):
        project.write({"src/value.h": define(value)})
        assert (project.value(), project.builds) == (value, value)


def test_a_second_lookup_starts_no_program(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write({"src/value.h": define(1)})
    project.text = INCLUDE
    assert project.value() == 1
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: pytest.fail("started a program"))
    assert (project.value(), project.builds) == (1, 1)


def test_a_linker_without_reports_is_asked_less(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_inputs, "_linker_has_dependency_file", lambda driver: False)
    project.text, project.options = CALLS, shared_into(("-Llib", "-lnumber"))
    for value in (1, 2):
        make_library(project, "lib/libnumber.a", value)
        assert (project.value(), project.builds) == (value, value)
        assert (project.value(), project.builds) == (value, value)


def test_a_compiler_that_reports_by_its_flag_only(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    (project.folder / "with blank").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(project.folder / "with blank"))
    monkeypatch.setenv("TMPDIR", str(project.folder / "with blank"))
    project.text = INCLUDE
    for value in (1, 2):
        project.write({"src/value.h": define(value)})
        assert (project.value(), project.builds) == (value, value)
        assert (project.value(), project.builds) == (value, value)
    project.write({"other.cpp": '#include "src/value.h"\n'})
    project.options = ("other.cpp",)
    assert project.value() == 2
    assert not project.records[-1].complete, "its report is that of the other source"
