"""Further inputs for survivors: other sizes, more draws, and values that the contract leaves out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from opwright.contract.contract import Contract
from opwright.contract.dtypes import short
from opwright.contract.inputs.arguments import arguments_of
from opwright.contract.inputs.case import Case
from opwright.contract.inputs.sizes import admissible, base_case, dtypes_to_check
from opwright.contract.shapes.dims import NamedDim
from opwright.errors import CheckError
from opwright.runtime.op import Op

__all__ = ["Further", "searches"]

# Sizes around the blocks that kernels are written with, and some that are multiples of nothing.
_SIZES = (7, 31, 32, 33, 63, 64, 65, 100, 127, 128, 255, 256, 257, 511, 512, 513, 777, 1000, 1023, 1024, 1025, 1537,
          2047, 2048, 2049, 3000, 4095, 4096, 4097)  # fmt: skip
# Those of kernels in Triton's interpreter and in the simulator, which take long for many programs.
_FEW_SIZES = (33, 65, 129, 257, 777, 1025)
_DRAWS = 4


@dataclass(frozen=True)
class Further:
    """Inputs to check besides those of the contract.

    Attributes:
        kernel: whose dtypes they have.
        slow: whether it takes long, so that fewer inputs are tried.
        widened: the argument whose stated values are not kept to; empty if all are.
    """

    kernel: str
    slow: bool = False
    widened: str = ""

    def add_to(self, operator: Op) -> None:
        """Replace the operator's own sizes and samples, in a worker process, by these inputs."""
        own = operator.contract.own_inputs
        contract, dtypes = operator.contract, operator.kernels[self.kernel].spec.taken_dtypes
        drawn = list(self._calls(contract, dtypes))
        own.samples = lambda: drawn
        own.sizes = {} if self.widened else dict.fromkeys(_dims(contract), _FEW_SIZES if self.slow else _SIZES)

    @property
    def level(self) -> str:
        """The level of the check that these inputs are added to."""
        return "quick" if self.slow or self.widened else "full"

    def _calls(self, contract: Contract, dtypes: Any) -> Iterator[dict[str, Any]]:
        contract = _without_values(contract, self.widened) if self.widened else contract
        names = [a.name for a in contract.signature.arguments]
        for case, draw in _drawn_cases(contract, dtypes):
            try:
                yield dict(zip(names, arguments_of(contract, case, "cpu", draw=draw), strict=True))
            except CheckError:  # no values of these sizes
                continue

    def describe(self, operator: Op, number: int) -> str:
        """The arguments of one sample, for a report."""
        calls = list(self._calls(operator.contract, operator.kernels[self.kernel].spec.taken_dtypes))
        return ", ".join(f"{name}={_shown(value)}" for name, value in calls[number].items())


def searches(contract: Contract, kernel: str, *, slow: bool) -> list[Further]:
    """The searches for a kernel's survivors: within the contract, then past the stated values of each argument."""
    stated = [a.name for a in contract.signature.arguments if a.values is not None and not a.values.is_free]
    return [Further(kernel, slow, name) for name in ("", *stated)]


def _dims(contract: Contract) -> list[str]:
    found = {
        d.name
        for a in contract.signature.arguments
        if a.tensor
        for d in a.tensor.dims
        if isinstance(d, NamedDim) and d.name
    }
    return sorted(found)


def _without_values(contract: Contract, name: str) -> Contract:
    arguments = tuple(
        dataclasses.replace(a, values=None) if a.name == name else a for a in contract.signature.arguments
    )
    return dataclasses.replace(contract, signature=dataclasses.replace(contract.signature, arguments=arguments))


def _drawn_cases(contract: Contract, dtypes: Any) -> Iterator[tuple[Case, int]]:
    combinations = dtypes_to_check(contract, dtypes)[:1]
    for combination in combinations:
        base = dataclasses.replace(base_case(contract), dtypes=combination)
        larger = tuple((n, s + 11 if isinstance(s, int) else tuple(x + 3 for x in s)) for n, s in base.sizes)
        for case in (base, admissible(contract, dataclasses.replace(base, sizes=larger))):
            if case is None:
                continue
            yield from ((case, draw) for draw in range(1, _DRAWS + 1))
            yield from ((dataclasses.replace(case, scalars=s), 1) for s in ("zero", "negative", "large"))
            yield from ((dataclasses.replace(case, values=v), 1) for v in ("large", "shifted"))


def _shown(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    if value.numel() == 0 or value.is_complex() or value.dtype is torch.bool:
        return f"{short(value.dtype)} {list(value.shape)}"
    low, high = value.double().min().item(), value.double().max().item()
    return f"{short(value.dtype)} {list(value.shape)} from {low:.4g} to {high:.4g}"
