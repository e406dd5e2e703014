"""The samples of an OpInfo, grouped by structure: which arguments are tensors, and the values of the others."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._pytree import TreeSpec, tree_flatten

__all__ = ["Group", "Sample", "first_dtype", "groups_of", "read_samples"]

_CONSTANTS = (int, float, complex, bool, str, type(None), torch.dtype, torch.memory_format, slice, type(...))
_PREFERRED = (torch.float32, torch.float64, torch.complex64, torch.int64, torch.bool)
# The most samples of an OpInfo and a dtype that are looked at.
_MOST = 400


@dataclass(frozen=True)
class Sample:
    """One sample, flattened.

    Attributes:
        slots: the places of tensors among the leaves.
        dtypes: of each tensor, None if it is the sample's own.
    """

    leaves: tuple[Any, ...]
    spec: TreeSpec
    slots: tuple[int, ...]
    dtypes: tuple[torch.dtype | None, ...]

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        return tuple(self.leaves[i] for i in self.slots)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(t.shape) for t in self.tensors)

    @property
    def is_empty(self) -> bool:
        return any(t.numel() == 0 for t in self.tensors)

    @property
    def constants(self) -> str:
        others = [leaf for i, leaf in enumerate(self.leaves) if i not in self.slots]
        return repr([(type(leaf).__name__, leaf) for leaf in others])

    @property
    def arguments(self) -> str:
        """Which arguments are tensors, and of which dtype; the same for all ranks and constants."""
        return f"{self.spec} {self.slots} {self.dtypes}"

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(len(shape) for shape in self.shapes)


@dataclass
class Group:
    """Samples with the same tensor arguments and the same constants; ``wider`` are those with any constants."""

    samples: list[Sample]
    wider: list[Sample] = field(default_factory=list)

    @property
    def example(self) -> Sample:
        return next((s for s in self.samples if not s.is_empty), self.samples[0])


def first_dtype(info: OpInfo, device: str = "cpu") -> torch.dtype:
    """The dtype whose samples are grouped: float32 where it is supported."""
    supported = info.supported_dtypes(device)
    return next((d for d in _PREFERRED if d in supported), min(supported, key=str, default=torch.float32))


def read_samples(info: OpInfo, dtype: torch.dtype) -> list[Sample]:
    """The samples on the CPU that an operator can have: strided tensors and plain constants."""
    found: list[Sample] = []
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        for given in _drawn(info, dtype):
            sample = _flatten(given, dtype)
            if sample is not None:
                found.append(sample)
            if len(found) == _MOST:
                break
    return found


def _drawn(info: OpInfo, dtype: torch.dtype) -> Iterator[Any]:
    try:
        yield from info.sample_inputs("cpu", dtype, requires_grad=False)
    except Exception:  # an OpInfo's samples may be of a GPU only, or of an optional package
        return


def _flatten(given: Any, dtype: torch.dtype) -> Sample | None:
    leaves, spec = tree_flatten((given.input, tuple(given.args), dict(given.kwargs)))
    slots = tuple(i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor))
    others = [leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)]
    if not slots or not all(isinstance(leaf, _CONSTANTS) for leaf in others):
        return None
    tensors = [leaves[i] for i in slots]
    if any(type(t) is not torch.Tensor or t.layout is not torch.strided for t in tensors):
        return None
    leaves = [leaf.detach() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    return Sample(tuple(leaves), spec, slots, tuple(None if t.dtype is dtype else t.dtype for t in tensors))


def groups_of(samples: Sequence[Sample], *, elementwise: bool) -> list[Group]:
    """Groups of samples with equal structure, the largest first. Elementwise functions take every rank alike."""
    by_arguments: dict[Any, list[Sample]] = {}
    for sample in samples:
        if None not in sample.dtypes:
            continue  # nothing that has the sample's dtype
        ranks = () if elementwise else sample.ranks
        if not elementwise or len(set(sample.shapes)) == 1:
            by_arguments.setdefault((sample.arguments, ranks), []).append(sample)
    found = []
    for wider in by_arguments.values():
        by_constants: dict[str, list[Sample]] = {}
        for sample in wider:
            by_constants.setdefault(sample.constants, []).append(sample)
        found += [Group(same, wider) for same in by_constants.values()]
    return sorted(found, key=_rating, reverse=True)


def _rating(group: Group) -> tuple[int, int, int]:
    """Those with samples of several sizes first, and of them the highest rank."""
    with_elements = sum(not s.is_empty for s in group.samples)
    return min(with_elements, 4), sum(group.samples[0].ranks), len(group.wider)
