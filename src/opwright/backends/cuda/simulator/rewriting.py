"""Rewrites CUDA C++ for a host compiler, where macros are not sufficient, and finds unsupported features.

Every rewriting stays within its line, so that line numbers do not change.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from opwright.backends.c_text import INCLUDE, blank_out, closing_bracket, is_within_function, opening_bracket
from opwright.backends.cuda.curand_headers import CURAND_HEADER, curand_folder
from opwright.backends.cuda.cutlass_headers import CUTLASS_HEADER
from opwright.backends.cuda.simulator.ptx.assembly import assemblies

__all__ = ["NO_PTX", "USED_PTX", "Refusal", "refusals", "refused_ptx", "rewrite", "text_digest", "without_includes"]


@dataclass(frozen=True)
class Refusal:
    """A feature that cannot be simulated: its line, and why.

    Attributes:
        header: of an ``#include`` that is refused unless one of the user's folders has it.
    """

    line: int
    what: str
    why: str
    header: str = ""


# Stands for an asm statement that cannot be translated; the line follows.
NO_PTX = "OPWRIGHT_NO_PTX_"
# The same in a header: libraries have functions for each instruction, of which a kernel uses few. A call of a function
# that there is not: its name is in the shared object if it was not left out by the linker. The text's digest and the
# line follow.
USED_PTX = "opwright_used_ptx_"
_NO_TENSOR_CORES = "this tensor-core operation is not simulated"
_NO_ASYNC = "this form of asynchronous copies is not simulated"
_NO_GRID = "groups of several grids are not simulated, and CUDA 13 has none"
_NO_HOST_API = "this is host code: the simulator compiles device code only, as NVRTC does"
_NO_HEAP = "the device's heap is not simulated"
_NO_TEXTURES = (
    "textures and surfaces are not simulated, and ow.cuda_module has no argument for them; read from a const pointer "
    "(__ldg) instead"
)
_NO_CURAND = "NVIDIA's headers of cuRAND are not installed (pip install nvidia-curand)"
_NO_CUTLASS = "no include folder has this header, and CUTLASS's are not installed (pip install 'opwright[cutlass]')"
_NO_DEVICE_WIDE = (
    "CUB's algorithms of a whole device are launched by host code; a kernel has its blocks' and warps' collectives"
)
_NO_LIBRARY = "this library's device code relies on parts of CUDA that are not simulated"

_CODE = tuple(
    (re.compile(pattern), why)
    for pattern, why in (
        (r"<<<", "a kernel that launches kernels (dynamic parallelism), or host code, is not simulated"),
        (r"\b__mma_\w+|\bwmma\s*::\s*(?:experimental|bmma\w*)\b", _NO_TENSOR_CORES),
        (r"\b__mbarrier_\w+", _NO_ASYNC),
        (r"\b__pipeline_arrive_on\b|\bpipeline_role\b", _NO_ASYNC),
        (r"\b__nv_cp_\w+", _NO_ASYNC),
        (r"\bcuTensorMap\w*\s*\(", _NO_HOST_API),
        (r"\b(?:this_multi_grid|multi_grid_group)\b", _NO_GRID),
        (r"\bcub\s*::\s*Device[A-Z]\w+", _NO_DEVICE_WIDE),
        (
            r"\b\w*cub\s*::\s*(?:Block(?:AdjacentDifference|Discontinuity|Histogram|MergeSort|RadixRank|RunLengthDecode|Shuffle)"
            r"|Warp(?:Exchange|Load|MergeSort|Store))\b",
            "of CUB, the collectives of blocks and warps are simulated, in part",
        ),
        (r"\bcuda\s*::\s*annotated_ptr\b", "libcu++'s annotated pointers are not simulated"),
        (r"\b(?:tex|surf)[123]D\w*\s*[<(]|\bcuda(?:Texture|Surface)Object_t\b|\btexture\s*<", _NO_TEXTURES),
        (r"\b(?:__isShared|__isGlobal|__isLocal|__isConstant)\b", "address spaces are one on a CPU"),
        (r"\b(?:malloc|free)\s*\(|\bnew\b\s*[\w:]|(?<![\w=])delete\b\s*(?:\[\s*\]\s*)?[\w(*]", _NO_HEAP),
        (r"\bcuda(?:Malloc|Free|Mem|Device|Stream|Event|Get|Set|Launch|Func|Peek|Graph|Grid)\w*\s*\(", _NO_HOST_API),
    )
)  # fmt: skip
_CUB = (
    r"(?:cub|block/block_(?:reduce|scan|load|store|exchange|radix_sort)|warp/warp_(?:reduce|scan)"
    r"|thread/thread_operators)"
)
# Headers of CUB that there are none of here: what a kernel takes from them is refused or not known, but not the header.
_OTHER_CUB = re.compile(rf"cub/(?!{_CUB}\.cuh).*")
_INCLUDES = tuple(
    (re.compile(pattern), why)
    for pattern, why in (
        (r"cuda/(?:std/(?:barrier|complex|span|mdspan))", "this part of libcu++ is not simulated"),
        (r"thrust/(?!(?:tuple|pair)\.h).*", _NO_LIBRARY),
        (r"(?:curand(?!_kernel\.h)|cublas|cudnn|nvshmem).*|texture_\w+\.h", _NO_LIBRARY),
    )
)  # fmt: skip


def refusals(text: str, *, header: bool = False, of_library: bool = False) -> list[Refusal]:
    """The unsupported features of a source in the order of lines, including inactive ``#if`` branches.

    Args:
        header: whether the text is a header, whose inline PTX is refused where it is used.
        of_library: whether it is CuTe's or CUTLASS's, whose operations on tensor cores are refused where they are used.
    """
    code = blank_out(text)
    found = [
        Refusal(_line(code, match.start()), " ".join(match[0].split()).rstrip(" ("), why)
        for pattern, why in _CODE
        for match in pattern.finditer(code)
        if not (why is _NO_HEAP and _is_member_or_declared(code, match.start()))
        if not (of_library and why is _NO_TENSOR_CORES)
    ]
    found += [] if header else refused_ptx(text)
    for match in INCLUDE.finditer(text):
        if code[match.start() : match.start(2)].strip().startswith("#"):  # not within a comment
            found += [
                Refusal(_line(text, match.start()), f"#include <{match[2]}>", why)
                for pattern, why in _INCLUDES
                if pattern.fullmatch(match[2])
            ]
            if CUTLASS_HEADER.fullmatch(match[2]):
                found.append(Refusal(_line(text, match.start()), f"#include <{match[2]}>", _NO_CUTLASS, match[2]))
            if match[2] == CURAND_HEADER and curand_folder() is None:
                found.append(Refusal(_line(text, match.start()), f"#include <{match[2]}>", _NO_CURAND))
    return sorted(found, key=lambda refusal: refusal.line)


def text_digest(text: str) -> str:
    """A text's name within a C++ name."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _is_member_or_declared(code: str, at: int) -> bool:
    """Whether a name is a member's, or follows the type of its declaration: a function of the source's own."""
    before = code[max(0, at - 200) : at].rstrip()
    word = re.search(r"\b[A-Za-z_]\w*$", before)
    return before.endswith((".", "->")) or (word is not None and word[0] not in ("return", "else", "do"))


def refused_ptx(text: str) -> list[Refusal]:
    """The ``asm`` statements without a translation."""
    code = blank_out(text)
    return [
        Refusal(_line(code, asm.begin), f"inline PTX {asm.instruction}", asm.why)
        for asm in assemblies(text, code)
        if asm.instruction
    ]


def without_includes(text: str, lines: Iterable[int]) -> str:
    """The text with some #include lines replaced by markers, for a preprocessor that would not find their headers."""
    kept = text.split("\n")
    for line in lines:
        kept[line - 1] = f"OPWRIGHT_INCLUDE_{line};"
    return "\n".join(kept)


def rewrite(text: str, *, checked: bool, header: bool = False) -> str:
    """The text for a host compiler, after the simulator's header.

    Args:
        header: whether the text is a header: an ``asm`` statement without a translation is an error where it is used.
    """
    code = blank_out(text)
    edits = [*_dynamic_shared(text), *_plain_edits(text, code, checked), *_first_statements(code)]
    edits += _unused_results(code) if checked else []
    edits += [*_declared_in_std(code), *_constants_of_cute(code)]
    instances = list(_explicit_instances(code))
    edits += [(f.start(), f.end(), "") for f in _LINE_DIRECTIVE.finditer(code)]  # lines are those of this text
    edits += [(f.start(2), f.end(2), "cub/cub.cuh") for f in INCLUDE.finditer(text) if _OTHER_CUB.fullmatch(f[2])]
    statements = list(_inline_ptx(text, code, header))
    whole = [*statements, *instances]
    edits = [e for e in edits if not any(begin <= e[0] < end for begin, end, _ in whole)] + whole
    for begin, end, replacement in sorted(edits, reverse=True):
        newline = "\\\n" if "\\\n" in text[begin:end] else "\n"  # within a macro's definition
        text = (
            text[:begin] + replacement + newline * (text.count("\n", begin, end) - replacement.count("\n")) + text[end:]
        )
    return text


_Edit = tuple[int, int, str]


def _inline_ptx(text: str, code: str, header: bool) -> Iterable[_Edit]:
    """The translations of ``asm`` statements; a marker, which refusals look for, if there is none."""
    for asm in assemblies(text, code):
        line = _line(code, asm.begin)
        function = f"{USED_PTX}{text_digest(text)}_{line}()"
        marker = f"({{ void {function}; {function}; }})" if header else f"{NO_PTX}{line}"
        yield asm.begin, asm.end, marker if asm.instruction else asm.code


_LINE_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(?:line\b|\d)[^\n]*", re.MULTILINE)
_DYNAMIC = re.compile(
    r"(?:\bextern\b[^;{}()=]*?(?:\([^()]*\)[^;{}()=]*?)*?\b__shared__\b|\b__shared__\s+extern\b)[^;{}]*;"
)
_ALIGNMENT = r"(?:__align__|alignas|__attribute__\s*\()\s*(?:\((?:[^()]|\([^()]*\))*\)\s*\)?)"
_ARRAY = re.compile(r"^(?P<type>.+?)\s*\b(?P<name>\w+)\s*\[\s*\](?P<more>(?:\s*\[[^\]]*\])*)\s*;$", re.DOTALL)
_STORAGE = '__thread __attribute__((visibility("hidden"), tls_model("local-dynamic")))'


def _dynamic_shared(text: str) -> list[_Edit]:
    """``extern __shared__ T name[];``: in a function a reference to the block's memory, else an external name."""
    code = blank_out(text)
    edits = []
    for found in _DYNAMIC.finditer(code):
        plain = re.sub(r"\b(?:extern|__shared__)\b", " ", re.sub(_ALIGNMENT, " ", found[0]))
        array = _ARRAY.match(" ".join(plain.split()))
        if array is None:
            continue  # the compiler reports it
        kind, name, more = array["type"], array["name"], array["more"]
        if is_within_function(code, found.start()):
            new = f"auto& {name} = opwright_sim::dynamic_shared<{kind}[]{more}>();"
        else:
            new = f'extern {_STORAGE} {kind} {name}[]{more} __asm__("opwright_dynamic_shared");'
        edits.append((found.start(), found.end(), new))
    return edits


_SAID_BY_A_STATEMENT = {
    "__launch_bounds__": "opwright_sim::launch_bounds(opwright_sim::Site::here(), {});",
    "__cluster_dims__": "opwright_sim::declare_cluster({});",
}


def _first_statements(code: str) -> list[_Edit]:
    """Statements at the beginning of a kernel, for attributes with which its launch is compared."""
    edits = []
    for found in re.finditer(r"\b(__launch_bounds__|__cluster_dims__)\s*\(", code):
        closing = closing_bracket(code, found.end() - 1)
        head = re.compile(r"[^;{}]*").match(code, closing or len(code))
        if closing is None or head is None or code[head.end() : head.end() + 1] != "{":
            continue  # a declaration, or a macro
        numbers = " ".join(code[found.end() : closing].split())
        at = head.end() + 1
        edits.append((at, at, f" {_SAID_BY_A_STATEMENT[found[1]].format(numbers)}"))
    return edits


_UPDATE = re.compile(r"\batomic(?:Add|Sub|Min|Max|And|Or|Xor|Inc|Dec|Exch)(?:_block|_system)?\s*\(")
_BEFORE_A_STATEMENT = re.compile(r"(?:[;{}]|\b(?:else|do))$")
_BEFORE_A_CONDITION = re.compile(r"\b(?:if|for|while|constexpr)$")


def _unused_results(code: str) -> list[_Edit]:
    """After each update that is a statement: its thread uses no result, so it does not know what others did before."""
    edits = []
    for found in _UPDATE.finditer(code):
        closing = closing_bracket(code, found.end() - 1)
        if closing is None or not code[closing + 1 :].lstrip(" \t\\\r\n").startswith(";"):
            continue
        before = code[: found.start()].rstrip(" \t\\\r\n")
        if before.endswith(")"):
            opening = opening_bracket(before, len(before) - 1)
            begins = opening is not None and _BEFORE_A_CONDITION.search(before[:opening].rstrip())
        else:
            begins = _BEFORE_A_STATEMENT.search(before)
        if begins:
            edits.append((closing + 1, closing + 1, ", opwright_sim::result_unused()"))
    return edits


_INSTANCE = re.compile(r"\btemplate\b(?!\s*<)[^;{}<>()]*(?:\([^()]*\)[^;{}<>()]*)?\b__global__\b")


def _explicit_instances(code: str) -> Iterable[_Edit]:
    """Explicit instances of kernels, also in a macro's body: the code of one kernel only is wanted."""
    for found in _INSTANCE.finditer(code):
        line = re.compile(r"(?:\\\r?\n|[^\n])*").match(code, code.rfind("\n", 0, found.start()) + 1)
        begin = _begin_of_logical_line(code, found.start())
        in_macro = code[begin:].lstrip().startswith("#")
        last = line.end() if in_macro and line is not None else len(code)
        end = code.find(";", found.end(), last)
        yield found.start(), last if end < 0 else end, ""


def _begin_of_logical_line(code: str, position: int) -> int:
    begin = code.rfind("\n", 0, position) + 1
    while begin > 1 and code[begin - 2] == "\\":
        begin = code.rfind("\n", 0, begin - 1) + 1
    return begin


# Not the return of a literal, which is blank in code.
_PLAIN_RETURN = re.compile(r"return(?:\s|//[^\n]*|/\*.*?\*/)*;", re.DOTALL)


def _plain_edits(text: str, code: str, checked: bool) -> list[_Edit]:
    rules = [
        (r"(?<!\()\b__noinline__\b", "__attribute__((noinline, flatten))"),
        (r"\bstatic\s+__shared__\b|\b__shared__\s+static\b", "__shared__"),
        (r"\b__global__((?:\s+(?:static|void))*)\s+(?:__)?inline(?:__)?\b", r"__global__\1"),
        (r"\b(?:__)?inline(?:__)?\s+(?=(?:static\s+)?__global__\b)", ""),
        # CUTLASS's macros say it too, and g++ takes it once only.
        (r"\binline\s+(?=(?:\w+\s+)*?(?:CUTE|CUTLASS)_(?:HOST_)?DEVICE\b)", ""),
        (r"\b((?:CUTE|CUTLASS)_(?:HOST_)?DEVICE(?:\s+\w+)*?)\s+inline\b", r"\1"),
        (r"(?<=\b__shared__)(\s+)alignas\s*\(((?:[^()]|\([^()]*\))*)\)", r" __attribute__((aligned(\2)))"),
    ]
    if checked:  # a thread that returns need not reach later barriers; one that skips them is reported
        rules.append((r"\breturn\s*;", "return opwright_sim::returned_early();"))
    returns = {found.start() for found in _PLAIN_RETURN.finditer(text)}
    dynamic = [(found.start(), found.end()) for found in _DYNAMIC.finditer(code)]
    return [
        (found.start(), found.end(), found.expand(new))
        for pattern, new in rules
        for found in re.finditer(pattern, code)
        if not found[0].startswith("return") or found.start() in returns
        if not any(begin <= found.start() < end for begin, end in dynamic)
    ]


_STD = re.compile(r"\bnamespace\s+std\s*\{")
_DECLARED = re.compile(r"\btemplate\s*<[^<>;{}]*>\s*(?:struct|class)\s+\w+\s*;")


def _declared_in_std(code: str) -> Iterable[_Edit]:
    """Declarations of the standard library's templates, which headers write for NVRTC: it has no such library."""
    for found in _STD.finditer(code):
        for declared in _DECLARED.finditer(code, found.end(), closing_bracket(code, found.end() - 1) or len(code)):
            yield declared.start(), declared.end(), ""


_CUTE = re.compile(r"\bcute\b")
_CONSTANT = re.compile(r"\bInt<(?!\s*int\s*\()")


def _constants_of_cute(code: str) -> Iterable[_Edit]:
    """``Int<size<1>(tensor)>``, where ``size`` returns a constant's class and ``Int`` takes an int: as an argument of
    another template, g++ forgets to convert it. A mere name stays, as it may be one to deduce."""
    for found in _CONSTANT.finditer(code) if _CUTE.search(code) else ():
        end = _end_of_argument(code, found.end())
        if end is not None and "(" in code[found.end() : end]:
            yield found.end(), found.end(), "int("
            yield end, end, ")"


def _end_of_argument(code: str, begin: int) -> int | None:
    """Where the only argument of a template ends; None if there are more, or if it is not known."""
    depth, position = 0, begin
    while position < len(code):
        here = code[position]
        if here in "([{":
            position = closing_bracket(code, position) or len(code)
        elif here == ">" and depth == 0:
            return position
        elif here in "<>":
            depth += 1 if here == "<" else -1
        elif here in ",;)]}" and depth == 0:
            return None
        position += 1
    return None


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1
