"""An override of one of ATen's operators: an implementation, the condition under which it runs, and what runs else.

Torch has such overrides in its own tree (``torch/_native``). It asks each condition in turn; the first that holds
decides, and without one, the kernel runs that the override replaces.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from opwright.errors import ContractError
from opwright.internals.registration import OVERLOAD, native_overrides, registered_kernels, schema_of

__all__ = ["Override", "is_of_aten", "override_of"]

# A kernel that Python has registered, where a tensor of the CPU arrives.
_OF_PYTHON = re.compile(r"^(CPU|AutogradCPU|(Autograd|Composite\w+)\[alias\]): .*\(none\) \[ boxed \]", re.MULTILINE)


@dataclass(frozen=True)
class Override:
    """Called, it does what torch would do once the override is installed."""

    operator: Any
    implementation: Callable[..., Any]
    condition: Callable[..., bool] | None = None
    fallback: Callable[..., Any] | None = None
    devices: tuple[str, ...] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.applies(*args, **kwargs):
            return self.implementation(*args, **kwargs)
        return (self.fallback or self.operator)(*args, **kwargs)

    def applies(self, *args: Any, **kwargs: Any) -> bool:
        """Whether the implementation runs on these arguments."""
        return self.condition is None or bool(self.condition(*args, **kwargs))

    def falls_back(self, *args: Any, **kwargs: Any) -> bool:
        return not self.applies(*args, **kwargs)

    @property
    def argument_names(self) -> list[str]:
        """As the operator's schema has them."""
        schema = schema_of(self.operator)
        return [] if schema is None else [argument.name for argument in schema.arguments]

    @property
    def name(self) -> str:
        return f"the override of {self.operator.name()}"

    def plain(self, *args: Any, **kwargs: Any) -> Any:
        """What is right: the operator as it is without the override.

        Raises:
            ContractError: it is not, as Python has registered another kernel.
        """
        self.refuse_installed()
        return self.operator(*args, **kwargs)

    def refuse_installed(self) -> None:
        """Raise ContractError if the operator is overridden where a reference runs: it would be its own reference."""
        if found := _OF_PYTHON.search(registered_kernels(self.operator.name()) or ""):
            where = found[0].partition("registered at ")[2].partition(" ::")[0]
            raise ContractError(
                f"{self.operator.name()} must be torch's own on the CPU, got one that {where} overrides",
                fix="pass the functions to ow.adopt without installing them",
            )


def is_of_aten(operator: Any) -> bool:
    """Whether it is ``torch.ops.aten.name``, or one overload."""
    overload = getattr(operator, "default", operator)
    return OVERLOAD is not None and isinstance(overload, OVERLOAD) and overload.name().startswith("aten::")


def override_of(
    operator: Any,
    implementation: Callable[..., Any] | None = None,
    condition: Callable[..., bool] | None = None,
    fallback: Callable[..., Any] | None = None,
) -> Override:
    """An override with these functions, or the one that torch's own tree has.

    Raises:
        ContractError: the operator is not one of ATen, or torch has no override of it.
    """
    if not is_of_aten(operator):
        raise ContractError(
            f"implementation must override an operator of ATen, got {operator!r}",
            fix="pass torch.ops.aten.bmm, or leave implementation out",
        )
    overload = getattr(operator, "default", operator)
    if implementation is not None:
        return Override(overload, implementation, condition, fallback)
    if not (known := native_overrides(overload)):
        raise ContractError(
            f"ow.adopt({overload.name()}) must be given a reference or an implementation, got neither, and this torch "
            "shows no override of it in its own tree",
            fix="pass reference=, or the functions of an override",
        )

    def chosen(*args: Any, **kwargs: Any) -> Callable[..., Any] | None:
        return next((each.implementation for each in known if each.condition(*args, **kwargs)), None)

    def first(*args: Any, **kwargs: Any) -> Any:
        found = chosen(*args, **kwargs)
        assert found is not None  # the condition holds
        return found(*args, **kwargs)

    devices = tuple(dict.fromkeys(each.device for each in known))
    return Override(overload, first, lambda *args, **kwargs: chosen(*args, **kwargs) is not None, fallback, devices)
