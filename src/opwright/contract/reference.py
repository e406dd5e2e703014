"""Runs the reference: a PyTorch or NumPy function as one that takes and returns tensors.

A NumPy reference has two forms. On plain CPU tensors it runs unchanged, on NumPy arrays without copies; these results
are the reference values. Everywhere else (fake tensors, other devices, inside autograd and vmap) the same function runs
with ``numpy`` replaced by torch's own NumPy on tensors, which torch.compile uses as well.
"""

from __future__ import annotations

import contextlib
import functools
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from opwright import tree
from opwright.contract.numpy.array import Array, numpy_on_tensors
from opwright.contract.numpy.comparison import copied, difference
from opwright.contract.numpy.facts import refuse_stale
from opwright.contract.numpy.rules import numpy_rules
from opwright.contract.signature import Signature
from opwright.errors import ContractError
from opwright.internals import numpy_layer
from opwright.internals.compiler import real_constants
from opwright.internals.dispatch import is_functorch_tensor, is_intercepted
from opwright.internals.tensors import memory_of

__all__ = ["contiguous_outputs", "fresh_outputs", "replace_globals", "run_reference", "run_traceable", "with_arrays"]


def run_reference(function: Callable[..., Any], signature: Signature, arguments: Sequence[Any]) -> Any:
    """Run the reference on these arguments; a NumPy function on CPU tensors runs in NumPy itself."""
    if signature.language == "numpy" and _all_plain_cpu(arguments):
        return with_arrays(functools.partial(signature.call, function))(arguments)
    return run_traceable(function, signature, arguments)


def run_traceable(function: Callable[..., Any], signature: Signature, arguments: Sequence[Any]) -> Any:
    """Run the reference as torch operations, which autograd, vmap and fake tensors can trace. Arguments that
    get no gradient are detached."""
    arguments = signature.detached(arguments)
    if not is_intercepted():
        return _run_traceable(function, signature, arguments)
    with real_constants():
        return _run_traceable(function, signature, arguments)


def _run_traceable(function: Callable[..., Any], signature: Signature, arguments: Sequence[Any]) -> Any:
    if signature.language == "torch":
        return signature.call(function, arguments)
    _refuse_without_numpy_on_tensors()
    before = _copies_to_compare(function, arguments)
    on_torch = replace_globals(function, numpy_on_tensors())
    wrapped = tree.map_tensors(Array, list(arguments))
    with _arrays_on_device_of(arguments), numpy_rules():
        result = tree.map_leaves(_to_tensor, signature.call(on_torch, wrapped))
    if before is not None:
        _compare_with_numpy(function, signature, before, arguments, result)
    return result


# For each reference, the dtypes and ranks for which its steps on tensors gave NumPy's results.
_compared: weakref.WeakKeyDictionary[Any, set[Any]] = weakref.WeakKeyDictionary()


def _copies_to_compare(function: Callable[..., Any], arguments: Sequence[Any]) -> list[Any] | None:
    """Copies of the arguments for a first call with such dtypes and ranks; None if there is nothing to compare."""
    tensors = tree.tensors(list(arguments))
    if is_intercepted() or not all(_has_values(t) for t in tensors):
        return None
    if _kinds(tensors) in _compared.setdefault(function, set()):
        return None
    return tree.map_tensors(lambda t: t.detach().clone(), list(arguments))  # type: ignore[no-any-return]


def _kinds(tensors: Sequence[torch.Tensor]) -> Any:
    return tuple((t.dtype, t.dim()) for t in tensors)


def _has_values(tensor: torch.Tensor) -> bool:
    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.device.type == "cpu"
    return is_plain and not is_functorch_tensor(tensor)


def _compare_with_numpy(
    function: Callable[..., Any], signature: Signature, before: list[Any], arguments: Sequence[Any], result: Any
) -> None:
    """Compare a reference's steps on tensors, from which its gradient is derived, with NumPy.

    Raises:
        ContractError: they give something else, so that derived parts would be wrong.
    """
    expected = with_arrays(functools.partial(signature.call, function))(before)
    found = difference(copied(expected), copied(result), classes=False) or difference(
        copied(tree.tensors(before)),
        copied(tree.tensors(list(arguments))),
        classes=False,
        where="the arguments written",
    )
    if found:
        raise ContractError(
            f"{getattr(function, '__qualname__', function)}: on tensors, from which its gradient is derived, this "
            f"reference in NumPy gives something else: {found}",
            fix="write it with other functions of NumPy, or in torch, or register its gradient",
        )
    _compared[function].add(_kinds(tree.tensors(before)))


def _refuse_without_numpy_on_tensors() -> None:
    if not numpy_layer.has_numpy():
        raise ContractError(
            f"torch {torch.__version__} has no NumPy on tensors, so a reference in NumPy runs on CPU arrays only",
            fix="write the reference in torch, or use a torch between 2.11 and 2.15",
        )


def _arrays_on_device_of(arguments: Sequence[Any]) -> contextlib.AbstractContextManager[Any]:
    """A block in which ``np.arange`` and similar functions make arrays on the arguments' device."""
    device = next((t.device for t in tree.tensors(list(arguments))), None)
    return contextlib.nullcontext() if device is None or device.type == "cpu" else device


def with_arrays(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function on arrays as one on CPU tensors that share their memory (torch's ``wrap_numpy``)."""

    def on_tensors(*arguments: Any) -> Any:
        arrays = tree.map_tensors(lambda t: t.detach().resolve_conj().resolve_neg().numpy(), arguments)
        return tree.map_leaves(_to_tensor, function(*arrays))

    return on_tensors


def _to_tensor(value: Any) -> Any:
    if isinstance(value, Array):
        refuse_stale(value.tensor)
        return value.tensor
    if isinstance(value, np.ndarray):
        # torch cannot hold negative strides, which a reversed view has.
        return torch.from_numpy(value if all(s >= 0 for s in value.strides) else value.copy())
    return torch.as_tensor(value) if isinstance(value, np.generic | int | float | bool) else value


def _all_plain_cpu(arguments: Sequence[Any]) -> bool:
    tensors = tree.tensors(list(arguments))
    return all(type(t) in (torch.Tensor, torch.nn.Parameter) and t.device.type == "cpu" for t in tensors) and not any(
        is_functorch_tensor(t) or t.requires_grad for t in tensors
    )


def replace_globals(
    function: Callable[..., Any], replacement: dict[int, Any], *, in_a_module: bool = True
) -> Callable[..., Any]:
    """A copy of a function in which some global or closed-over objects are replaced.

    ``replacement`` maps ``id(object)`` to its replacement. Functions of the same file that the
    function calls are copied in the same way.

    Args:
        in_a_module: leave ``__name__`` in its globals, by which torch.compile of torch 2.11 finds the module's instead
            of the replaced ones.
    """
    return _replace(function, replacement, {}, in_a_module)  # type: ignore[no-any-return]


def _replace(value: Any, replacement: dict[int, Any], done: dict[int, Any], in_a_module: bool) -> Any:
    if id(value) in replacement:
        return replacement[id(value)]
    if id(value) in done:
        return done[id(value)]
    if not isinstance(value, types.FunctionType):
        return value
    scope = dict(value.__globals__)
    if not in_a_module:
        scope.pop("__name__", None)
    cells = tuple(types.CellType() for _ in value.__closure__ or ())
    copy = types.FunctionType(value.__code__, scope, value.__name__, value.__defaults__, cells or None)
    copy.__module__ = value.__module__
    done[id(value)] = copy  # before the cells are filled: a function inside a function may refer to itself
    for cell, original in zip(cells, value.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # empty: a name that is not assigned yet
            cell.cell_contents = _replace(original.cell_contents, replacement, done, in_a_module)
    copy.__kwdefaults__ = value.__kwdefaults__
    for name, held in value.__globals__.items():
        if id(held) in replacement:
            scope[name] = replacement[id(held)]
        elif isinstance(held, types.FunctionType) and held.__globals__ is value.__globals__:
            scope[name] = _replace(held, replacement, done, in_a_module)
    return copy


def contiguous_outputs(
    outputs: Any, signature: Signature, arguments: Sequence[Any], qualname: str
) -> tuple[torch.Tensor, ...]:
    """The reference's outputs made contiguous, and never aliases of an argument."""
    if outputs is None and not signature.returns:
        return ()
    listed = tuple(outputs) if isinstance(outputs, tuple | list) else (outputs,)
    is_counted = isinstance(outputs, tuple | list) if signature.returns_list else len(listed) == len(signature.returns)
    if not is_counted or not all(isinstance(o, torch.Tensor) for o in listed):
        actual = ", ".join(type(o).__name__ for o in listed)
        raise ContractError(
            f"{qualname}: the reference returned ({actual}), but its annotation promises "
            + ("a list of tensors" if signature.returns_list else f"{len(signature.returns)} tensor(s)"),
            fix="make the return annotation and the returned values agree",
        )
    return fresh_outputs(listed, arguments)


def fresh_outputs(outputs: Sequence[torch.Tensor], arguments: Any) -> tuple[torch.Tensor, ...]:
    """Tensors made contiguous, and copied if they share memory with an argument or with one another."""
    taken = set(map(memory_of, tree.tensors(arguments)))
    fresh: list[torch.Tensor] = []
    for output in outputs:
        own = output.contiguous()
        if memory_of(own) in taken:
            own = own.clone(memory_format=torch.contiguous_format)
        taken.add(memory_of(own))
        fresh.append(own)
    return tuple(fresh)
