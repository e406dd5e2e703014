"""Properties of an operator's results that hold for every right kernel, where one reference is not the only truth."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from opwright.contract.contract import Contract
from opwright.errors import KernelError

__all__ = ["Property", "make_property"]


@dataclass(frozen=True, eq=False)
class Property:
    """A function of an operator's arguments and results. ``names`` are its parameters."""

    name: str
    function: Callable[..., Any]
    names: tuple[str, ...]
    contract: Contract

    def of(
        self, arguments: Sequence[Any], outputs: Sequence[Any], written: Sequence[Any], call: Callable[..., Any]
    ) -> Any:
        """What the function returns for one call.

        Args:
            arguments: before the call, in signature order.
            outputs: those of the operator, with the ones that are saved for the backward.
            written: the new values of mutated arguments, lists flattened.
            call: the operator.
        """
        signature = self.contract.signature
        known: dict[str, Any] = {"call": call, "result": self.contract.visible(self.contract.pack(outputs))}
        known |= {f"result{i}": value for i, value in enumerate(outputs)}
        if len(written) == len(signature.mutated):
            names = [signature.arguments[i].name for i in signature.mutated]
            known |= {f"new_{name}": value for name, value in zip(names, written, strict=True)}
        known |= {a.name: value for a, value in zip(signature.arguments, arguments, strict=True)}
        return self.function(**{name: known[name] for name in self.names})


def make_property(contract: Contract, function: Callable[..., Any], name: str | None) -> Property:
    """Make a property from a function whose parameters are arguments and results by name.

    Raises:
        KernelError: a parameter is neither.
    """
    parameters = inspect.signature(function).parameters
    unknown = [n for n in parameters if n not in names_for(contract)]
    if unknown:
        raise KernelError(
            f"{contract.qualname}: a property must take arguments, results or call, got {unknown[0]!r}",
            fix=f"its parameters are some of {', '.join(names_for(contract))}",
        )
    return Property(name or function.__name__, function, tuple(parameters), contract)


def names_for(contract: Contract) -> list[str]:
    """The names that a property may use."""
    signature = contract.signature
    arguments = [a.name for a in signature.arguments]
    results = ["result", *(f"result{i}" for i in range(len(signature.returns) if signature.returns_tuple else 0))]
    written = [f"new_{signature.arguments[i].name}" for i in signature.mutated]
    return [*arguments, *(r for r in (*results, *written, "call") if r not in arguments)]
