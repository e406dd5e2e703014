"""The user's headers as the simulator's compiler gets them: rewritten, once for each text, as a library's are long."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from kernelsim.cuda_sim import ptx, rewriting
from kernelsim.cuda_sim.rewriting import Refusal, refusals, rewrite
from kernelsim.host import Host, Key
from kernelsim.text import c_text, parsed_source
from kernelsim.text.parsed_source import ParsedSource

__all__ = ["RewrittenHeader", "rewriters", "rewritten_header"]

# Characters. Rewriting fewer takes less time than to look for what was rewritten before.
_LONG = 20_000
# A library's functions call one another many levels deep. If each had to be inlined in its callers, g++ would optimise
# it again at each level; kernels have all inlined anyway. As of any inline function, those not called are left out.
_FORCED = re.compile(r"\b__forceinline__\b")
# What CUTLASS's host code asks of the driver. With NVRTC there are no such functions, and it skips the bodies of host
# functions, where templates ask for them.
_ASKS_THE_DRIVER = re.compile(r"\bKernelHardwareInfo::query_\w+(?=\()")
_TEXT, _REFUSALS = "rewritten.h", "refusals.json"


@dataclass(frozen=True)
class RewrittenHeader:
    """A header's text for the compiler, with its includes as they were; and what in it cannot be simulated, apart from
    inline PTX, which is refused where it is used."""

    text: str
    refusals: tuple[Refusal, ...]


def rewritten_header(source: ParsedSource, host: Host, *, checked: bool, of_library: bool = False) -> RewrittenHeader:
    """A header for the compiler, from the cache if it is a long one.

    Args:
        of_library: whether it is CuTe's or CUTLASS's.
    """
    if len(source.text) < _LONG:
        return _made(source, checked, of_library)

    def build(folder: Path) -> None:
        made = _made(source, checked, of_library)
        (folder / _TEXT).write_text(made.text)
        (folder / _REFUSALS).write_text(json.dumps([asdict(refusal) for refusal in made.refusals]))

    parts = (("text", source.text), ("checked", str(checked)), ("of library", str(of_library)), *rewriters())
    folder = host.get_or_build(Key("simulator.header", parts), build)
    found = json.loads((folder / _REFUSALS).read_text())
    return RewrittenHeader((folder / _TEXT).read_text(), tuple(Refusal(**refusal) for refusal in found))


def _made(source: ParsedSource, checked: bool, of_library: bool) -> RewrittenHeader:
    rewritten = rewrite(source, checked=checked, header=True)
    if of_library:
        rewritten = _FORCED.sub("inline", rewritten)
        rewritten = _ASKS_THE_DRIVER.sub("kernelsim::asks_the_driver", rewritten)
    return RewrittenHeader(rewritten, tuple(refusals(source, header=True, of_library=of_library)))


@functools.cache
def rewriters() -> tuple[tuple[str, str], ...]:
    """The code that rewrites, as parts of a key."""
    files = [Path(module.__file__) for module in (c_text, parsed_source, rewriting) if module.__file__]
    files += sorted(path for folder in ptx.__path__ for path in Path(folder).glob("*.py"))
    return tuple((path.name, path.read_text()) for path in (*files, Path(__file__)))
