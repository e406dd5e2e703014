"""The device code of whole ``.cu`` files: the text without host code, every line in its place.

Published files hold kernels, the functions that launch them, and bindings. The compilers of kernels (NVRTC, and the
simulator) take device code only. So of a source and its own headers, those items are kept that the kernels
name, directly or through others; of these, functions without an execution space are left out.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Sequence

from opwright.backends.c_text import INCLUDE, blank_out, closing_bracket, split_commas
from opwright.backends.cuda.text.items import IDENTIFIER, Item, items_of, macros_of, template_parameters
from opwright.backends.cuda.text.members import (
    device_members,
    host_members,
    members_of,
    named_by_the_device,
    undefined_functions,
)

__all__ = ["device_text", "device_texts"]

# Headers that only host code needs, and that neither compiler of kernels has.
_HOST_HEADER = re.compile(
    r"(?:torch|ATen(?!/cuda/DeviceUtils\.cuh)|TH|THC|c10|caffe2|pybind11|Python|cublas|cusolver|cusparse|cudnn|cufft|curand(?!_kernel)|nccl|nvml|npp|mpi"
    r"|omp|nvToolsExt|nvtx3|arpa/|netinet/|X11/|helper_|cuda_profiler_api|cudaEGL|EGL|GL|GLES\d?|Eigen|opencv2?|glog|gtest|nvrtc|cuda_gl_interop"
    r"|thrust(?=/(?:host|device)_vector)|cutlass(?=/util/|/cluster_launch\.hpp))[\w/.+-]*"
    r"|(?:any|array(?=$)|bitset|charconv|chrono|codecvt|complex(?=$)|condition_variable|deque|exception|execution|filesystem"
    r"|forward_list|fstream|functional|future|initializer_list|iomanip|ios|iosfwd|iostream|istream|iterator|list|locale|map"
    r"|memory|memory_resource|mutex|new|numeric|optional|ostream|queue|random|ratio|regex|set|shared_mutex|sstream|stack"
    r"|stdexcept|streambuf|string|string_view|strstream|system_error|thread|tuple|typeindex|typeinfo|unordered_map"
    r"|unordered_set|valarray|variant|vector|atomic|cctype|cerrno|cinttypes|clocale|csetjmp|csignal|cstdarg|cstdlib|ctime"
    r"|cwchar|ctype\.h|dirent\.h|dlfcn\.h|errno\.h|fcntl\.h|getopt\.h|inttypes\.h|libgen\.h|malloc\.h|memory\.h|pthread\.h"
    r"|sched\.h|setjmp\.h|signal\.h|stdarg\.h|stdlib\.h|string\.h|strings\.h|time\.h|unistd\.h|sys/(?!types)\w+\.h)"
)
# Names of std:: that kernels use; a function or class with any other one is the host's.
_STD_OF_DEVICES = (
    r"(?:min|max|swap|clamp|move|forward|numeric_limits|is_\w+|enable_if\w*|conditional\w*|remove_\w+|add_\w+|decay\w*"
    r"|integral_constant|true_type|false_type|make_\w*signed\w*|declval|void_t|invoke_result\w*|common_type\w*|size_t"
    r"|ptrdiff_t|u?int(?:8|16|32|64|ptr|max)_t|u?int_(?:fast|least)\d+_t|abs|fabs\w?|floor\w?|ceil\w?|l*round\w?|trunc\w?|l*rint\w?"
    r"|fmod\w?|sqrt\w?|cbrt\w?|hypot\w?|pow\w?|exp\w?|exp2\w?|expm1\w?|log\w?|log2\w?|log10\w?|log1p\w?|a?sinh?\w?|a?cosh?\w?"
    r"|a?tanh?\w?|atan2\w?|erfc?\w?|fma\w?|fm(?:in|ax)\w?|isnan|isinf|isfinite|signbit|copysign\w?|nearbyint\w?|l?tgamma\w?"
    r"|lgamma\w?|ldexp|frexp|modf|nextafter|memcpy|memset|byte|integer_sequence|make_index_sequence|index_sequence\w*|nullptr_t"
    r"|plus|minus|multiplies|divides|modulus|negate|(?:not_)?equal_to|(?:greater|less)(?:_equal)?|logical_(?:and|or|not)"
    r"|bit_(?:and|or|xor)|conjunction\w*|disjunction\w*|negation\w*|pair|make_pair|array|tuple|get|complex|bit_cast|underlying_type\w*|rank|extent|alignment_of|alignment_storage|aligned_storage\w*)"
)
# What of at::cuda device code uses.
_OF_AT_CUDA = r"\s*::\s*(?:ATenCeilDiv|detail\s*::\s*(?:TensorInfo|IndexToOffset))\b"
# Namespaces of host headers, which are left out.
_HOST_NAMESPACES = (
    r"(?:(?:std\s*::\s*)?(?:chrono|filesystem|literals|chrono_literals|string_literals|placeholders|this_thread))"
)
# Words that no device code contains.
_HOST_WORDS = re.compile(
    rf"<<<|\b(?:torch|c10|at)\s*::\s*(?:Tensor|optional|IntArrayRef|Device|cuda(?!{_OF_AT_CUDA})|kernel|library|nn|autograd|tensor|empty\w*|zeros\w*)\b"
    rf"|\b(?:pybind11|py)\s*::|\bstd\s*::\s*(?!{_STD_OF_DEVICES}\b)\w+"
    r"|\b(?:cuda|cublas|cudnn|curand)(?:Malloc|Free|Mem|Device(?:Synchronize|Prop|Get)|Stream|Event|Get|Set|Launch|Func|Check|Create"
    r"|Destroy|Error|Status|Handle|Peek)\w*|\b(?:TORCH|AT)_[A-Z_]+\s*\(|\b(?:AT|C10)_(?:DISPATCH|CUDA|PRIVATE|ERROR|ASSERT)\w*\s*\("
    r"|\bcheckCudaErrors\b"
)
# Types of parameters with which no device function is called.
_HOST_PARAMETER = re.compile(
    r"\bstd\s*::\s*(?:vector|list|deque|(?:unordered_)?(?:map|set)|string|function|\w*stream|(?:unique|shared)_ptr)\b"
    r"|\b(?:torch|at)\s*::\s*Tensor\b"
)
_BINDING = re.compile(r"^[ \t]*(?:PYBIND11_MODULE|TORCH_LIBRARY\w*|STABLE_TORCH_LIBRARY\w*)\s*\(", re.MULTILINE)
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)((?:\\\r?\n|[^\n])*)", re.MULTILINE)
_OF_THE_DEVICE = re.compile(r"\b(?:__device__|__global__|constexpr|consteval)\b")
# Declarations that are no variable, or one that kernels can read.
_NO_VARIABLE = re.compile(
    r"\b(?:using|typedef|namespace|class|struct|enum|union|friend|static_assert|const|__constant__|__shared__|__managed__)\b"
)
# Libraries of device code, whose headers go with the code that names them.
_LIBRARIES = {
    "thrust": re.compile(r"\bthrust\b"),
    "cub": re.compile(r"\bcub\b"),
    "curand": re.compile(r"\bcurand\w*"),
}
# More than this is a library, all of which is for kernels; without host code, more than the second one.
_MOST_TEXT = 4_000_000
_MOST_TEXT_OF_ONE = 500_000
_INSTANCE_OF_MACRO = re.compile(r"(?:\([^()]*\))?(?:\s|\\\r?\n)*(?:extern\s+)?template\b(?!\s*<)")
_EXPLICIT_INSTANCE = re.compile(r"\s*(?:extern\s+)?template\b(?!\s*<)")


@functools.lru_cache(maxsize=256)
def device_texts(texts: tuple[str, ...], kernels: tuple[str, ...]) -> tuple[str, ...]:
    """A source and its own headers, with host code and what the kernels do not need replaced by spaces; the texts
    themselves if they contain no host code.

    Args:
        kernels: those that are wanted, by name or as an instance of a template.
    """
    if sum(map(len, texts)) > _MOST_TEXT:
        return texts
    codes = [blank_out(text) for text in texts]
    macros = _macros(codes)
    is_whole = any(map(_is_whole_file, texts, codes))
    if not is_whole and not _has_host_items(codes, kernels, macros):
        return _without_host_members(texts, macros)
    kept = [_without_bindings(text, macros) for text in texts]
    codes = [blank_out(text) for text in kept]
    items = _items(codes, macros)
    # Without a word of the host, what a kernel names may be for it by an option, or is a mistake that NVRTC reports.
    needed = _needed([item for of in items for item in of], codes, kernels, macros, hosts_too=not is_whole)
    left = [
        _without(
            text, [s for item in of if item not in needed for s in _without_directives(text, item.begin, item.end)]
        )
        for text, of in zip(kept, items, strict=True)
    ]
    left = _without_members(left, [[i for i in of if i in needed] for of in items], macros, all_of_them=is_whole)
    named = [INCLUDE.sub("", blank_out(text)) for text in left]
    used = {library for library, names in _LIBRARIES.items() if any(map(names.search, named))}
    return tuple(_without(text, _includes_of(text, _LIBRARIES.keys() - used)) for text in left)


def _macros(codes: Sequence[str]) -> dict[str, str]:
    """The macros by name. One that several branches define, such as one for the host, has all their bodies."""
    bodies: dict[str, str] = {}
    for code in codes:
        for found in _MACRO.finditer(code):
            bodies[found[1]] = f"{bodies[found[1]]} {found[2]}" if found[1] in bodies else found[2]
    return bodies


def device_text(text: str, kernels: Sequence[str] | None = None) -> str:
    """The same of a source without headers of its own; of all its kernels, if none are named."""
    from opwright.backends.cuda.text.parsing import declarations

    return device_texts((text,), tuple(kernels) if kernels is not None else declarations(text).kernels)[0]


def _is_whole_file(text: str, code: str) -> bool:
    return bool(_HOST_WORDS.search(code) or _BINDING.search(code) or _includes_for_host(text, code))


def _has_host_items(codes: Sequence[str], kernels: Sequence[str], macros: dict[str, str]) -> bool:
    """Whether there are functions, their declarations or variables for the host, which no kernel needs."""
    if sum(map(len, codes)) > _MOST_TEXT_OF_ONE:
        return False
    items = [item for of in _items(codes, macros) for item in of]
    for_host = [item for item in items if _is_for_host(item, macros) and not _EXPLICIT_INSTANCE.match(item.head)]
    return bool(for_host) and not _needed(items, codes, kernels, macros, hosts_too=True).issuperset(for_host)


def _without(text: str, spans: Iterable[tuple[int, int]]) -> str:
    for begin, end in spans:
        text = text[:begin] + re.sub(r"[^\n]", " ", text[begin:end]) + text[end:]
    return text


def _without_directives(text: str, begin: int, end: int) -> list[tuple[int, int]]:
    """The parts of a span between its directives, which stay."""
    spans, position = [], begin
    for directive in re.finditer(
        r"^[ \t]*#[ \t]*(?:if|else|elif|endif|undef|define|include|pragma)\w*(?:\\\n|[^\n])*",
        text[begin:end],
        re.MULTILINE,
    ):
        spans.append((position, begin + directive.start()))
        position = begin + directive.end()
    return [*spans, (position, end)]


def _without_bindings(text: str, macros: dict[str, str]) -> str:
    text = _without(text, _includes_for_host(text, blank_out(text)))
    text = _without(text, [f.span() for f in _MACRO.finditer(blank_out(text)) if _HOST_WORDS.search(f[2])])
    return _without(text, _bindings(blank_out(text), macros))


def _includes_for_host(text: str, code: str) -> list[tuple[int, int]]:
    return [
        (found.start(), found.end())
        for found in INCLUDE.finditer(text)
        if code[found.start() : found.start(2)].strip().startswith("#") and _HOST_HEADER.fullmatch(found[2])
    ]


def _includes_of(text: str, libraries: Iterable[str]) -> list[tuple[int, int]]:
    code, names = blank_out(text), tuple(libraries)
    return [
        (found.start(), found.end())
        for found in INCLUDE.finditer(text)
        if code[found.start() : found.start(2)].strip().startswith("#") and found[2].startswith(names)
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


# --- what the kernels need ---


def _items(codes: Sequence[str], macros: dict[str, str]) -> list[list[Item]]:
    """The items of each source. A function's definition is for the device if its declaration is."""
    found = [items_of(code) for code in codes]
    without = {key for of in found for item in of if item.kind == "function" and (key := _key(item))}
    declared = without & _declared_for_device(found, codes, macros)
    found = [[_for_device(item) if _key(item) in declared else item for item in of] for of in found]
    return [[_as_the_device_sees(i, code, macros) for i in of] for of, code in zip(found, codes, strict=True)]


def _as_the_device_sees(item: Item, code: str, macros: dict[str, str]) -> Item:
    """A class without what only its members for the host mention."""
    if item.kind != "class":
        return item
    hosts = [(m.begin, m.end) for m in host_members(item, code, lambda member: _is_for_host(member, macros))]
    if not hosts:
        return item
    left = _without(code, hosts)[item.begin : item.end]
    return dataclasses.replace(item, mentions=item.mentions & frozenset(IDENTIFIER.findall(left)))


def _for_device(item: Item) -> Item:
    return dataclasses.replace(item, head=f"__device__ {item.head}") if item.kind == "function" else item


def _key(item: Item) -> tuple[str, int] | None:
    """A function's name and the number of its parameters."""
    names = IDENTIFIER.findall(item.signature.before) if item.signature is not None else []
    return (names[-1], len(split_commas(item.signature.parameters))) if names and item.signature is not None else None


def _declared_for_device(
    items: Sequence[Sequence[Item]], codes: Sequence[str], macros: dict[str, str]
) -> set[tuple[str, int]]:
    """The functions that are declared for the device, also in classes, and not defined so: others are overloads."""
    functions = [item for of in items for item in of if item.kind == "function" or item.declares_function]
    if any("::" in item.signature.before for item in functions if item.signature is not None):
        of_classes = [members_of(item, code)[0] for of, code in zip(items, codes, strict=True) for item in of]
        functions += [member for members in of_classes for member in members if member.kind == "statement"]
    for_device = [item for item in functions if not _is_for_host(item, macros)]
    defined = {_key(item) for item in for_device if item.kind == "function"}
    return {key for item in for_device if (key := _key(item)) and key not in defined}


def _needed(
    items: Sequence[Item],
    codes: Sequence[str],
    kernels: Sequence[str],
    macros: dict[str, str],
    *,
    hosts_too: bool = False,
) -> set[Item]:
    """The items that the kernels name, directly or through other items and macros.

    Args:
        hosts_too: whether what has no execution space is needed, too, if nothing else has its name.
    """
    by_name: dict[str, list[Item]] = {}
    for item in items:
        for name in item.names:
            by_name.setdefault(name, []).append(item)
    bodies: dict[str, frozenset[str]] = {}
    for code in codes:
        for name, mentioned in macros_of(code).items():
            bodies[name] = bodies.get(name, frozenset()) | mentioned
    # Of a template's instance, its arguments as well.
    waiting = [name for kernel in kernels for name in re.findall(r"[A-Za-z_]\w*", kernel)]
    needed: set[Item] = set()
    for item in items:
        if _is_always_kept(item, macros):
            needed.add(item)
            waiting += item.mentions
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        waiting += bodies.get(name, ())
        of_name = by_name.get(name, [])
        chosen = [item for item in of_name if not _is_for_host(item, macros)]
        if not chosen and hosts_too:
            chosen = [item for item in of_name if not _EXPLICIT_INSTANCE.match(item.head)]
        for item in chosen:
            if item not in needed:
                needed.add(item)
                waiting += item.mentions
    return needed


def _is_always_kept(item: Item, macros: dict[str, str]) -> bool:
    """Operators, which are called without their name; uses of macros, which may define anything."""
    if item.kind == "macro use":
        bodies = [macros[name] for name in _first_name(item) if name in macros]
        return any(not _HOST_WORDS.search(body) and not _INSTANCE_OF_MACRO.match(body) for body in bodies)
    if item.kind == "function" or item.declares_function:
        return re.search(r"\boperator\b", item.head) is not None and not _is_for_host(item, macros)
    return re.match(rf"\s*using\s+namespace\b(?!\s+{_HOST_NAMESPACES}\s*$)", item.head) is not None


def _first_name(item: Item) -> list[str]:
    return IDENTIFIER.findall(item.head)[:1]


def _is_for_host(item: Item, macros: dict[str, str]) -> bool:
    """Whether a function has no execution space, also not in a macro, or a variable no memory space."""
    if item.kind not in ("function", "statement"):
        return False
    if _EXPLICIT_INSTANCE.match(item.head):
        return True
    if item.signature is not None and item.signature.is_deduction_guide:
        return False
    if item.kind == "statement" and not item.declares_function and _NO_VARIABLE.search(item.head):
        return re.search(r"\bconst\b", item.head) is not None and _HOST_WORDS.search(item.head) is not None
    is_function = item.kind == "function" or item.declares_function
    if is_function and _HOST_PARAMETER.search(item.head):
        return True  # an overload for both, with a parameter that only the host has
    head = item.head
    waiting, seen = _before_parameters(item, is_function), set(template_parameters(head) - macros.keys())
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in macros:
            head += macros[name]
            waiting += IDENTIFIER.findall(macros[name])
        elif re.fullmatch(r"[A-Z][A-Z0-9_]{2,}", name):
            return False  # a macro of a header: it may be __device__
    return not _OF_THE_DEVICE.search(head)


def _before_parameters(item: Item, is_function: bool) -> list[str]:
    """The identifiers before the parameters of a function, or the value of a variable: its execution space is one."""
    if not is_function:
        return IDENTIFIER.findall(re.split(r"[(=]", item.head)[0])
    if item.signature is None or re.search(r"\brequires\b", item.head):
        return IDENTIFIER.findall(item.head)
    return IDENTIFIER.findall(f"{item.head.split('(')[0]} {item.signature.before}")


# --- member functions for the host ---


def _without_host_members(texts: tuple[str, ...], macros: dict[str, str]) -> tuple[str, ...]:
    """Sources whose host code is in classes only, if there is any."""
    codes = [blank_out(text) for text in texts]
    if sum(map(len, codes)) > _MOST_TEXT_OF_ONE:
        return texts
    return tuple(_without_members(texts, _items(codes, macros), macros, all_of_them=False))


def _without_members(
    texts: Sequence[str], items: Sequence[Sequence[Item]], macros: dict[str, str], *, all_of_them: bool
) -> list[str]:
    """The texts without the host's members of classes. Those that are kept for their types are the device's.

    Args:
        all_of_them: also those that device code calls, which NVRTC would report.
    """

    def is_for_host(item: Item) -> bool:
        return _is_for_host(item, macros)

    codes = [blank_out(text) for text in texts]
    classes = [[item for item in of if item.kind == "class"] for of in items]
    found = [
        [m for c in of for m in host_members(c, code, is_for_host)] for of, code in zip(classes, codes, strict=True)
    ]
    cut = [[(m.begin, m.end) for m in of] for of in found]
    if not all_of_them and any(cut):
        left = list(map(_without, codes, cut))
        names = {n for of in items for i in of if i.kind == "function" and not is_for_host(i) for n in i.names}
        for of, code in zip(classes, codes, strict=True):
            names |= {name for item in of for name in device_members(item, code, is_for_host)}
        of_device = frozenset(names)
        cut = [[(m.begin, m.end) for m in of if not named_by_the_device(m, left, of_device)] for of in found]
    marks = [
        [at for item in of for at in undefined_functions(item, code, is_for_host)]
        for of, code in zip(classes, codes, strict=True)
    ]
    return [_marked(_without(text, spans), places) for text, spans, places in zip(texts, cut, marks, strict=True)]


def _marked(text: str, places: Sequence[int]) -> str:
    """The text with the execution space of the device before the functions at these places."""
    for place in sorted(places, reverse=True):
        head = re.compile(r"\bstatic\b").search(text, place)
        at = head.start() if head else place
        text = f"{text[:at]}__device__ {text[at:]}"
    return text
