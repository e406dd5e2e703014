"""The fast door: may an eager call go straight to a kernel, past torch's dispatcher?

A Python operator costs several microseconds on its way through the dispatcher, as much as a small
kernel itself. Nothing on that way matters for a plain call: no gradient, no torch.compile, no mode, no
functorch transform, no tensor subclass, no autocast, no lazy conjugate, no profiler. All of that shows in a few
integers: the dispatch keys of the tensors and the thread's key sets. (The idea of comparing key sets
whole is ours; what the keys mean is in c10/core/DispatchKey.h.)
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

__all__ = ["as_from_outside", "conjugates_are_ignored", "is_plain_call", "with_lazy_conjugates"]

_C = torch._C
_PLAIN_BACKENDS = frozenset({"CPU", "CUDA"})
_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
_PLAIN_FUNCTIONALITY = frozenset({"ADInplaceOrView", "AutogradCPU", "AutogradCUDA", "AutocastCPU", "AutocastCUDA"})


def is_plain_call(arguments: Sequence[Any], *, recorded: bool = False) -> bool:
    """Whether nothing that the dispatcher would do matters for these arguments, right now.

    Args:
        recorded: nothing but recording the call for its gradient.
    """
    include, exclude = _C._dispatch_tls_local_include_set(), _C._dispatch_tls_local_exclude_set()
    if (
        not _is_plain_thread(include.raw_repr(), exclude.raw_repr())
        or forward_ad._current_level >= 0
        or _C._is_torch_function_mode_enabled()
        or _C._autograd._profiler_enabled()
    ):
        return False
    grad = _C.is_grad_enabled()
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            if (
                type(argument) not in _PLAIN_TYPES  # a subclass may listen to __torch_function__, which no key shows
                or not _is_plain(_C._dispatch_keys(argument).raw_repr())
                or (grad and argument.requires_grad and not recorded)
            ):
                return False
        elif isinstance(argument, list | tuple) and not is_plain_call(argument, recorded=recorded):
            return False
    return True


def as_from_outside() -> Any:
    """A context in which torch calls behave as at the top of a Python program.

    Inside an operator's rule the dispatcher has already switched off the keys that it passed, autograd and
    functorch among them; a rule that differentiates or vmaps needs them again. Enclosing functorch
    transforms stay in force.
    """
    include, exclude = _default_key_sets()[0]
    if _C._functorch.peek_interpreter_stack() is not None:
        for key in ("FuncTorchDynamicLayerFrontMode", "FuncTorchDynamicLayerBackMode"):
            include = include.add(getattr(_C.DispatchKey, key))
    return _C._ForceDispatchKeyGuard(include, exclude)


def conjugates_are_ignored() -> bool:
    """Whether arithmetic on a lazy conjugate (``x.conj()``) would forget the conjugate, right now.

    torch.compile's runtime calls operators with the keys switched off that resolve it (torch 2.13 and 2.15;
    torch's own ``custom_op`` then gives wrong values).
    """
    return bool(_C._dispatch_tls_is_dispatch_key_excluded(_C.DispatchKey.Conjugate))


def with_lazy_conjugates() -> Any:
    """A context in which ``x.conj()`` and ``x.imag`` mean what they say."""
    include, exclude = _C._dispatch_tls_local_include_set(), _C._dispatch_tls_local_exclude_set()
    for key in (_C.DispatchKey.Conjugate, _C.DispatchKey.Negative):
        exclude = exclude.remove(key)
    return _C._ForceDispatchKeyGuard(include, exclude)


@functools.cache
def _is_plain(raw_keys: int) -> bool:
    names = _names(raw_keys)
    return bool(names & _PLAIN_BACKENDS) and names <= _PLAIN_BACKENDS | _PLAIN_FUNCTIONALITY


def _names(raw_keys: int) -> frozenset[str]:
    """Of the keys in a set: torch gives Python no other way to all of them."""
    shown = str(_C.DispatchKeySet.from_raw_repr(raw_keys)).removeprefix("DispatchKeySet(").rstrip(")")
    return frozenset(name.strip() for name in shown.split(","))


@functools.cache
def _default_key_sets() -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """The included and excluded dispatch keys of a thread that has done nothing yet, and the same of one
    that has only entered inference mode."""
    found: list[tuple[Any, Any]] = []

    def look() -> None:
        found.append((_C._dispatch_tls_local_include_set(), _C._dispatch_tls_local_exclude_set()))
        with torch.inference_mode():
            found.append((_C._dispatch_tls_local_include_set(), _C._dispatch_tls_local_exclude_set()))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return found[0], found[1]


@functools.cache
def _is_plain_thread(include: int, exclude: int) -> bool:
    """Whether a thread that includes and excludes these keys is like one that has done nothing yet."""
    # Autograd's threads for GPUs exclude named dims besides (torch 2.11); a tensor that has some is not plain anyway.
    thread = (_names(include), _names(exclude) - {"Named"})
    return thread in [(_names(i.raw_repr()), _names(e.raw_repr()) - {"Named"}) for i, e in _default_key_sets()]
