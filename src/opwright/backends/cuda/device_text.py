"""The device code of a whole ``.cu`` file: the text without its host code, every line in its place.

Published files hold kernels, the functions that launch them, and bindings. The compilers of kernels (NVRTC, and the
simulator) take device code only.
"""

from __future__ import annotations

import functools
import re

from opwright.backends.c_text import INCLUDE, blank_out, closing_bracket
from opwright.backends.cuda.parsing import Function, declarations

__all__ = ["device_text"]

# Headers that only host code needs, and that neither compiler of kernels has.
_HOST_HEADER = re.compile(
    r"(?:torch|ATen|c10|caffe2|pybind11|Python|cublas|cusolver|cudnn|cufft|nccl|mpi|nvToolsExt|nvtx3|helper_)[\w/.+-]*"
    r"|(?:iostream|iomanip|fstream|sstream|string|vector|map|unordered_map|set|memory|random|chrono|thread|mutex|atomic"
    r"|stdexcept|functional|optional|tuple|initializer_list|numeric|cstdlib|ctime|stdlib\.h|time\.h|unistd\.h|string\.h|sys/\w+\.h)"
)
# Words that no device code contains.
_HOST_WORDS = re.compile(
    r"<<<|\b(?:torch|at|c10|pybind11|py)\s*::|\bstd\s*::\s*(?:vector|string|cout|cerr|endl|runtime_error|map|chrono|random|thread|unique_ptr)\b"
    r"|\b(?:cuda|cublas|cudnn|curand)(?:Malloc|Free|Mem|Device(?:Synchronize|Prop|Get)|Stream|Event|Get|Set|Launch|Func|Check|Create"
    r"|Destroy|Error|Status|Handle|Peek)\w*|\b(?:TORCH|AT)_[A-Z_]+\s*\(|\b(?:AT|C10)_\w+\s*\(|\bcheckCudaErrors\b"
)
_BINDING = re.compile(r"^[ \t]*(?:PYBIND11_MODULE|TORCH_LIBRARY\w*|STABLE_TORCH_LIBRARY\w*)\s*\(", re.MULTILINE)
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)((?:\\\r?\n|[^\n])*)", re.MULTILINE)
_OF_THE_DEVICE = re.compile(r"\b(?:__device__|__global__|constexpr)\b")


@functools.lru_cache(maxsize=256)
def device_text(text: str) -> str:
    """The text with host code replaced by spaces; the text itself if it contains none."""
    code = blank_out(text)
    if not _HOST_WORDS.search(code) and not _BINDING.search(code) and not _includes_for_host(text, code):
        return text
    macros = {found[1]: found[2] for found in _MACRO.finditer(code)}
    text = _without(text, _includes_for_host(text, code))
    text = _without(text, [f.span() for f in _MACRO.finditer(blank_out(text)) if _HOST_WORDS.search(f[2])])
    text = _without(text, _bindings(blank_out(text), macros))
    text = _without(text, [(f.begin, f.end) for f in declarations(text).functions if _is_for_host(f, macros)])
    return _without(text, _host_statements(blank_out(text)))


def _without(text: str, spans: list[tuple[int, int]]) -> str:
    for begin, end in spans:
        text = text[:begin] + re.sub(r"[^\n]", " ", text[begin:end]) + text[end:]
    return text


def _includes_for_host(text: str, code: str) -> list[tuple[int, int]]:
    return [
        (found.start(), found.end())
        for found in INCLUDE.finditer(text)
        if code[found.start() : found.start(2)].strip().startswith("#") and _HOST_HEADER.fullmatch(found[2])
    ]


def _bindings(code: str, macros: dict[str, str]) -> list[tuple[int, int]]:
    """The blocks that bind functions to Python, and the uses of macros that make functions for the host."""
    for_host = [name for name, body in macros.items() if _HOST_WORDS.search(body) and "(" in body[:1]]
    names = "|".join(map(re.escape, for_host))
    uses = list(re.finditer(rf"^[ \t]*(?:{names})[ \t]*\(", code, re.MULTILINE)) if names else []
    spans = []
    for found in (*_BINDING.finditer(code), *uses):
        closing = closing_bracket(code, found.end() - 1)
        if closing is None:
            continue
        after = re.compile(r"\s*([{;])").match(code, closing + 1)
        if after and after[1] == "{":
            closing = closing_bracket(code, after.end() - 1) or closing
        elif after:
            closing = after.end() - 1
        spans.append((found.start(), closing + 1))
    return spans


def _is_for_host(function: Function, macros: dict[str, str]) -> bool:
    """Whether a function has no execution space, also not in a macro: it is the host's then."""
    head = function.head
    for name in re.findall(r"\b[A-Za-z_]\w*\b", function.head):
        if name in macros:
            head += macros[name]
        elif re.fullmatch(r"[A-Z][A-Z0-9_]{2,}", name):
            return False  # a macro of a header: it may be __device__
    return not _OF_THE_DEVICE.search(head)


def _host_statements(code: str) -> list[tuple[int, int]]:
    """Declarations outside of functions that name the host's types, such as ``static torch::Tensor cache;``."""
    spans, depth, begin = [], 0, 0
    for found in re.finditer(r"[;{}]|^[ \t]*#(?:\\\n|[^\n])*", code, re.MULTILINE):
        if found[0] == "{":
            depth += 1
        elif found[0] == "}":
            depth -= 1
        elif found[0] == ";" and depth == 0 and _HOST_WORDS.search(code[begin : found.start()]):
            spans.append((begin, found.end()))
        if depth == 0:
            begin = found.end()
    return spans
