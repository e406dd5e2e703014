"""Rewrites CUDA C++ for a host compiler, where macros are not sufficient, and finds unsupported features.

Every rewriting stays within its line, so that line numbers do not change.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kernelsim.cuda_sim.ptx.assembly import assemblies
from kernelsim.text.c_text import closing_bracket, is_within_function, opening_bracket
from kernelsim.text.library_headers import CURAND_HEADER, CUTLASS_HEADER, curand_folder
from kernelsim.text.parsed_source import Edits, ParsedSource

__all__ = ["NO_PTX", "USED_PTX", "Refusal", "refusals", "refused_ptx", "rewrite", "text_digest", "without_includes"]


_Edit = tuple[int, int, str]


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
NO_PTX = "KERNELSIM_NO_PTX_"
# The same in a header: libraries have functions for each instruction, of which a kernel uses few. A call of a function
# that there is not: its name is in the shared object if it was not left out by the linker. The text's digest and the
# line follow.
USED_PTX = "kernelsim_used_ptx_"
_NO_TENSOR_CORES = "this tensor-core operation is not simulated"
_NO_ASYNC = "this form of asynchronous copies is not simulated"
_NO_GRID = "groups of several grids are not simulated, and CUDA 13 has none"
_NO_HOST_API = "this is host code: the simulator compiles device code only, as NVRTC does"
_NO_HEAP = "the device's heap is not simulated"
_NO_TEXTURES = (
    "textures and surfaces are not simulated, and a launch has no argument for them; read from a const pointer "
    "(__ldg) instead"
)
_NO_CURAND = "NVIDIA's headers of cuRAND are not installed (pip install nvidia-curand)"
_NO_CUTLASS = (
    "no include folder has this header, and CUTLASS's are not installed (pip install nvidia-cutlass 'cuda-python>=13')"
)
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


def refusals(source: ParsedSource, *, header: bool = False, of_library: bool = False) -> list[Refusal]:
    """The unsupported features of a source in the order of lines, including inactive ``#if`` branches.

    Args:
        header: whether the source is a header, whose inline PTX is refused where it is used.
        of_library: whether it is CuTe's or CUTLASS's, whose operations on tensor cores are refused where they are used.
    """
    code = source.code
    found = [
        Refusal(source.line(match.start()), " ".join(match[0].split()).rstrip(" ("), why)
        for pattern, why in _CODE
        for match in pattern.finditer(code)
        if not (why is _NO_HEAP and _is_member_or_declared(code, match.start()))
        if not (of_library and why is _NO_TENSOR_CORES)
    ]
    found += [] if header else refused_ptx(source)
    for include in source.includes:
        line, name = source.line(include.begin), include.name
        what = f"#include <{name}>"
        found += [Refusal(line, what, why) for pattern, why in _INCLUDES if pattern.fullmatch(name)]
        if CUTLASS_HEADER.fullmatch(name):
            found.append(Refusal(line, what, _NO_CUTLASS, name))
        if name == CURAND_HEADER and curand_folder() is None:
            found.append(Refusal(line, what, _NO_CURAND))
    return sorted(found, key=lambda refusal: refusal.line)


def text_digest(text: str) -> str:
    """A text's name within a C++ name."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _is_member_or_declared(code: str, at: int) -> bool:
    """Whether a name is a member's, or follows the type of its declaration: a function of the source's own."""
    before = code[max(0, at - 200) : at].rstrip()
    word = re.search(r"\b[A-Za-z_]\w*$", before)
    return before.endswith((".", "->")) or (word is not None and word[0] not in ("return", "else", "do"))


def refused_ptx(source: ParsedSource) -> list[Refusal]:
    """The ``asm`` statements without a translation."""
    return [
        Refusal(source.line(asm.begin), f"inline PTX {asm.instruction}", asm.why)
        for asm in assemblies(source.text, source.code)
        if asm.instruction
    ]


def without_includes(text: str, lines: Iterable[int]) -> str:
    """The text with some #include lines replaced by markers, for a preprocessor that would not find their headers."""
    kept = text.split("\n")
    for line in lines:
        kept[line - 1] = f"KERNELSIM_INCLUDE_{line};"
    return "\n".join(kept)


def rewrite(source: ParsedSource, *, checked: bool, header: bool = False, redirects: Iterable[_Edit] = ()) -> str:
    """The text for a host compiler, after the simulator's header.

    Args:
        header: whether the source is a header: an ``asm`` statement without a translation is an error where it is used.
        redirects: edits of its includes.
    """
    edits = [*redirects, *_inline_ptx(source, header), *_explicit_instances(source), *_dynamic_shared(source.code)]
    edits += [*_plain_edits(source, checked), *_first_statements(source.code)]
    edits += _unused_results(source.code) if checked else []
    edits += [*_declared_in_std(source.code), *_constants_of_cute(source.code)]
    # Lines are those of this text.
    edits += [(d.begin, d.end, "") for d in source.directives if d.name == "line" or d.name.isdecimal()]
    edits += [(i.opening + 1, i.end - 1, "cub/cub.cuh") for i in source.includes if _OTHER_CUB.fullmatch(i.name)]
    return Edits(source, edits).text()


def _inline_ptx(source: ParsedSource, header: bool) -> Iterator[_Edit]:
    """The translations of ``asm`` statements; a marker, which refusals look for, if there is none."""
    for asm in assemblies(source.text, source.code):
        new = asm.code
        if asm.instruction and header:
            function = f"{USED_PTX}{text_digest(source.text)}_{source.line(asm.begin)}()"
            new = f"({{ void {function}; {function}; }})"
        elif asm.instruction:
            new = f"{NO_PTX}{source.line(asm.begin)}"
        yield asm.begin, asm.end, new


_DYNAMIC = re.compile(
    r"(?:\bextern\b[^;{}()=]*?(?:\([^()]*\)[^;{}()=]*?)*?\b__shared__\b|\b__shared__\s+extern\b)[^;{}]*;"
)
_ALIGNMENT = r"(?:__align__|alignas|__attribute__\s*\()\s*(?:\((?:[^()]|\([^()]*\))*\)\s*\)?)"
_ARRAY = re.compile(r"^(?P<type>.+?)\s*\b(?P<name>\w+)\s*\[\s*\](?P<more>(?:\s*\[[^\]]*\])*)\s*;$", re.DOTALL)
_STORAGE = '__thread __attribute__((visibility("hidden"), tls_model("local-dynamic")))'


def _dynamic_shared(code: str) -> Iterator[_Edit]:
    """``extern __shared__ T name[];``: in a function a reference to the block's memory, else an external name."""
    for found in _DYNAMIC.finditer(code):
        plain = re.sub(r"\b(?:extern|__shared__)\b", " ", re.sub(_ALIGNMENT, " ", found[0]))
        array = _ARRAY.match(" ".join(plain.split()))
        if array is None:
            continue  # the compiler reports it
        kind, name, more = array["type"], array["name"], array["more"]
        if is_within_function(code, found.start()):
            new = f"auto& {name} = kernelsim::dynamic_shared<{kind}[]{more}>();"
        else:
            new = f'extern {_STORAGE} {kind} {name}[]{more} __asm__("kernelsim_dynamic_shared");'
        yield found.start(), found.end(), new


_SAID_BY_A_STATEMENT = {
    "__launch_bounds__": "kernelsim::launch_bounds(kernelsim::Site::here(), {});",
    "__cluster_dims__": "kernelsim::declare_cluster({});",
}


def _first_statements(code: str) -> Iterator[_Edit]:
    """Statements at the beginning of a kernel, for attributes with which its launch is compared."""
    for found in re.finditer(r"\b(__launch_bounds__|__cluster_dims__)\s*\(", code):
        closing = closing_bracket(code, found.end() - 1)
        head = re.compile(r"[^;{}]*").match(code, closing or len(code))
        if closing is None or head is None or code[head.end() : head.end() + 1] != "{":
            continue  # a declaration, or a macro
        numbers = " ".join(code[found.end() : closing].split())
        at = head.end() + 1
        yield at, at, f" {_SAID_BY_A_STATEMENT[found[1]].format(numbers)}"


_UPDATE = re.compile(r"\batomic(?:Add|Sub|Min|Max|And|Or|Xor|Inc|Dec|Exch)(?:_block|_system)?\s*\(")
_BEFORE_A_STATEMENT = re.compile(r"(?:[;{}]|\b(?:else|do))$")
_BEFORE_A_CONDITION = re.compile(r"\b(?:if|for|while|constexpr)$")


def _unused_results(code: str) -> Iterator[_Edit]:
    """After each update that is a statement: its thread uses no result, so it does not know what others did before."""
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
            yield closing + 1, closing + 1, ", kernelsim::result_unused()"


_INSTANCE = re.compile(r"\btemplate\b(?!\s*<)[^;{}<>()]*(?:\([^()]*\)[^;{}<>()]*)?\b__global__\b")


def _explicit_instances(source: ParsedSource) -> Iterator[_Edit]:
    """Explicit instances of kernels, also in a macro's body: the code of one kernel only is wanted."""
    for found in _INSTANCE.finditer(source.code):
        macro = next((d for d in source.directives if d.begin <= found.start() < d.end), None)
        last = len(source.code) if macro is None else macro.end
        end = source.code.find(";", found.end(), last)
        yield found.start(), last if end < 0 else end, ""


# Not the return of a literal, which is blank in code.
_PLAIN_RETURN = re.compile(r"return(?:\s|//[^\n]*|/\*.*?\*/)*;", re.DOTALL)


def _plain_edits(source: ParsedSource, checked: bool) -> list[_Edit]:
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
        rules.append((r"\breturn\s*;", "return kernelsim::returned_early();"))
    return [
        (found.start(), found.end(), found.expand(new))
        for pattern, new in rules
        for found in re.finditer(pattern, source.code)
        if not found[0].startswith("return") or _PLAIN_RETURN.match(source.text, found.start())
    ]


_STD = re.compile(r"\bnamespace\s+std\s*\{")
_DECLARED = re.compile(r"\btemplate\s*<[^<>;{}]*>\s*(?:struct|class)\s+\w+\s*;")


def _declared_in_std(code: str) -> Iterator[_Edit]:
    """Declarations of the standard library's templates, which headers write for NVRTC: it has no such library."""
    for found in _STD.finditer(code):
        for declared in _DECLARED.finditer(code, found.end(), closing_bracket(code, found.end() - 1) or len(code)):
            yield declared.start(), declared.end(), ""


_CUTE = re.compile(r"\bcute\b")
_CONSTANT = re.compile(r"\bInt<(?!\s*int\s*\()")


def _constants_of_cute(code: str) -> Iterator[_Edit]:
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
