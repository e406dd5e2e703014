"""What a build has read: each way to name a file makes a new artifact when that file changes, and nothing else does."""

from __future__ import annotations

import ctypes
import os
import shutil
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
from tests.sampled import quick

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
            flags = [*watch.compile_flags, *flags, *watch.link_flags]
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

PASTED = INCBIN.replace(".incbin", '.inc" "bin')
BY_MACRO = INCBIN.replace(".incbin", "x cbin").replace(
    'asm("', 'asm(".macro x a name\\n.in\\\\a \\"\\\\name\\"\\n.endm\\n'
)
BY_MACRO = BY_MACRO.replace("x cbin ", "x cbin, ")

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
    ".incbin of an odd name": (INCBIN.replace("value.bin", "a $b#c d"), (), {}, "a $b#c d", {}),
    ".incbin of a macro": ('#define FILE "value.bin"\n' + INCBIN.replace('\\"value.bin\\"', '\\"" FILE "\\"'), (), {},
                           "value.bin", {}),
    ".incbin in two strings": (PASTED, (), {}, "value.bin", {}),
    ".incbin in hex": (INCBIN.replace(".incbin", ".\\x69ncbin"), (), {}, "value.bin", {}),
    ".incbin in octal": (INCBIN.replace(".incbin", ".\\151ncbin"), (), {}, "value.bin", {}),
    ".incbin of the assembler's macro": (BY_MACRO, (), {}, "value.bin", {}),
    ".incbin from -I": (PASTED, ("-Iinc",), {}, "inc/value.bin", {}),
    ".incbin from the assembler's -I": (PASTED, ("-Wa,-Iinc",), {}, "inc/value.bin", {}),
    ".include of the assembler": (INCBIN.replace('.incbin \\"value.bin\\"', '.inc" "lude \\"value.s\\"'), (), {},
                                  "value.s", {}),
    "-include for the preprocessor": (VALUE, ("-Wp,-include,value.h",), {}, "value.h", {}),
    "-include by -Xpreprocessor": (VALUE, ("-Xpreprocessor", "-include", "-Xpreprocessor", "value.h"), {}, "value.h",
                                   {}),
    "another source": ('extern "C" int number();\nextern "C" int value() { return number(); }\n', ("other/a.cpp",), {},
                       "other/value.h", {"other/a.cpp": '#include "value.h"\n' + function(0).replace("0", "VALUE")}),
    "a response file": (VALUE, ("@flags.txt",), {}, "flags.txt", {}),
    "a response file in another": (VALUE, ("@outer.txt",), {}, "flags.txt", {"outer.txt": "-DOTHER @flags.txt"}),
    "a response file of the assembler": (INCBIN.replace('.incbin \\"value.bin\\"', ".byte vv"), ("-Wa,@flags.s",), {},
                                         "flags.s", {}),
    "a folder in a response file": (ANGLED, ("@flags.txt",), {}, "inc/value.h", {"flags.txt": "-I inc"}),
}  # fmt: skip


def changed(name: str, value: int) -> str:
    forms = {".txt": f"-DVALUE={value}", ".h": define(value), "value.s": f".byte {value + ord('0')}"}
    forms["flags.s"] = f"--defsym vv={value + ord('0')}"
    return next((form for end, form in forms.items() if name.endswith(end)), str(value))


@pytest.mark.parametrize("way", WAYS)
def test_a_changed_file_is_built_anew_however_it_is_named(
    way: str, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.text, project.options, variables, name, others = WAYS[way]
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    project.write({**others, name: changed(name, 1)})
    assert project.value() == 1
    project.write({str(Path(name).parent / "unrelated.h"): "1", "src/unrelated.h": "2"})
    assert (project.value(), project.builds) == (1, 1), "the same again, and other files beside it, build nothing"
    project.write({name: changed(name, 2)})
    assert (project.value(), project.builds) == (2, 2)
    project.write({name: changed(name, 1)})
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
    "a response file of the linker": (("-Wl,@linked.txt",), {}, "lib/libnumber.a"),
    "one in another": (("-Wl,--no-as-needed,@outer.txt",), {}, "lib/libnumber.a"),
    "one by -Xlinker": (("-Xlinker", "@linked.txt"), {}, "lib/libnumber.a"),
    "a linker script": (("-Lscripts", "-lscripted"), {}, "lib/number.o"),
    "a thin archive": (shared_into(("lib/libthin.a",)), {}, "lib/number.o"),
    "a thin archive with a long name in it": (shared_into(("libthin.a",)), {}, "lib/an_object_with_a_long_name.o"),
    "a thin archive in a linker script": (("-Lscripts", "-lthin"), {}, "lib/number.o"),
    "a thin archive in a thin archive": (shared_into(("libouter.a",)), {}, "lib/number.o"),
}
SCRIPTS = {
    "linked.txt": "lib/libnumber.a", "outer.txt": "@linked.txt", "scripts/libscripted.so": "INCLUDE scripts/more.ld",
    "scripts/more.ld": "INPUT(lib/number.o)", "scripts/libthin.so": "GROUP(lib/libthin.a)",
}  # fmt: skip
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


@pytest.mark.parametrize("way", quick(LIBRARIES, 0, 4, 8, 12))
def test_a_changed_library_is_linked_anew_however_it_is_named(
    way: str, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, variables, name = LIBRARIES[way]
    project.text, project.options = CALLS, options
    project.write({"flags.txt": " ".join(shared_into(("-L", "lib", "-lnumber")))})
    project.write(SCRIPTS)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    make_library(project, name, 0)
    for thin, member in (("libthin.a", name), ("lib/libthin.a", name), ("libouter.a", "lib/libthin.a")):
        subprocess.run(["ar", "rcsT", thin, member], check=True)
    for value in (1, 2):
        project.write({"lib/unrelated.o": str(value)})
        make_library(project, name, value)
        assert (project.value(), project.builds) == (value, value)
        assert (project.value(), project.builds) == (value, value)


OPTIONAL = '#if __has_include("extra.h")\n#define VALUE 2\n#else\n#define VALUE 1\n#endif\n' + VALUE
OPTIONAL_MACRO = "#define EXTRA <extra.h>\n#if __has_include(EXTRA)\n#include EXTRA\n#else\n#define VALUE 1\n#endif\n"
HAS = "#define HAS(header) __has_include(header)\n#define EXTRA NAME\n#define NAME <extra.h>\n"
NEW_FILES: dict[str, tuple[str, tuple[str, ...], str]] = {
    "in an earlier folder": (ANGLED, ("-Iearly", "-Iinc"), "early/value.h"),
    "in an earlier folder that was not there": (ANGLED, ("-Inone", "-Iinc"), "none/value.h"),
    "beside the source": (INCLUDE, ("-Iinc",), "src/value.h"),
    "a header of the system": ("#include <climits>\n" + ANGLED, ("-Iearly", "-Iinc"), "early/climits"),
    "within one of the system": ("#include <string.h>\n" + ANGLED, ("-Iearly", "-Iinc"), "early/strings.h"),
    "__has_include": (OPTIONAL, ("-Iearly",), "early/extra.h"),
    "__has_include of a macro": (OPTIONAL_MACRO + VALUE, ("-Iearly",), "early/extra.h"),
    "__has_include of an option's macro": (
        OPTIONAL.replace('"extra.h"', "EXTRA"),
        ("-DEXTRA=<extra.h>", "-Iearly"),
        "early/extra.h",
    ),
    "a macro of __has_include": (
        HAS + OPTIONAL.replace('__has_include("extra.h")', "HAS ( EXTRA )"),
        ("-Iearly",),
        "early/extra.h",
    ),
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


def test_a_folder_of_a_headers_name_is_none_that_the_compiler_takes(project: Project) -> None:
    """CuTe has a folder ``algorithm``, and includes ``<algorithm>``."""
    project.text, project.options = "#include <climits>\n" + ANGLED, ("-Iearly", "-Iinc")
    project.write({"inc/value.h": define(1), "early/climits/other.h": ""})
    assert [project.value() for _ in range(2)] == [1, 1]
    assert project.builds == 1
    project.write({"early/value.h": define(2)})
    assert (project.value(), project.builds) == (2, 2)


# __has_include of a name that only the preprocessor can make
MADE_NAMES = {
    "a string of tokens": "#define STRING(x) #x\n#define EXTRA STRING(extra.h)\n",
    "a string of a macro": "#define S(x) #x\n#define T(x) S(x)\n#define NAME extra.h\n#define EXTRA T(NAME)\n",
    "a macro between angles": "#define NAME extra.h\n#define EXTRA <NAME>\n",
    "pasted": "#define PASTE(a, b) a##b\n#define EXTRA <PASTE(ex, tra).h>\n",
    "one of several values": "#define S(x) #x\n#ifdef S\n#define EXTRA S(extra.h)\n#else\n#define EXTRA <a>\n#endif\n",
}


@pytest.mark.parametrize("way", MADE_NAMES)
def test_a_name_that_only_the_preprocessor_knows_is_never_kept(way: str, project: Project) -> None:
    project.text, project.options = MADE_NAMES[way] + OPTIONAL.replace('"extra.h"', "EXTRA"), ("-Iearly",)
    project.write({"early/other.h": ""})
    assert project.value() == 1
    project.write({"early/extra.h": ""})
    assert project.value() == 2
    assert not any(record.complete for record in project.records)


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


# Directives that a search of the source does not tell, or not with a name; and assembler code without any.
HIDDEN = {
    "a macro's name": '#define FILE "\\"value.bin\\""\n' + INCBIN.replace('\\"value.bin\\"', '" FILE "'),
    "a macro's directive": '#define REST "cbin"\n' + INCBIN.replace(".incbin", '.in" REST "'),
    "stringised": "#define STRING(x) #x\n" + INCBIN.replace(".incbin", '" STRING(.incbin) "'),
}
HARMLESS = 'extern "C" int value() { asm volatile("pause\\n.p2align 4" : : : "memory"); return VALUE; }\n'
# Where the assembler's report is none, or not whole.
UNREPORTED: dict[str, tuple[str, ...]] = {
    "another source": ("other.cpp",),
    "another source of an odd name": ("-x", "c++", "other.txt", "-x", "none"),
    "while linking": ("-flto",),
    "another assembler": (),
}


# Each compiles four times.
@pytest.mark.parametrize("why", quick(UNREPORTED, 0, 2))
def test_without_the_assemblers_report_only_what_cannot_hide_a_file_is_kept(
    why: str, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler_inputs, "assembler_lists_files", lambda driver: why == "while linking")
    project.options = UNREPORTED[why]
    project.write({"other.cpp": "int other;\n", "other.txt": "int other;\n"})
    for text in (INCBIN, PASTED, BY_MACRO, *HIDDEN.values()):
        project.text = text
        for value in (1, 2):
            project.write({"value.bin": str(value)})
            assert project.value() == value
    for text in (INCBIN, PASTED):  # of which a search tells the name
        project.text, project.builds = text, 0
        for value in (3, 4):
            project.write({"value.bin": str(value)})
            assert (project.value(), project.builds) == (value, value - 2)
            assert (project.value(), project.builds) == (value, value - 2)
    project.text, project.builds = INCLUDE.replace(VALUE, HARMLESS), 0
    for value in (1, 2):
        project.write({"src/value.h": define(value)})
        assert (project.value(), project.builds) == (value, value)
        assert (project.value(), project.builds) == (value, value)


@pytest.mark.parametrize("options", [("-Iinc",), ("-Wa,-Iearly,-Iinc",)], ids=" ".join)
def test_a_new_file_that_the_assembler_finds_first_is_built_anew(options: tuple[str, ...], project: Project) -> None:
    project.text, project.options = PASTED, options
    project.write({"inc/value.bin": "1", "early/other": "", "src/value.bin": "3"})
    assert project.value() == 1
    project.write({"unrelated.bin": "2"})
    assert (project.value(), project.builds) == (1, 1)
    project.write({"early/value.bin" if "early" in options[0] else "value.bin": "2"})
    assert (project.value(), project.builds) == (2, 2)


PRECOMPILED: dict[str, tuple[str, tuple[str, ...], str]] = {
    "of a header beside it": (INCLUDE, (), "src/value.h.gch"),
    "without its header": (ANGLED, ("-Iinc",), "inc/value.h.gch"),
    "of a header of the system": ("#include <vector>\n" + VALUE, ("-Iinc",), "inc/vector.gch"),
    "of -include": (VALUE, ("-include", "inc/value.h"), "inc/value.h.gch"),
    "of -include for the preprocessor": (VALUE, ("-Wp,-include,inc/value.h",), "inc/value.h.gch"),
}


@pytest.mark.parametrize("way", PRECOMPILED)
def test_a_precompiled_header_that_is_made_anew_is_read_anew(way: str, project: Project) -> None:
    project.text, project.options, name = PRECOMPILED[way]
    project.write({"src/value.h": define(7)})
    if "-include" in way:  # which is also read where no precompiled header can be
        project.write({"inc/value.h": define(7)})
    for value in (1, 2):
        precompile(project, name, value)
        assert (project.value(), project.builds) == (value, value)
        project.write({"src/unrelated.h.gch": str(value)})
        assert (project.value(), project.builds) == (value, value)
    assert all(record.complete for record in project.records)


def test_a_precompiled_header_that_is_found_first_is_read(project: Project) -> None:
    project.text, project.options = ANGLED, ("-Iearly", "-Iinc")
    precompile(project, "inc/value.h.gch", 1)
    project.write({"early/other.h": ""})
    assert project.value() == 1
    precompile(project, "early/value.h.gch", 2)
    assert (project.value(), project.builds) == (2, 2)


def test_of_several_precompiled_headers_none_is_known_to_be_read(project: Project) -> None:
    project.text = INCLUDE
    project.write({"src/value.h": define(7)})
    for value in (1, 2):
        precompile(project, "src/value.h.gch/one", value)
        assert (project.value(), project.builds) == (value, value)
    assert not any(record.complete for record in project.records)


def precompile(project: Project, name: str, value: int) -> None:
    assert project.compiler is not None
    project.write({"made/value.h": define(value)})
    (project.folder / name).parent.mkdir(parents=True, exist_ok=True)
    command = [project.compiler.path, "-fPIC", "-x", "c++-header", "made/value.h", "-o", name]
    subprocess.run(command, check=True)


@pytest.mark.parametrize("way", ["-B", "-B of a prefix", "COMPILER_PATH"])
def test_a_program_of_the_compiler_in_a_folder_of_the_users_is_watched(
    way: str, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.text = '#if __has_include("none.h")\n#endif\nextern "C" int value() { return 1; }\n'
    name = "tools/my-as" if "prefix" in way else "tools/as"
    project.options = {"-B": ("-Btools",), "-B of a prefix": ("-B", "tools/my-")}.get(way, ())
    if way == "COMPILER_PATH":
        monkeypatch.setenv("COMPILER_PATH", "tools")
    project.write({"tools/unrelated": ""})
    assert project.value() == 1
    for value in (2, 3):
        assembler = shutil.which("as")
        lines = ["#!/bin/sh", 'for last in "$@"; do :; done', f'sed -i "s/\\$1, %eax/\\${value}, %eax/" "$last"']
        project.write({name: "\n".join([*lines, f'exec {assembler} "$@"\n'])})
        (project.folder / name).chmod(0o755)
        assert (project.value(), project.builds) == (value, value)
        project.write({"tools/unrelated": str(value)})
        assert (project.value(), project.builds) == (value, value)


def test_specs_that_include_others_are_never_kept(project: Project) -> None:
    project.options = ("-B.", "-specs=outer.specs")
    for value in (1, 2):
        project.write({"inner.specs": f"*cpp:\n+ -DVALUE={value}\n\n", "outer.specs": "%include <inner.specs>\n"})
        assert (project.value(), project.builds) == (value, value)


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
    monkeypatch.setattr(compiler_inputs, "linker_has_dependency_file", lambda driver: False)
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
