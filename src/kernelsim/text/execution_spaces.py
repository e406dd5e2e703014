"""Whether code is the host's or the device's, by the words in it: headers are not read, nor templates instantiated."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kernelsim.text.items import IDENTIFIER, Item, template_parameters

__all__ = ["HOST_HEADER", "HOST_NAMESPACES", "HOST_WORDS", "is_explicit_instance", "is_for_host"]

# Headers that only host code needs, and that neither compiler of kernels has.
HOST_HEADER = re.compile(
    r"(?:torch|ATen(?!/cuda/DeviceUtils\.cuh)|TH|THC|c10|caffe2|pybind11|Python|cublas|cusolver|cusparse|cudnn|cufft|curand(?!_kernel)|nccl|nvml|npp|mpi"
    r"|omp|nvToolsExt|nvtx3|arpa/|netinet/|X11/|helper_|opwright/(?:tensor|aten|ops)|cuda_profiler_api|cudaEGL|EGL|GL|GLES\d?|Eigen|opencv2?|glog|gtest|nvrtc|cuda_gl_interop"
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
HOST_NAMESPACES = (
    r"(?:(?:std\s*::\s*)?(?:chrono|filesystem|literals|chrono_literals|string_literals|placeholders|this_thread))"
)
# Words that no device code contains.
HOST_WORDS = re.compile(
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
_OF_THE_DEVICE = re.compile(r"\b(?:__device__|__global__|constexpr|consteval)\b")
# Declarations that are no variable, or one that kernels can read.
_NO_VARIABLE = re.compile(
    r"\b(?:using|typedef|namespace|class|struct|enum|union|friend|static_assert|const|__constant__|__shared__|__managed__)\b"
)
_EXPLICIT_INSTANCE = re.compile(r"\s*(?:extern\s+)?template\b(?!\s*<)")


def is_explicit_instance(item: Item) -> bool:
    """Whether an item asks for an instance of a template."""
    return _EXPLICIT_INSTANCE.match(item.head) is not None


def is_for_host(item: Item, macros: Mapping[str, str]) -> bool:
    """Whether a function has no execution space, also not in a macro, or a variable no memory space."""
    if item.kind not in ("function", "statement"):
        return False
    if is_explicit_instance(item):
        return True
    if item.signature is not None and item.signature.is_deduction_guide:
        return False
    if item.kind == "statement" and not item.declares_function and _NO_VARIABLE.search(item.head):
        return re.search(r"\bconst\b", item.head) is not None and HOST_WORDS.search(item.head) is not None
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
