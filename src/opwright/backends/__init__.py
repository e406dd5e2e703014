"""The backends of the languages in which kernels are written: a folder or a file each."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Iterator, Sequence

import torch

from opwright.backends.base import Backend, KernelSpec
from opwright.backends.build_tools import build_tools
from opwright.backends.check_hooks import CheckHooks
from opwright.backends.gpu.simulated_tensors import backwards_on_simulated
from opwright.backends.simulation import reading_only
from opwright.contract.contract import Contract
from opwright.languages import LANGUAGES
from opwright.target import Engine, Target, engines_here

__all__ = ["check_hooks", "get_backend", "import_all", "in_backward", "under_check"]


@functools.cache
def get_backend(name: str) -> Backend:
    """The backend called ``name``, which must be a key of ``LANGUAGES``."""
    module, _, attribute = LANGUAGES[name].backend.partition(":")
    path = f"opwright.backends.{module}" if name in LANGUAGES.own else module
    backend: Backend = getattr(importlib.import_module(path), attribute)()
    return backend


def import_all() -> None:
    """Import every backend, once, before processes are forked that need several of them."""
    for name in LANGUAGES:
        get_backend(name)


def check_hooks(spec: KernelSpec, contract: Contract, target: Target) -> CheckHooks:
    """What checks ask of a kernel's language."""
    return _hooks(spec.backend)(spec, contract, target)


@contextlib.contextmanager
def under_check(order: int = 1) -> Iterator[None]:
    """Enter what each language needs in a process that checks kernels (``CheckHooks.under_check``)."""
    with build_tools().cache.keeping_errors(), contextlib.ExitStack() as stack:
        for name in LANGUAGES:
            stack.enter_context(_hooks(name).under_check(order))
        stack.enter_context(reading_only(()))
        yield


@contextlib.contextmanager
def in_backward(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Enter what each language needs around a backward that may launch kernels (``CheckHooks.in_backward``)."""
    with contextlib.ExitStack() as stack:
        for name in LANGUAGES:
            stack.enter_context(_hooks(name).in_backward(tensors))
        if Engine.SIMULATOR in engines_here():
            stack.enter_context(backwards_on_simulated(tensors))
        stack.enter_context(reading_only(tensors))
        yield


def _hooks(name: str) -> type[CheckHooks]:
    return get_backend(name).check_hooks or CheckHooks
