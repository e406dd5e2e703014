"""ATen's names, and what takes their place in torch's stable ABI: types, constants, macros and functions."""

from __future__ import annotations

__all__ = [
    "AS_FUNCTIONS", "CONSTANTS", "DISPATCH", "FAILURES", "FUNCTIONS", "KEPT_METHODS", "MACROS", "METHODS", "PACKED",
    "ROOTS", "TEMPLATES", "TYPES", "UNIQUE",
]  # fmt: skip

# The namespaces of names that are looked up here.
ROOTS = frozenset({"at", "torch", "c10", "caffe2"})

_HEADER = "torch::headeronly"
_STABLE = "torch::stable"

# By the name without the namespace.
TYPES = {
    "Tensor": f"{_STABLE}::Tensor",
    "TensorList": f"std::vector<{_STABLE}::Tensor>",
    "ITensorListRef": f"std::vector<{_STABLE}::Tensor>",
    "TensorOptions": "opwright::Options",
    "ScalarType": f"{_HEADER}::ScalarType",
    "Dtype": f"{_HEADER}::ScalarType",
    "MemoryFormat": f"{_HEADER}::MemoryFormat",
    "Layout": f"{_HEADER}::Layout",
    "DeviceType": f"{_HEADER}::DeviceType",
    "Device": f"{_STABLE}::Device",
    "DeviceIndex": "int32_t",
    "Scalar": "opwright::Number",
    "IntArrayRef": f"{_HEADER}::IntHeaderOnlyArrayRef",
    "IntList": f"{_HEADER}::IntHeaderOnlyArrayRef",
    "Half": f"{_HEADER}::Half",
    "BFloat16": f"{_HEADER}::BFloat16",
    "Float8_e4m3fn": f"{_HEADER}::Float8_e4m3fn",
    "Float8_e5m2": f"{_HEADER}::Float8_e5m2",
    "DefaultPtrTraits": f"{_HEADER}::DefaultPtrTraits",
    "RestrictPtrTraits": f"{_HEADER}::RestrictPtrTraits",
    "TensorArg": "opwright::NamedTensor",
    "CheckedFrom": "const char*",
    "nullopt": "std::nullopt",
    "nullopt_t": "std::nullopt_t",
    "string_view": "std::string_view",
    "cuda::CUDAGuard": "opwright::DeviceGuard",
    "cuda::OptionalCUDAGuard": "opwright::DeviceGuard",
    "DeviceGuard": "opwright::DeviceGuard",
    "OptionalDeviceGuard": "opwright::DeviceGuard",
    "cuda::CUDAStream": "cudaStream_t",
    "CUDAStream": "cudaStream_t",
}

# Names of templates, whose arguments stay.
TEMPLATES = {
    "optional": "std::optional",
    "ArrayRef": f"{_HEADER}::HeaderOnlyArrayRef",
    "complex": f"{_HEADER}::complex",
    "TensorAccessor": f"{_HEADER}::HeaderOnlyTensorAccessor",
    "GenericPackedTensorAccessor": f"{_HEADER}::HeaderOnlyGenericPackedTensorAccessor",
    "opmath_type": "opwright::opmath_type",
    "acc_type": "opwright::acc_type",
}

# Templates with an index type that the stable form takes as an argument.
PACKED = {"PackedTensorAccessor32": "int32_t", "PackedTensorAccessor64": "int64_t", "PackedTensorAccessor": "int64_t"}

_DTYPES = {
    "Byte": "UInt8", "Char": "Int8", "Short": "Int16", "Int": "Int32", "Long": "Int64", "Half": "Float16",
    "Float": "Float32", "Double": "Float64", "Bool": "", "BFloat16": "", "ComplexHalf": "ComplexHalf",
    "ComplexFloat": "ComplexFloat", "ComplexDouble": "ComplexDouble", "UInt16": "", "UInt32": "", "UInt64": "",
}  # fmt: skip
CONSTANTS = {
    **{f"k{name}": f"{_HEADER}::ScalarType::{name}" for name in _DTYPES},
    **{f"k{other}": f"{_HEADER}::ScalarType::{name}" for name, other in _DTYPES.items() if other},
    "kU8": f"{_HEADER}::ScalarType::Byte",
    "kI32": f"{_HEADER}::ScalarType::Int",
    "kI64": f"{_HEADER}::ScalarType::Long",
    "kF16": f"{_HEADER}::ScalarType::Half",
    "kF32": f"{_HEADER}::ScalarType::Float",
    "kF64": f"{_HEADER}::ScalarType::Double",
    **{f"k{name}": f"{_HEADER}::DeviceType::{name}" for name in ("CPU", "CUDA", "HIP", "XPU", "MPS", "Meta")},
    "kStrided": f"{_HEADER}::Layout::Strided",
    "internal::GRAIN_SIZE": "int64_t{32768}",
}

# Functions that are not operators.
FUNCTIONS = {
    "parallel_for": f"{_STABLE}::parallel_for",
    "get_num_threads": f"{_STABLE}::get_num_threads",
    "cuda::getCurrentCUDAStream": "opwright::current_cuda_stream",
    "cuda::MaybeSetDevice": "cudaSetDevice",
    "cuda::set_device": "cudaSetDevice",
    "device_of": "opwright::device_of",
    "dtype": "opwright::dtype",
    "device": "opwright::device",
    "checkAllSameGPU": "opwright::check_same_gpu",
    "checkAllSameType": "opwright::check_same_type",
    "toString": f"{_HEADER}::toString",
    "from_blob": "opwright::from_blob",
    "tensor": "opwright::tensor",
}

MACROS = {
    "TORCH_CHECK": "STD_TORCH_CHECK",
    "TORCH_CHECK_VALUE": "STD_TORCH_CHECK",
    "TORCH_CHECK_TYPE": "STD_TORCH_CHECK",
    "TORCH_CHECK_INDEX": "STD_TORCH_CHECK",
    "TORCH_INTERNAL_ASSERT": "STD_TORCH_CHECK",
    "TORCH_INTERNAL_ASSERT_DEBUG_ONLY": "STD_TORCH_CHECK",
    "AT_ASSERTM": "STD_TORCH_CHECK",
    "AT_ASSERT": "STD_TORCH_CHECK",
    "AT_CUDA_CHECK": "STD_CUDA_CHECK",
    "C10_CUDA_CHECK": "STD_CUDA_CHECK",
    "C10_CUDA_KERNEL_LAUNCH_CHECK": "STD_CUDA_KERNEL_LAUNCH_CHECK",
}
# Macros whose arguments all become the message of a check that fails.
FAILURES = frozenset({"AT_ERROR", "TORCH_CHECK_NOT_IMPLEMENTED_FAIL"})

_FLOATING, _INTEGRAL, _COMPLEX = (f"AT_EXPAND(AT_{kind}_TYPES)" for kind in ("FLOATING", "INTEGRAL", "COMPLEX"))
_HALF = f"{_HEADER}::ScalarType::Half"
# The types of each macro, and how many further types it takes before its other arguments.
DISPATCH = {
    f"AT_DISPATCH_{name}{suffix}": (types, more)
    for name, types in {
        "FLOATING_TYPES": (_FLOATING,),
        "ALL_TYPES": (_INTEGRAL, _FLOATING),
        "INTEGRAL_TYPES": (_INTEGRAL,),
        "COMPLEX_TYPES": (_COMPLEX,),
        "FLOATING_AND_COMPLEX_TYPES": (_FLOATING, _COMPLEX),
        "ALL_TYPES_AND_COMPLEX": (_INTEGRAL, _FLOATING, _COMPLEX),
    }.items()
    for suffix, more in {"": 0, "_AND": 1, "_AND2": 2, "_AND3": 3, "_AND4": 4}.items()
} | {
    "AT_DISPATCH_FLOATING_TYPES_AND_HALF": ((_FLOATING, _HALF), 0),
    "AT_DISPATCH_ALL_TYPES_AND_HALF": ((_INTEGRAL, _FLOATING, _HALF), 0),
}

# Methods that stable tensors have under the same name.
KEPT_METHODS = frozenset({
    "dim", "numel", "size", "stride", "sizes", "strides", "is_contiguous", "is_cuda", "is_cpu", "get_device",
    "defined", "storage_offset", "element_size", "device", "scalar_type", "layout", "set_requires_grad",
    "mutable_data_ptr", "const_data_ptr", "get_device_index",
})  # fmt: skip
# Methods that have another name, or are a function of <opwright/ops.h>.
METHODS = {
    "ndimension": "dim",
    "dtype": "scalar_type",
    "type": "scalar_type",
    "itemsize": "element_size",
    "data": "mutable_data_ptr",
    "data_ptr": "mutable_data_ptr",
}
AS_FUNCTIONS = {
    "options": "opwright::options",
    "accessor": "opwright::accessor",
    "packed_accessor": "opwright::packed_accessor64",
    "packed_accessor32": "opwright::packed_accessor32",
    "packed_accessor64": "opwright::packed_accessor64",
    "item": "opwright::item",
    "to": "opwright::to",
    "toType": "opwright::to",
    "cpu": "opwright::cpu",
    "cuda": "opwright::cuda",
}
# Methods that only tensors have: what is not known to be something else is a tensor if one of these is called.
UNIQUE = frozenset({
    "scalar_type", "is_cuda", "is_cpu", "numel", "data_ptr", "is_contiguous", "contiguous", "options", "accessor",
    "packed_accessor32", "packed_accessor64", "toType", "ndimension", "element_size", "sizes", "strides", "unsqueeze",
    "squeeze", "transpose", "permute", "matmul", "expand", "index_select", "device", "dim", "clone", "cumsum", "narrow",
    "masked_select", "zero_", "fill_", "copy_",
})  # fmt: skip
