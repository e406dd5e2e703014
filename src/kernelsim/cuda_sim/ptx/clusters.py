"""PTX for the blocks of a cluster as C++: addresses in each other's shared memory."""

from __future__ import annotations

from kernelsim.cuda_sim.ptx.instruction import PTX, Instruction

__all__ = ["map_to_block", "rank_of_block"]

_SIM = "kernelsim"


def map_to_block(i: Instruction) -> str:
    """``mapa``: the same place in another block's shared memory, as an address there or as a generic one."""
    rank = i.value(2, "uint32_t")
    if i.in_shared:
        return i.write(0, f"{_SIM}::cluster_map_address({i.value(1, 'uint32_t')}, {rank})")
    mapped = f"{_SIM}::cluster_map(reinterpret_cast<const void*>({i.value(1, 'uint64_t')}), {rank})"
    return i.write(0, f"reinterpret_cast<uint64_t>({mapped})")


def rank_of_block(i: Instruction) -> str:
    """``getctarank``: in whose shared memory an address is."""
    address = i.value(1, "uint64_t")
    place = f"{PTX}::from_shared({address})" if i.in_shared else address
    return i.write(0, f"{_SIM}::cluster_rank_of(reinterpret_cast<const void*>({place}))")
