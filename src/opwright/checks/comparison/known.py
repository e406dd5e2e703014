"""What a reference has given, for the next kernel of the same operator: found only for arguments of the same bits.

A checker process that has finished may take the next job if only the kernel differs (``process/run_job.py``). What the
reference gives does not depend on the kernel. Each comparison starts without the runs with errors that an earlier one
needed, so verdicts and error histograms are those of a new one. The results stay in its memory: a kernel's
process belongs to the same user and could read a file.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch

from opwright import tree
from opwright.workers.copies import changed_bytes, same_layout_copy

__all__ = ["KnownResults"]

# The most bytes of arguments whose results are kept, and of those of one case: results may take many times as many.
_MOST_BYTES, _MOST_BYTES_OF_ONE = 1 << 26, 1 << 23


class KnownResults:
    """The results of one operator's reference by case, for one process that judges several of its kernels.

    Attributes:
        slow: the cases that are left out as the reference takes too long, with the reason.
    """

    def __init__(self) -> None:
        self.slow: dict[Any, str] = {}
        self._kept: dict[Hashable, tuple[Any, dict[str, Any]]] = {}
        self._bytes = 0
        self._of_forms: dict[Hashable, dict[str, Any]] = {}

    def of_form(self, subject: Hashable, arguments: Any) -> dict[str, Any]:
        """What is known of a computation on arguments of these shapes and dtypes, with any strides and values, to which
        it adds what it gives; nothing where integers are among them, which may say how much there is to do."""
        tensors = tree.tensors(arguments)
        if not all(t.is_floating_point() or t.is_complex() for t in tensors):
            return {}
        others = tuple(repr(v) for v in tree.leaves(arguments) if not isinstance(v, torch.Tensor))
        form = tuple((t.dtype, tuple(t.shape)) for t in tensors), others, tree.form(arguments)
        return self._of_forms.setdefault((subject, form), {})

    def of(self, case: Hashable, arguments: Any) -> dict[str, Any]:
        """What is known of a computation on some arguments, to which it adds what it gives."""
        kept = self._kept.get(case)
        if kept is not None:
            return kept[1] if _are_same(kept[0], arguments) else {}
        given: dict[str, Any] = {}
        size = sum(t.untyped_storage().nbytes() for t in tree.tensors(arguments))
        if size <= min(_MOST_BYTES_OF_ONE, _MOST_BYTES - self._bytes):
            # A copy: whoever writes the arguments later does not write what they are compared with.
            self._kept[case] = tree.map_tensors(same_layout_copy, arguments), given
            self._bytes += size
        return given


def _are_same(kept: Any, arguments: Any) -> bool:
    """Whether values are the same, with the layout of tensors, each bit of them and what lies around them."""
    pairs = zip(tree.leaves(kept), tree.leaves(arguments), strict=False)
    return tree.form(kept) == tree.form(arguments) and all(_is_same(a, b) for a, b in pairs)


def _is_same(a: Any, b: Any) -> bool:
    if not isinstance(a, torch.Tensor):
        return type(a) is type(b) and repr(a) == repr(b)
    return isinstance(b, torch.Tensor) and _layout(a) == _layout(b) and not changed_bytes(a, b, elements=True)


def _layout(t: torch.Tensor) -> tuple[Any, ...]:
    place = tuple(t.shape), t.stride(), t.storage_offset(), t.untyped_storage().nbytes()
    return t.dtype, place, t.is_conj(), t.is_neg()
