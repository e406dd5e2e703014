"""The functions, methods and constants of torch and CUDA that simulated host functions use.

Whatever is not listed here is not simulated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from opwright.backends.cuda.host.addresses import ATTRIBUTES, CUBLAS, DEVICE, HANDLE, succeeded
from opwright.backends.cuda.host.memory import COPY_KINDS
from opwright.backends.cuda.host.values import Pointer, VectorIterator, binary, convert, dtype_of_type
from opwright.errors import NotSimulatedError

__all__ = ["CONSTANTS", "FUNCTIONS", "METHODS", "NO_EFFECT", "Options", "dispatched_dtypes"]


@dataclass(frozen=True)
class Options:
    """torch's TensorOptions. All tensors are on the CPU."""

    dtype: torch.dtype


STREAM = object()  # a stream, a guard, a device: nothing depends on them here
_SCALAR_TYPES = {
    "Float": torch.float32, "Double": torch.float64, "Half": torch.float16, "BFloat16": torch.bfloat16,
    "Byte": torch.uint8, "Char": torch.int8, "Short": torch.int16, "Int": torch.int32, "Long": torch.int64,
    "Bool": torch.bool,
    **{f"Float{n}": getattr(torch, f"float{n}") for n in (16, 32, 64)},
    **{f"Int{n}": getattr(torch, f"int{n}") for n in (8, 16, 32, 64)}, "UInt8": torch.uint8,
}  # fmt: skip
# torch::kFloat, and at::ScalarType::Float, without the namespaces of torch.
CONSTANTS: dict[str, Any] = {
    **{f"k{name}": dtype for name, dtype in _SCALAR_TYPES.items()},
    **{f"ScalarType::{name}": dtype for name, dtype in _SCALAR_TYPES.items()},
    "kCUDA": STREAM, "cudaSuccess": 0, "nullopt": None,
    "cudaFuncAttributeMaxDynamicSharedMemorySize": 0,
    **{name: name for name in ATTRIBUTES}, **CUBLAS, **COPY_KINDS,
}  # fmt: skip
# Functions that check or order what a GPU does. What is passed to them is not computed.
NO_EFFECT = frozenset({
    "cudaGetLastError", "cudaPeekAtLastError", "cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaSetDevice",
    "cublasSetStream", "cublasDestroy", "printf", "fprintf", "C10_CUDA_KERNEL_LAUNCH_CHECK",
    "STD_CUDA_KERNEL_LAUNCH_CHECK",
})  # fmt: skip


def dispatched_dtypes(macro: str) -> set[torch.dtype] | None:
    """The dtypes that ``AT_DISPATCH_…`` or a group of ``THO_DISPATCH_V2`` has, but for its arguments; None if it is not
    known."""
    known: set[torch.dtype] = set()
    if "FLOATING_TYPES" in macro or "ALL_TYPES" in macro:
        known |= {torch.float32, torch.float64}
    if "INTEGRAL_TYPES" in macro or "ALL_TYPES" in macro:
        known |= {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
    if "_AND_HALF" in macro:
        known.add(torch.float16)
    return None if not known or "COMPLEX" in macro or "QINT" in macro else known


def _data(tensor: torch.Tensor, type_name: str = "void") -> Pointer:
    dtype = dtype_of_type(type_name) if type_name != "void" else tensor.dtype
    if dtype != tensor.dtype:
        raise ValueError(f"expected elements of {type_name}, got {tensor.dtype}")
    return Pointer(tensor).to(type_name)


def _sized(sizes: Any, dtype: Any = None) -> tuple[list[int], torch.dtype]:
    """A shape, and the dtype of options: float32 if they are a device only, or none."""
    chosen = dtype.dtype if isinstance(dtype, Options) else dtype if isinstance(dtype, torch.dtype) else torch.float32
    return [sizes] if isinstance(sizes, int) else list(sizes), chosen


def _empty(sizes: Any, dtype: Any = None) -> torch.Tensor:
    shape, chosen = _sized(sizes, dtype)
    return torch.empty(shape, dtype=chosen)


def _zeros(sizes: Any, dtype: Any = None) -> torch.Tensor:
    shape, chosen = _sized(sizes, dtype)
    return torch.zeros(shape, dtype=chosen)


def _ones(sizes: Any, dtype: Any = None) -> torch.Tensor:
    shape, chosen = _sized(sizes, dtype)
    return torch.ones(shape, dtype=chosen)


def _full(sizes: Any, value: Any, dtype: Any = None) -> torch.Tensor:
    shape, chosen = _sized(sizes, dtype)
    return torch.full(shape, value, dtype=chosen)


def _of_torch(name: str, owner: Any = torch) -> Callable[..., Any]:
    """A function of torch, or a method of ``owner``, with the same positional arguments in C++ and in Python.

    Raises, when it is called:
        NotSimulatedError: with other arguments, such as those that Python takes by keyword.
    """
    function: Callable[..., Any] = getattr(owner, name)

    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except TypeError as error:
            text = str(error).splitlines()[0]
            raise NotSimulatedError(f"{name} is not simulated with these arguments: {text}", fix="use a GPU") from None

    return call


def _with_dtype(x: torch.Tensor, dtype: Any, *other: Any) -> torch.Tensor:
    """``x.to(dtype)``. All devices are the same here."""
    chosen = dtype.dtype if isinstance(dtype, Options) else dtype
    if other or not (chosen is STREAM or isinstance(chosen, torch.dtype)):
        raise NotSimulatedError("to is not simulated with these arguments", fix="use a GPU")
    return x.to(chosen) if isinstance(chosen, torch.dtype) else x


def _tensor(values: Any, options: Any = None) -> torch.Tensor:
    kinds = {type(v) for v in (values if isinstance(values, list | tuple) else [values])}
    if not kinds <= {int} and not kinds <= {float}:
        raise NotSimulatedError("tensor is not simulated with these arguments", fix="use a GPU")
    chosen = options.dtype if isinstance(options, Options) else options
    usual = torch.int64 if kinds <= {int} else torch.float32
    return torch.tensor(values, dtype=chosen if isinstance(chosen, torch.dtype) else usual)


def _index(device: Any) -> int:
    if device is not STREAM:
        raise TypeError("the index of a device")
    return 0


def _exit(*_: Any) -> None:
    raise RuntimeError("the host function ends the process")


def _changed_at(change: Callable[..., None]) -> Callable[..., None]:
    """A method of a vector that takes an iterator."""

    def call(values: Any, place: Any, *more: Any) -> None:
        is_own = isinstance(place, VectorIterator) and place.values is values
        if not is_own or not 0 <= place.index <= len(values) - (not more):
            raise ValueError("an iterator must be one of the vector, and within it")
        change(values, place.index, *more)

    return call


def _options(dtype: Any = torch.float32) -> Options:
    return Options(dtype if isinstance(dtype, torch.dtype) else torch.float32)


def _ceil_div(a: int, b: int) -> int:
    return int(binary("/", a + b - 1, b))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "empty_like": lambda x: torch.empty_like(x),
    "zeros_like": lambda x: torch.zeros_like(x),
    "ones_like": lambda x: torch.ones_like(x),
    "empty": _empty,
    "zeros": _zeros,
    "ones": _ones,
    "full": _full,
    "full_like": lambda x, value: torch.full_like(x, value),
    "TensorOptions": _options,
    "dtype": _options,
    "device": _options,
    **{name: _of_torch(name) for name in (
        "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "matmul", "mm", "bmm",
        "addmm", "sum", "mean", "prod", "argmax", "argmin", "batch_norm", "layer_norm", "group_norm", "max_pool1d",
        "max_pool2d", "max_pool3d", "avg_pool1d", "adaptive_avg_pool1d", "relu", "exp", "log", "sigmoid", "tanh",
        "rsqrt", "cumsum", "cumprod", "stack", "cat",
    )},
    "new_empty": lambda x, sizes, dtype=None: _empty(sizes, dtype or x.dtype),
    "new_zeros": lambda x, sizes, dtype=None: _zeros(sizes, dtype or x.dtype),
    "contiguous": lambda x: x if x is None else x.contiguous(),
    "clone": lambda x: x.clone(),
    "min": lambda a, b: min(a, b),
    "max": lambda a, b: max(a, b),
    **dict.fromkeys(("sqrt", "sqrtf"), lambda x: torch.sqrt(x) if isinstance(x, torch.Tensor) else math.sqrt(x)),
    **dict.fromkeys(("floor", "floorf"), lambda x: float(math.floor(x))),
    **dict.fromkeys(("ceil", "ceilf"), lambda x: float(math.ceil(x))),
    **dict.fromkeys(("pow", "powf"), lambda x, y: x**y),
    **dict.fromkeys(("C10_CUDA_CHECK", "AT_CUDA_CHECK", "STD_CUDA_CHECK"), lambda error: error),
    "cudaGetErrorString": lambda _: "an error of CUDA",
    **dict.fromkeys(("exit", "abort"), _exit),
    **{name: _of_torch(name, torch.nn.functional) for name in (
        "linear", "softmax", "log_softmax", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool2d", "adaptive_avg_pool3d",
    )},
    **dict.fromkeys(("abs", "fabs", "fabsf"), abs),
    **dict.fromkeys(("log2", "log2f"), math.log2),
    "Tensor": lambda: None,
    "tensor": _tensor,
    "ceil_div": _ceil_div,
    "CeilDiv": _ceil_div,
    "make_tuple": lambda *values: values,
    "getCurrentCUDAStream": lambda *_: STREAM,
    "current_stream": lambda *_: STREAM,
    "device_of": lambda _: STREAM,
    "current_device": lambda: 0,
    **dict.fromkeys(("getCurrentDeviceProperties", "getDeviceProperties"), lambda *_: DEVICE),
    "getCurrentCUDABlasHandle": lambda: HANDLE,
    "TORCH_CUDABLAS_CHECK": succeeded,
}  # fmt: skip
# By name: what gets the object and the arguments; of ``x.data_ptr<float>()``, the type as well.
METHODS: dict[str, Callable[..., Any]] = {
    "size": lambda x, *i: x.size(*i) if i else len(x),
    "stride": lambda x, i: x.stride(i),
    "sizes": lambda x: list(x.shape),
    "strides": lambda x: list(x.stride()),
    "numel": lambda x: x.numel(),
    "dim": lambda x: x.dim(),
    "ndimension": lambda x: x.dim(),
    "element_size": lambda x: x.element_size(),
    "is_contiguous": lambda x: x.is_contiguous(),
    "is_cuda": lambda _: True,
    "get_device": lambda _: 0,
    "index": _index,
    "is_cpu": lambda _: False,
    "defined": lambda x: x is not None,
    "has_value": lambda x: x is not None,
    "value": lambda x: x,
    "contiguous": lambda x: x.contiguous(),
    "clone": lambda x: x.clone(),
    "new_empty": FUNCTIONS["new_empty"],
    "new_zeros": FUNCTIONS["new_zeros"],
    "zero_": lambda x: x.zero_(),
    "to": _with_dtype,
    "cuda": lambda x: x,
    "cpu": lambda x: x.clone(),
    "slice": torch.ops.aten.slice.Tensor,
    "type": lambda x: x.dtype,
    "item": lambda x, type_name="auto": convert(x.item(), type_name),
    "push_back": lambda x, value: x.append(value),
    "begin": lambda x: VectorIterator(x),
    "end": lambda x: VectorIterator(x, len(x)),
    "erase": _changed_at(list.__delitem__),
    "insert": _changed_at(list.insert),
    "scalar_type": lambda x: x.dtype,
    "dtype": lambda x, dtype=None: x.dtype if dtype is None else Options(dtype),
    "options": lambda x: Options(x.dtype),
    "device": lambda x, _=None: x if isinstance(x, Options) else STREAM,
    "data_ptr": _data,
    "const_data_ptr": _data,
    "mutable_data_ptr": _data,
    "stream": lambda x: x,
    "empty": lambda x: len(x) == 0,
    "vec": lambda x: list(x),
    "back": lambda x: x[-1],
    "requires_grad": lambda x, _: x,
    **{name: _of_torch(name, torch.Tensor) for name in (
        "view", "reshape", "transpose", "permute", "t", "squeeze", "unsqueeze", "flatten", "expand", "narrow", "sum",
        "mean", "pow", "copy_", "fill_", "add_", "mul_", "div_", "add", "mul", "div", "sub", "sqrt", "rsqrt",
        "exp", "matmul", "mm", "bmm", "relu", "relu_", "view_as", "expand_as", "select", "sigmoid", "tanh", "abs",
        "neg", "index_select", "softmax", "unbind", "repeat", "var", "std", "masked_fill", "prod", "argmax", "argmin",
    )},
}  # fmt: skip
