"""The prose of the pages: its sentences, phrases that have a plainer form, and words that the project does not use.

Prose is what stands outside of code, links' targets and the tables that commands make from records and from torch's
messages. In scripts of tutorials it is the docstrings and comments.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests import REPOSITORY

__all__ = ["MOST_WORDS", "Sentence", "of_script", "phrases", "sentences", "words", "wrong_words"]

MOST_WORDS = 35
WORDS = REPOSITORY / "tests" / "words.txt"

# What a sentence must not have, and what to write instead. A sentence that begins with its object ends with a stop.
_PHRASES = {
    r"\b(?:is|are|was|were) no (?!longer\b|more than\b|less than\b|fewer than\b)": 'say what it is: "must be …, got …"',
    r"\bfails? no\b": '"passes"',
    r"\bow(?:es?|ed) (?:it|the|a|its)\b": '"raises" or "returns"',
    r"\b(?:has|have) seen\b": '"has recorded"',
    r"\b(?:brings?|takes?) along\b": '"includes"',
    r"\btalked out of\b": "say what is not checked, and why",
    r"^(?:What|Where)\b.*\.$": "put the subject first",
}
_MARKDOWN = MarkdownIt().enable("table")
_MADE = re.compile(r"(?s)<!-- (table|forms|records)[^>]*-->.*?<!-- (?:end of )?\1[^>]*-->")
_CODE = re.compile(r"(?s)```.*?```|`[^`\n]*`|\]\([^)]*\)|<!--.*?-->|https?://\S+")
_END = re.compile(r"(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\bvs\.)(?<=[.!?])[)\"'”]*\s+")


@dataclass(frozen=True)
class Sentence:
    """A sentence, or a cell of a table, and the line on which its paragraph, item or row begins."""

    line: int
    text: str

    @property
    def words(self) -> int:
        """How many words it has. Code is one word, and a sign is none."""
        return sum(bool(re.search(r"\w", word)) for word in self.text.split())


def sentences(page: str) -> Iterator[Sentence]:
    """The sentences of a page in Markdown."""
    for token in _MARKDOWN.parse(_MADE.sub(_blank, page)):
        if token.type == "inline" and token.map is not None:
            text = "".join(map(_text, token.children or ()))
            yield from (Sentence(token.map[0] + 1, " ".join(s.split())) for s in _END.split(text) if s.strip())


def phrases(page: str) -> Iterator[tuple[Sentence, str]]:
    """Sentences with a phrase that has a plainer form, and that form."""
    for sentence in sentences(page):
        yield from ((sentence, better) for phrase, better in _PHRASES.items() if re.search(phrase, sentence.text))


def of_script(script: str) -> str:
    """A tutorial's text as a page: its docstring and comments in their lines, without directives and underlines."""
    docstring = ast.parse(script).body[0]
    lines = script.splitlines()
    texts = [""] * len(lines)
    for number in range(docstring.end_lineno or 0):
        texts[number] = lines[number].replace('"""', "")
    for token in tokenize.generate_tokens(io.StringIO(script).readline):
        if token.type == tokenize.COMMENT and token.start[1] == 0:
            texts[token.start[0] - 1] = token.string.removeprefix("#").strip()
    return "\n".join(re.sub(r"^(?:\.\. .*|:\w+:.*|%%.*|[=~^-]{3,}.*)$", "", text) for text in texts)


def wrong_words(pages: Mapping[str, str], folder: Path) -> list[str]:
    """What codespell says of the pages, by its own dictionary and by ``words.txt``."""
    files = []
    for number, page in enumerate(pages.values()):
        files.append(folder / f"{number}.md")
        files[-1].write_text(_CODE.sub(_blank, _MADE.sub(_blank, page)))
    command = [sys.executable, "-m", "codespell_lib", "--dictionary", "-", "--dictionary", str(WORDS), *map(str, files)]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not said.stderr, said.stderr
    names = dict(zip(map(str, files), pages, strict=True))
    return [
        names[file] + rest for file, rest in (re.findall(r"^(.*?\.md)(:.*)$", s)[0] for s in said.stdout.splitlines())
    ]


def words() -> dict[str, str]:
    """The project's own list: an old word, and the one to use."""
    return dict(line.split("->") for line in WORDS.read_text().splitlines())  # type: ignore[misc]


def _text(child: Token) -> str:
    if child.type == "code_inline":
        return "`" + re.sub(r"\s", "_", child.content) + "`"
    return " " if child.type.endswith("break") else child.content


def _blank(found: re.Match[str]) -> str:
    """As many lines without text, so that the places of others stay."""
    return " " + "\n" * found[0].count("\n")
