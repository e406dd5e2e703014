"""What the tools print, by case, and AddressSanitizer's errors with kind, place and address. Pure functions of text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from opwright.checks.sanitizer.access_error import AccessError, short
from opwright.checks.sanitizer.gpu_reports import errors_on_gpu

__all__ = ["Section", "sections"]


@dataclass
class Section:
    """What belongs to one case.

    Attributes:
        memory: the argument, address and bytes of each tensor's storage.
        raised: what the kernel raised, if anything.
        returned: whether the kernel came back, by an exception or not; else its process ended within it.
    """

    case: str
    memory: list[tuple[str, int, int]] = field(default_factory=list)
    errors: list[AccessError] = field(default_factory=list)
    raised: str = ""
    returned: bool = False

    def place(self, address: int) -> str:
        """An address in terms of the argument that lies nearest; empty, if none lies near."""
        distances = [(_distance(address, start, size), name, start, size) for name, start, size in self.memory]
        distance, name, start, size = min(distances, default=(_NEAR, "", 0, 0))
        if distance >= _NEAR:
            return ""
        if address < start:
            return f"{start - address} bytes before {name!r}"
        if not distance:
            return f"within {name!r}"
        beyond = address - start - size
        return f"{beyond} bytes after the end of {name!r}" if beyond else f"just after the end of {name!r}"


_NEAR = 4096


def _distance(address: int, start: int, size: int) -> int:
    return max(start - address, address - (start + size) + 1, 0)


def sections(lines: Sequence[str], mark: str) -> tuple[list[Section], bool]:
    """The cases in a process's output, and whether it has come to its end."""
    found: list[Section] = []
    ended, own = False, list[str]()

    def close() -> None:
        if found:
            found[-1].errors += [*_errors(own), *errors_on_gpu(own)]
        own.clear()

    for line in lines:
        if not line.startswith(mark):
            own.append(line)
            continue
        match json.loads(line[len(mark) :]):
            case ["case", str(text)]:
                close()
                found.append(Section(text))
            case ["memory", str(name), int(start), int(size)]:
                found[-1].memory.append((name, start, size))
            case ["raised", str(text)]:
                found[-1].raised = text
            case ["returned"]:
                found[-1].returned = True
            case ["end"]:
                ended = True
    close()
    return found, ended


def _errors(lines: Sequence[str]) -> Iterator[AccessError]:
    for i, line in enumerate(lines):
        if match := _ASAN.search(line):
            yield _of_address_sanitizer(match, lines[i + 1 : i + 40])
        elif match := _UBSAN.match(line):
            yield AccessError(match["what"], None, "", match["file"], int(match["line"]))


# -- AddressSanitizer, and UndefinedBehaviorSanitizer beside it ----------------------------------------------------

_ASAN = re.compile(r"ERROR: AddressSanitizer: (?P<kind>[\w-]+)(?: on (?:unknown )?address (?P<address>0x[0-9a-f]+))?")
_UBSAN = re.compile(r"(?P<file>\S+?):(?P<line>\d+):\d+: runtime error: (?P<what>.*)")
_ACCESS = re.compile(r"(?P<verb>READ|WRITE) of size (?P<size>\d+)")
_FRAME = re.compile(r"\s*#\d+ 0x[0-9a-f]+ in (?P<function>.+?) (?P<file>/[^:]+)(?::(?P<line>\d+))?")


def _of_address_sanitizer(match: re.Match[str], after: Sequence[str]) -> AccessError:
    what = match["kind"].replace("out-of-memory", "out of memory")  # the machine's fault, as the check knows by it
    for line in after:
        if access := _ACCESS.search(line):
            verb = "reads" if access["verb"] == "READ" else "writes"
            what = f"{verb} {access['size']} bytes ({match['kind']})"
            break
    frame = next(filter(None, map(_FRAME.match, after)), None)
    address = int(match["address"], 16) if match["address"] else None
    if frame is None:
        return AccessError(what, address)
    return AccessError(what, address, short(frame["function"]), frame["file"], int(frame["line"] or 0))
