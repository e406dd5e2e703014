"""The numbers that a page states: where they stand, and whether a record has them.

A number stands in prose or in a table, outside of code. It is found in a record if some value there, rounded as the
page rounds it, is the same. Left out are versions, names of hardware and of dtypes, and numbers of lists.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from tests import REPOSITORY

__all__ = ["Number", "Section", "in_records", "numbers", "plain", "sections"]

_RECORD = re.compile(r"benchmarks/results/([\w.-]+\.(?:json|txt))")
_MADE = re.compile(r"(?s)<!-- (table|forms|records|checks)[^>]*-->.*?<!-- (?:end of )?\1[^>]*-->")
_NUMBER = re.compile(
    r"(?<![\w.^/-])(?P<sign>-)?(?P<digits>\d{1,3}(?:,\d{3})+|\d+)(?P<decimals>\.\d+)?(?:(?:\s?·\s?10|e)(?P<power>[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+|-?\d+))?"
    r"(?P<raised>[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)?(?![\w])"
)
_RAISED = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
_OF_VERSIONS = (
    "torch", "Python", "Triton", "NumPy", "CUDA", "MAX", "Mojo", "Ray", "KubeRay", "NVRTC", "cuda-core", "CUTLASS",
    "CUB", "NCCL", "RTX", "PEP", "NEP", "[Ss]ince", "[Bb]efore",
)  # fmt: skip
_VERSION = rf"\b(?:{'|'.join(_OF_VERSIONS)})(?: of torch|\s*≥)? ?\d+(?:\.\d+)*"
_LEFT_OUT = [
    re.compile(rf"{_VERSION}(?:(?:, | and | to | or )\d+(?:\.\d+)+)*"),
    re.compile(r"(?m)^\s*\d+\. |^#+ .*$"),  # numbers of lists; headings
    re.compile(r"\d+-(?:bit|D)\b|Apache-2\.0|(?:x86|aarch|AVX|sm_)-?\d+"),
    re.compile(r"https?://\S+"),
]
# What a value of a record is multiplied by, if the paragraph or the table has the unit.
_UNITS = {" ms": (1e3, 1e-3), " µs": (1e6,), " %": (100.0,), " MiB": (2.0**-20,), " GiB": (2.0**-30,)}


@dataclass(frozen=True)
class Number:
    """A number of a page: its value, half a unit of its last digit, the text around it, and factors of its units."""

    value: float
    half: float
    around: str
    units: tuple[float, ...]


@dataclass(frozen=True)
class Section:
    """What stands under one heading, without code; ``records`` are those that it cites."""

    heading: str
    text: str
    records: frozenset[str]


def plain(text: str) -> str:
    """A text of Markdown with each run of blanks as one."""
    return re.sub(r"\s+", " ", text)


def sections(document: str) -> Iterator[Section]:
    """The sections of a page, without blocks of code and without tables that a command makes."""
    document = _MADE.sub("", re.sub(r"(?s)```.*?```", "", document))
    for part in re.split(r"(?m)^(?=#{1,6} )", document):
        yield Section(part.partition("\n")[0].lstrip("# "), part, frozenset(_RECORD.findall(part)))


def numbers(text: str) -> Iterator[Number]:
    """The numbers in a text, outside of code, links' targets and what is left out."""
    text = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "`", text))
    for pattern in _LEFT_OUT:
        text = pattern.sub(" ", text)
    units = (1.0, *(factor for unit, factors in _UNITS.items() if unit in text for factor in factors))
    for found in _NUMBER.finditer(text):
        decimals = found["decimals"] or ""
        value = float(found["digits"].replace(",", "") + decimals)
        half = 0.5 * 10.0 ** -max(len(decimals) - 1, 0)
        if not decimals and found["digits"].endswith("00") and len(found["digits"]) > 3:
            half *= 10  # 1,000 may be rounded
        if found["raised"]:
            value, half = value ** int(found["raised"].translate(_RAISED)), 0.0
        if found["power"]:
            scale = 10.0 ** int(found["power"].translate(_RAISED))
            value, half = value * scale, half * scale
        around = plain(text[max(found.start() - 50, 0) : found.end() + 30]).strip()
        yield Number(value, half, f"{found[0]}: … {around} …", units)


def in_records(number: Number, names: Iterable[str]) -> bool:
    """Whether one of the records has the number, in one of the units that pages use."""
    return any(
        abs(abs(value) * unit - number.value) <= number.half * 1.001 + 1e-12 * number.value
        for name in names
        for value in _values(name)
        for unit in number.units
    )


@cache
def _values(name: str) -> frozenset[float]:
    text = (REPOSITORY / "benchmarks" / "results" / name).read_text()
    if not name.endswith(".json"):
        return frozenset(_in_text(text))
    record = json.loads(text)
    about = record.pop("about")
    return frozenset([*_in_value(record), *_in_text(about["shows"])])


def _in_value(value: object) -> Iterator[float]:
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, int | float):
        yield float(value)
    elif isinstance(value, str):
        yield from _in_text(value)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _in_value(item)
    elif isinstance(value, list):
        for item in value:
            yield from _in_value(item)


def _in_text(text: str) -> Iterator[float]:
    for found in re.finditer(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e-?\d+)?", text):
        yield float(found[0].replace(",", "").rstrip(".") or 0)
