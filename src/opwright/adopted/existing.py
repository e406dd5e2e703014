"""Something that exists already, as one record: how it is called, and what torch knows of it."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from opwright.adopted.override import Override
from opwright.adopted.schemas import SchemaFacts, schema_facts
from opwright.contract.fingerprint import digest, fingerprint
from opwright.errors import ContractError
from opwright.internals.registration import OVERLOAD, PACKET, name_of_custom_op

__all__ = ["FUNCTION", "MODULE", "OPERATOR", "OVERRIDE", "Existing", "existing_of", "state_names"]

OPERATOR, AUTOGRAD_FUNCTION, MODULE, FUNCTION = "operator", "autograd.Function", "nn.Module", "function"
OVERRIDE = "override of an operator"


@dataclass(frozen=True, eq=False)
class Existing:
    """What ``ow.adopt`` was given.

    Attributes:
        name: as messages name it.
        qualname: the operator's name in the contract.
        kind: one of the constants above.
        call: takes the arguments of the contract.
        function: the Python function behind it, if there is one: in it, kernels are found.
        schema: what an operator's schema states; None unless it is an operator.
        behind: the functions and classes that it consists of, as far as Python shows them.
    """

    name: str
    qualname: str
    kind: str
    call: Callable[..., Any]
    function: Callable[..., Any] | None = None
    schema: SchemaFacts | None = None
    behind: tuple[Any, ...] = ()

    @cached_property
    def fingerprint(self) -> str:
        """Changes when the code behind it changes."""
        return digest(self.name, self.kind, fingerprint(self.behind))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)

    @property
    def is_operator(self) -> bool:
        return self.kind == OPERATOR

    def __reduce__(self) -> tuple[Any, ...]:
        """An operator by its name: the modules that register it are imported first."""
        if not self.is_operator:
            return Existing, (self.name, self.qualname, self.kind, self.call, self.function, None, self.behind)
        module = getattr(self.function, "__module__", None)
        return _operator_again, (self.name, module)


def _operator_again(name: str, module: str | None) -> Existing:
    namespace, _, rest = name.partition("::")
    if module and module != "__main__" and module not in sys.modules:
        importlib.import_module(module)
    packet_name, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), packet_name, None)
    if packet is None:
        raise ContractError(
            f"{name} must be registered by a module that a new process can import, got none that registers it",
            fix="move its definition from the notebook or the function to a file",
        )
    return existing_of(getattr(packet, overload or "default"))


def existing_of(existing: Any, state: Sequence[str] = ()) -> Existing:
    """The record of an operator, an ``autograd.Function``, a module or a function.

    Args:
        state: the parameters and buffers of a module that are arguments, after those of a call.

    Raises:
        ContractError: it is none of these, or a packet of several overloads.
    """
    if isinstance(existing, Override):
        return _of_override(existing)
    if isinstance(existing, PACKET):
        existing = _only_overload(existing)
    if name_of_custom_op(existing):
        return _of_custom_op(existing)
    if OVERLOAD is not None and isinstance(existing, OVERLOAD):
        return _of_overload(existing, None)
    if inspect.isclass(existing) and issubclass(existing, torch.autograd.Function):
        return _of_autograd_function(existing)
    if isinstance(existing, torch.nn.Module):
        name = type(existing).__name__
        call = _module_caller(existing, tuple(state))
        return Existing(name, _own_name(name), MODULE, call, behind=(type(existing),))
    if callable(existing) and not inspect.isclass(existing):
        name = getattr(existing, "__name__", type(existing).__name__)
        function = existing if inspect.isfunction(existing) else None
        return Existing(name, _own_name(name), FUNCTION, existing, function, behind=(existing,))
    raise ContractError(
        "ow.adopt must be given an operator of torch.ops, a custom_op, an autograd.Function, an nn.Module or a "
        f"function, got {existing!r}",
        fix="pass the class of an autograd.Function, and an instance of a module",
    )


def state_names(module: torch.nn.Module) -> dict[str, str]:
    """The names of a module's parameters and buffers, by the names that arguments have for them."""
    named = [*dict(module.named_parameters()), *dict(module.named_buffers())]
    return {name.replace(".", "_"): name for name in named}


def _only_overload(packet: Any) -> Any:
    names = packet.overloads()
    if "default" not in names and len(names) > 1:
        shown = ", ".join(f"{packet}.{name}" for name in names)
        raise ContractError(f"ow.adopt must be given one overload of {packet}, got all", fix=f"pass one of {shown}")
    return getattr(packet, "default" if "default" in names else names[0])


def _of_custom_op(definition: Any) -> Existing:
    """Of ``torch.library.custom_op`` or ``triton_op``. The first function among its attributes is the decorated one, or
    torch's own around it."""
    namespace, _, name = name_of_custom_op(definition).partition("::")
    functions = tuple(value for value in vars(definition).values() if inspect.isfunction(value))
    function = next(iter(functions), None)
    while function is not None and function.__module__.startswith("torch."):
        held = (cell.cell_contents for cell in function.__closure__ or ())
        function = next((value for value in held if inspect.isfunction(value)), None)
    return _of_overload(getattr(getattr(torch.ops, namespace), name).default, function, functions)


def _of_overload(overload: Any, function: Callable[..., Any] | None, behind: tuple[Any, ...] = ()) -> Existing:
    name = overload.name()
    qualname = name.replace(".", "_")
    return Existing(name, qualname, OPERATOR, overload, function, schema_facts(overload), behind)


def _of_override(override: Override) -> Existing:
    """It has the operator's schema, and neither its fake nor its gradient, which torch keeps."""
    of_operator, implementation = _of_overload(override.operator, None), override.implementation
    function = implementation if inspect.isfunction(implementation) else None
    behind = tuple(filter(None, (implementation, override.condition, override.fallback)))
    qualname = _own_name(of_operator.name.partition("::")[2])
    return Existing(override.name, qualname, OVERRIDE, override, function, of_operator.schema, behind)


def _of_autograd_function(function: type[torch.autograd.Function]) -> Existing:
    def apply(*args: Any) -> Any:
        return function.apply(*args)

    name = function.__name__
    forward = function.forward
    found = forward if inspect.isfunction(forward) else None
    return Existing(name, _own_name(name), AUTOGRAD_FUNCTION, apply, found, behind=(function,))


def _module_caller(module: torch.nn.Module, state: tuple[str, ...]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        if not state:
            return module(*args)
        inputs, values = args[: -len(state)], args[-len(state) :]
        return torch.func.functional_call(module, dict(zip(state, values, strict=True)), tuple(inputs))

    return call


def _own_name(name: str) -> str:
    """The name of an operator for something that has none in torch."""
    plain = "".join(letter if letter.isalnum() else "_" for letter in name).strip("_") or "function"
    return f"adopted::{plain if not plain[0].isdigit() else f'_{plain}'}"
