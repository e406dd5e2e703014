"""Recorded gradients of torch's own functions: each is right for other values too, or there is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from opwright import tree
from opwright.backends.build_tools import build_tools
from opwright.fast_path.extension import FastCalls, fast_calls_extension
from opwright.fast_path.operations import Unrecordable, record

# A thousand samples of 300 functions take half a minute.
pytestmark = [pytest.mark.slow, pytest.mark.compiler]
_SAMPLES = 3


class NoGradientError(Exception):
    """A sample has none, or torch fails on it."""


def _samples() -> Iterator[tuple[str, Callable[..., Any], list[Any]]]:
    """A name, a function and its arguments."""
    from torch.testing._internal.common_methods_invocations import op_db  # takes seconds, also where no test needs it

    for op in op_db:
        if not op.supports_autograd or torch.float32 not in op.supported_backward_dtypes("cpu"):
            continue
        for sample in list(op.sample_inputs("cpu", torch.float32, requires_grad=True))[:_SAMPLES]:
            names = list(sample.kwargs)

            def call(*values: Any, op: Any = op, names: list[str] = names) -> Any:
                count = len(values) - len(names)
                return op(*values[:count], **dict(zip(names, values[count:], strict=True)))

            yield op.name, call, [sample.input, *sample.args, *sample.kwargs.values()]


def _gradients(call: Callable[..., Any], arguments: list[Any]) -> Callable[[list[Tensor]], list[Tensor | None]]:
    """A function of the tensors among the arguments, and of the gradients of the results."""
    leaves = tree.leaves(arguments)

    def gradients(inputs: list[Tensor]) -> list[Tensor | None]:
        given = iter(inputs)
        tensors = [next(given).detach() for leaf in leaves if isinstance(leaf, Tensor)]
        wanted = [t.requires_grad_() for t in tensors if t.is_floating_point() or t.is_complex()]
        with torch.enable_grad():
            of_tensors = iter(tensors)
            filled = [next(of_tensors) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            results = _differentiable(call(*tree.rebuild(arguments, filled)))
            found = torch.autograd.grad(
                results, wanted, [*given] or list(map(torch.ones_like, results)), allow_unused=True
            )
        return [None if g is None else g.contiguous() for g in found]

    return gradients


def _differentiable(results: Any) -> list[Tensor]:
    return [t for t in tree.tensors(results) if t.requires_grad]


def _inputs(call: Callable[..., Any], arguments: list[Any]) -> list[Tensor]:
    try:
        results = _differentiable(call(*arguments))
    except (RuntimeError, TypeError, ValueError) as error:
        raise NoGradientError from error
    if not results or any(t.layout is not torch.strided for t in (*results, *tree.tensors(arguments))):
        raise NoGradientError
    return [t.detach() for t in tree.tensors(arguments)] + [torch.randn_like(t.detach()) for t in results]


def _with_other_values(inputs: Sequence[Tensor]) -> list[Tensor]:
    """In tensors that begin elsewhere in their storage."""

    def other(tensor: Tensor) -> Tensor:
        storage = torch.zeros(tensor.untyped_storage().nbytes() // tensor.itemsize + 8, dtype=tensor.dtype)
        moved = storage.as_strided(tensor.shape, tensor.stride(), 8)
        return moved.copy_(tensor * 0.9 + 0.01 if tensor.is_floating_point() else tensor)

    return [other(t) if 0 not in t.stride() else t.clone() for t in inputs]


def _outcome(calls: FastCalls, call: Callable[..., Any], arguments: list[Any]) -> str:
    inputs = _inputs(call, arguments)
    gradients = _gradients(call, arguments)
    try:
        expected = gradients(inputs)
    except RuntimeError as error:
        raise NoGradientError from error
    try:
        operations = calls.operations_of(record(gradients, inputs, 256), inputs)
    except Unrecordable:
        return "not recorded"
    if not _close(calls.run_operations(operations, inputs), expected, exactly=True):
        return "not recorded"  # as it is not kept
    others = _with_other_values(inputs)
    found = calls.run_operations(operations, others)
    if found is None:  # another layout
        return "not recorded"
    return "right" if _close(found, gradients(others), exactly=False) else "wrong"


def _close(found: Sequence[Tensor | None] | None, expected: Sequence[Tensor | None], *, exactly: bool) -> bool:
    if found is None or [f is None for f in found] != [e is None for e in expected]:
        return False
    tolerance = {"rtol": 0, "atol": 0} if exactly else {"rtol": 1e-5, "atol": 1e-6}
    pairs = [(f, e) for f, e in zip(found, expected, strict=True) if f is not None and e is not None]
    return all(
        f.shape == e.shape and f.stride() == e.stride() and torch.allclose(f, e, equal_nan=True, **tolerance)
        for f, e in pairs
    )


@pytest.mark.exhaustive  # two minutes; tests/fast_calls draws others
def test_recorded_gradients_of_torchs_functions() -> None:
    fast_calls_extension.load(build_tools(), build=True)
    assert fast_calls_extension.loaded is not None
    torch.manual_seed(0)
    outcomes: Counter[str] = Counter()
    wrong = []
    for name, call, arguments in _samples():
        try:
            outcome = _outcome(fast_calls_extension.loaded, call, arguments)
        except NoGradientError:
            continue
        outcomes[outcome] += 1
        wrong += [name] * (outcome == "wrong")
    assert not wrong
    assert outcomes["right"] > 1000
    assert outcomes["not recorded"] < outcomes["right"] / 5
