"""Where values of a kernel come from and go to: the argument of each pointer, so that an access that lands in another
argument is found; and which threads use a number."""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from kernelsim.triton_sim.from_ttir.elementwise import ELEMENTWISE
from kernelsim.triton_sim.from_ttir.reading import NAME, Block, Function, Operation

__all__ = ["only_for_first_thread", "sources_of_pointers"]

# Operations whose result points where their first operand does.
_FOLLOWING = frozenset({
    "tt.addptr", "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans", "tt.bitcast", "tt.unsplat",
    "tt.make_tensor_descriptor",
})  # fmt: skip
# Those that each thread computes by itself from numbers.
_ON_NUMBERS = frozenset({*ELEMENTWISE, "arith.cmpi", "arith.cmpf", "tt.addptr", "tt.extern_elementwise", "tt.load"})
_MANY = -1  # of several arguments, or unknown
_FOREIGN = -2  # loaded from memory, or made of a number; as in kernelsim_triton.h


def sources_of_pointers(function: Function) -> dict[str, int]:
    """The number of the argument that each pointer, tensor of pointers or descriptor comes from; -2, if it may point
    anywhere. Others are left out."""
    sources = {name: i for i, (name, _) in enumerate(function.arguments)}
    for block in function.blocks:
        for name, _ in block.arguments:
            sources[name] = _MANY
        _follow(block, sources)
    return {name: source for name, source in sources.items() if source != _MANY}


def _follow(block: Block, sources: dict[str, int]) -> None:
    for op in block.operations:
        if op.name in _FOLLOWING and op.operands:
            sources[op.results[0]] = sources.get(op.operands[0], _MANY)
        elif op.name == "arith.select":
            sources[op.results[0]] = _join(*(sources.get(n, _MANY) for n in op.operands[1:3]))
        elif op.name == "scf.for":
            _follow_loop(op, sources)
        elif op.name == "scf.if":
            ends = [_follow_region(region[0], sources) for region in op.regions]
            for result, *values in zip(op.results, *ends, strict=False):
                sources[result] = _join(*values)
        elif op.name == "tt.int_to_ptr" or (op.name == "tt.load" and "!tt.ptr<!tt.ptr" in op.types.replace(" ", "")):
            sources[op.results[0]] = _FOREIGN
        else:
            _follow_others(op, sources)


def _follow_loop(op: Operation, sources: dict[str, int]) -> None:
    """What a loop carries, until another round changes nothing."""
    carried = re.findall(rf"({NAME}) = ({NAME})", op.text.partition("iter_args(")[2])
    now = [sources.get(first, _MANY) for _, first in carried]
    while True:
        sources.update((name, source) for (name, _), source in zip(carried, now, strict=True))
        ends = _follow_region(op.regions[0][0], sources)
        joined = [_join(a, b) for a, b in zip(now, ends, strict=False)]
        if joined == now:
            break
        now = joined
    sources.update(zip(op.results, now, strict=False))


def _follow_others(op: Operation, sources: dict[str, int]) -> None:
    sources.update((name, _MANY) for name in op.results)
    for region in op.regions:
        for block in region:
            sources.update((name, _MANY) for name, _ in block.arguments)
            _follow(block, sources)


def _follow_region(block: Block, sources: dict[str, int]) -> list[int]:
    """The sources of what a region yields."""
    _follow(block, sources)
    last: Sequence[str] = block.operations[-1].operands if block.operations else ()
    return [sources.get(name, _MANY) for name in last]


def _join(*values: int) -> int:
    return values[0] if values and all(v == values[0] for v in values) else _MANY


def only_for_first_thread(function: Function) -> frozenset[str]:
    """The numbers that are loaded, but used for nothing except other numbers that are stored. All threads of a program
    load a number, and its first thread stores one."""
    uses: dict[str, list[Operation]] = defaultdict(list)
    operations = [*_operations(function.blocks)]
    for op in operations:
        for name in re.findall(NAME, f"{op.text} {op.types}"):
            uses[name].append(op)

    @functools.cache
    def is_stored_only(name: str) -> bool:
        return all(
            "tensor<" not in op.types
            and (op.name == "tt.store" or (op.name in _ON_NUMBERS and all(map(is_stored_only, op.results))))
            for op in uses[name]
        )

    loads = [op for op in operations if op.name == "tt.load" and "tensor<" not in op.types]
    return frozenset(op.results[0] for op in loads if is_stored_only(op.results[0]))


def _operations(blocks: Sequence[Block]) -> Iterator[Operation]:
    for block in blocks:
        for op in block.operations:
            yield op
            yield from op.nested()
