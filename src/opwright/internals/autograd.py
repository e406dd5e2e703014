"""Runs an operator below autograd, and detects transforms."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from opwright.internals.dispatch import names_of, transforms_are_on
from opwright.internals.lookup import all_found, find

__all__ = [
    "HAS_AUTOGRAD_KEYS", "any_requires_grad", "below_autograd", "is_functionalize", "is_under_no_grad",
    "redispatch_below_autograd",
    "saved_tensors_hooks", "set_saved_tensors_hooks", "without_autocast", "without_enclosing_transforms",
]  # fmt: skip


def _skips_autograd(guard: Any) -> bool:
    x = torch.ones(1, device="cpu", requires_grad=True)
    with guard():
        return not (x + 1).requires_grad


def _detects_requires_grad(any_of: Any) -> bool:
    with torch.enable_grad():
        tracked = torch.ones(1, device="cpu", requires_grad=True)
        return any_of(1, tracked) is True and any_of(1, torch.ones(1, device="cpu")) is False


def _follow_autograd(keys: Any) -> bool:
    names = names_of(keys)
    return "CPU" in names and "AutogradCPU" not in names


_guard: Any = find("below_autograd", _skips_autograd)
_after_autograd: Any = find("after_autograd", _follow_autograd)
_transform_type: Any = find("transform_type", lambda kinds: kinds.Functionalize != kinds.Vmap)
_functorch_stack: Any = find("functorch_stack")
_pop_interpreters: Any = find("pop_interpreters")
# Whether any of the arguments requires a gradient; tensors in lists are not included.
any_requires_grad: Any = find("any_requires_grad", _detects_requires_grad)

_saved_tensors_hooks: Any = find("saved_tensors_hooks", lambda top: top(False) is None or len(top(False)) == 2)
_pop_saved_tensors_hooks: Any = find("pop_saved_tensors_hooks")

# Whether an operator can have an autograd.Function of its own for the dispatcher's keys. If not, it is registered with
# torch.library.register_autograd, through which torch.func cannot differentiate.
HAS_AUTOGRAD_KEYS = all_found(
    _guard, _after_autograd, any_requires_grad, _transform_type, _functorch_stack, _pop_interpreters,
)  # fmt: skip


def below_autograd() -> contextlib.AbstractContextManager[Any]:
    """A block in which autograd records nothing."""
    guard: contextlib.AbstractContextManager[Any] = torch.no_grad() if _guard is None else _guard()
    return guard


def redispatch_below_autograd(overload: Any, keyset: Any, args: Any, keywords: dict[str, Any]) -> Any:
    """Continue a call of an operator below its kernel for the key ``Autograd``."""
    with _guard():
        return overload.redispatch(keyset & _after_autograd, *args, **keywords)


def is_under_no_grad(function: Any) -> bool:
    """Whether a function is decorated with ``torch.no_grad()``. torch keeps the decorator's ``clone`` in the closure:
    if it ever keeps something else, the function counts as not decorated."""
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # the cell of a name that is defined later is empty
            if isinstance(getattr(cell.cell_contents, "__self__", None), torch.no_grad):
                return True
    return False


def is_functionalize() -> bool:
    """Whether the innermost transform is ``torch.func.functionalize``, which does not support ``autograd.Function``."""
    return transforms_are_on() and bool(_functorch_stack().key() == _transform_type.Functionalize)


def without_enclosing_transforms() -> contextlib.AbstractContextManager[Any]:
    """A block around a vmap rule's own vmap. torch leaves the transform on functorch's stack while its rule runs; this
    block removes it for the rule's own transform."""
    block: contextlib.AbstractContextManager[Any]
    block = contextlib.nullcontext() if _pop_interpreters is None else _pop_interpreters()
    return block


def without_autocast(device_type: str) -> contextlib.AbstractContextManager[Any]:
    """A block in which an operator's kernel for autocast is not called again."""
    if _exclude_guard is None:
        return torch.autocast(device_type, enabled=False)
    block: contextlib.AbstractContextManager[Any] = _exclude_guard(_autocast_keys[device_type])
    return block


def _leaves_autocast(guard: Any) -> bool:
    one = torch.ones(1, 1, device="cpu")
    with torch.autocast("cpu", torch.bfloat16), guard(_autocast_keys["cpu"]):
        return (one @ one).dtype == torch.float32


_key, _key_set = find("key"), find("key_set")
_autocast_keys = (
    {} if _key is None or _key_set is None else {"cpu": _key_set(_key.AutocastCPU), "cuda": _key_set(_key.AutocastCUDA)}
)
_exclude_guard: Any = find("exclude_guard", _leaves_autocast)


def saved_tensors_hooks() -> Any:
    """The functions that pack and unpack what autograd saves; None where none were set."""
    return None if _saved_tensors_hooks is None else _saved_tensors_hooks(False)


def set_saved_tensors_hooks(hooks: Any) -> None:
    """Remove hooks that were added to some."""
    while _pop_saved_tensors_hooks is not None and (now := saved_tensors_hooks()) is not None and now != hooks:
        _pop_saved_tensors_hooks()
