"""PTX instructions of a warpgroup as C++: wgmma, asynchronous products of matrices in shared memory."""

from __future__ import annotations

import re

from kernelsim.cuda_sim.ptx.instruction import HERE, Instruction

__all__ = ["warpgroup"]

_SIM = "kernelsim"
_ELEMENT = f"{_SIM}::Element"
# The elements of a and b → the extent of k, and the types that d may have.
_KINDS = {
    "f16": (16, ("f32", "f16")), "bf16": (16, ("f32",)), "tf32": (8, ("f32",)), "e4m3": (32, ("f32", "f16")),
    "e5m2": (32, ("f32", "f16")), "s8": (32, ("s32",)), "u8": (32, ("s32",)),
}  # fmt: skip
_MAY_DIFFER = ({"e4m3", "e5m2"}, {"s8", "u8"})
_MOST_COLUMNS = 256


def warpgroup(i: Instruction) -> str:
    match i.parts[1]:
        case "fence":
            return f"{_SIM}::warpgroup_fence();"
        case "commit_group":
            return f"{_SIM}::warpgroup_commit();"
        case "wait_group":
            return f"{_SIM}::warpgroup_wait({i.value(0, 'uint32_t')});"
        case "mma_async":
            return _multiply(i)
    raise i.refused("this operation of a warpgroup is not translated")


def _multiply(i: Instruction) -> str:
    """Operands: d, a (registers, or a tile's descriptor), b (a descriptor), whether d is added, and for floats the
    signs of a and b and whether each tile is transposed."""
    shape = next((m for part in i.parts if (m := re.fullmatch(r"m64n(\d+)k(\d+)", part))), None)
    kinds = [part for part in i.parts if part in _KINDS or part in ("f32", "s32")]
    if shape is None or len(kinds) != 3 or i.has("sp", "satfinite"):
        raise i.refused("this shape or these types are not translated")
    d_kind, a_kind, b_kind = kinds
    k, results = _KINDS[a_kind]
    n = int(shape[1])
    fits = a_kind == b_kind or any({a_kind, b_kind} <= together for together in _MAY_DIFFER)
    if not fits or d_kind not in results or int(shape[2]) != k or n % 8 or not 8 <= n <= _MOST_COLUMNS:
        raise i.refused("this shape or these types are not translated")
    d, in_registers = i.vector(0), i.operands[1].startswith("{")
    if len(d) != (n // 4 if d_kind == "f16" else n // 2) or (in_registers and len(i.vector(1)) != 4):
        raise i.refused("its fragments have another number of registers")
    signs, transposes = _immediates(i, in_registers, a_kind)
    fields = {
        "a_type": f"{_ELEMENT}::{a_kind}", "b_type": f"{_ELEMENT}::{b_kind}", "d_type": f"{_ELEMENT}::{d_kind}",
        "n": f"{n}u", "accumulates": i.value(3, "bool"), "a_in_registers": str(in_registers).lower(),
        "b_tile": i.value(2, "uint64_t"), "a_is_negated": f"{signs[0]} < 0", "b_is_negated": f"{signs[1]} < 0",
        "a_is_transposed": f"{transposes[0]} != 0", "b_is_transposed": f"{transposes[1]} != 0",
    }  # fmt: skip
    if in_registers:
        fields |= {f"a[{m}]": i.read(register, "uint32_t") for m, register in enumerate(i.vector(1))}
    else:
        fields["a_tile"] = i.value(1, "uint64_t")
    fields |= {f"d[{m}]": f"{_SIM}::accumulator({i.variable(register)})" for m, register in enumerate(d)}
    sets = " ".join(f"kernelsim_w.{name} = {value};" for name, value in fields.items())
    return f"{{ {_SIM}::WarpgroupProduct kernelsim_w; {sets} {_SIM}::warpgroup_multiply(kernelsim_w, {HERE}); }}"


def _immediates(i: Instruction, in_registers: bool, kind: str) -> tuple[list[str], list[str]]:
    """The signs of a and b, and whether their tiles are transposed."""
    given = [i.read(operand, "int32_t") for operand in i.operands[4:]]
    if kind in ("s8", "u8"):
        given = ["1", "1"]
    signs, transposes = given[:2], given[2:]
    if in_registers and transposes:
        transposes = ["0", *transposes]
    wanted = 2 if kind in ("f16", "bf16") else 0
    if len(signs) != 2 or len(transposes) != wanted:
        raise i.refused("it has other operands than expected")
    return signs, transposes or ["0", "0"]
