"""Dynamo, Inductor, fake and functional tensors, as far as opwright looks into them."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from opwright.internals.lookup import all_found, find, name_of
from opwright.internals.names import DYNAMO

__all__ = [
    "DispatchMode", "FunctionalTracing", "InductorParts", "can_compile_graphs", "compile_graph", "device_switches",
    "export_is_tracing", "fake_tensors", "forget_compiled", "functional_tracing", "graph_break_reasons",
    "inductor_parts", "is_recompile_limit", "is_tracing_error", "run_and_get_code",
]  # fmt: skip


class _NoDispatchMode:
    """In the place of ``TorchDispatchMode`` where this torch has none: sees nothing."""

    def __enter__(self) -> _NoDispatchMode:
        return self

    def __exit__(self, *_: object) -> None:
        return None


# The base of modes that see every operation.
DispatchMode: Any = find("dispatch_mode") or _NoDispatchMode


@contextlib.contextmanager
def fake_tensors() -> Iterator[Callable[[torch.Tensor], torch.Tensor]]:
    """A block in which new tensors have no memory; gives a function that makes such a one like a real one.

    Where torch has no fake tensors, they are on ``meta`` instead of on the real one's device.
    """
    mode = find("fake_mode")
    if mode is None:
        with torch.device("meta"):
            yield lambda tensor: tensor.to("meta")
    else:
        with mode(allow_non_fake_inputs=True) as active:
            yield active.from_tensor


# -- torch.compile: errors, reasons, generated code ---------------------------------------------------------------


class _NeverRaised(Exception):  # stands for a class that this torch does not have
    pass


def _errors() -> Any:
    return find("dynamo_errors")


def is_tracing_error(error: Exception) -> bool:
    """Whether torch.compile's tracer could not follow something."""
    kinds = [getattr(_errors(), name, _NeverRaised) for name in ("Unsupported", "UserError", "TorchRuntimeError")]
    return isinstance(error, tuple(kinds))


def is_recompile_limit(error: Exception) -> bool:
    """Whether torch.compile has compiled something too often."""
    return isinstance(error, getattr(_errors(), "FailOnRecompileLimitHit", _NeverRaised))


def graph_break_reasons() -> Counter[str]:
    """How often the tracer has stopped in this process so far, by the reason that torch gave."""
    counters = find("dynamo_counters")
    return Counter() if counters is None else Counter(counters["graph_break"])


def forget_compiled() -> None:
    """Drop what torch.compile made in this process, if it made anything."""
    if DYNAMO in sys.modules:
        torch.compiler.reset()


def can_compile_graphs() -> bool:
    """Whether a traced graph of NumPy calls can be made into code."""
    return all_found(find("compile_fx"), find("numpy"))


def compile_graph(graph: torch.fx.GraphModule, inputs: Any) -> Any:
    """C++ or Triton from a graph, by Inductor."""
    return find("compile_fx")(graph, inputs)  # type: ignore[misc]  # asked for after can_compile_graphs


def run_and_get_code(function: Callable[[], Any]) -> list[str] | None:
    """The texts that Inductor generates during a call; None where torch does not give them out."""
    run = find("code_of_run")
    return None if run is None else list(run(function)[1])


class InductorParts(NamedTuple):
    """What code generation for a GPU that is not here needs of Inductor."""

    compile_fx: Any
    compile_fx_inner: Any
    config: Any
    GraphLowering: Any
    CudaInterface: Any
    triton_facts: Any
    precompile: Any


def inductor_parts() -> InductorParts | None:
    """All of them; None if this torch lacks one."""
    keys = (
        "compile_fx", "inner_compile", "inductor_config", "graph_lowering", "cuda_interface", "triton_facts",
        "precompile",
    )  # fmt: skip
    found = [find(key) for key in keys]
    return InductorParts(*found) if all_found(*found) else None


def device_switches() -> list[str]:
    """The names in ``torch.cuda`` by which Inductor goes to another GPU and back."""
    return [name_of(key) for key in ("exchange_device", "maybe_exchange_device") if find(key) is not None]


class FunctionalTracing(NamedTuple):
    """Where AOTAutograd meets an operator: the mode, and the types of tensors that are no subclass."""

    mode: Any
    plain_types: tuple[Any, ...]


def functional_tracing() -> FunctionalTracing | None:
    """None where torch.compile cannot be shown the inside of kernels."""
    mode, functional, fake = map(find, ("functional_mode", "functional_tensor", "fake_tensor"))
    if not all_found(mode, functional, fake):
        return None
    return FunctionalTracing(mode, (fake, functional, torch.Tensor, torch.nn.Parameter))


def export_is_tracing() -> bool:
    """Whether it is export that traces, which keeps operators opaque; True where that cannot be told."""
    is_on = find("triton_ops_opaque")  # looked for while something traces: it imports half of torch.compile
    return is_on is None or bool(is_on())
