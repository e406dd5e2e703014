"""Wrappers of private APIs of Dynamo, Inductor, fake and functional tensors."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from opwright import tree
from opwright.internals.lookup import all_found, find, name_of
from opwright.internals.slow_imports import DYNAMO

__all__ = [
    "DispatchMode",
    "FunctionalTracing",
    "InductorParts",
    "a_graph_is_traced",
    "as_fakes",
    "can_compile_graphs",
    "compile_graph",
    "device_switches",
    "export_is_tracing",
    "fake_tensors",
    "functional_tracing",
    "graph_break_reasons",
    "inductor_parts",
    "is_recompile_limit",
    "is_tracing_error",
    "only_shapes_are_wanted",
    "real_constants",
    "reset_compiled",
    "run_and_get_code",
    "set_by_imports",
    "settle_inductor_cache",
]  # fmt: skip


class _NoDispatchMode:
    """Replaces ``TorchDispatchMode`` if this torch has none; does nothing."""

    def __enter__(self) -> _NoDispatchMode:
        return self

    def __exit__(self, *_: object) -> None:
        return None


# The base class of modes that intercept every operation.
DispatchMode: Any = find("dispatch_mode") or _NoDispatchMode


@functools.cache
def _fake_mode() -> Any:
    """torch's mode of fake tensors, on the devices of this machine; None if torch has none.

    Where there is no GPU, torch's own mode puts a device guard for GPUs in place, which does nothing. It stays, and
    autograd then starts a thread for a device that does not exist: after a backward, no child of a fork can
    differentiate. An operator enters this mode when it is defined, and a definition must not have such an effect.
    """
    mode = find("fake_mode")
    return mode if mode is None else type("FakesOfThisMachine", (mode,), {"avoid_device_init": False})


@contextlib.contextmanager
def fake_tensors(*, data_dependent: bool = False) -> Iterator[Callable[[torch.Tensor], torch.Tensor]]:
    """A block in which new tensors have no memory; yields a function that makes a fake tensor from a real one.

    If torch has no fake tensors, they are on ``meta`` instead of on the real tensor's device.

    Args:
        data_dependent: sizes may depend on data; such a size is a symbol.
    """
    mode, shapes = _fake_mode(), find("shape_env") if data_dependent else None
    with _without_logged_failures():
        if mode is None:
            with torch.device("meta"):
                yield lambda tensor: tensor.to("meta")
        elif shapes is not None:
            with mode(shape_env=shapes(), allow_non_fake_inputs=True) as active:
                yield lambda tensor: active.from_tensor(tensor, static_shapes=True)
        else:
            with mode(allow_non_fake_inputs=True) as active:
                yield active.from_tensor


@contextlib.contextmanager
def _without_logged_failures() -> Iterator[None]:
    """A block in which torch does not print the traceback of each operation that fails on fake tensors. The exception
    says it to the caller, who may be asking whether sizes fit."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    logger.addFilter(_is_no_failure)
    try:
        yield
    finally:
        logger.removeFilter(_is_no_failure)


def _is_no_failure(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("failed while attempting to run meta")


@contextlib.contextmanager
def as_fakes(values: Any, *, data_dependent: bool = False) -> Iterator[Any]:
    """A block like ``fake_tensors``, with fakes of the tensors in some values: made in a fraction of the time, as none
    of them shares memory with another one, so that nothing is looked up."""
    mode, make = _fake_mode(), _maker_of_fakes()
    if data_dependent or mode is None or make is None:
        with fake_tensors(data_dependent=data_dependent) as as_fake:
            yield tree.map_tensors(as_fake, values)
    else:
        active = mode(allow_non_fake_inputs=True)
        fakes = tree.map_tensors(lambda t: _fake_alone(active, make, t), values)  # in the mode, they would be its own
        with active:
            yield fakes


@functools.cache
def _maker_of_fakes() -> Any:
    return find("fake_tensor", _keeps_layout)


def _fake_alone(mode: Any, make: Any, tensor: torch.Tensor) -> Any:
    """A fake of a tensor with its layout and the size of its storage."""
    is_plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided and not tensor.requires_grad
    if not is_plain or tensor.is_conj() or tensor.is_neg():
        return mode.from_tensor(tensor)
    storage = torch.UntypedStorage(tensor.untyped_storage().nbytes(), device="meta")
    like = torch.empty(0, dtype=tensor.dtype, device="meta")
    return make(mode, like.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride()), tensor.device)


def _keeps_layout(make: Any) -> bool:
    tensor, mode = torch.empty(3, 4, device="cpu")[1:, ::2], find("fake_mode")
    assert mode is not None  # as fakes are made in one
    fake = _fake_alone(mode(allow_non_fake_inputs=True), make, tensor)
    same = fake.shape == tensor.shape and fake.stride() == tensor.stride() and fake.device == tensor.device
    return bool(same and fake.storage_offset() == tensor.storage_offset())


def only_shapes_are_wanted() -> bool:
    """Whether fake tensors are the only mode: nothing traces, counts or places the operations that would run."""
    stack, fake = find("mode_stack"), find("fake_mode")
    return stack is not None and fake is not None and [type(mode) for mode in stack()] == [fake]


def a_graph_is_traced() -> bool:
    """Whether operations become nodes of a graph, as in what torch.compile's AOTAutograd hands to a compiler."""
    stack, proxies = find("mode_stack"), find("proxy_mode")
    return stack is not None and proxies is not None and any(isinstance(mode, proxies) for mode in stack())


@contextlib.contextmanager
def real_constants() -> Iterator[None]:
    """A block in which operations on fake tensors take real ones, too: those of a function, such as a table."""
    stack, fake = find("mode_stack"), find("fake_mode")
    modes = [m for m in stack() if isinstance(m, fake)] if stack is not None and fake is not None else []
    before = [mode.allow_non_fake_inputs for mode in modes]
    for mode in modes:
        mode.allow_non_fake_inputs = True
    try:
        yield
    finally:
        for mode, allowed in zip(modes, before, strict=True):
            mode.allow_non_fake_inputs = allowed


# -- torch.compile: errors, reasons, generated code ---------------------------------------------------------------


class _NeverRaised(Exception):  # replaces an exception class that this torch does not have
    pass


def _errors() -> Any:
    return find("dynamo_errors")


def is_tracing_error(error: Exception) -> bool:
    """Whether the error comes from torch.compile's tracer."""
    kinds = [getattr(_errors(), name, _NeverRaised) for name in ("Unsupported", "UserError", "TorchRuntimeError")]
    return isinstance(error, tuple(kinds))


def is_recompile_limit(error: Exception) -> bool:
    """Whether torch.compile has reached its limit of recompilations."""
    return isinstance(error, getattr(_errors(), "FailOnRecompileLimitHit", _NeverRaised))


def graph_break_reasons() -> Counter[str]:
    """The number of graph breaks in this process so far, by torch's reason."""
    counters = find("dynamo_counters")
    return Counter() if counters is None else Counter(counters["graph_break"])


def reset_compiled() -> None:
    """Reset torch.compile's caches in this process, if it was used."""
    if DYNAMO in sys.modules:
        torch.compiler.reset()


def can_compile_graphs() -> bool:
    """Whether a traced graph of NumPy calls can be compiled."""
    return all_found(find("compile_fx"), find("numpy"))


def compile_graph(graph: torch.fx.GraphModule, inputs: Any) -> Any:
    """Compile a graph to C++ or Triton with Inductor."""
    return find("compile_fx")(graph, inputs)  # type: ignore[misc]  # called after can_compile_graphs


def settle_inductor_cache() -> None:
    """Let Inductor's cache stay where it is, whatever becomes of TMPDIR."""
    cache = find("inductor_cache")
    if cache is not None:
        cache()  # sets TORCHINDUCTOR_CACHE_DIR


def set_by_imports() -> dict[str, str]:
    """The environment variables that importing torch's compiler sets where they are not set."""
    default = find("inductor_cache_default")
    return {} if default is None else {"TORCHINDUCTOR_CACHE_DIR": os.path.abspath(default())}


def run_and_get_code(function: Callable[[], Any]) -> list[str] | None:
    """The texts that Inductor generates during a call; None if this torch does not return them."""
    run = find("code_of_run")
    return None if run is None else list(run(function)[1])


class InductorParts(NamedTuple):
    """The parts of Inductor for code generation without the target GPU."""

    compile_fx: Any
    compile_fx_inner: Any
    config: Any
    GraphLowering: Any
    CudaInterface: Any
    triton_facts: Any
    precompile: Any


def inductor_parts() -> InductorParts | None:
    """All parts; None if this torch lacks one."""
    keys = (
        "compile_fx", "inner_compile", "inductor_config", "graph_lowering", "cuda_interface", "triton_facts",
        "precompile",
    )  # fmt: skip
    found = [find(key) for key in keys]
    return InductorParts(*found) if all_found(*found) else None


def device_switches() -> list[str]:
    """The names in ``torch.cuda`` with which Inductor switches between GPUs."""
    return [name_of(key) for key in ("exchange_device", "maybe_exchange_device") if find(key) is not None]


class FunctionalTracing(NamedTuple):
    """How AOTAutograd calls an operator: the mode, and the tensor types that are not user subclasses."""

    mode: Any
    plain_types: tuple[Any, ...]


def functional_tracing() -> FunctionalTracing | None:
    """The mode and types; None if torch.compile cannot trace into kernels."""
    mode, functional, fake = map(find, ("functional_mode", "functional_tensor", "fake_tensor"))
    if not all_found(mode, functional, fake):
        return None
    return FunctionalTracing(mode, (fake, functional, torch.Tensor, torch.nn.Parameter))


def export_is_tracing() -> bool:
    """Whether export is tracing, which keeps operators opaque; True if that is not known."""
    is_on = find("triton_ops_opaque")  # looked up only while tracing: it imports half of torch.compile
    return is_on is None or bool(is_on())
