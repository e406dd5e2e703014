"""PTX bulk copies as C++ (TMA): between global memory and shared memory of the cluster, of bytes or of a tensor map's
boxes; and stores and reductions that complete on an mbarrier."""

from __future__ import annotations

import re
from dataclasses import replace

from kernelsim.cuda_sim.ptx.instruction import Instruction

__all__ = ["bulk_copy", "store_async"]

_SIM = "kernelsim"
_COMPLETES = "mbarrier_complete_tx_bytes"
_OPERATIONS = {
    "add": "add", "min": "min", "max": "max", "inc": "inc", "dec": "dec",
    "and": "bit_and", "or": "bit_or", "xor": "bit_xor",
}  # fmt: skip
_TYPES = {
    **{name: name for name in ("u32", "s32", "u64", "s64", "f16", "bf16", "f32", "f64")}, "b32": "u32", "b64": "u64",
}  # fmt: skip
# The types of each reduction in global memory, and in shared memory (PTX ISA, cp.reduce.async.bulk).
_IN_GLOBAL = {
    "add": ("u32", "s32", "u64", "f16", "bf16", "f32", "f64"),
    **dict.fromkeys(("min", "max"), ("u32", "s32", "u64", "s64", "f16", "bf16")),
    **dict.fromkeys(("inc", "dec"), ("u32",)), **dict.fromkeys(("and", "or", "xor"), ("b32", "b64")),
}  # fmt: skip
_IN_SHARED = {
    "add": ("u32", "s32", "u64"), **dict.fromkeys(("min", "max"), ("u32", "s32")),
    **dict.fromkeys(("inc", "dec"), ("u32",)), **dict.fromkeys(("and", "or", "xor"), ("b32",)),
}  # fmt: skip


def bulk_copy(i: Instruction) -> str:
    if i.has("prefetch"):
        return ""
    if i.has("commit_group"):
        return f"{_SIM}::commit_bulk_stores();"
    if i.has("wait_group"):
        return f"{_SIM}::wait_for_bulk_stores({i.value(0, 'uint32_t')}, {str(i.has('read')).lower()});"
    loads = i.has(_COMPLETES)
    if not (loads or i.has("bulk_group")):
        raise i.refused("copies that complete on an mbarrier or in a bulk_group are simulated")
    if i.has("tensor"):
        return _box(i, loads)
    if not loads:
        return _store(i)
    return _load(i) if i.has("global") else _send(i)


def store_async(i: Instruction) -> str:
    """``st.async`` and ``red.async``: address, value or values, mbarrier."""
    if not i.has(_COMPLETES):
        raise i.refused("its form that completes on an mbarrier is simulated")
    how = _reduction(i, _IN_SHARED) if i.name == "red" else ""
    values = i.vector(1)
    listed = ", ".join(i.read(value, i.type) for value in values)
    target, barrier = _pointer(i.address(0)), i.address(2)
    return (
        f"{{ const {i.type} kernelsim_v[{len(values)}] = {{{listed}}}; "
        f"{_SIM}::store_async({target}, kernelsim_v, sizeof kernelsim_v, {barrier}{how}); }}"
    )


def _load(i: Instruction) -> str:
    """Operands: target in shared memory, source in global memory, bytes, mbarrier, the mask of blocks."""
    source = _in_global_memory(i).address(1)
    copied = f"{_pointer(i.address(0))}, {_pointer(source)}, {i.value(2, 'uint32_t')}, {i.address(3)}"
    if i.has("multicast_cluster"):
        return f"{_SIM}::bulk_multicast({copied}, {i.value(4, 'uint16_t')});"
    return f"{_SIM}::bulk_load({copied});"


def _send(i: Instruction) -> str:
    """Operands: target in the cluster's shared memory, source in the block's own, bytes, mbarrier."""
    how = _reduction(i, _IN_SHARED) if i.has("reduce") else ""
    copied = f"{_pointer(i.address(0))}, {_pointer(i.address(1))}, {i.value(2, 'uint32_t')}, {i.address(3)}"
    return f"{_SIM}::bulk_send({copied}{how});"


def _store(i: Instruction) -> str:
    """Operands: target in global memory, source in shared memory, bytes."""
    how = _reduction(i, _IN_GLOBAL) if i.has("reduce") else ""
    target = _in_global_memory(i).address(0)
    return f"{_SIM}::bulk_store({_pointer(target)}, {_pointer(i.address(1))}, {i.value(2, 'uint32_t')}{how});"


def _reduction(i: Instruction, known: dict[str, tuple[str, ...]]) -> str:
    """The last arguments of a call: the operation and the type."""
    operation = next((part for part in i.parts if part in _OPERATIONS), "")
    if i.parts[-1] not in known.get(operation, ()):
        raise i.refused("PTX has no such reduction of this type there")
    if operation == "add" and i.parts[-1] in ("f16", "bf16") and not i.has("noftz"):
        raise i.refused("sums of 16-bit floats need .noftz")
    return f", {_SIM}::Combine::{_OPERATIONS[operation]}, {_SIM}::Number::{_TYPES[i.parts[-1]]}"


def _box(i: Instruction, loads: bool) -> str:
    """Operands of a load: target, [map, {coordinates}], mbarrier, the mask of blocks; of a store: [map,
    {coordinates}], source."""
    if any(part.startswith(("im2col", "tile_")) for part in i.parts):
        raise i.refused("tiles are translated, in their plain mode")
    written = i.operands[1 if loads else 0]
    found = re.fullmatch(r"\[\s*([%\w\[\]]+)\s*,\s*\{(.*)\}\s*\]", written, re.DOTALL)
    if found is None:
        raise i.refused(f"its operand {written} is not known")
    coordinates = [i.read(one.strip(), "int32_t") for one in found[2].split(",")]
    if f"{len(coordinates)}d" not in i.parts:
        raise i.refused("it has another number of coordinates than dimensions")
    tensor_map = _pointer(i.read(found[1], "uint64_t"))
    box = f"{_SIM}::BoxAt{{{len(coordinates)}, {{{', '.join(coordinates)}}}}}"
    if loads:
        blocks = f", {i.value(3, 'uint16_t')}" if i.has("multicast_cluster") else ""
        return f"{_SIM}::tensor_load({_pointer(i.address(0))}, {tensor_map}, {box}, {i.address(2)}{blocks});"
    how = ""
    if i.has("reduce"):  # the map says of which type
        operation = next((part for part in i.parts if part in _OPERATIONS), None)
        if operation is None:
            raise i.refused("PTX has no such reduction")
        how = f", {_SIM}::Combine::{_OPERATIONS[operation]}"
    return f"{_SIM}::tensor_store({tensor_map}, {box}, {_pointer(i.address(1))}{how});"


def _pointer(address: str) -> str:
    return f"reinterpret_cast<void*>({address})"


def _in_global_memory(i: Instruction) -> Instruction:
    return replace(i, parts=[part for part in i.parts if not part.startswith("shared")])
