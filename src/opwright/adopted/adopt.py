"""``ow.adopt``: an operator that exists already, checked against a reference without being rewritten."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from opwright.adopted.existing import Existing, existing_of, state_names
from opwright.adopted.inferred import annotated
from opwright.adopted.operator import FALLBACK, KERNEL, AdoptedOp, kernel_source
from opwright.adopted.override import Override, is_of_aten, override_of
from opwright.backends.reachable import values_reached
from opwright.backends.triton.tracing import kernels_reached
from opwright.contract.contract import Contract
from opwright.contract.definition.define import fake_arguments, make_contract
from opwright.contract.shapes.search import refuse_conflict
from opwright.errors import ContractError
from opwright.internals.compiler import DispatchMode, fake_tensors
from opwright.internals.registration import OVERLOAD
from opwright.runtime.op import Op

__all__ = ["adopt"]


def adopt(
    existing: Any,
    reference: Callable[..., Any] | None = None,
    *,
    implementation: Callable[..., Any] | None = None,
    condition: Callable[..., bool] | None = None,
    fallback: Callable[..., Any] | None = None,
    inputs: Callable[[], Sequence[Any]] | Sequence[Any] | None = None,
    name: str | None = None,
    language: str | None = None,
    devices: Sequence[str] | None = None,
    where: Sequence[str] | str = (),
    random: bool | str = False,
    deterministic: bool = False,
    tf32: bool = False,
) -> Op:
    """Check, explain and time an operator that exists already, as it is.

    Args:
        existing: ``torch.ops.ns.name`` or one overload, what ``torch.library.custom_op`` or ``triton_op`` returned, an
            ``autograd.Function``, an ``nn.Module`` or a function.
        reference: a function with the same arguments that computes what is right, annotated as for ``@ow.op``. Mark
            what ``existing`` writes with ``ow.mutated``. It may be a module, or have no annotations, if ``inputs`` are
            given. Arguments with the names of a module's parameters (``layer_weight`` for ``layer.weight``) get these.
            Without one, an override of an operator of ATen is compared with the operator itself.
        implementation: that of such an override, which must not be installed. Without it, and without a reference, the
            overrides of ``existing`` in torch's own tree.
        condition: whether the implementation runs on some arguments; by default on all.
        fallback: what runs else; by default the operator as it is.
        inputs: the arguments of one call, or a function that returns them: annotations are inferred from it, and it
            becomes a test case.
        name: the operator's name in reports; by default ``existing``'s own, or ``adopted::name``.
        language: ``"triton"`` or ``"cuda"`` if ``existing`` launches such kernels, which a simulator then runs where
            there is no GPU; found by itself where Python shows it.
        devices: the types of devices on which it runs; by default those for which it is registered.
        where, random, deterministic, tf32: as for ``@ow.op``.

    Returns:
        An ``Op`` whose calls run ``existing``: its schema, fake, gradient and kernels. Nothing is registered with
        torch. ``ow.check``, ``ow.bench`` and the commands take it.

    Raises:
        ContractError: the reference cannot be expressed, contradicts the schema, or calls ``existing`` itself.

    >>> import torch
    >>> from jaxtyping import Float
    >>> from torch import Tensor
    >>> import opwright as ow
    >>> def silu(input: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    ...     return input * input.sigmoid()
    >>> op = ow.adopt(torch.nn.functional.silu, reference=silu)
    >>> op(torch.zeros(2))
    tensor([0., 0.])
    >>> op.parts["autograd"].how
    "silu's own"
    """
    caller = inspect.currentframe()
    caller = caller.f_back if caller is not None else None
    scope = {**caller.f_globals, **caller.f_locals} if caller is not None else {}
    given = tuple(inputs() if callable(inputs) else inputs) if inputs is not None else None
    override = None
    if implementation is not None or (reference is None and is_of_aten(existing)):
        override = existing = override_of(existing, implementation, condition, fallback)
        override.refuse_installed()
    elif condition is not None or fallback is not None:
        raise ContractError(
            "condition and fallback must come with an implementation, got none", fix="pass implementation=, too"
        )
    function, names, state = _reference(existing, reference, given)
    found = existing_of(existing, state)
    relations: tuple[str, ...] = ()
    if not _is_annotated(function):
        if given is None:
            raise ContractError(
                f"ow.adopt({found.name}): the reference must be annotated, or come with inputs, got neither",
                fix='annotate it as for @ow.op, Float[Tensor, "n k"]; or pass inputs=(x, y), the arguments of a call',
            )
        values = [*given, *_state_values(existing, state)]
        function, relations = annotated(found.name, function, names, values)
    stated = [where] if isinstance(where, str) else list(where)
    contract = make_contract(
        name or found.qualname,
        function,
        scope,
        where=[*stated, *relations],
        random=random,
        deterministic=deterministic,
        tf32=tf32,
    )
    refuse_conflict(contract.qualname, contract.where)
    contract = dataclasses.replace(contract, module=scope.get("__name__", contract.module), file=scope.get("__file__"))
    _compare_schema(found, contract)
    _refuse_circle(found, contract)
    operator = AdoptedOp(contract, found)
    operator.__module__ = contract.module
    own = language or _language_of(found)
    when = override.applies if override is not None and override.condition is not None else None
    operator._attach(own, kernel_source(found, own), {}, name=KERNEL, devices=devices or _devices(found), when=when)
    if override is not None and override.fallback is not None and when is not None:
        operator._attach("python", override.fallback, {}, name=FALLBACK, when=override.falls_back)
    if given is not None:
        _keep_as_sample(operator, [*given, *_state_values(existing, state)])
    return operator


def _reference(
    existing: Any, reference: Any, given: Sequence[Any] | None
) -> tuple[Callable[..., Any], list[str], list[str]]:
    """The reference as a function, the names of its arguments as far as they are known, and the parameters and buffers
    of ``existing`` that are arguments."""
    if reference is None and isinstance(existing, Override):
        return existing.plain, existing.argument_names[: len(given or ())], []
    own = state_names(existing) if isinstance(existing, torch.nn.Module) else {}
    if not isinstance(reference, torch.nn.Module):
        if not callable(reference):
            raise ContractError(
                f"reference must be a function or a module, got {reference!r}", fix="pass what computes the same"
            )
        names = list(inspect.signature(reference).parameters) if inspect.isfunction(reference) else []
        return reference, names, [own[each] for each in names if each in own]
    theirs = state_names(reference)
    if own and own.keys() != theirs.keys():
        raise ContractError(
            f"the reference must have the parameters {sorted(own)}, got {sorted(theirs)}",
            fix="give it the same names, or write the reference as a function of them",
        )
    state = list(theirs.values()) if own else []

    def call(*args: Any) -> Any:
        if not state:
            return reference(*args)
        inputs, values = args[: -len(state)], args[-len(state) :]
        return torch.func.functional_call(reference, dict(zip(state, values, strict=True)), tuple(inputs))

    names = list(inspect.signature(reference.forward).parameters)[: len(given or ())]
    return call, [*names, *(theirs if own else [])], state


def _is_annotated(function: Callable[..., Any]) -> bool:
    if not inspect.isfunction(function):
        return False
    hints, parameters = function.__annotations__, inspect.signature(function).parameters
    return parameters.keys() <= hints.keys() and not any(p.kind is p.VAR_POSITIONAL for p in parameters.values())


def _state_values(existing: Any, state: Sequence[str]) -> list[torch.Tensor]:
    if not state:
        return []
    held = {**dict(existing.named_parameters()), **dict(existing.named_buffers())}
    return [held[name].detach() for name in state]


def _compare_schema(existing: Existing, contract: Contract) -> None:
    """Refuse a reference whose arguments are not those of the schema, or that writes others."""
    if existing.schema is None:
        return
    arguments = contract.signature.arguments
    schema, own = existing.schema, [a.name for a in arguments]
    if len(own) > len(schema.arguments) or own != list(schema.arguments[: len(own)]):
        raise ContractError(
            f"the reference must have the arguments of {existing.name}, {', '.join(schema.arguments)}, "
            f"got {', '.join(own)}",
            fix="name them as the schema does, in its order",
        )
    written = {a.name for a in arguments if a.mutated}
    if written != schema.written:
        name = min(written ^ schema.written)
        if name in schema.written:
            raise ContractError(
                f"the reference must write {name!r}, as the schema of {existing.name} states, got no mark of it",
                fix=f"annotate it: {name}: Annotated[..., ow.mutated]",
            )
        raise ContractError(
            f"the schema of {existing.name} must declare that it writes {name!r}, got a schema without it",
            fix="correct its schema, Tensor(a!), or mutates_args=...; or leave out the mark of the reference",
        )


class _Calls(DispatchMode):  # type: ignore[misc]  # found at run time
    """Whether a block calls an operator."""

    def __init__(self, overload: Any) -> None:
        super().__init__()
        self._overload, self.found = overload, False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found = self.found or function is self._overload
        return function(*args, **(kwargs or {}))


def _refuse_circle(existing: Existing, contract: Contract) -> None:
    """Refuse a reference that is computed by what it is to be compared with: any result would pass."""
    overload: Any = existing.call
    if OVERLOAD is None or not isinstance(overload, OVERLOAD):
        return
    with fake_tensors(data_dependent=bool(contract.signature.data_dependent)):
        arguments = fake_arguments(contract)
        # It may read values, or refuse these; what it has called until then is known.
        with _Calls(overload) as calls, contextlib.suppress(Exception):
            contract.traceable(arguments)
    if calls.found:
        raise ContractError(
            f"ow.adopt({existing.name}): the reference must not call {existing.name}, got one that does",
            fix="write it with other operations, such as those of torch's decomposition",
        )


def _language_of(existing: Existing) -> str:
    function = existing.function
    if function is None:
        return "python"
    if next(kernels_reached(function), None) is not None:
        return "triton"
    return "cuda" if any(type(value).__name__ == "CudaModule" for value in values_reached(function)) else "python"


def _devices(existing: Existing) -> Sequence[str] | None:
    if isinstance(existing.call, Override) and existing.call.devices:
        return existing.call.devices
    return existing.schema.devices or None if existing.schema else None


def _keep_as_sample(operator: Op, arguments: Sequence[Any]) -> None:
    held = tuple(a.detach().cpu() if isinstance(a, torch.Tensor) else a for a in arguments)

    def samples() -> Any:
        yield held

    operator.samples(samples)
