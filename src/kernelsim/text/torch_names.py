"""Whether device code uses names of torch's headers, and the header of ours that declares them for both compilers."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["FUNCTION_OBJECT", "HEADERS", "TORCH_NAMES", "torch_names_header", "uses_torch_names"]

HEADERS = Path(__file__).parent / "headers"
TORCH_NAMES = "torch_names.h"
# Of <functional>, which is left out with the host's headers.
FUNCTION_OBJECT = re.compile(
    r"\bstd\s*::\s*(?:plus|minus|multiplies|divides|modulus|negate|(?:not_)?equal_to|(?:greater|less)(?:_equal)?"
    r"|logical_(?:and|or|not)|bit_(?:and|or|xor))\b"
)
_USE = re.compile(
    r"\b(?:at|c10|torch)\s*::|\busing\s+namespace\s+(?:at|c10|torch)\b"
    r"|\b(?:C10_\w+|CUDA_KERNEL_(?:LOOP|ASSERT)\w*|gpuAtomicAdd\w*)\b"
)


def torch_names_header() -> Path:
    """The header's file."""
    return HEADERS / TORCH_NAMES


def uses_torch_names(code: str) -> bool:
    """Whether the names are used.

    Args:
        code: without comments and literals.
    """
    return _USE.search(code) is not None
