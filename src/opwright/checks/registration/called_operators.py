"""The fakes of other operators that a kernel calls, such as one of ``torch.library.custom_op`` that it wraps.

The operator under test has a fake of its own, which hides a wrong one behind it: that one is used wherever the other
operator is called by itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from opwright import tree
from opwright.captured.own_namespaces import OWN_NAMESPACES
from opwright.checks.context import Context
from opwright.checks.exceptions import in_words
from opwright.checks.kernel_calls import Layout, layout_of, same_layout
from opwright.checks.observation import Observation
from opwright.checks.outputs.metadata import difference
from opwright.internals.compiler import DispatchMode, as_fakes
from opwright.internals.registration import OVERLOAD
from opwright.results import NotChecked
from opwright.runtime.register import registration

__all__ = ["fakes_of_called"]


class _Recording(DispatchMode):  # type: ignore[misc]  # found at run time
    """The first call of each operator: its arguments, and the layouts of its results."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[Any, tuple[Any, list[Layout]]] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        passed = (list(args), dict(kwargs or {}))
        before = same_layout(passed) if function not in self.calls and _is_users(function) else None
        result = function(*args, **(kwargs or {}))
        if before is not None:
            self.calls[function] = before, _layouts(result)
        return result


def fakes_of_called(context: Context, run: Observation) -> Iterator[str | NotChecked]:
    """What is wrong with the fakes of operators that the kernel calls, and which of them have none."""
    recording, arguments = _Recording(), same_layout(list(run.arguments))
    with recording, contextlib.suppress(Exception):  # the check "values" reports it
        if context.kernel in context.op.kernels:
            context.run_kernel(arguments)
        else:
            context.op.contract.reference(arguments)
    for operator, (passed, layouts) in recording.calls.items():
        if operator.name() == context.op.adopted:
            continue  # its own fake, which the check "metadata" compares
        who = f"{operator.name()}, which the {'kernel' if context.kernel in context.op.kernels else 'reference'} calls"
        try:
            with as_fakes(passed, data_dependent=True) as (args, kwargs):
                promised = _layouts(operator(*args, **kwargs))
        except Exception as error:  # it has no fake, or one that raises anything
            yield NotChecked("opcheck", f"the fake of {who}: {in_words(error)}")
            continue
        if len(promised) != len(layouts):
            yield f"{who}: it returns {len(layouts)} tensors, but its fake {len(promised)}"
            continue
        for i, (got, expected) in enumerate(zip(layouts, promised, strict=True)):
            if (different := difference(i, got, expected)) is not None:
                yield f"{who}: {different}"
                break


def _is_users(function: Any) -> bool:
    if OVERLOAD is None or not isinstance(function, OVERLOAD) or function.namespace in OWN_NAMESPACES:
        return False
    return registration.find(function.name().partition(".")[0]) is None  # it has a check of its own


def _layouts(result: Any) -> list[Layout]:
    results = list(result) if isinstance(result, list | tuple) else [result]
    return [layout_of(t) for t in tree.tensors(results) if isinstance(t, torch.Tensor)]
