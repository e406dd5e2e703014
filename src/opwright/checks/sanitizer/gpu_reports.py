"""What compute-sanitizer prints, as errors with kind, place, thread and block. Pure functions of text.

The forms are those of NVIDIA's manual, which versions change a little: "Address" and "Access at" name an address, a
place is followed by "+0x90" or ":0x90", and a file by its line only where the code has line information.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from opwright.checks.sanitizer.access_error import AccessError, short

__all__ = ["errors_on_gpu"]

_MARK = "========="
_INVALID = re.compile(r"Invalid __(?P<space>\w+)__ (?P<verb>read|write|atomic) of size (?P<size>\d+) bytes?")
# Warnings of races are of code that is right where threads of a warp run in step.
_RACE = re.compile(r"error: Race reported between (?P<access>\w+) access at (?P<place>.+)", re.IGNORECASE)
_OTHER_ACCESS = re.compile(r"and (?P<access>\w+) access at (?P<place>.+?)(?: \[\d+ hazards?\])?$")
_OTHERS = re.compile(
    r"(?:Misaligned |Illegal |Out-of-range |Warp |Stack overflow|Device assert|Malloc/Free error|Barrier error"
    r"|Deadlock detected)"
)
_PLACE = re.compile(r"(?P<function>.+?)(?:[+:]0x[0-9a-f]+)?(?: in (?P<file>.+):(?P<line>\d+))?$")
_AT = re.compile(r"at (?P<place>.+)")
_THREAD = re.compile(r"by thread (?P<thread>\([\d,]+\)) in block (?P<block>\([\d,]+\))")
_ADDRESS = re.compile(r"(?:Access (?:at|to)|Address) (?P<address>0x[0-9a-f]+)")


def errors_on_gpu(lines: Sequence[str]) -> Iterator[AccessError]:
    """The errors in a part of the tool's output."""
    for report in _reports(lines):
        first, *details = report
        if match := _INVALID.match(first):
            what = f"{match['verb']}s {match['size']} bytes of {match['space']} memory"
            yield _error(what.replace("atomics", "changes"), details)
        elif match := _RACE.match(first):
            yield _race(match, details)
        elif _OTHERS.match(first):
            yield _error(first, details)


def _reports(lines: Sequence[str]) -> Iterator[list[str]]:
    """The lines of each report, without the tool's mark. The first has one space after it, others have more."""
    report: list[str] = []
    for line in lines:
        text = line.removeprefix(_MARK) if line.startswith(_MARK) else ""
        if not text.startswith("  "):
            if report:
                yield report
            report = []
        if text.strip() and (report or not text.startswith("  ")):
            report.append(text.strip())
    if report:
        yield report


def _error(what: str, details: Sequence[str]) -> AccessError:
    found: dict[str, str] = {}
    for line in details:
        for pattern in (_AT, _THREAD, _ADDRESS):
            if match := pattern.match(line):
                found = {**match.groupdict(), **found}
    thread = f"block {found['block']}, thread {found['thread']}" if "block" in found else ""
    address = int(found["address"], 16) if "address" in found else None
    function, file, line_number = _place(found.get("place", ""))
    return AccessError(what, address, ", ".join(filter(None, [function, thread])), file, line_number)


def _race(match: re.Match[str], details: Sequence[str]) -> AccessError:
    function, file, line = _place(match["place"])
    other = next(filter(None, map(_OTHER_ACCESS.match, details)), None)
    what = f"a race in shared memory: a {match['access'].lower()} here"
    if other is not None:
        _, _, other_line = _place(other["place"])
        what += f", and a {other['access'].lower()}" + (f" in line {other_line}" if other_line else "")
    return AccessError(what, None, function, file, line)


def _place(text: str) -> tuple[str, str, int]:
    match = _PLACE.match(text)
    return (short(match["function"]), match["file"] or "", int(match["line"] or 0)) if match else ("", "", 0)
