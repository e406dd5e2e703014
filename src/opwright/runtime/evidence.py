"""What an operator's author adds for those who judge its kernels: typical sizes, samples, baselines, properties."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

import torch

from opwright.contract.contract import Contract
from opwright.contract.own_inputs import Samples
from opwright.contract.shapes.dims import NamedDim, VariadicDim
from opwright.errors import KernelError
from opwright.runtime.baselines import Baseline, make_baseline, refuse_name
from opwright.runtime.kernel import Kernel
from opwright.runtime.properties import Property, make_property

__all__ = ["Evidence"]

Function = TypeVar("Function", bound=Callable[..., Any])


def _refuse_size(what: str, dim: NamedDim | VariadicDim, size: object) -> None:
    """Refuse what is no size of a dim."""
    numbers = size if isinstance(size, tuple) and isinstance(dim, VariadicDim) else (size,)
    if not all(isinstance(n, int) and n >= 0 for n in numbers):
        expected = "an int of at least 0" + (", or a tuple of them" if isinstance(dim, VariadicDim) else "")
        raise KernelError(f"{what} must be {expected}, got {size!r}", fix=f"write sizes({dim.name}=(64, 1024))")


class Evidence:
    """The methods for it. What they add is in ``baselines``, ``properties`` and the contract's own inputs.

    Attributes:
        baselines: functions that ``opwright bench`` compares with besides the reference, by name.
        properties: what ``opwright check`` verifies besides equality with the reference, by name.
    """

    contract: Contract
    kernels: dict[str, Kernel]
    baselines: dict[str, Baseline]
    properties: dict[str, Property]

    @overload
    def baseline(
        self,
        function: Function,
        /,
        *,
        name: str | None = None,
        devices: Sequence[str] | None = None,
        dtypes: Sequence[torch.dtype] | None = None,
    ) -> Function: ...
    @overload
    def baseline(
        self,
        /,
        *,
        name: str | None = None,
        devices: Sequence[str] | None = None,
        dtypes: Sequence[torch.dtype] | None = None,
    ) -> Callable[[Function], Function]: ...
    def baseline(
        self,
        function: Any = None,
        /,
        *,
        name: str | None = None,
        devices: Sequence[str] | None = None,
        dtypes: Sequence[torch.dtype] | None = None,
    ) -> Any:
        """Attach a baseline, such as a vendor's library: ``opwright bench`` times it beside the
        reference, and checks its results. Calls never choose it.

        Args:
            function: takes the operator's arguments, returns what the operator returns.
            name: its name in tables (default: the function's own name).
            devices, dtypes: the devices and dtypes in which it is timed (default: all).

        Raises:
            KernelError, SignatureMismatchError: the name is taken, or the parameters are not the operator's.
        """

        def attach(function: Function) -> Function:
            found = make_baseline(self.contract, function, name, devices, dtypes)
            refuse_name(self.contract, "op.baseline", found.name, self.kernels, "a kernel")
            self.baselines[found.name] = found
            return function

        return attach if function is None else attach(function)

    def sizes(self, **sizes: Sequence[int | tuple[int, ...]]) -> None:
        """Typical sizes, and large ones: lists by dim, taken in step. ``opwright bench`` times them by default, and
        ``opwright check`` runs those that are not too large for it.

        ``kmeans.sizes(n=(10**4, 10**6), d=(2,), k=(8,))`` states two cases; a shorter list repeats its last. A size of
        ``*n`` has a number for each axis, ``scale.sizes(n=((64, 1024), (10**6,)))``, or is that of one axis.

        Raises:
            KernelError: there is no such dim, no size, or it is none of this dim.
        """
        tensors = [a.tensor for a in self.contract.signature.arguments if a.tensor]
        known = {
            d.name: d for tensor in tensors for d in tensor.dims if isinstance(d, NamedDim | VariadicDim) and d.name
        }
        for name, listed in sizes.items():
            if name not in known:
                raise KernelError(
                    f"{self.contract.qualname}: a dim must be one of {sorted(map(str, known))}, got {name!r}",
                    fix="name a dim of the annotations",
                )
            if not listed:
                raise KernelError(
                    f"{self.contract.qualname}: {name!r} must have at least one size, got none",
                    fix="pass a tuple of sizes",
                )
            for size in listed:
                _refuse_size(f"{self.contract.qualname}: a size of {known[name]}", known[name], size)
        self.contract.own_inputs.sizes = {name: tuple(listed) for name, listed in sizes.items()}

    def samples(self, function: Samples, /) -> Samples:
        """Add realistic inputs, which checks and benchmarks use besides the derived ones; a decorator.

        Args:
            function: takes nothing; yields the arguments of one call after another, with tensors on the CPU: a tuple,
                or a dictionary by name. It is called with a fixed seed, so that a sample is the same each time.
        """
        self.contract.own_inputs.samples = function
        return function

    @overload
    def register_property(self, function: Function, /, *, name: str | None = None) -> Function: ...
    @overload
    def register_property(self, /, *, name: str | None = None) -> Callable[[Function], Function]: ...

    def register_property(self, function: Any = None, /, *, name: str | None = None) -> Any:
        """State what holds for every right result, where equality with one reference is not the truth; a decorator.

        Args:
            function: its parameters are some of the operator's arguments, by name, and ``result`` (``result0``,
                ``result1``, … of a tuple, which has saved outputs too), ``new_x`` for the new value of a mutated
                argument ``x``, and ``call``, which calls the operator again with the same kernel. It returns a bool or
                a tensor of bools, or raises an AssertionError, as ``torch.testing.assert_close`` does.
            name: its name in reports; the function's by default.

        Raises:
            KernelError: a parameter has another name.

        ``opwright check`` evaluates it for the reference and for every kernel, on every case. An output that is not to
        be compared with the reference's is annotated with ``ow.by_property``.
        """

        def attach(function: Function) -> Function:
            found = make_property(self.contract, function, name)
            self.properties[found.name] = found
            return function

        return attach if function is None else attach(function)
