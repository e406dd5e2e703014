"""Reads the resources of a kernel from the output of ``ptxas -v``."""

from __future__ import annotations

import re

from opwright.backends.gpu.device_code import Resources

__all__ = ["read_resources"]


def read_resources(log: str, symbol: str) -> Resources | None:
    """Registers, stack, spills and shared memory of one kernel; None if the log does not mention it."""
    section = re.search(
        rf"Compiling entry function '{re.escape(symbol)}'.*?(?=Compiling entry function|\Z)", log, re.DOTALL
    )
    if section is None:
        return None

    def number(pattern: str) -> int:
        found = re.search(pattern, section[0])
        return int(found[1]) if found else 0

    return Resources(
        registers=number(r"Used (\d+) registers"),
        stack=number(r"(\d+) bytes stack frame"),
        spill_stores=number(r"(\d+) bytes spill stores"),
        spill_loads=number(r"(\d+) bytes spill loads"),
        static_shared=number(r"(\d+) bytes smem"),
    )
