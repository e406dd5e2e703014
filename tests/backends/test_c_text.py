"""The scanner of C-like text: comments, literals, brackets, lists and includes."""

import pytest

from opwright.backends.c_text import (
    blank_out,
    closing_bracket,
    included_files,
    is_within_function,
    opening_bracket,
    outside_brackets,
    split_commas,
)

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
    code = blank_out(text)
    assert "HIDDEN" not in code
    assert code.count("FOUND") == text.count("FOUND")


@pytest.mark.parametrize("text", MIXED.values(), ids=MIXED.keys())
def test_blanked_text_keeps_every_position(text):
    code = blank_out(text)
    assert len(code) == len(text)
    assert all(new in (old, " ") for new, old in zip(code, text, strict=True))
    assert [i for i, c in enumerate(code) if c == "\n"] == [i for i, c in enumerate(text) if c == "\n"]


@pytest.mark.parametrize("number", ["1'000", "0b1010'1010", "0xFF'FFu", "1'000.5e-3f", ".5", "x1", "0x1p+4", "1.e5"])
def test_numbers_are_code(number):
    assert blank_out(f"f({number}, 'a')") == f"f({number},    )"


def test_blanking_nothing():
    assert blank_out("") == ""
    assert blank_out("int a = b / c * d;") == "int a = b / c * d;"


def test_brackets_match_across_nesting_and_lines():
    code = "f(a[(1)], {2,\n (3)}) + g(4)"
    assert closing_bracket(code, 1) == code.index(") +")
    assert opening_bracket(code, code.index(") +")) == 1
    assert closing_bracket(code, code.index("[")) == code.index("]")


def test_unmatched_brackets_have_no_partner():
    assert closing_bracket("f(a, (b)", 1) is None
    assert opening_bracket("(a)) b", 3) is None
    assert closing_bracket("", 0) is None


def test_a_bracket_in_a_literal_closes_nothing_after_blanking():
    text = """f(")", ')', /* ) */ 1'0)"""
    assert closing_bracket(text, 1) != len(text) - 1  # so callers call blank_out first
    assert closing_bracket(blank_out(text), 1) == len(text) - 1


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", []),
        (" , ", []),
        ("int a", ["int a"]),
        ("int a, float b,", ["int a", "float b"]),
        ("std::map<int, float> a, int b", ["std::map<int, float> a", "int b"]),
        ("std::vector<std::pair<int, int>> a, int b", ["std::vector<std::pair<int, int>> a", "int b"]),
        ("int (*f)(int, int), int b[2]", ["int (*f)(int, int)", "int b[2]"]),
        ("A<B<C<1, 2>>> a, b", ["A<B<C<1, 2>>> a", "b"]),
        ("A<decltype(p->q), 2> a, b", ["A<decltype(p->q), 2> a", "b"]),
        ("p->q, r", ["p->q", "r"]),
        ("A{1, 2}, b", ["A{1, 2}", "b"]),
    ],
)
def test_lists_are_split_at_their_own_commas(text, parts):
    assert split_commas(text) == parts


def test_angles_are_comparisons_where_they_are_not_brackets():
    assert split_commas("a < b, c > d", angles=False) == ["a < b", "c > d"]
    assert split_commas("a < b, c > d") == ["a < b, c > d"]
    assert split_commas("f: def(Int) -> Int, b: Int", angles=False) == ["f: def(Int) -> Int", "b: Int"]


def test_text_outside_brackets():
    assert outside_brackets("a(b(c))d[e]f{g}") == "adf"
    assert outside_brackets("a(b") == "a"
    assert outside_brackets("") == ""


@pytest.mark.parametrize(
    ("before", "within"),
    [
        ("", False),
        ("namespace a { ", False),
        ("namespace a::b { namespace { ", False),
        ('extern "C" { ', False),
        ("void f() { ", True),
        ("void f() { } ", False),
        ("namespace a { void f() { if (b) { ", True),
        ("struct S { ", True),
        ("using namespace a; void f() { ", True),
        ("} ", False),
        ("void f() { // }\n", True),
        ("namespace a { const char* s = \"{\"; char c = '{'; wchar_t w = L'{'; int n = 1'0; ", False),
    ],
)
def test_whether_a_position_is_within_a_function(before, within):
    assert is_within_function(blank_out(before) + "HERE", len(before)) is within


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
