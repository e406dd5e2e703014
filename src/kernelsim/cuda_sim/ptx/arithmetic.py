"""PTX arithmetic as C++: integers, floats, bits, comparisons, conversions."""

from __future__ import annotations

from collections.abc import Callable

from kernelsim.cuda_sim.ptx.instruction import PTX, REGISTER_TYPES, Instruction

__all__ = [
    "address_conversion",
    "approximation",
    "binary",
    "call",
    "compare",
    "convert",
    "division",
    "fused",
    "least",
    "move",
    "multiply",
    "multiply_add",
]


def binary(operator: str) -> Callable[[Instruction], str]:
    def translate(i: Instruction) -> str:
        if i.has("cc", "sat"):
            raise i.refused("carries and saturation are not translated")
        kind, a, b = i.type, i.value(1), i.value(2)
        if kind in ("float", "double"):  # not fused with another operation
            return i.write(0, f"kernelsim::unfused({kind}({a} {operator} {b}))")
        if kind.startswith("int") and operator in "+-":
            unsigned = f"u{kind}"
            return i.write(0, f"{kind}({unsigned}({a}) {operator} {unsigned}({b}))")
        return i.write(0, f"{kind}({a} {operator} {b})")

    return translate


def multiply(i: Instruction) -> str:
    a, b, kind = i.value(1), i.value(2), i.type
    if i.has("wide"):
        wide = kind.replace("32", "64").replace("16", "32")
        return i.write(0, f"{wide}({wide}({a}) * {wide}({b}))")
    if i.has("hi"):
        if kind not in ("uint32_t", "int32_t"):
            raise i.refused("the upper half is translated for 32 bits")
        wide = kind.replace("32", "64")
        return i.write(0, f"{kind}(({wide}({a}) * {wide}({b})) >> 32)")
    return binary("*")(i)


def multiply_add(i: Instruction) -> str:
    a, b, kind = i.value(1), i.value(2), i.type
    if kind in ("float", "double"):
        return fused(i)
    if i.has("hi", "cc"):
        raise i.refused("only its lower half, and .wide, are translated")
    if i.has("wide"):
        wide = kind.replace("32", "64").replace("16", "32")
        return i.write(0, f"{wide}({wide}({a}) * {wide}({b}) + {i.value(3, wide)})")
    return i.write(0, f"{kind}({a} * {b} + {i.value(3)})")


def fused(i: Instruction) -> str:
    functions = {"float": "__builtin_fmaf", "double": "__builtin_fma", "__half2": "__hfma2", "__half": "__hfma"}
    functions |= {"__nv_bfloat162": "__hfma2", "__nv_bfloat16": "__hfma"}
    if i.has("sat", "relu"):
        raise i.refused("saturation is not translated")
    return i.write(0, f"{functions[i.type]}({i.value(1)}, {i.value(2)}, {i.value(3)})")


def least(name: str) -> Callable[[Instruction], str]:
    def translate(i: Instruction) -> str:
        kind, a, b = i.type, i.value(1), i.value(2)
        if kind == "__half2" or kind == "__nv_bfloat162":
            return i.write(0, f"__h{name}2({a}, {b})")
        if kind in ("__half", "__nv_bfloat16"):
            return i.write(0, f"__h{name}({a}, {b})")
        return i.write(0, f"{kind}(::{name}({a}, {b}))")

    return translate


def call(function: str, *kinds: str) -> Callable[[Instruction], str]:
    """A function of all operands but the first."""

    def translate(i: Instruction) -> str:
        arguments = [i.value(n + 1, kinds[n] if n < len(kinds) else None) for n in range(len(i.operands) - 1)]
        return i.write(0, f"{function}({', '.join(arguments)})")

    return translate


def approximation(function: str) -> Callable[[Instruction], str]:
    def translate(i: Instruction) -> str:
        kind, a = i.type, i.value(1)
        if kind == "float":
            return i.write(0, f"{function}({a})")
        if kind in ("__half", "__nv_bfloat16"):
            return i.write(0, f"{kind}({function}(float({a})))")
        if kind in ("__half2", "__nv_bfloat162"):
            lane = kind[:-1]
            return i.write(0, f"{kind}({lane}({function}(float({a}.x))), {lane}({function}(float({a}.y))))")
        return i.write(0, f"double({function}({a}))")

    return translate


def division(i: Instruction) -> str:
    return i.write(0, f"{i.type}({i.value(1)} {'%' if i.name == 'rem' else '/'} {i.value(2)})")


def compare(i: Instruction) -> str:
    operators = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
    operators |= {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
    operator = operators.get(i.parts[1])
    if operator is None or i.has("and", "or", "xor") or len(i.operands) != 3:
        raise i.refused("this form of a comparison is not translated")
    return i.write(0, f"({i.value(1)} {operator} {i.value(2)})")


def convert(i: Instruction) -> str:
    types = i.types
    rounding = next((n for n, names in enumerate((("rn", "rni"), ("rz", "rzi"), ("rm", "rmi"), ("rp", "rpi")))
                     if i.has(*names)), 0)  # fmt: skip
    if i.has("sat", "relu", "satfinite"):
        raise i.refused("saturation is not translated")
    if types[0] == "tf32":
        return i.write(0, f"{PTX}::to_tf32({i.value(1, 'float')})")
    if types[0] in ("f16x2", "bf16x2"):
        lane = REGISTER_TYPES[types[0]][:-1]  # the first operand is the upper half
        high, low = (f"{PTX}::converted<{lane}>({i.value(n, 'float')}, {rounding})" for n in (1, 2))
        return i.write(0, f"{REGISTER_TYPES[types[0]]}({low}, {high})")
    to, source = REGISTER_TYPES[types[0]], REGISTER_TYPES[types[1]]
    value = f"{PTX}::converted<{to}>({i.value(1, source)}, {rounding})"
    if types[0] == types[1] and to in ("float", "double"):  # rounds to a whole number
        function = ("__builtin_rint", "__builtin_trunc", "__builtin_floor", "__builtin_ceil")[rounding]
        value = f"{to}({function}({i.value(1, source)}))" if i.has("rni", "rzi", "rmi", "rpi") else i.value(1, source)
    return i.write(0, value)


def move(i: Instruction) -> str:
    target, source = i.vector(0), i.vector(1)
    if len(target) == len(source) == 1:
        return i.write(0, i.value(1))
    bits = int(i.types[-1][1:])
    part = bits // max(len(target), len(source))
    if len(source) > 1:  # packed, the first in the low bits
        joined = " | ".join(f"uint{bits}_t({i.read(r, f'uint{part}_t')}) << {n * part}" for n, r in enumerate(source))
        return i.write(0, f"uint{bits}_t({joined})")
    whole = i.value(1, f"uint{bits}_t")
    one = [Instruction(i.opcode, i.parts, [r], i.registers) for r in target]
    return " ".join(o.write(0, f"uint{part}_t({whole} >> {n * part})") for n, o in enumerate(one))


def address_conversion(i: Instruction) -> str:
    if not i.in_shared:
        return i.write(0, i.value(1))
    if i.has("to"):
        return i.write(0, f"uint64_t({PTX}::shared_address(reinterpret_cast<void*>({i.value(1, 'uint64_t')})))")
    return i.write(0, f"{PTX}::from_shared({i.value(1, 'uint64_t')})")
