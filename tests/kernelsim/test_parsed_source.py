"""Texts with what is read from them: comments, literals, directives, includes, variables; and edits of them."""

import pytest

from kernelsim.text.includes import included_files
from kernelsim.text.parsed_source import Edits, parsed, syntax_tree

# Each text contains FOUND as code and HIDDEN in comments or literals only.
MIXED = {
    "line comment": "FOUND(); // HIDDEN();\nFOUND();",
    "block comment": "FOUND(); /* HIDDEN();\n HIDDEN(); */ FOUND();",
    "comment continued by a backslash": "// one \\\nHIDDEN();\nFOUND();",
    "comment in a comment": "/* // HIDDEN */ FOUND(); // /* HIDDEN\nFOUND();",
    "string": 'call("HIDDEN();"); FOUND();',
    "escaped quote in a string": r'call("\"HIDDEN();\\"); FOUND();',
    "string continued by a backslash": '"one \\\nHIDDEN();"; FOUND();',
    "comment marks in a string": 'call("/*"); FOUND(); call("*/ HIDDEN //"); FOUND();',
    "string in a comment": '/* " */ FOUND(); /* " HIDDEN */ FOUND();',
    "raw string": 'R"(HIDDEN "HIDDEN" \\)"; FOUND();',
    "raw string with a delimiter": 'R"mark(HIDDEN )" HIDDEN )mark"; FOUND();',
    "raw string with a prefix": 'auto a = u8R"(" HIDDEN)"; FOUND();',
    "raw string of several lines": 'R"(\n"\nHIDDEN();\n)"; FOUND();',
    "macro whose name ends with R": 'FOUND_R"("; FOUND(); ")HIDDEN";',
    "character": "if (c == '\"') FOUND(); // '\"' HIDDEN",
    "escaped quote as a character": "'\\''; FOUND(); '\"'; FOUND(); // HIDDEN",
    "character with a prefix": "L'\"'; FOUND(); u8'\"'; FOUND(); // HIDDEN",
    "digit separator": "int n = 1'000; FOUND(); '\"'; FOUND();",
    "digit separator before a string": "int n = 1'000; call(\"HIDDEN 'HIDDEN'\"); FOUND();",
    "two digit separators": "f(1'000'000, 0xFF'FF, .5'0, 1'0e+1'0, \"HIDDEN\"); FOUND();",
    "character after a keyword": "case'\"': FOUND(); case'x': FOUND(); // HIDDEN",
    "preprocessor line": '#define TEXT "HIDDEN" // HIDDEN\n#define NAME FOUND \\\n  /* HIDDEN */\nFOUND();',
    "apostrophe in #error": "#error don't\nFOUND(); // HIDDEN",
    "unterminated comment": "FOUND(); /* HIDDEN();\nHIDDEN();",
    "unterminated raw string": 'FOUND(); R"(HIDDEN\n"HIDDEN',
    "unterminated string ends with its line": 'call("one);\nFOUND(); // HIDDEN',
    "unterminated character ends with its line": "call('a);\nFOUND(); // HIDDEN",
}


@pytest.mark.parametrize("text", MIXED.values(), ids=MIXED.keys())
def test_comments_and_literals_are_blanked_and_code_is_not(text):
    code = parsed(text).code
    assert "HIDDEN" not in code
    assert code.count("FOUND") == text.count("FOUND")


@pytest.mark.parametrize("text", MIXED.values(), ids=MIXED.keys())
def test_blanked_text_keeps_every_position(text):
    code = parsed(text).code
    assert len(code) == len(text)
    assert all(new in (old, " ") for new, old in zip(code, text, strict=True))
    assert [i for i, c in enumerate(code) if c == "\n"] == [i for i, c in enumerate(text) if c == "\n"]


@pytest.mark.parametrize("number", ["1'000", "0b1010'1010", "0xFF'FFu", "1'000.5e-3f", ".5", "x1", "0x1p+4", "1.e5"])
def test_numbers_are_code(number):
    assert parsed(f"f({number}, 'a')").code == f"f({number},    )"


def test_blanking_nothing():
    assert parsed("").code == ""
    assert parsed("int a = b / c * d;").code == "int a = b / c * d;"


def test_the_tree_has_no_literals_in_macros():
    """So a lexer finds literals and comments. If this fails, the tree may do."""
    tree = syntax_tree('#define ASSEMBLY(x) asm("mov" : "=r"(x))  /* a */\n')
    assert "literal" not in str(tree)
    assert '"' not in parsed('#define ASSEMBLY(x) asm("mov" : "=r"(x))\n').code


def test_directives_are_logical_lines():
    source = parsed('#define A(x) \\\n  (x + 1)\n  #  if A(1) // one\nint a;\n#endif\nauto b = R"(\n#if)";\n')
    assert [directive.name for directive in source.directives] == ["define", "if", "endif"]
    assert source.statements.split() == ["int", "a;", "auto", "b", "=", ";"]
    assert [(macro.name, macro.parameters, macro.body.split()) for macro in source.macros] == [
        ("A", "(x)", ["\\", "(x", "+", "1)"])
    ]


def test_a_directive_does_not_end_within_a_comment():
    text = "#define A 1 /* one\n#define B */ + 2 // three \\\n four\n#undef A\n"
    source = parsed(text)
    assert [(d.name, d.rest.split()) for d in source.directives] == [("define", ["A", "1", "+", "2"]), ("undef", ["A"])]
    assert source.without(source.directives[:1]).text.split() == ["#undef", "A"]
    assert source.code.count("\n") == text.count("\n")


def test_variables_behind_unbalanced_conditions_are_found():
    text = "#ifdef A\nvoid f(\n#else\nvoid g(\n#endif\nint x) {}\n__device__ const float* table[4];\n"
    (variable,) = parsed(text).variables.values()
    assert (variable.name, variable.type, variable.is_writable) == ("table", "float*", False)


def test_variables_with_c_linkage_are_found():
    text = 'extern "C" { __device__ int a; }\nextern "C" __device__ int b;\nextern "C"\n{\n__constant__ int c[2];\n}\n'
    assert list(parsed(text).variables) == ["a", "b", "c"]


def test_edits_have_the_positions_of_the_source():
    source = parsed("f(a,\n  b); // f\ng();\n")
    edits = Edits(source)
    edits.replace(0, source.text.index(";"), "h()")
    edits.replace(2, 3, "left out: it is within the other one")
    edits.insert(source.text.index("g"), "i(); ")
    edits.insert(0, "j(); ")
    assert edits.text() == "j(); h()\n; // f\ni(); g();\n"
    assert edits.source().code == edits.text().replace("// f", "    ")


def test_newlines_that_an_edit_adds_are_continued_in_a_macro():
    source = parsed("#define A \\\n  1 \\\n  + 2\n")
    edits = Edits(source)
    edits.replace(source.text.index("1"), source.text.index("2"), "0 + ")
    assert edits.text() == "#define A \\\n  0 + \\\n2\n"


def test_spans_are_replaced_by_spaces_in_text_and_code():
    left = parsed("int a; /* a */ int b;\nint c;\n").without([(4, 6), (0, 5), (15, 28)])
    assert left.text == "       /* a */       \n      \n"
    assert left.code == left.text.replace("/* a */", "       ")


def test_included_files_are_followed_once_each(tmp_path):
    (tmp_path / "inc").mkdir()
    (tmp_path / "a.h").write_text('#include "b.h"\n#include <c.h>\n#include <vector>\n')
    (tmp_path / "b.h").write_text('#include "a.h"\n')
    (tmp_path / "inc" / "c.h").write_text("")
    source = tmp_path / "source.cpp"
    found = included_files('#include "a.h"\n  #  include "b.h"\n', source, [tmp_path / "inc"])
    assert sorted(path.name for path in found) == ["a.h", "b.h", "c.h"]
    left_out = included_files("#include <a.h>\n", source, [tmp_path], leave_out=lambda name: name == "a.h")
    assert left_out == []
    beside = included_files('#include "b.h"\n', source, [], leave_out=lambda name: name == "b.h")
    assert sorted(path.name for path in beside) == ["a.h", "b.h"]  # whatever its name is


@pytest.mark.parametrize(
    "text",
    [
        '// #include "a.h"\n',
        '/*\n#include "a.h"\n*/\n',
        '/*\n#include "a.h"\n',
        'auto text = R"(\n#include "a.h"\n)";\n',
        '// one \\\n#include "a.h"\n',
    ],
)
def test_includes_in_comments_and_literals_are_ignored(tmp_path, text):
    (tmp_path / "a.h").write_text("")
    assert included_files(text, tmp_path / "source.cpp", []) == []
    assert len(included_files(text + '\n*/\n#include "a.h"\n', tmp_path / "source.cpp", [])) == 1
