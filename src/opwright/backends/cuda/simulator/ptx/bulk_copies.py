"""PTX bulk copies (TMA) as C++."""

from __future__ import annotations

from dataclasses import replace

from opwright.backends.cuda.simulator.ptx.instruction import Instruction

__all__ = ["bulk_copy"]

_SIM = "opwright_sim"


def bulk_copy(i: Instruction) -> str:
    if i.has("prefetch"):
        return ""
    if i.has("tensor"):
        raise i.refused("copies through a tensor map are not simulated")
    if i.has("multicast_cluster") or i.has("reduce"):
        raise i.refused("only copies within a block are simulated")
    if "global" in i.parts and "mbarrier_complete_tx_bytes" in i.parts:
        return _load(i)
    raise i.refused("this bulk copy is not translated")


def _load(i: Instruction) -> str:
    """Operands: target in shared memory, source in global memory, bytes, mbarrier."""
    outside = replace(i, parts=[part for part in i.parts if not part.startswith("shared")])
    target, source = f"reinterpret_cast<void*>({i.address(0)})", f"reinterpret_cast<const void*>({outside.address(1)})"
    return f"{_SIM}::bulk_load({target}, {source}, {i.value(2, 'uint32_t')}, {i.address(3)});"
