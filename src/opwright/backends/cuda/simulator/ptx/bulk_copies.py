"""PTX bulk copies as C++ (TMA): between global and shared memory, of bytes or of a tensor map's boxes."""

from __future__ import annotations

import re
from dataclasses import replace

from opwright.backends.cuda.simulator.ptx.instruction import Instruction

__all__ = ["bulk_copy"]

_SIM = "opwright_sim"


def bulk_copy(i: Instruction) -> str:
    if i.has("prefetch"):
        return ""
    if i.has("commit_group"):
        return f"{_SIM}::commit_bulk_stores();"
    if i.has("wait_group"):
        return f"{_SIM}::wait_for_bulk_stores({i.value(0, 'uint32_t')}, {str(i.has('read')).lower()});"
    loads = i.has("mbarrier_complete_tx_bytes")
    if i.has("multicast_cluster", "reduce") or not (loads or i.has("bulk_group")):
        raise i.refused("only copies between global memory and the block's own shared memory are simulated")
    if i.has("tensor"):
        return _box(i, loads)
    return _load(i) if loads else _store(i)


def _load(i: Instruction) -> str:
    """Operands: target in shared memory, source in global memory, bytes, mbarrier."""
    if not i.has("global"):
        raise i.refused("only copies between global memory and the block's own shared memory are simulated")
    source = _in_global_memory(i).address(1)
    return f"{_SIM}::bulk_load({_pointer(i.address(0))}, {_pointer(source)}, {i.value(2, 'uint32_t')}, {i.address(3)});"


def _store(i: Instruction) -> str:
    """Operands: target in global memory, source in shared memory, bytes."""
    target = _in_global_memory(i).address(0)
    return f"{_SIM}::bulk_store({_pointer(target)}, {_pointer(i.address(1))}, {i.value(2, 'uint32_t')});"


def _box(i: Instruction, loads: bool) -> str:
    """Operands of a load: target, [map, {coordinates}], mbarrier; of a store: [map, {coordinates}], source."""
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
        return f"{_SIM}::tensor_load({_pointer(i.address(0))}, {tensor_map}, {box}, {i.address(2)});"
    return f"{_SIM}::tensor_store({tensor_map}, {box}, {_pointer(i.address(1))});"


def _pointer(address: str) -> str:
    return f"reinterpret_cast<void*>({address})"


def _in_global_memory(i: Instruction) -> Instruction:
    return replace(i, parts=[part for part in i.parts if not part.startswith("shared")])
