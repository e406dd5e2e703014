"""The largest tensor that a reference makes: of large arguments, it may be more than any memory holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from opwright import tree
from opwright.internals.compiler import DispatchMode, as_fakes

__all__ = ["LargeTensorError", "largest_tensor", "refuse_large_tensors"]

# Arguments with such a dim are tried, and refused if a tensor has more bytes. (Results are compared in float64, which
# doubles them.)
_LONG, _LARGEST = 1 << 14, 8 << 30


class LargeTensorError(Exception):
    """A reference makes a tensor that memory would not hold."""


class _Largest(DispatchMode):  # type: ignore[misc]  # found at run time
    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if not function.is_view:
            self.bytes = max([self.bytes, *(t.nbytes for t in tree.tensors([result]))])
        return result


def largest_tensor(reference: Callable[[Sequence[Any]], Any], arguments: Sequence[Any]) -> int:
    """The bytes of the largest tensor that a reference makes, found with fake tensors of the same sizes. 0 if it reads
    values, of which these have none."""
    try:
        with as_fakes(list(arguments)) as fakes, _Largest() as largest:
            reference(fakes)
    except Exception:  # it reads values, or refuses the arguments, which its run reports
        return 0
    return int(largest.bytes)


def refuse_large_tensors(reference: Callable[[Sequence[Any]], Any], arguments: Sequence[Any]) -> None:
    """Raise LargeTensorError if a reference of long arguments makes a tensor that is too large."""
    if any(n >= _LONG for t in tree.tensors(list(arguments)) for n in t.shape):
        needed = largest_tensor(reference, arguments)
        if needed > _LARGEST:
            raise LargeTensorError(f"the reference makes a tensor of {needed >> 30} GiB")
