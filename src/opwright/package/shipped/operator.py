"""The operator class of a shipped package, made by ``@ow.op`` there.

Its contract is read from the same annotations, and it is called and registered by the same files as opwright's own
operators, so that fake, gradient, vmap and the other parts are the same. It lacks the features that need a compiler or
opwright's tools: building, tuning, checking, timing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from typing_extensions import ParamSpec, TypeVar

from opwright.contract.binding import Binding
from opwright.contract.definition.define import make_contract
from opwright.errors import NameClashError
from opwright.package.shipped.kernel import ShippedKernel
from opwright.package.shipped.manifest import read_manifest
from opwright.runtime.base_op import BaseOp
from opwright.runtime.languages import kernel_name
from opwright.runtime.register import registration
from opwright.runtime.tuning.size_tables import fastest_first

__all__ = ["Op", "op"]

P = ParamSpec("P", default=...)
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True, default=Any)


def op(
    qualname: str,
    *,
    where: Sequence[str] | str = (),
    random: bool | str = False,
    deterministic: bool = False,
    tf32: bool = False,
    autocast: str | None = None,
) -> Callable[[Callable[P, R]], Op[P, R]]:
    """Define an operator by a typed function, its reference, like ``opwright.op``."""
    frame = inspect.currentframe()
    caller = frame.f_back if frame is not None else None
    scope = {**caller.f_globals, **caller.f_locals} if caller is not None else {}

    def decorate(function: Callable[..., Any]) -> Any:
        contract = make_contract(
            qualname,
            function,
            scope,
            autocast,
            where=where,
            random=random,
            deterministic=deterministic,
            tf32=tf32,
            examined=True,
        )
        return Op(contract)

    return decorate


class Op(BaseOp[P, R_co]):
    """A PyTorch operator with the kernels that were shipped; ``op(...)`` and ``torch.ops`` do the same."""

    def __init__(self, contract: Any) -> None:
        self.kernels: dict[str, ShippedKernel] = {}
        self._shipped = read_manifest().operator(contract.qualname, contract.schema)
        try:
            super().__init__(contract)
        except NameClashError as error:
            raise NameClashError(
                f"{read_manifest().package} cannot define {contract.qualname}: {error.message}",
                fix="import only one of them in a process: this package, another one with the operator, or the module "
                "that it was made from",
            ) from None

    def _find_applicable(self, binding: Binding, arguments: Any) -> tuple[ShippedKernel, ...]:
        assert binding.device is not None  # bind() refuses calls without a tensor
        found = tuple(k for k in self.kernels.values() if k.applies_to(binding.device.type, arguments))
        return fastest_first(found, self._shipped.tuning, arguments)

    def _kernel_fingerprints(self) -> list[str]:
        return [k.fingerprint for k in self.kernels.values()]

    # -- attaching: shipped kernels are kept, others are ignored ------------------------------------------------

    def _attach(
        self, language: str, source: Any, options: Mapping[str, Any], *, name: str | None = None, **common: Any
    ) -> Any:
        def attach(source: Any) -> Any:
            chosen, _ = kernel_name(language, source, name)
            record = self._shipped.kernels.get(chosen, {})
            if record.get("backend") == language:
                dtypes, when = common.get("dtypes"), common.get("when")
                self.kernels[chosen] = ShippedKernel(self.contract, chosen, record, source, dtypes, when)
                self._changed()
            return source if callable(source) else self.kernels.get(chosen)

        return attach if source is None else attach(source)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{type(self).__name__} has no {name!r} in a shipped package: use opwright itself", name=name, obj=self
        )

    def baseline(self, function: Any = None, /, **_: Any) -> Any:
        """Ignored: a shipped package has no benchmarks."""
        return function if function is not None else lambda function: function

    def sizes(self, **_: Any) -> None:
        """Ignored: a shipped package has no benchmarks."""

    def use_tuning(self, file: Any) -> None:
        """Ignored: the manifest has the tables that were in the file when the package was made."""

    def samples(self, function: Any, /) -> Any:
        """Ignored: a shipped package has no checks."""
        return function

    def register_property(self, function: Any = None, /, **_: Any) -> Any:
        """Ignored: a shipped package has no checks."""
        return function if function is not None else lambda function: function

    def __reduce__(self) -> str | tuple[Any, ...]:
        return _find, (self.contract.module, self.contract.qualname)

    def __repr__(self) -> str:
        return f"<operator {self.contract.call_form}, kernels: {', '.join(self.kernels) or 'none'}>"


def _find(module: str, qualname: str) -> Any:
    __import__(module)
    return registration.find(qualname)
