"""A gradient that is an operator of its own, with its own contract and kernels: ``op.register_autograd(backward_op)``.

The backward operator's parameters define what it takes: first the gradient of each visible floating output, in order;
then, by name, arguments of the forward, and its outputs as ``result`` or ``result0``, ``result1``, … as in torch's
derivatives.yaml, including saved-for-backward outputs. A parameter called ``needs``, a list[bool], states which
gradients are needed; the others may be zeros. It returns a gradient for each floating tensor argument that is
not marked ``ow.no_gradient``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch

from opwright.contract.contract import Contract
from opwright.contract.fingerprint import digest, fingerprint
from opwright.contract.signature import Argument, Kind, TensorType
from opwright.errors import SignatureMismatchError
from opwright.runtime.register.saved_values import save_values, saved_values

__all__ = ["BackwardOperator"]

_NEEDS = "needs"


class _Operator(Protocol):
    contract: Contract

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


class BackwardOperator:
    """``backward(ctx, *grads)`` and ``setup_context``, as in ``torch.library.register_autograd``.

    Raises:
        SignatureMismatchError: the operator's parameters or outputs do not match the forward.
    """

    def __init__(self, forward: Contract, operator: _Operator) -> None:
        self.forward = forward
        self.operator = operator
        self._grads = tuple(i for i, r in enumerate(_visible(forward)) if _is_floating(r))
        self._inputs = tuple(i for i, a in enumerate(forward.signature.positional) if _has_gradient(a))
        self._all_have_gradients = len(self._inputs) == len(forward.signature.positional)
        arguments = operator.contract.signature.arguments
        self._check_signature(arguments)
        found = [self._source(a) for a in arguments[len(self._grads) :]]
        self._needs_at = found.index(None) if None in found else None
        # What it takes besides gradients: the position of an argument of the forward, or -1 - that of an output.
        self.sources = tuple(source for source in found if source is not None)

    @property
    def fingerprint(self) -> str:
        """A digest of the backward's reference."""
        return digest(self.operator.contract.qualname, fingerprint(self.operator.contract.function))

    def setup_context(self, ctx: Any, inputs: Any, output: Any, keyword_only_inputs: Any = None) -> None:
        """Save the values that the backward operator takes, and nothing else."""
        arguments = (*inputs, *(keyword_only_inputs or {}).values())
        outputs = self.forward.unpack(output)
        save_values(ctx, [arguments[i] if i >= 0 else outputs[-1 - i] for i in self.sources])

    def __call__(self, ctx: Any, *grads: Any) -> tuple[Any, ...]:
        return self.gradients(saved_values(ctx), ctx.needs_input_grad, grads)

    def gradients(
        self, values: Sequence[Any], needs_input_grad: Sequence[Any], grads: Sequence[Any]
    ) -> tuple[Any, ...]:
        """A gradient, or None, for each positional argument, from the values of ``sources``."""
        needs = [needs_input_grad[i] for i in self._inputs]
        kept = list(values)
        if self._needs_at is not None:
            kept.insert(self._needs_at, needs)
        found = self.operator.contract.signature.call(self.operator, [*[grads[i] for i in self._grads], *kept])
        outputs = found if isinstance(found, tuple) else (found,)
        if all(needs) and self._all_have_gradients:
            return outputs
        gradients: list[Any] = [None] * len(self.forward.signature.positional)
        for position, need, gradient in zip(self._inputs, needs, outputs, strict=True):
            gradients[position] = gradient if need else None
        return tuple(gradients)

    # -- reading the backward's parameters -----------------------------------------------------------------

    def _check_signature(self, arguments: Sequence[Argument]) -> None:
        name, wanted = self.forward.qualname, len(self._grads)
        if any(a.kind is Kind.TENSOR_LIST for a in self.forward.signature.arguments):
            raise self._mismatch(
                f"{name} takes a list of tensors, whose gradients an operator cannot return",
                "register a function, backward(ctx, *grads), that calls it",
            )
        if len(arguments) < wanted or any(a.kind is not Kind.TENSOR for a in arguments[:wanted]):
            raise self._mismatch(
                f"its first {wanted} parameter(s) must be the gradients of {name}'s outputs",
                f"declare it as ({', '.join(self._wanted_parameters())}, ...)",
            )
        returned, needed = self.operator.contract.signature.visible, len(self._inputs)
        if returned != needed:
            of = ", ".join(self.forward.signature.positional[i].name for i in self._inputs)
            raise self._mismatch(
                f"it must return a gradient for each of ({of}), got {returned} tensor{'s' * (returned != 1)}",
                "return one for each of them, in that order",
            )

    def _wanted_parameters(self) -> Iterator[str]:
        for i in self._grads:
            yield f"grad{i}: {_visible(self.forward)[i]}"

    def _source(self, argument: Argument) -> int | None:
        """Where the value of a parameter comes from, as in ``sources``; None for the flags of needs."""
        names = [a.name for a in self.forward.signature.arguments]
        if argument.name in names:
            return names.index(argument.name)
        if argument.name == _NEEDS and argument.kind is Kind.SCALAR:
            return None
        outputs = len(self.forward.signature.returns)
        number = re.fullmatch(r"result(\d*)", argument.name)
        if number and int(number[1] or 0) < outputs and (number[1] or outputs == 1):
            return -1 - int(number[1] or 0)
        results = ["result"] if outputs == 1 else [f"result{i}" for i in range(outputs)]
        raise self._mismatch(
            f"its parameters must be arguments or outputs of {self.forward.qualname}, got {argument.name!r}",
            f"name it one of {names + results}, or {_NEEDS} (list[bool])",
        )

    def _mismatch(self, what: str, fix: str) -> SignatureMismatchError:
        return SignatureMismatchError(
            f"{self.operator.contract.qualname} cannot be the backward of {self.forward.qualname}: {what}", fix=fix
        )


def _visible(contract: Contract) -> list[TensorType]:
    return [r.tensor for r in contract.signature.returns[: contract.signature.visible]]


def _has_gradient(argument: Argument) -> bool:
    is_floating = argument.kind is Kind.TENSOR and argument.tensor is not None and _is_floating(argument.tensor)
    return is_floating and not argument.no_gradient


def _is_floating(tensor: TensorType) -> bool:
    return any(d.is_floating_point or d.is_complex for d in tensor.dtypes) and not _is_any(tensor)


def _is_any(tensor: TensorType) -> bool:
    return torch.bool in tensor.dtypes and torch.float32 in tensor.dtypes  # Shaped: any dtype
