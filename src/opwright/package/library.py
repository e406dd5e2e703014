"""Builds the library for programs without Python: the operators' schemas, their contracts in C++, and the native
kernels under the operators' own names.

A Python process never loads it: there the operators are defined in Python, with the references and the other kernels.
"""

from __future__ import annotations

import ast
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from opwright.backends.native.abi import TARGET_VERSION
from opwright.backends.native.declaration import declaration
from opwright.backends.native.host_function import TORCH
from opwright.contract.contract import Contract
from opwright.contract.shapes.dims import AnyDim, Dim, ExprDim, FixedDim, NamedDim, VariadicDim
from opwright.contract.shapes.relations import Relation
from opwright.contract.signature import Argument, Kind, TensorType
from opwright.errors import CompileError
from opwright.machine import Machine
from opwright.package.kernels import ShippedKernel
from opwright.runtime.op import Op

__all__ = ["build_libraries", "library_text"]

_TEMPLATES = Path(__file__).parent / "templates"
_KEYS = {"cpu": "CPU", "cuda": "CUDA"}
# The number of each dtype in torch's C interface (c10::ScalarType), which is stable.
_NUMBERS = {
    torch.uint8: 0, torch.int8: 1, torch.int16: 2, torch.int32: 3, torch.int64: 4, torch.float16: 5, torch.float32: 6,
    torch.float64: 7, torch.complex64: 9, torch.complex128: 10, torch.bool: 11, torch.bfloat16: 15,
    torch.float8_e5m2: 23, torch.float8_e4m3fn: 24, torch.float8_e5m2fnuz: 25, torch.float8_e4m3fnuz: 26,
    torch.uint16: 27, torch.uint32: 28, torch.uint64: 29,
}  # fmt: skip
_ALL = (1 << 64) - 1


def build_libraries(
    folder: Path, package: str, operators: Sequence[Op], shipped: Sequence[ShippedKernel], machine: Machine
) -> list[Path]:
    """Build ``lib<package>.so`` beside the kernels' libraries, with schemas and kernels for the CPU, and
    ``lib<package>_cuda.so``, which needs the first, if there are native kernels for CUDA.

    Raises:
        CompileError: the generated code does not compile.
    """
    native = [k for k in shipped if k.library is not None and k.spec.when is None]
    made: list[Path] = []
    for device in ("cpu", "cuda"):
        mine = [k for k in native if device in k.spec.devices]
        if device == "cuda" and not mine:
            continue
        out = folder / (f"lib{package}.so" if device == "cpu" else f"lib{package}_cuda.so")
        text = library_text(operators, mine, device)
        needed = dict.fromkeys(Path(k.record["library"]).name for k in mine)
        _compile(text, out, [*needed, *(f.name for f in made)], machine)
        made.append(out)
    return made


def library_text(operators: Sequence[Op], kernels: Sequence[ShippedKernel], device: str) -> str:
    """The C++ text of one library; the one for the CPU defines the schemas."""
    parts = [
        "// Made by opwright.",
        '#include "contract.h"',
        '#include "overlap.h"',
        "",
        "namespace {",
        "",
        "using torch::stable::Tensor;",
        "",
    ]
    by_namespace: dict[str, list[Op]] = {}
    for operator in operators:
        mine = [k for k in kernels if k.operator is operator]
        if mine:
            parts += [_checked_function(operator.contract, mine), ""]
        by_namespace.setdefault(operator.contract.namespace, []).append(operator)
    parts += ["}  // namespace", ""]
    for namespace, listed in by_namespace.items():
        if device == "cpu":
            defined = [f'  m.def("{_escaped(o.contract.name + o.contract.schema)}");' for o in listed]
            parts += [f"STABLE_TORCH_LIBRARY_FRAGMENT({namespace}, m) {{", *defined, "}", ""]
        implemented = [o for o in listed if any(k.operator is o for k in kernels)]
        registered = [f'  m.impl("{o.contract.name}", TORCH_BOX(&{_function_name(o.contract)}));' for o in implemented]
        if registered:
            parts += [f"STABLE_TORCH_LIBRARY_IMPL({namespace}, {_KEYS[device]}, m) {{", *registered, "}", ""]
    return "\n".join(parts)


def _checked_function(contract: Contract, kernels: Sequence[ShippedKernel]) -> str:
    """The operator as a C++ function: its arguments checked, then the first kernel that takes their dtypes."""
    declared = declaration(contract, _function_name(contract))
    result = declared.partition(f" {_function_name(contract)}(")[0]
    arguments = ", ".join(a.name for a in contract.signature.arguments)
    lines = [f"{declared} {{", f'  opwright::Call call("{contract.qualname}");']
    lines += [f"  {check}" for argument in contract.signature.arguments for check in _checks(argument)]
    lines.append("  call.finish();")
    lines += [f"  {_condition_check(relation)}" for relation in contract.where]
    lines += [f"  {check}" for check in _overlap_checks(contract)]
    for kernel in kernels:
        mask = _mask(kernel.spec.dtypes) if kernel.spec.dtypes is not None else _ALL
        name = f"opwright_shipped::{kernel.record['symbol']}"
        lines.append(f'  if (call.takes({mask}u)) return opwright::run<{result}>("{name}", {arguments});')
    lines += ['  call.fail("no native kernel takes these dtypes");', "}"]
    return "\n".join(lines)


def _overlap_checks(contract: Contract) -> Iterator[str]:
    if not contract.signature.mutated:
        return
    yield f'opwright::Overlap overlap("{contract.qualname}");'
    for argument in contract.signature.arguments:
        if argument.is_tensor:
            yield f'overlap.add("{argument.name}", {"true" if argument.mutated else "false"}, {argument.name});'


def _function_name(contract: Contract) -> str:
    return f"checked_{contract.namespace}_{contract.name}"


def _checks(argument: Argument) -> Iterator[str]:
    if argument.kind is Kind.SCALAR:
        if argument.schema_type is int:
            yield f'call.integer("{argument.name}", {argument.name});'
        return
    assert argument.tensor is not None  # every non-scalar argument has one
    how = "list" if argument.kind is Kind.TENSOR_LIST else "optional" if argument.optional else "tensor"
    tensor = argument.tensor
    dims = ", ".join(map(_dim, tensor.dims))
    shares = "true" if len(tensor.dtypes) > 1 else "false"
    yield (
        f'call.{how}("{argument.name}", {argument.name}, "{tensor.dtype_class}", {_mask_of(tensor)}u, {shares}, '
        f"std::vector<opwright::Dim>{{{dims}}});"
    )


def _dim(dim: Dim) -> str:
    text = f'"{_escaped(str(dim))}"'
    match dim:
        case NamedDim(broadcast=broadcast):
            return f"{{opwright::Dim::{'BROADCAST' if broadcast else 'NAME'}, {text}}}"
        case VariadicDim():
            return f"{{opwright::Dim::REST, {text}}}"
        case FixedDim(size=size):
            return f"{{opwright::Dim::FIXED, {text}, {size}}}"
        case ExprDim(text=expression):
            body = _expression(ast.parse(expression, mode="eval").body)
            return (
                f"{{opwright::Dim::COMPUTED, {text}, 0, "
                f"[](const opwright::Sizes& sizes) -> int64_t {{ return {body}; }}}}"
            )
        case AnyDim():
            return f"{{opwright::Dim::ANY, {text}}}"


def _condition_check(relation: Relation) -> str:
    """A condition on sizes, compared if all its names are known."""
    body = _condition(ast.parse(relation.text, mode="eval").body)
    names = ", ".join(f'"{name}"' for name in sorted(relation.names))
    holds = f"[](const opwright::Sizes& sizes) -> bool {{ return {body}; }}"
    return f'call.where("{_escaped(relation.text)}", {{{names}}}, {holds});'


_COMPARISONS = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}


def _condition(node: ast.expr) -> str:
    """A condition of ``where`` (``contract/shapes/relations.py``) as C++ on ``sizes``."""
    match node:
        case ast.BoolOp(op=op, values=values):
            return "(" + (" && " if isinstance(op, ast.And) else " || ").join(map(_condition, values)) + ")"
        case ast.UnaryOp(operand=operand):
            return f"!{_condition(operand)}"
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            sides = [left, *comparators]
            parts = [_comparison(a, op, b) for a, op, b in zip(sides, ops, sides[1:], strict=False)]
            return f"({' && '.join(parts)})"
    raise ValueError(f"{ast.unparse(node)} is not a condition")


def _comparison(left: ast.expr, op: ast.cmpop, right: ast.expr) -> str:
    if isinstance(right, ast.Tuple | ast.List | ast.Set):
        equal = [f"{_expression(left)} == {_expression(each)}" for each in right.elts]
        return f"{'!' * isinstance(op, ast.NotIn)}({' || '.join(equal)})"
    return f"{_expression(left)} {_COMPARISONS[type(op)]} {_expression(right)}"


_OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}
_CALLS = {ast.FloorDiv: "opwright::floor_divide", ast.Mod: "opwright::modulo", ast.Pow: "opwright::power"}


def _expression(node: ast.expr) -> str:
    """An expression of the shape language (``contract/shapes/dims.py``) as C++ on ``sizes``."""
    match node:
        case ast.Constant(value=int(value)):
            return f"int64_t{{{value}}}"
        case ast.Name(id=name):
            return f'sizes.at("{name}")'
        case ast.UnaryOp(operand=operand):
            return f"(-{_expression(operand)})"
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return f"({_expression(left)} {_OPERATORS[type(op)]} {_expression(right)})"
        case ast.BinOp(left=left, op=op, right=right):
            return f"{_CALLS[type(op)]}({_expression(left)}, {_expression(right)})"
        case ast.Call(func=ast.Name(id="abs"), args=[value]):
            return f"std::abs({_expression(value)})"
        case ast.Call(func=ast.Name(id=name), args=args):
            return f"std::{name}({{{', '.join(map(_expression, args))}}})"
    raise ValueError(f"{ast.unparse(node)} is not an axis")


def _mask_of(tensor: TensorType) -> int:
    return _mask(tensor.dtypes)


def _mask(dtypes: Sequence[torch.dtype]) -> int:
    return sum(1 << _NUMBERS[d] for d in set(dtypes) if d in _NUMBERS)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _compile(text: str, out: Path, needed: Sequence[str], machine: Machine) -> None:
    """Compile one library, which finds the libraries that it needs beside itself."""
    assert machine.cxx is not None  # the kernels were built with it
    floating = _mask([d for d in _NUMBERS if d.is_floating_point or d.is_complex])
    header = (_TEMPLATES / "contract.h").read_text().replace("${floating}", f"{floating}u")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "contract.h").write_text(header)
        shutil.copy(_TEMPLATES / "overlap.h", folder)
        (folder / "library.cpp").write_text(text)
        command = [
            machine.cxx.path, "-O2", "-std=c++17", "-fPIC", "-shared", "-Wall", "-Wl,-s",
            f"-DTORCH_TARGET_VERSION={TARGET_VERSION}", f"-I{TORCH / 'include'}",
            f"-ffile-prefix-map={TORCH}=torch", f"-ffile-prefix-map={folder}=binding",
            str(folder / "library.cpp"), "-o", str(out), f"-L{out.parent.resolve()}", "-Wl,--no-as-needed",
            *(f"-l:{name}" for name in dict.fromkeys(needed)), "-Wl,-rpath,$ORIGIN",
            f"-L{TORCH / 'lib'}", "-ltorch", "-ltorch_cpu",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        log = done.stderr + done.stdout
        raise CompileError(
            f"{out.name} does not compile\n{log.strip()[:2000]}",
            log=log,
            fix="this is a bug in opwright: please report it",
        )
