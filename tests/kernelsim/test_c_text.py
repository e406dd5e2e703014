"""The scanner of C-like text: brackets, lists and scopes."""

import pytest

from kernelsim.text.c_text import (
    closing_bracket,
    is_within_function,
    opening_bracket,
    outside_brackets,
    split_commas,
)
from kernelsim.text.parsed_source import parsed


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
    assert closing_bracket(text, 1) != len(text) - 1  # so callers pass code
    assert closing_bracket(parsed(text).code, 1) == len(text) - 1


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
    assert is_within_function(parsed(before).code + "HERE", len(before)) is within
