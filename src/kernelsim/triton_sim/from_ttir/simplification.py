"""Simplifies a function before C++ is written from it, so that g++ has less to compile and the kernel less to do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kernelsim.triton_sim.from_ttir.elementwise import ELEMENTWISE, form_of
from kernelsim.triton_sim.from_ttir.reading import NAME, Block, Function, Operation

__all__ = ["INDEXED", "Uses", "simplify"]

# Operations whose results depend on their operands alone, element by element.
INDEXED = frozenset({
    *ELEMENTWISE, "arith.cmpi", "arith.cmpf", "arith.constant", "tt.splat", "tt.make_range", "tt.addptr",
    "tt.extern_elementwise", "tt.reshape", "tt.expand_dims", "tt.broadcast", "tt.trans",
})  # fmt: skip
_PURE = INDEXED | {"tt.get_program_id", "tt.get_num_programs", "tt.join", "tt.cat", "ub.poison"}
# Operations that read their operands by element, each element once unless they repeat it.
_REPEATING = frozenset({"tt.broadcast", "tt.gather", "tt.histogram", "tt.descriptor_gather", "tt.descriptor_scatter"})
_BY_ELEMENT = (
    INDEXED
    | _REPEATING
    | {
        *(
            "tt.load",
            "tt.store",
            "tt.atomic_rmw",
            "tt.atomic_cas",
            "tt.assert",
            "tt.join",
            "tt.split",
            "tt.cat",
            "tt.dot",
        ),
        *("tt.reduce", "tt.scan", "tt.print", "tt.descriptor_store", "tt.descriptor_reduce"),
    }
)
_OVERFLOW = "overflow detected for operation"
_WHOLE_NUMBERS = frozenset({"arith.addi", "arith.subi", "arith.muli"})


@dataclass
class Uses:
    """How the values of a function are used, by name.

    Attributes:
        count: how many times the C++ says a value.
        whole: values of which some use is not by element.
        repeated: values whose elements may be read again and again, such as in a nested region.
    """

    count: dict[str, int] = field(default_factory=dict)
    whole: set[str] = field(default_factory=set)
    repeated: set[str] = field(default_factory=set)

    def once(self, name: str) -> bool:
        """Whether each element is read at most once, by an operation of the same block."""
        return self.count.get(name, 0) <= 1 and name not in self.repeated


def simplify(function: Function) -> Uses:
    """Take checks of overflow into the operations that they check, and drop what nothing uses."""
    for block in function.blocks:
        for inner in _with_nested(block):
            _merge_overflow_checks(inner)
    uses = Uses()
    for block in reversed(function.blocks):
        _drop_unused(block, uses)
    return uses


def _with_nested(block: Block) -> Iterator[Block]:
    yield block
    for op in block.operations:
        for region in op.regions:
            for inner in region:
                yield from _with_nested(inner)


def _drop_unused(block: Block, uses: Uses) -> None:
    """From the end, so that uses come before definitions; what loops carry is used by their terminators."""
    here = {name for op in block.operations for name in op.results}
    kept = []
    for op in reversed(block.operations):
        if op.name in _PURE and op.overflow is None and not any(name in uses.count for name in op.results):
            continue
        kept.append(op)
        for region in op.regions:
            for inner in reversed(region):
                _drop_unused(inner, uses)
        form = form_of(op.name, op.text) or ""
        for i, name in enumerate(re.findall(NAME, f"{_unquoted(op.text)} {op.types}")):
            uses.count[name] = uses.count.get(name, 0) + max(1, form.count(f"{{{i}}}"))
            if op.name not in _BY_ELEMENT:
                uses.whole.add(name)
            if op.name in _REPEATING or op.overflow is not None or name not in here:
                uses.repeated.add(name)
    block.operations = kept[::-1]


def _unquoted(text: str) -> str:
    return re.sub(r'"[^"]*"', "", text)


def _merge_overflow_checks(block: Block) -> None:
    """Triton checks ``a + b`` with a sum in 64 bits, two comparisons and an assertion before the sum itself.

    Numbers without a sign are meant to wrap, in hashes and random generators; they and truth values are not checked.
    """
    definitions: dict[str, Operation] = {}
    dropped = set()
    for i, op in enumerate(block.operations):
        definitions.update((name, op) for name in op.results)
        if op.name == "tt.assert" and _OVERFLOW in op.text:
            checked = _checked(op, definitions, block.operations[i + 1 : i + 4])
            message = re.search(r'"([^"]*)"', op.text)
            if checked is not None and message is not None:
                operation, has_sign = checked
                if has_sign:
                    operation.overflow = message[1]
                dropped.add(id(op))
    block.operations = [op for op in block.operations if id(op) not in dropped]


def _checked(
    assertion: Operation, definitions: dict[str, Operation], following: Sequence[Operation]
) -> tuple[Operation, bool] | None:
    """The operation that an assertion is about, and whether its numbers have a sign."""
    try:
        both = definitions[assertion.operands[0]]
        lower, upper = (definitions[name] for name in both.operands)
        wide = definitions[lower.operands[0]]
        widened = [definitions[name] for name in wide.operands]
    except (KeyError, ValueError, IndexError):
        return None
    kinds = {op.name for op in widened}
    if wide.name not in _WHOLE_NUMBERS or upper.operands[0] != lower.operands[0] or len(kinds) != 1:
        return None
    (kind,) = kinds
    operands = [op.operands[0] for op in widened]
    found = [op for op in following if op.name == wide.name and op.operands == operands]
    if not found or kind not in ("arith.extsi", "arith.extui"):
        return None
    return found[0], kind == "arith.extsi" and "i1" not in re.split(r"[x<>\s]", found[0].types)
