"""What NVRTC gets besides a source: a prelude in place of the standard headers, the half types' headers, and CUB whole.

The simulator's compiler has these headers itself. So both take the same sources.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from opwright.backends.simulation import (
    FUNCTION_OBJECT,
    TORCH_NAMES,
    ParsedSource,
    header_text,
    torch_names_header,
    uses_torch_names,
)

__all__ = ["PRELUDE", "header_texts", "missing_headers"]

_HEADERS = Path(__file__).parent / "headers"

PRELUDE = "opwright_prelude.h"
# Headers of C and C++ that the prelude replaces, as far as kernels use them.
_REPLACED = (
    *("assert.h", "float.h", "inttypes.h", "limits.h", "math.h", "stdbool.h", "stddef.h", "stdint.h", "stdio.h"),
    *("stdlib.h", "string.h", "sys/types.h", "algorithm", "array", "cassert", "cfloat", "climits", "cmath", "cstddef"),
    *("cstdint", "cstdio", "cstdlib", "cstring", "limits", "type_traits", "utility"),
    *("cuda_runtime.h", "cuda_runtime_api.h", "device_launch_parameters.h", "vector_types.h"),
    *("math_functions.h", "device_functions.h", "vector_functions.h", "builtin_types.h"),
    *("host_defines.h", "sm_30_intrinsics.h", "device_atomic_functions.h"),
)
_TUPLE = "opwright_tuple.h"
_ARRAY = "opwright_array.h"
_TRAITS = "opwright_traits.h"
_FUNCTIONAL = "opwright_functional.h"
_WARPS_OF_TORCH = "ATen/cuda/DeviceUtils.cuh"  # the simulator has the same file
_CUB = "cub/cub.cuh"
_CUB_NAMES = "opwright_cub_names.h"
# Names that the simulator has without their header.
_WITHOUT_HEADER = (
    ("cuda_fp16.h", re.compile(r"\b__half2?\b")),
    ("cuda_bf16.h", re.compile(r"\b__nv_bfloat162?\b")),
    (_TUPLE, re.compile(r"\bstd\s*::\s*(?:tuple|make_tuple|tie)\b")),  # <tuple>, which libcu++ declares
    (_FUNCTIONAL, FUNCTION_OBJECT),
    (
        _TRAITS,
        re.compile(
            r"\bstd\s*::\s*(?:is_(?:trivial|standard|default|(?:copy_|move_)?(?:construct|assign)|base_of|convert|empty|aggregate"
            r"|invocable|array|class|union|enum|void|pointer|reference|const|arithmetic|unsigned|function|scalar|object"
            r"|fundamental|null_pointer|destruct|nothrow_default)\w*|(?:con|dis)junction|negation|invoke_result|underlying_type"
            r"|common_type|remove_(?:all_)?extent|extent|rank)\w*"
        ),
    ),
    (_ARRAY, re.compile(r"\bstd\s*::\s*(?:array\s*<|pair\s*<|make_pair\b)")),
)
_CUB_OLD = r"(?:Sum|Max|Min|Difference|Division|Equality|Inequality)"


def header_texts() -> dict[str, str]:
    """The texts of headers that are no files, by name."""
    names = {TORCH_NAMES: torch_names_header().read_text()}
    names[_TUPLE] = (_HEADERS / "nvrtc_tuple.h").read_text()
    names[_TRAITS] = (_HEADERS / "nvrtc_traits.h").read_text()
    names[_FUNCTIONAL] = (_HEADERS / "nvrtc_functional.h").read_text()
    names[_ARRAY] = (_HEADERS / "nvrtc_array.h").read_text()
    names[_WARPS_OF_TORCH] = header_text(_WARPS_OF_TORCH)
    names[_CUB] = (_HEADERS / "nvrtc_cub.h").read_text()
    names[_CUB_NAMES] = (_HEADERS / "nvrtc_cub_names.h").read_text()
    driver = dict.fromkeys(("cuda.h", "cudaTypedefs.h"), (_HEADERS / "nvrtc_driver.h").read_text())
    return {PRELUDE: (_HEADERS / "nvrtc_prelude.h").read_text(), **names, **dict.fromkeys(_REPLACED, ""), **driver}


def missing_headers(sources: Sequence[ParsedSource]) -> tuple[str, ...]:
    """The headers of half types, tuples, CUB's old names and torch's that sources use without including any."""
    included = {include.name for source in sources for include in source.includes}

    def is_used(search: Callable[[str], object]) -> bool:
        return any(_finds(search, source) for source in sources)

    found = tuple(name for name, types in _WITHOUT_HEADER if name not in included and is_used(types.search))
    if _uses_old_names_of_cub("\n".join(source.code for source in sources)):
        found = (*found, _CUB_NAMES)
    return (*found, TORCH_NAMES) if is_used(uses_torch_names) else found


@functools.lru_cache(maxsize=4096)
def _finds(search: Callable[[str], object], source: ParsedSource) -> bool:
    """Whether a search finds something in a source. It is remembered because CUTLASS's headers take seconds."""
    return bool(search(source.code))


def _uses_old_names_of_cub(code: str) -> bool:
    """Whether names that CUB no longer has are used: of its namespace, of one that stands for it, or without one."""
    if "cub" not in code:
        return False
    aliases = re.findall(r"\bnamespace\s+(\w+)\s*=\s*(?:::\s*)?cub\s*;", code)
    spaces = rf"(?:{'|'.join(map(re.escape, ['cub', *aliases]))})"
    if re.search(rf"\b{spaces}\s*::\s*{_CUB_OLD}\b", code):
        return True
    if not re.search(rf"\busing\s+namespace\s+(?:::\s*)?{spaces}\s*;", code):
        return False
    used = set(re.findall(rf"(?<![\w:.])({_CUB_OLD})\b\s*(?:\(\s*\)|\{{\s*\}}|[,>]|\w+\s*[;,)({{=])", code))
    own = set(
        re.findall(
            rf"\b(?:struct|class|union|enum|using|define)\s+({_CUB_OLD})\b|\b({_CUB_OLD})\s*\([^()]*\)\s*\{{", code
        )
    )
    return bool(used - {name for pair in own for name in pair})
