"""A contract for something without annotations: inferred from one call, as ``opwright judge`` infers them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import jaxtyping
import torch

from opwright import tree
from opwright.contract.values import values
from opwright.errors import ContractError
from opwright.judged.called import parameters_of
from opwright.judged.contract import Inferred, InferredTensor
from opwright.judged.contract_text import class_of
from opwright.judged.inferring.inference import infer_from_run
from opwright.judged.inferring.reference_run import Reference

__all__ = ["annotated"]


class _OneCall(Reference):
    """Runs a function on tensors like those of one call."""

    def __init__(self, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
        self._called_function, self._arguments = function, tuple(arguments)
        self.error = ""

    def _function(self, constants: Mapping[str, int]) -> tuple[Any, Mapping[str, torch.Tensor]]:
        return self._called_function, {}

    def _inputs(self, constants: Mapping[str, int]) -> tuple[Any, ...]:
        def like(tensor: torch.Tensor) -> torch.Tensor:
            return torch.empty(tensor.shape, dtype=tensor.dtype)

        return tuple(tree.map_tensors(like, self._arguments))

    def real_tensors(self, constants: Mapping[str, int]) -> tuple[torch.Tensor, ...] | None:
        return tuple(t.detach() for t in self._arguments if isinstance(t, torch.Tensor))

    def caller(self, constants: Mapping[str, int]) -> Callable[[Sequence[torch.Tensor]], Any]:
        def call(tensors: Sequence[torch.Tensor]) -> Any:
            listed = iter(tensors)
            with torch.no_grad():
                return self._called_function(
                    *(next(listed) if isinstance(a, torch.Tensor) else a for a in self._arguments)
                )

        return call


def annotated(
    name: str, function: Callable[..., Any], names: Sequence[str], arguments: Sequence[Any]
) -> tuple[Callable[..., Any], tuple[str, ...]]:
    """The function with inferred annotations, and relations between its sizes.

    Args:
        name: what is adopted, for messages.
        names: of the arguments, in order; those that are missing are the function's own.
        arguments: those of one call. Numbers among them become arguments with the same type.

    Raises:
        ContractError: the function does not run on the arguments.
    """
    one_call = _OneCall(function, arguments)
    own = one_call.run({})
    found = infer_from_run(one_call, own) if own is not None else None
    if found is None:
        raise ContractError(
            f"ow.adopt({name}): the reference must run on the tensors of inputs=, got {one_call.error}",
            fix="correct the reference, or annotate it with shapes",
        )
    all_names = [*names, *parameters_of(function, len(arguments))[len(names) :]]
    return _with_annotations(name, function, all_names, arguments, found), found.where


def _with_annotations(
    name: str, function: Callable[..., Any], names: Sequence[str], arguments: Sequence[Any], found: Inferred
) -> Callable[..., Any]:
    def reference(*args: Any, **kwargs: Any) -> Any:
        return function(*args, *kwargs.values())

    stated = iter(found.arguments)
    hints = {
        each: _type_of(next(stated)) if isinstance(value, torch.Tensor) else _type_of_number(name, each, value)
        for each, value in zip(names, arguments, strict=True)
    }
    outputs = [_type_of(output) for output in found.outputs]
    returned: Any = tuple.__class_getitem__(tuple(outputs)) if found.returns_tuple else outputs[0]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [
        inspect.Parameter(
            each, kind, default=inspect.Parameter.empty if isinstance(value, torch.Tensor) else value, annotation=hint
        )
        for (each, hint), value in zip(hints.items(), arguments, strict=True)
    ]
    reference.__signature__ = inspect.Signature(parameters, return_annotation=returned)  # type: ignore[attr-defined]
    reference.__annotations__ = {**hints, "return": returned}
    reference.__name__ = getattr(function, "__name__", name)
    return reference


def _type_of(tensor: InferredTensor) -> Any:
    dtype = getattr(jaxtyping, class_of(tensor.dtype))
    stated: Any = dtype[torch.Tensor, " ".join(tensor.dims or ())]
    if tensor.high is None or tensor.low is None:
        return stated
    return Annotated[stated, values(tensor.low, tensor.high)]


def _type_of_number(name: str, argument: str, value: Any) -> Any:
    if not isinstance(value, int | float | bool | str):
        raise ContractError(
            f"ow.adopt({name}): {argument!r} must be a tensor or a number, got {type(value).__name__}",
            fix="annotate the reference, as for @ow.op",
        )
    return type(value)
