"""The operations of torch that a computation consists of, and in which dtypes they round."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from opwright import tree
from opwright.checks.comparison.attention import FusedAttentionInSteps
from opwright.internals.compiler import DispatchMode
from opwright.internals.process_groups import waited
from opwright.internals.registration import writes_arguments
from opwright.internals.tensors import memory_of

__all__ = ["MULTIPLIES", "Operations", "exact_steps", "is_floating", "only_moves", "recorded"]


@dataclass
class Operations:
    """What a computation consists of.

    Attributes:
        rounding: the name of each operation that rounds, in order, and the dtypes of its floating results.
        last: the positions of those that nothing but results follow from.
        ends: for each result, the largest eps of such an operation; 0 if there is none.
        narrow_operands: of products of matrices by position, the places of operands and the eps of the dtype that each
            may have: that to which the computation has converted it, or from which it has converted the other operand.
        are_seen: False if no operation of torch ran, as in a NumPy function.
        follow_from_values: whether others may run for other values, as some were read.
    """

    rounding: list[tuple[str, tuple[torch.dtype, ...]]] = field(default_factory=list)
    last: frozenset[int] = frozenset()
    ends: tuple[float, ...] = ()
    narrow_operands: dict[int, dict[int, float]] = field(default_factory=dict)
    are_seen: bool = False
    follow_from_values: bool = False
    # Whether they treat infinities apart, so that results for these are meant.
    define_infinities: bool = False
    # Whether attention may be among them, fused: it is done in steps.
    attends: bool = True


def recorded(run: Callable[[], Sequence[torch.Tensor]]) -> Operations:
    """The operations of a computation."""
    mode, attention = _Recording(), FusedAttentionInSteps()
    with mode, attention:
        results = run()
    mode.operations.last = mode.only_in(results)
    mode.operations.ends = tuple(mode.end_of(t) for t in results)
    mode.operations.attends = attention.was_called
    return mode.operations


def exact_steps(run: Callable[[], Sequence[torch.Tensor]]) -> frozenset[int]:
    """The positions, among the operations that round, of those in a half dtype that round none of these values, as a
    product with a mask of zeros and ones."""
    mode = _Recording(finds_exact=True)
    with mode, FusedAttentionInSteps():
        run()
    return frozenset(mode.exact)


def is_floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def only_moves(func: Any) -> bool:
    """Whether an operation moves, chooses or converts data, so that it rounds nothing that it computes."""
    return bool(func.is_view) or func.overloadpacket.__name__ in _EXACT


_EXACT = frozenset({
    "_reshape_copy", "_to_copy", "_unsafe_index", "_unsafe_view", "abs", "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced", "all_to_all_single", "amax", "amin", "arange", "broadcast", "cat", "ceil",
    "clamp", "clamp_max", "clamp_min", "clone", "constant_pad_nd", "contiguous", "copy_", "detach", "embedding",
    "empty", "empty_like", "eye", "fill", "flip", "floor", "full", "full_like", "gather", "index", "index_put",
    "index_select", "masked_fill", "masked_select", "max", "maximum", "min", "minimum", "neg", "new_empty",
    "new_zeros", "ones", "ones_like", "relu", "repeat", "roll", "round", "scatter", "sign", "sort", "stack", "take",
    "topk", "tril", "triu", "trunc", "wait_tensor", "where", "zeros", "zeros_like",
})  # fmt: skip


# Products of matrices, and the place of their first matrix.
MULTIPLIES = {"mm": 0, "bmm": 0, "mv": 0, "dot": 0, "addmm": 1, "baddbmm": 1, "addmv": 1, "addbmm": 1}
# Operations of which it is seen whether they round.
_MAY_BE_EXACT = frozenset({"add", "div", "mul", "rsub", "sub", "sum"})
_HALF = (torch.float16, torch.bfloat16)
_COMPARISONS = frozenset({"eq", "ge", "gt", "le", "lt", "ne"})
_MEANT_FOR_INFINITIES = frozenset({
    "_log_softmax", "_safe_softmax", "_softmax", "isinf", "isneginf", "isposinf", "logaddexp", "logaddexp2",
    "logcumsumexp", "logsumexp", "nan_to_num",
})  # fmt: skip
# The tags of operations that give numbers of Python, or results whose sizes are not known before.
_READS_VALUES = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})


class _Recording(DispatchMode):  # type: ignore[misc]
    def __init__(self, *, finds_exact: bool = False) -> None:
        super().__init__()
        self.operations = Operations()
        self.exact: set[int] = set()
        self._finds_exact = finds_exact
        # The rounding operations that gave what is in a storage, with the eps of their dtype, and those whose results
        # others have used.
        self._origins: dict[tuple[str, int], frozenset[tuple[int, float]]] = {}
        self._used: set[int] = set()
        # The eps of the dtype from which all that is in a storage was converted to a wider one.
        self._widened: dict[tuple[str, int], float] = {}
        # The eps of the half dtype to which all that is in a storage was converted after it was computed.
        self._narrowed: dict[tuple[str, int], float] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        sources = self._origins_of([args, kwargs])
        narrow = self._narrow_operands(func, args)
        out = waited(func, func(*args, **(kwargs or {})))
        self.operations.are_seen = True
        self.operations.follow_from_values |= not _READS_VALUES.isdisjoint(func.tags)
        self.operations.define_infinities |= _defines_infinities(func, args)
        floating = [t for t in tree.tensors(out) if is_floating(t)]
        rounds = bool(floating) and not only_moves(func)
        if rounds:
            self._used |= {position for position, _ in sources}
            position = len(self.operations.rounding)
            if narrow:
                self.operations.narrow_operands[position] = narrow
            if self._finds_exact and _is_exact(func, args, kwargs or {}, out):
                self.exact.add(position)
            self.operations.rounding.append((str(func), tuple(t.dtype for t in floating)))
        eps = 0.0 if rounds else self._narrowest(func, [args, kwargs])
        narrowed = 0.0 if rounds else self._narrowed_to(func, args, kwargs, sources)
        for t in floating:
            memory = memory_of(t)
            self._origins[memory] = frozenset({(position, torch.finfo(t.dtype).eps)}) if rounds else sources
            if not func.is_view:
                self._widened[memory], self._narrowed[memory] = eps, narrowed
        return out

    def only_in(self, results: Sequence[torch.Tensor]) -> frozenset[int]:
        """The operations of which only results follow."""
        return frozenset(position for position, _ in self._origins_of(list(results))) - self._used

    def end_of(self, result: torch.Tensor) -> float:
        """The largest eps of the operations of which nothing but results follow, one of them a given one."""
        ends = (eps for position, eps in self._origins_of([result]) if position not in self._used)
        return max(ends, default=0.0)

    def _origins_of(self, values: Any) -> frozenset[tuple[int, float]]:
        known = (self._origins.get(memory_of(t), frozenset()) for t in tree.tensors(values))
        return frozenset().union(*known)

    def _narrowest(self, func: Any, values: Any) -> float:
        """The eps of the half dtype from which all that an operation moves was converted; 0 if there is none."""
        known = [t for t in tree.tensors(values) if is_floating(t)]
        if func.overloadpacket.__name__ == "_to_copy" and known and known[0].dtype in _HALF:
            return float(torch.finfo(known[0].dtype).eps)
        found = [self._widened.get(memory_of(t), 0.0) for t in known]
        return max(found) if found and all(found) else 0.0

    def _narrowed_to(self, func: Any, args: Any, kwargs: Any, sources: frozenset[tuple[int, float]]) -> float:
        """The eps of the half dtype to which all that an operation moves was converted after it was computed."""
        to = (kwargs or {}).get("dtype")
        if func.overloadpacket.__name__ == "_to_copy" and to in _HALF and sources and args[0].dtype not in _HALF:
            return float(torch.finfo(to).eps)
        # All of it: beside a part that is, another is as precise as it was computed.
        known = [self._narrowed.get(memory_of(t), 0.0) for t in tree.tensors([args, kwargs]) if is_floating(t)]
        return max(known) if known and all(known) else 0.0

    def _narrow_operands(self, func: Any, args: Any) -> dict[int, float]:
        """Of a product, the matrices that were converted to a half dtype after they were computed; and one that was
        computed, beside one that was converted from a half dtype."""
        first = MULTIPLIES.get(func.overloadpacket.__name__)
        if first is None:
            return {}
        pairs = (first, first + 1), (first + 1, first)
        found = {place: eps for place, _ in pairs if (eps := self._narrowed.get(memory_of(args[place]), 0.0))}
        if found or args[first].dtype in _HALF:
            return found
        for place, other in pairs:
            eps = self._widened.get(memory_of(args[other]), 0.0)
            is_computed = self._origins_of([args[place]]) and not self._widened.get(memory_of(args[place]))
            if eps and is_computed:
                return {place: eps}
        return {}


def _defines_infinities(func: Any, args: Any) -> bool:
    """Whether an operation compares with infinity, or is one whose result for -inf has a meaning."""
    name = func.overloadpacket.__name__
    is_compared = name in _COMPARISONS and isinstance(args[1], float) and math.isinf(args[1])
    return is_compared or name in _MEANT_FOR_INFINITIES


def _is_exact(func: Any, args: Any, kwargs: Any, out: Any) -> bool:
    """Whether a result in a half dtype is what float64 gives."""
    if not isinstance(out, torch.Tensor) or out.dtype not in _HALF:
        return False
    if func.overloadpacket.__name__ not in _MAY_BE_EXACT or writes_arguments(func) or kwargs.get("dtype"):
        return False
    args, kwargs = tree.map_tensors(lambda t: t.double() if t.is_floating_point() else t, (args, kwargs))
    wide = func(*args, **kwargs)
    return bool(((wide == out) | (wide.isnan() & out.isnan())).all())
