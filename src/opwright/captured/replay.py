"""Recorded calls as the test inputs of an operator."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from opwright import tree
from opwright.captured.calls_file import RecordedCall, RecordedTensor, read_calls, tensor_of
from opwright.contract.binding import fill
from opwright.contract.contract import Contract
from opwright.contract.inputs.arguments import arguments_of, env_of
from opwright.contract.inputs.draw import draw
from opwright.contract.inputs.samples import case_of
from opwright.contract.signature import Argument
from opwright.errors import ArgumentError, CheckError
from opwright.runtime.op import Op

__all__ = ["digest_of_calls", "refuse_on_others", "replaying", "use_recorded"]


def digest_of_calls(path: str) -> str:
    """A digest of a file of recorded calls, so that verdicts of other calls are not taken for these; "" for none."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest() if path else ""


def refuse_on_others(path: str | Path | None, *, is_local: bool) -> None:
    """Raise CheckError if recorded calls are to be used on other machines, which do not have the file."""
    if path is not None and not is_local:
        raise CheckError(
            f"inputs must be left out with an executor on other machines, which lack the file, got {str(path)!r}",
            fix="check recorded calls on this machine, without --ray",
        )


@contextlib.contextmanager
def replaying(operators: Iterable[Op], path: str | Path | None) -> Iterator[None]:
    """A block in which the recorded calls are the operators' only test inputs."""
    changed = list(operators) if path else []
    try:
        for operator in changed:
            use_recorded(operator, str(path))
        yield
    finally:
        for operator in changed:
            use_recorded(operator, "")


def use_recorded(operator: Op, path: str) -> None:
    """Make the recorded calls of a file the only test inputs of an operator; "" for its own.

    Raises:
        CheckError: the file cannot be read, has no call of the operator, or has one that contradicts the contract.
    """
    if not path:
        operator.contract.own_inputs.recorded = None
        return
    contract, names = operator.contract, _names_of(operator)
    calls = read_calls(path)
    own = [call for call in calls if call.target in names or call.target.rpartition(".")[2] in names]
    if not own:
        found = sorted({call.target for call in calls})
        raise CheckError(
            f"{path} must have a call of {contract.qualname}, got calls of {', '.join(found) or 'nothing'}",
            fix="name the operator in ow.capture(path, operator)",
        )
    arguments = [_filled(contract, path, call) for call in own]

    def recorded() -> Iterator[tuple[Any, ...]]:
        for each in arguments:
            yield _drawn(contract, each)

    contract.own_inputs.recorded = recorded


def _names_of(operator: Op) -> set[str]:
    return {operator.contract.qualname, operator.adopted or operator.contract.qualname}


def _filled(contract: Contract, path: str, call: RecordedCall) -> tuple[Any, ...]:
    try:
        return tuple(fill(contract, call.args, dict(call.kwargs)))
    except ArgumentError as error:
        raise CheckError(
            f"{path}: a call of {call.target} contradicts the contract: {error.message}", fix=error.fix
        ) from error


def _drawn(contract: Contract, recorded: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments of a recorded call. Values that were not recorded are drawn as annotations state them.

    Raises:
        CheckError: there are no such values of these sizes. Zeros in their place might show no error of a kernel.
    """
    plain = [_map(value, tensor_of) for value in recorded]
    if all(each.data for value in recorded for each in _tensors(value)):
        return tuple(plain)
    try:
        case = dataclasses.replace(case_of(contract, plain, None), scalars="default")
        drawn, env = arguments_of(contract, case, "cpu"), env_of(contract, case)
        stated = zip(contract.signature.arguments, recorded, strict=True)
        env |= {a.name: value for a, value in stated if a.scalar_type is int and isinstance(value, int)}
        pairs = zip(contract.signature.arguments, recorded, drawn, strict=True)
        return tuple(_placed(argument, env, value, own) for argument, value, own in pairs)
    except (ArgumentError, CheckError) as error:
        raise CheckError(
            f"{contract.qualname}: values must be drawn for a recorded call, got {error.message}",
            fix="record them, too: ow.capture(path, values=True)",
        ) from error


def _placed(argument: Argument, env: Mapping[str, Any], recorded: Any, drawn: Any) -> Any:
    """Drawn values in the layout of a recorded argument; numbers as they were recorded. A tensor of another shape than
    the contract's usual one, as with a dim that broadcasts, and one whose bounds may follow from a recorded number, get
    values of their own."""
    values, generator = iter(tree.tensors([drawn])), torch.Generator().manual_seed(0)
    is_bounded = argument.values is not None and argument.values.draw is None and not argument.goes_together

    def place(each: RecordedTensor) -> torch.Tensor:
        own = next(values, None)
        if own is None or tuple(own.shape) != each.shape or is_bounded:
            own = draw(each.shape, getattr(torch, each.dtype), argument.values, env, generator)
        return tensor_of(each, own)

    return _map(recorded, place)


def _map(value: Any, convert: Any) -> Any:
    if isinstance(value, RecordedTensor):
        return convert(value)
    if isinstance(value, list | tuple):
        return [_map(each, convert) for each in value]
    return value


def _tensors(value: Any) -> list[RecordedTensor]:
    if isinstance(value, RecordedTensor):
        return [value]
    return [each for item in value for each in _tensors(item)] if isinstance(value, list | tuple) else []
