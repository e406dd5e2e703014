"""Changes to a checked kernel's assembly, before it is assembled."""

from __future__ import annotations

import re

__all__ = ["instrumented"]

_RED_ZONE_BYTES = 64
_VARIABLE = re.compile(r"\.(?:tbss|tdata|bss|data)\.(?!rel\b)")


def instrumented(assembly: str) -> str:
    """Add unused bytes after each shared variable, so that an access past its end does not reach the next one, and call
    the runtime's checked memcpy, memmove and memset instead of the C library's."""
    assembly = re.sub(
        r"(?m)^(\s(?:call|jmp|bl|b)\s+)(memcpy|memmove|memset)(@PLT)?$", r"\1kernelsim_checked_\2\3", assembly
    )
    lines, in_variable = [], False
    for line in assembly.split("\n"):
        section = re.match(r"\s+\.(?:section\s+([^\s,]+)|text|data|bss|previous|popsection)", line)
        if section:
            if in_variable:
                lines.append(f"\t.zero\t{_RED_ZONE_BYTES}")
            in_variable = _VARIABLE.match(section[1] or "") is not None  # -fdata-sections: one variable, one section
        lines.append(line)
    return "\n".join(lines)
