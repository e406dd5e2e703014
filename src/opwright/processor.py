"""The processor of this machine."""

from __future__ import annotations

import functools
import platform
import re
from pathlib import Path
from typing import NamedTuple

__all__ = ["Processor", "processor"]


class Processor(NamedTuple):
    """Its name, and its instruction-set flags, on which ``-march=native`` depends."""

    name: str
    flags: str


@functools.cache
def processor() -> Processor:
    """This machine's processor."""
    try:
        info = Path("/proc/cpuinfo").read_text()
    except OSError:
        return Processor(platform.processor() or platform.machine(), "")
    model = re.search(r"^model name\s*:\s*(.+)$", info, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", info, re.MULTILINE)
    return Processor(model[1] if model else platform.machine(), flags[1] if flags else "")
