"""The C++ expressions of TTIR's operations that work element by element."""

from __future__ import annotations

__all__ = ["C_TYPES", "ELEMENTWISE", "EXTERNAL", "RMW", "c_type", "form_of"]

C_TYPES = {
    "i1": "bool", "i8": "int8_t", "i16": "int16_t", "i32": "int32_t", "i64": "int64_t", "index": "int64_t",
    "f16": "f16", "bf16": "bf16", "f32": "float", "f64": "double",
    "f8E4M3FN": "f8e4m3", "f8E5M2": "f8e5m2",
}  # fmt: skip


def c_type(element: str) -> str | None:
    """The C++ type of an element; None for one that the simulator does not have."""
    if element.startswith("desc "):
        return "Desc"
    return "P" if element.startswith("ptr ") else C_TYPES.get(element)


# {0}, {1}, {2} are the operands, {t} is the result's type, {s} the first operand's, and {u} the latter without a sign.
ELEMENTWISE = {
    **{f"arith.{name}f": f"({{0}} {sign} {{1}})" for name, sign in
       {"add": "+", "sub": "-", "mul": "*", "div": "/"}.items()},
    **{f"arith.{name}i": f"({{0}} {sign} {{1}})" for name, sign in
       {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^"}.items()},
    "arith.remf": "num::fmod({0}, {1})", "arith.negf": "(-{0})",
    "arith.divsi": "divide<{t}>({0}, {1})", "arith.remsi": "remainder_of<{t}>({0}, {1})",
    "arith.divui": "divide<{u}>({0}, {1})", "arith.remui": "({u})remainder_of<uint64_t>(({u}){0}, ({u}){1})",
    "arith.shli": "(({u}){1} < sizeof({t}) * 8 ? ({t})(({u}){0} << {1}) : ({t})0)",
    "arith.shrsi": "({0} >> num::min<int>({1}, sizeof({t}) * 8 - 1))",
    "arith.shrui": "(({u}){1} < sizeof({t}) * 8 ? ({t})(({u}){0} >> {1}) : ({t})0)",
    "arith.maxsi": "num::max<{t}>({0}, {1})", "arith.minsi": "num::min<{t}>({0}, {1})",
    "arith.maxui": "num::max<{u}>({0}, {1})", "arith.minui": "num::min<{u}>({0}, {1})",
    "arith.maximumf": "max_nan<{f}>({0}, {1})", "arith.minimumf": "min_nan<{f}>({0}, {1})",
    "arith.maxnumf": "max_num<{f}>({0}, {1})", "arith.minnumf": "min_num<{f}>({0}, {1})",
    "arith.extsi": "{0}", "arith.extui": "({u}){0}", "arith.trunci": "{0}", "arith.index_cast": "{0}",
    "arith.sitofp": "({f})(int64_t){0}", "arith.uitofp": "({f})({u}){0}",
    "arith.fptosi": "to_int<{t}>(({g}){0})", "arith.fptoui": "to_int<{v}>(({g}){0})",
    "arith.extf": "({f})({g}){0}", "arith.truncf": "({g}){0}", "tt.fp_to_fp": "({g}){0}",
    "arith.bitcast": "bits_as<{t}>({0})", "tt.bitcast": "bits_as<{t}>({0})",
    "tt.int_to_ptr": "(P){0}", "tt.ptr_to_int": "(int64_t){0}",
    "arith.select": "({0} ? {1} : {2})", "math.fma": "num::fma(({f}){0}, ({f}){1}, ({f}){2})",
    "math.exp": "num::exp({0})", "math.exp2": "num::exp2({0})", "math.log": "num::log({0})",
    "math.log2": "num::log2({0})", "math.sin": "num::sin({0})", "math.cos": "num::cos({0})",
    "math.sqrt": "num::sqrt({0})", "math.rsqrt": "num::rsqrt({0})", "math.erf": "num::erf({0})",
    "math.absf": "num::fabs({0})", "math.absi": "({0} < 0 ? -{0} : {0})", "math.tanh": "num::tanh({0})",
    "math.floor": "num::floor({0})", "math.ceil": "num::ceil({0})",
    "tt.precise_sqrt": "num::sqrt({0})", "tt.precise_divf": "({0} / {1})",
    "tt.mulhiui": "({t})(((unsigned __int128)({u}){0} * ({u}){1}) >> (sizeof({t}) * 8))",
    "tt.clampf": "min_num<{f}>(max_num<{f}>({0}, {1}), {2})",
}  # fmt: skip

COMPARISONS = {
    "eq": "{0} == {1}", "ne": "{0} != {1}",
    "slt": "{0} < {1}", "sle": "{0} <= {1}", "sgt": "{0} > {1}", "sge": "{0} >= {1}",
    "ult": "({u}){0} < ({u}){1}", "ule": "({u}){0} <= ({u}){1}",
    "ugt": "({u}){0} > ({u}){1}", "uge": "({u}){0} >= ({u}){1}",
    "oeq": "{0} == {1}", "one": "({0} < {1} || {0} > {1})", "olt": "{0} < {1}", "ole": "{0} <= {1}",
    "ogt": "{0} > {1}", "oge": "{0} >= {1}", "une": "{0} != {1}",
}  # fmt: skip

FLOAT_COMPARISONS = {
    **COMPARISONS,
    "ult": "!({0} >= {1})", "ule": "!({0} > {1})", "ugt": "!({0} <= {1})", "uge": "!({0} < {1})",
    "ueq": "!({0} < {1} || {0} > {1})", "ord": "({0} == {0} && {1} == {1})", "uno": "({0} != {0} || {1} != {1})",
}  # fmt: skip


def form_of(operation: str, text: str) -> str | None:
    """The expression of an operation with this text; None if it is not one that works element by element."""
    if operation not in ("arith.cmpi", "arith.cmpf"):
        return ELEMENTWISE.get(operation)
    kinds = FLOAT_COMPARISONS if operation == "arith.cmpf" else COMPARISONS
    return kinds.get(text.split(",")[0].split()[0])


# Functions of libdevice by symbol, without `__nv_` and the `f` of the float32 variant.
EXTERNAL = {
    **{name: f"num::{name}" for name in (
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "atan2",
        "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "sqrt", "cbrt", "erf", "erfc", "tgamma", "lgamma", "pow",
        "fmod", "hypot", "floor", "ceil", "trunc", "round", "rint", "nearbyint", "fma", "fmax", "fmin", "copysign",
        "fdim", "ldexp", "remainder")},
    "fabs": "num::fabs", "rsqrt": "num::rsqrt", "isnan": "num::isnan", "isinf": "num::isinf",
    "fast_exp": "num::exp", "fast_log": "num::log", "fast_sin": "num::sin", "fast_cos": "num::cos",
    "fast_pow": "num::pow", "fast_tan": "num::tan", "fast_log2": "num::log2", "fast_log10": "num::log10",
    "fast_exp10": "num::exp10", "fast_fdivide": "num::div", "isnand": "num::isnan", "isinfd": "num::isinf",
    "finite": "num::isfinite", "isfinited": "num::isfinite", "signbit": "num::signbit", "signbitd": "num::signbit",
    "saturate": "num::saturate", "frsqrt_rn": "num::rsqrt",
    **{f"{kind}{name}_rn": f"num::{name}" for kind in "fd" for name in ("add", "sub", "mul", "div", "rcp", "sqrt")},
    "fma_rn": "num::fma", "fmaf_rn": "num::fma", "scalbn": "num::ldexp", "mul64hi": "num::mulhi",
    **{name: f"num::{name}" for name in (
        "exp10", "rcbrt", "rhypot", "norm3d", "norm4d", "normcdf", "sinpi", "cospi", "powi", "ilogb", "logb", "j0",
        "j1", "y0", "y1", "nextafter", "abs", "popc", "clz", "ffs", "brev", "mulhi", "umulhi")},
    **{f"{name}ll": f"num::{name}" for name in ("popc", "clz", "ffs", "brev")}, "llabs": "num::abs",
    **{f"{source}2{target}_{mode}": function for source in ("float", "double") for mode, function in
       {"rn": "num::rint", "rz": "num::trunc", "ru": "num::ceil", "rd": "num::floor"}.items()
       for target in ("int", "ll")},
    **dict.fromkeys(("int2float_rn", "ll2float_rn", "int2double_rn", "ll2double_rn", "double2float_rn"), ""),
    "float_as_int": "bits_as<int32_t>", "int_as_float": "bits_as<float>",
    "double_as_longlong": "bits_as<int64_t>", "longlong_as_double": "bits_as<double>",
}  # fmt: skip

RMW = {
    "fadd": "({t})(old + x)", "add": "({t})(old + x)", "exch": "x", "and": "({t})(old & x)", "or": "({t})(old | x)",
    "xor": "({t})(old ^ x)", "max": "num::max<{t}>(old, x)", "min": "num::min<{t}>(old, x)",
    "umax": "({t})num::max<{u}>(old, x)", "umin": "({t})num::min<{u}>(old, x)",
}  # fmt: skip
