"""Sentences of the pages are short and plain, and their words are those of the project (``prose.py``)."""

import pytest

from tests import REPOSITORY
from tests.prose import MOST_WORDS, of_script, phrases, sentences, words, wrong_words
from tests.test_docs import DOCUMENTS

TUTORIALS = sorted((REPOSITORY / "docs" / "tutorials").glob("*.py"))
PAGES = {p.relative_to(REPOSITORY).as_posix(): p for p in [*DOCUMENTS, *TUTORIALS]}


def text_of(name):
    text = PAGES[name].read_text()
    return of_script(text) if name.endswith(".py") else text


@pytest.mark.parametrize("page", PAGES)
def test_sentences_are_short(page):
    assert [
        f"{page}:{s.line}: {s.words} words: {s.text}" for s in sentences(text_of(page)) if s.words > MOST_WORDS
    ] == []


@pytest.mark.parametrize("page", PAGES)
def test_sentences_are_plain(page):
    assert [f"{page}:{s.line}: {better}: {s.text}" for s, better in phrases(text_of(page))] == []


def test_words_are_those_of_the_project(tmp_path):
    assert wrong_words({page: text_of(page) for page in PAGES}, tmp_path) == []


SHORT = "A kernel " + "runs " * (MOST_WORDS - 3) + "here."
LONG = SHORT.replace("here", "also here")


@pytest.mark.parametrize(
    ("page", "found"),
    [
        (LONG, [1]),
        (SHORT, []),
        (f"{SHORT} {SHORT}", []),
        (f"# Title\n\n{SHORT}\n\n- {LONG}", [5]),
        (f"| a | b |\n|---|---|\n| {SHORT} | {LONG} |", [3]),
        (f"See (e.g. {LONG})", [1]),
        (f"```\n{LONG}\n```\n<!-- table: start -->\n{LONG}\n<!-- table: end -->", []),
        (f"{SHORT[:-6]} `{LONG}`.", []),  # code is one word
        (f"{SHORT[:-6]} [here](https://example.org/a-long/address) – …", []),  # and so is a link; a sign is none
    ],
)
def test_a_long_sentence_is_found_in_its_line(page, found):
    assert [s.line for s in sentences(page) if s.words > MOST_WORDS] == found


@pytest.mark.parametrize(
    ("page", "found"),
    [
        ("0 is no number of ranks.", 1),
        ("It is no longer used, and no more than 3 are.", 0),
        ("A number of ranks must be at least 2.", 0),
        ("A right kernel fails no check.", 1),
        ("Each check passes. They include headers.", 0),
        ("`is no number` is a message.", 0),
        ("What it wrote is undone.", 1),
        ("## What is checked\n\nWhat is checked?", 0),
    ],
)
def test_a_phrase_is_found(page, found):
    assert len(list(phrases(page))) == found


def test_a_word_is_found_in_its_page_and_line(tmp_path):
    wrong = {"a.md": "# Title\n\nThe planted\nfault is recieved.", "b.md": "Right.\n`planted` values, [x](planted.md)"}
    found = wrong_words(wrong, tmp_path)
    assert [line.partition(" ==>")[0] for line in found] == ["a.md:3: planted", "a.md:4: recieved"]


def test_the_list_of_words_has_one_to_use_for_each():
    assert all(old.isalpha() and new and old != new for old, new in words().items())
    assert list(words()) == sorted(words())


def test_the_text_of_a_script_keeps_its_lines():
    script = '"""\nTitle\n=====\n\nA text.\n"""\n\nx = 1\n# %%\n# A comment.'
    assert of_script(script).splitlines() == ["", "Title", "", "", "A text.", "", "", "", "", "A comment."]
