"""One PTX instruction: its name, its suffixes and its operands, and these as C++."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["HERE", "PTX", "REGISTER_TYPES", "Instruction", "NotTranslatedError", "Registers"]

# Names of operands and registers → the C++ variable and its type.
Registers = dict[str, tuple[str, str]]

REGISTER_TYPES = {
    **{f"{letter}{bits}": f"uint{bits}_t" for letter in "bu" for bits in (8, 16, 32, 64)},
    **{f"s{bits}": f"int{bits}_t" for bits in (8, 16, 32, 64)},
    "f32": "float", "f64": "double", "f16": "__half", "bf16": "__nv_bfloat16", "f16x2": "__half2",
    "bf16x2": "__nv_bfloat162", "pred": "bool", "tf32": "uint32_t",
}  # fmt: skip
_SPECIAL = {
    "%laneid": "kernelsim::lane_id()",
    "%lanemask_lt": "((1u << kernelsim::lane_id()) - 1u)",
    "%lanemask_le": "((2u << kernelsim::lane_id()) - 1u)",
    "%lanemask_eq": "(1u << kernelsim::lane_id())",
    "%lanemask_gt": "~((2u << kernelsim::lane_id()) - 1u)",
    "%lanemask_ge": "~((1u << kernelsim::lane_id()) - 1u)",
    "%warpid": "((threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) / 32u)",
    "%smid": "0u", "%nsmid": "1u",
    "%cluster_ctarank": "kernelsim_cluster.rank", "%cluster_nctarank": "kernelsim_cluster.size",
    "%is_explicit_cluster": "(kernelsim_cluster.size > 1)",
    **{f"%{ptx}.{d}": f"kernelsim_cluster.{field}.{d}" for ptx, field in
       (("cluster_ctaid", "block"), ("cluster_nctaid", "dims"), ("clusterid", "index"), ("nclusterid", "grid"))
       for d in "xyz"},
    "%clock": "uint32_t(kernelsim::ticks())", "%clock64": "uint64_t(kernelsim::ticks())",
    "%globaltimer": "uint64_t(kernelsim::ticks())",
    **{f"%{ptx}.{d}": f"{cuda}.{d}" for ptx, cuda in
       (("tid", "threadIdx"), ("ntid", "blockDim"), ("ctaid", "blockIdx"), ("nctaid", "gridDim")) for d in "xyz"},
}  # fmt: skip
HERE = "kernelsim::Site::here()"
PTX = "kernelsim::ptx"


class NotTranslatedError(Exception):
    """There is no translation: of which instruction, and why."""

    def __init__(self, instruction: str, why: str) -> None:
        super().__init__(f"{instruction}: {why}")
        self.instruction, self.why = instruction, why


@dataclass
class Instruction:
    """One instruction: ``name`` and its suffixes ``parts``, operands as written, the registers in scope."""

    opcode: str
    parts: list[str]
    operands: list[str]
    registers: Registers

    @property
    def name(self) -> str:
        return self.parts[0]

    @property
    def types(self) -> list[str]:
        return [part for part in self.parts[1:] if part in REGISTER_TYPES]

    @property
    def type(self) -> str:
        """The C++ type of the instruction."""
        if not self.types:
            raise self.refused("it has no type")
        return REGISTER_TYPES[self.types[-1]]

    def has(self, *suffixes: str) -> bool:
        return any(s in self.parts for s in suffixes)

    def refused(self, why: str) -> NotTranslatedError:
        return NotTranslatedError(self.opcode, why)

    # -- operands --

    def value(self, position: int, kind: str | None = None) -> str:
        """An operand's value as a C++ expression of a type."""
        return self.read(self.operands[position], kind or self.type)

    def read(self, written: str, kind: str) -> str:
        if written.startswith("!"):
            return f"!{self.read(written[1:], kind)}"
        if written in self.registers:
            return f"{PTX}::as<{kind}>({self.registers[written][0]})"
        if written in _SPECIAL:
            return f"{PTX}::as<{kind}>({_SPECIAL[written]})"
        if found := re.fullmatch(r"0[fF]([0-9a-fA-F]{8})", written):
            return f"{PTX}::as<{kind}>(uint32_t(0x{found[1]}))"
        if found := re.fullmatch(r"0[dD]([0-9a-fA-F]{16})", written):
            return f"{PTX}::as<{kind}>(uint64_t(0x{found[1]}ull))"
        if re.fullmatch(r"-?(?:0[xX][0-9a-fA-F]+|\d+)[uU]?", written):
            return f"{kind}({written})"
        if re.fullmatch(r"-?\d+\.\d*(?:[eE][-+]?\d+)?", written):
            return f"{kind}({written})"
        raise self.refused(f"its operand {written} is not known")

    def write(self, position: int, expression: str) -> str:
        written = self.operands[position]
        if written == "_":
            return f"(void)({expression});"
        if written not in self.registers:
            raise self.refused(f"its operand {written} is not known")
        variable, kind = self.registers[written]
        return f"{variable} = {PTX}::as<{kind}>({expression});"

    def variable(self, written: str) -> str:
        """The C++ variable of a register."""
        if written not in self.registers:
            raise self.refused(f"its operand {written} is not known")
        return self.registers[written][0]

    def vector(self, position: int) -> list[str]:
        """The registers in braces; the operand itself if it is no vector."""
        written = self.operands[position]
        return [p.strip() for p in written[1:-1].split(",")] if written.startswith("{") else [written]

    def address(self, position: int) -> str:
        """The address in an operand in brackets, as a 64-bit number."""
        found = re.fullmatch(r"\[\s*([%\w\[\]]+?)\s*(?:\+\s*(-?\w+)\s*)?\]", self.operands[position])
        if found is None or found[1] not in self.registers:
            raise self.refused(f"its address {self.operands[position]} is not known")
        variable = self.registers[found[1]][0]
        base = f"{PTX}::from_shared({variable})" if self.in_shared else f"uint64_t({variable})"
        return f"({base} + {found[2]})" if found[2] else base

    @property
    def in_shared(self) -> bool:
        return any(part.startswith("shared") for part in self.parts)
