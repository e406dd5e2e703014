"""PTX accesses to memory as C++: loads, stores, atomic operations, asynchronous copies."""

from __future__ import annotations

from collections.abc import Callable

from kernelsim.cuda_sim.ptx.bulk_copies import bulk_copy, store_async
from kernelsim.cuda_sim.ptx.instruction import PTX, Instruction
from kernelsim.cuda_sim.ptx.mbarriers import copies_arrive

__all__ = ["asynchronous", "atomic", "load", "store"]


def _lanes(i: Instruction) -> int:
    return next((int(part[1]) for part in i.parts if part in ("v2", "v4")), 1)


def _access_type(i: Instruction, lanes: int) -> str:
    volatile = "volatile " if i.has("volatile") else ""
    kind = i.type
    return {1: f"{volatile}{kind}", 2: f"{PTX}::Pair<{kind}>", 4: f"{PTX}::Quad<{kind}>"}[lanes]


def _one_by_one(i: Instruction, position: int, vector: int, access: Callable[[Instruction], str]) -> str:
    """An ordered access to a vector: PTX takes it for one to each element, in an order that is not defined.

    Args:
        position, vector: of the operands that are the address and the registers in braces.
        access: the translation of the access to one element.
    """
    lanes, size = _lanes(i), f"sizeof({i.type})"
    parts = [part for part in i.parts if part != f"v{lanes}" and not part.startswith("shared")]
    code = f"const uint64_t kernelsim_at = {i.address(position)}; "
    code += f'kernelsim::check_alignment((const void*)kernelsim_at, {lanes} * {size}, "a vector of {lanes}");'
    for n, register in enumerate(i.vector(vector)):
        operands = [""] * 2
        operands[position], operands[vector] = "[%element]", register
        place = {"%element": (f"(kernelsim_at + {n} * {size})", "uint64_t")}
        code += " " + access(Instruction(i.opcode, parts, operands, {**i.registers, **place}))
    return f"{{ {code} }}"


def _order(i: Instruction) -> str | None:
    """The order that an access states, as the simulator calls it."""
    stated = next((part for part in i.parts if part in ("relaxed", "acquire", "release", "acq_rel")), None)
    return stated and f"kernelsim::Order::{stated}"


def load(i: Instruction) -> str:
    lanes, order = _lanes(i), _order(i)
    if lanes > 1 and (order or i.has("volatile")):
        return _one_by_one(i, 1, 0, load)
    if order:
        return i.write(0, f"kernelsim::atomic_load(reinterpret_cast<const {i.type}*>({i.address(1)}), {order})")
    kind = _access_type(i, lanes)
    place = f"*reinterpret_cast<const {kind}*>({i.address(1)})"
    read_only = f" kernelsim::read_only_load(&{place}, sizeof({kind}));" if i.has("nc") else ""
    if lanes == 1:
        return i.write(0, f"{i.type}({place})") + read_only
    one = [Instruction(i.opcode, i.parts, [r], i.registers) for r in i.vector(0)]
    writes = " ".join(o.write(0, f"kernelsim_v.v[{n}]") for n, o in enumerate(one))
    return f"{{ const {kind} kernelsim_v = {place}; {writes} }}{read_only}"


def store(i: Instruction) -> str:
    if i.has("async"):
        return store_async(i)
    lanes, order = _lanes(i), _order(i)
    if lanes > 1 and (order or i.has("volatile")):
        return _one_by_one(i, 0, 1, store)
    if order:
        place = f"reinterpret_cast<{i.type}*>({i.address(0)})"
        return f"kernelsim::atomic_store({place}, {i.value(1)}, {order});"
    kind = _access_type(i, lanes)
    values = ", ".join(i.read(r, i.type) for r in i.vector(1))
    place = f"*reinterpret_cast<{kind}*>({i.address(0)})"
    return f"{place} = {kind}{{{{{values}}}}};" if lanes > 1 else f"{place} = {values};"


_ATOMICS = {
    "add": "atomicAdd", "min": "atomicMin", "max": "atomicMax", "and": "atomicAnd", "or": "atomicOr",
    "xor": "atomicXor", "exch": "atomicExch", "inc": "atomicInc", "dec": "atomicDec", "cas": "atomicCAS",
}  # fmt: skip


def atomic(i: Instruction) -> str:
    if i.has("async"):
        return store_async(i)
    operation = next((part for part in i.parts if part in _ATOMICS), None)
    if operation is None or i.has("v2", "v4", "v8"):
        raise i.refused("this atomic operation is not translated")
    returns = i.name == "atom"
    kind = {"int64_t": "unsigned long long", "uint64_t": "unsigned long long", "uint16_t": "unsigned short"}.get(
        i.type, i.type
    )
    values = [i.value(n, i.type) for n in range(1 + returns, len(i.operands))]
    arguments = ", ".join([*(f"{kind}({value})" for value in values), *filter(None, [_order(i)])])
    call = f"{_ATOMICS[operation]}(reinterpret_cast<{kind}*>({i.address(int(returns))}), {arguments})"
    return i.write(0, call) if returns else f"{call}, kernelsim::result_unused();"


def asynchronous(i: Instruction) -> str:
    if i.has("bulk", "reduce"):
        return bulk_copy(i)
    if i.has("mbarrier"):
        return copies_arrive(i)
    if i.has("commit_group"):
        return "kernelsim::commit_copies();"
    if i.has("wait_group"):
        return f"kernelsim::wait_for_copies({i.value(0, 'uint32_t')});"
    if i.has("wait_all"):
        return "kernelsim::wait_for_all_copies();"
    to, source = i.address(0), Instruction(i.opcode, [p for p in i.parts if not p.startswith("shared")],
                                            i.operands, i.registers).address(1)  # fmt: skip
    size = i.operands[2]
    sizes = i.value(3, "uint32_t") if len(i.operands) > 3 and not i.has("L2_cache_hint") else size
    whole = i.value(2, "uint32_t")
    if i.has("cg") and size.isdigit() and size != "16":
        raise i.refused(f".cg copies 16 bytes, not {size}")
    given = i.read(sizes, "uint32_t") if sizes == size else sizes
    return (
        f"kernelsim::copy_async(reinterpret_cast<void*>({to}), reinterpret_cast<const void*>({source}), "
        f"{whole}, {given});"
    )
