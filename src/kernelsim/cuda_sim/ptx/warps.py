"""PTX instructions of a warp or a block as C++: shuffles, votes, barriers, products of matrices."""

from __future__ import annotations

import re

from kernelsim.cuda_sim.ptx.instruction import HERE, Instruction

__all__ = ["barrier", "elect", "load_matrix", "multiply_matrices", "shuffle", "store_matrix", "vote"]


def shuffle(i: Instruction) -> str:
    if len(i.operands) != 5:
        raise i.refused("a shuffle with a predicate as a second result is not translated")
    mode = {"bfly": "butterfly", "up": "up", "down": "down", "idx": "indexed"}[i.parts[2]]
    width = f"int(32u - ({i.value(3, 'uint32_t')} >> 8 & 31u))"
    lane = f"kernelsim::{mode}(kernelsim::lane_id(), {i.value(2, 'uint32_t')}, {width})"
    return i.write(0, f"kernelsim::shuffle({i.value(4, 'uint32_t')}, {i.value(1, 'uint32_t')}, {lane}, {HERE})")


def vote(i: Instruction) -> str:
    function = {"ballot": "__ballot_sync", "any": "__any_sync", "all": "__all_sync"}.get(i.parts[2])
    if function is None:
        raise i.refused("this vote is not translated")
    return i.write(0, f"{function}({i.value(2, 'uint32_t')}, {i.value(1, 'bool')})")


def barrier(i: Instruction) -> str:
    if i.has("warp"):
        return f"__syncwarp({i.value(0, 'uint32_t')});"
    if i.has("cluster"):
        releases = "false" if i.has("relaxed") else "true"
        return "kernelsim::cluster_wait();" if i.has("wait") else f"kernelsim::cluster_arrive({releases});"
    if i.has("red") or not i.operands:
        raise i.refused("barriers that also reduce a value are not simulated")
    if i.operands == ["0"]:
        return "__syncthreads();"
    threads = i.value(1, "uint32_t") if len(i.operands) > 1 else "0u"
    waits = "false" if i.has("arrive") else "true"
    return f"kernelsim::named_barrier({i.value(0, 'uint32_t')}, {threads}, {waits}, {HERE});"


def elect(i: Instruction) -> str:
    """One lane of the mask, the lowest: its number, and whether the thread is it."""
    leader = f"uint32_t(__ffs(int(kernelsim::warp_ballot({i.value(2, 'uint32_t')}, true, {HERE}))) - 1)"
    return (
        f"{{ const uint32_t kernelsim_e = {leader}; {i.write(0, 'kernelsim_e')} "
        f"{i.write(1, 'kernelsim_e == kernelsim::lane_id()')} }}"
    )


def load_matrix(i: Instruction) -> str:
    target = i.vector(0)
    call = _matrices(i, "load", len(target), f"const void*>({_row(i, 1)}")
    one = [Instruction(i.opcode, i.parts, [r], i.registers) for r in target]
    writes = " ".join(o.write(0, f"kernelsim_m[{n}]") for n, o in enumerate(one))
    return f"{{ uint32_t kernelsim_m[{len(target)}]; {call} {writes} }}"


def store_matrix(i: Instruction) -> str:
    source = i.vector(1)
    call = _matrices(i, "store", len(source), f"void*>({_row(i, 0)}")
    reads = ", ".join(i.read(r, "uint32_t") for r in source)
    return f"{{ const uint32_t kernelsim_m[] = {{{reads}}}; {call} }}"


def _matrices(i: Instruction, what: str, registers: int, row: str) -> str:
    """The call that loads or stores as many matrices as there are registers."""
    count = next((int(part[1]) for part in i.parts if part in ("x1", "x2", "x4")), 0)
    if count != registers or not i.has("m8n8") or not i.has("b16"):
        raise i.refused("m8n8 matrices of b16 are translated")
    transposed = "true" if i.has("trans") else "false"
    return f"kernelsim::{what}_matrices<{count}, {transposed}>(reinterpret_cast<{row}), kernelsim_m, {HERE});"


def _row(i: Instruction, operand: int) -> str:
    return i.address(operand) if i.in_shared else f"uint64_t({i.address(operand)})"


_SHAPES = {("m16n8k8", "f16"): 2, ("m16n8k16", "f16"): 4, ("m16n8k8", "bf16"): 2, ("m16n8k16", "bf16"): 4,
           ("m16n8k4", "tf32"): 2, ("m16n8k8", "tf32"): 4, ("m16n8k16", "s8"): 2, ("m16n8k32", "s8"): 4,
           ("m16n8k16", "u8"): 2, ("m16n8k32", "u8"): 4}  # fmt: skip


def multiply_matrices(i: Instruction) -> str:
    shape = next((part for part in i.parts if re.fullmatch(r"m\d+n\d+k\d+", part)), "")
    kinds = [part for part in i.parts if part in ("f16", "bf16", "tf32", "f32", "s32", "s8", "u8", "f64")]
    count = _SHAPES.get((shape, kinds[1])) if len(kinds) == 4 else None
    if count is None or i.has("sp", "satfinite") or kinds[0] != kinds[3] or not (i.has("row") and i.has("col")):
        raise i.refused("this shape or these types are not translated")
    d, a, b, c = (i.vector(n) for n in range(4))
    half = kinds[0] == "f16"
    if len(a) != count or len(b) != count // 2 or len(d) != len(c) or len(d) != (2 if half else 4):
        raise i.refused("its fragments have another number of registers")
    loads = [f"kernelsim_m.{name}[{n}] = {i.read(r, 'uint32_t')};" for name, of in (("a", a), ("b", b), ("c", c))
             for n, r in enumerate(of)]  # fmt: skip
    one = [Instruction(i.opcode, i.parts, [r], i.registers) for r in d]
    writes = " ".join(o.write(0, f"kernelsim_m.d[{n}]") for n, o in enumerate(one))
    header = (
        f"kernelsim::MatrixLane kernelsim_m{{kernelsim::Element::{kinds[1]}, kernelsim::Element::{kinds[2]}, "
        f"{count}, {'true' if half else 'false'}, {{}}, {{}}, {{}}, {{}}}};"
    )
    return f"{{ {header} {' '.join(loads)} kernelsim::multiply(kernelsim_m, {HERE}); {writes} }}"
