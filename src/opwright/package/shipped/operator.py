"""An operator of a shipped package: ``@ow.op`` there makes one of these.

Its contract is read from the author's own annotations, and registered by the same files as opwright's own
(``runtime/registration.py``): checks, fake, gradient, vmap and the rest cannot differ. What is left out is what needs a
compiler or opwright's tools: building, tuning, checking, timing.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from opwright.contract.binding import bind
from opwright.contract.contract import Contract, make_contract
from opwright.contract.fingerprint import digest, fingerprint
from opwright.errors import ArgumentError, NameClashError
from opwright.package.shipped.kernel import ShippedKernel
from opwright.package.shipped.manifest import read_manifest
from opwright.runtime import registration
from opwright.runtime.calls import Calls, CallsThatSave
from opwright.runtime.given import kernel_name
from opwright.runtime.plan import static_key

__all__ = ["Op", "op"]


def op(qualname: str, *, autocast: str | None = None) -> Callable[[Callable[..., Any]], Op]:
    """Define an operator by a typed function whose body is its meaning, as ``opwright.op`` does."""
    caller = sys._getframe(1)
    scope = {**caller.f_globals, **caller.f_locals}

    def decorate(function: Callable[..., Any]) -> Op:
        contract = make_contract(qualname, function, scope, autocast, examined=True)
        saves = contract.signature.visible < len(contract.signature.returns)
        return (OpThatSaves if saves else Op)(contract)

    return decorate


class Op(Calls):
    """A PyTorch operator with the kernels that were shipped; ``op(...)`` and ``torch.ops`` do the same."""

    def __init__(self, contract: Contract) -> None:
        super().__init__(contract)
        self.kernels: dict[str, ShippedKernel] = {}
        self._overrides: dict[str, Callable[..., Any]] = {}
        self._setup_context: Callable[..., Any] | None = None
        self._shipped = read_manifest().operator(contract.qualname, contract.schema)
        # Shapes, dtypes and devices that were checked before, with the kernels that fit them.
        self._seen: dict[Any, tuple[ShippedKernel, ...]] = {}
        functools.update_wrapper(self, contract.function)
        self.overload = _register(self)

    # -- calling ------------------------------------------------------------------------------------

    def _fitting(self, arguments: Sequence[Any]) -> tuple[ShippedKernel, ...]:
        key = static_key(arguments)
        try:
            fitting = self._seen.get(key)
        except TypeError:  # unhashable, so of a kind that no argument has: an array, a dictionary
            bind(self.contract, arguments)
            raise
        if fitting is None:
            device = bind(self.contract, arguments).device
            assert device is not None  # a contract has at least one tensor; absent ones were refused
            fitting = tuple(k for k in self.kernels.values() if k.fits(device.type, arguments))
            if len(self._seen) >= 4096:  # a bound, should sizes change with every call
                self._seen.clear()
            self._seen[key] = fitting
        return fitting

    def traceable_kernel(self, arguments: Sequence[Any]) -> Callable[..., Any] | None:
        """A Triton launcher that torch.compile may trace into, if that is what would run."""
        device = bind(self.contract, arguments).device
        assert device is not None  # as above
        fitting = [k for k in self.kernels.values() if k.fits(device.type, arguments)]
        try:
            kernel = next((k for k in fitting if k.when is None or k.when(*arguments)), None)
        except ArgumentError:
            raise
        except RuntimeError:
            return None  # a `when` that looks at addresses or values: it is decided when the call runs
        return kernel.traceable() if kernel is not None else None

    # -- attaching: what was shipped is taken, the rest is left out ------------------------------------

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in read_manifest().languages:
            return functools.partial(self._attach, name)
        raise AttributeError(f"{self.contract.qualname} has no {name!r} in a shipped package: use opwright itself")

    def _attach(
        self,
        backend_name: str,
        source: Any = None,
        /,
        *,
        name: str | None = None,
        dtypes: Sequence[torch.dtype] | None = None,
        when: Callable[..., bool] | None = None,
        **_: Any,
    ) -> Any:
        def attach(source: Any) -> Any:
            chosen, _ = kernel_name(backend_name, source, name)
            record = self._shipped.kernels.get(chosen, {})
            if record.get("backend") == backend_name:
                self.kernels[chosen] = ShippedKernel(self.contract, chosen, record, source, dtypes, when)
                self._changed()
            return source if callable(source) else self.kernels.get(chosen)

        return attach if source is None else attach(source)

    def baseline(self, function: Any = None, /, **_: Any) -> Any:
        """For benchmarks, which a shipped package has not."""
        return function if function is not None else lambda function: function

    def bench_sizes(self, **_: Any) -> None:
        """For benchmarks, which a shipped package has not."""

    # -- what registration asks for -----------------------------------------------------------------------

    def _changed(self) -> None:
        self._seen.clear()
        self._plans = ()
        vars(self).pop("fingerprint", None)
        registration.changed(self)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Changes when the meaning, a hand-written part or a kernel does."""
        overrides = [f"{name}={fingerprint(f)}" for name, f in sorted(self._overrides.items())]
        kernels = [k.fingerprint for k in self.kernels.values()]
        return digest(self.contract.fingerprint, *overrides, fingerprint(self._setup_context), *kernels)

    def retire(self) -> None:
        """Another definition took this one's name (the module was loaded again)."""
        self.overload = self._refuse_retired
        self._plans = ()
        vars(self)["_fitting"] = self._refuse_retired

    def _refuse_retired(self, *_: Any, **__: Any) -> Any:
        raise NameClashError(f"{self.contract.qualname} was defined anew after this object was made")

    def __deepcopy__(self, memo: dict[int, Any]) -> Op:
        return self  # as for a function: a copied torch module goes on calling the same operator

    def __reduce__(self) -> str | tuple[Any, ...]:
        return _find, (self.contract.module, self.contract.qualname)

    def __repr__(self) -> str:
        return f"<operator {self.contract.call_form}, kernels: {', '.join(self.kernels) or 'none'}>"


class OpThatSaves(CallsThatSave, Op):
    """An operator with outputs for its backward (``ow.saved``), which its caller does not get."""


def _find(module: str, qualname: str) -> Any:
    __import__(module)
    return registration.find(qualname)


def _register(operator: Op) -> Any:
    try:
        return registration.register(operator)
    except NameClashError as error:
        package = read_manifest().package
        raise NameClashError(
            f"{package} cannot define {operator.contract.qualname}: {error.message}",
            fix="import only one of them in a process: this package, another one with the operator, or the module that "
            "it was made from",
        ) from None
