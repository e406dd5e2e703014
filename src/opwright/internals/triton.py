"""Wrappers of Triton's private APIs. Imports Triton only when one is used."""

from __future__ import annotations

import contextlib
import contextvars
import copy
import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from opwright.errors import NotSimulatedError
from opwright.internals.lookup import find

__all__ = [
    "LaunchOf", "Stages", "autotuners_measure", "is_gluon", "launches_go_to", "launches_made_by", "nvidia_driver",
    "stages", "time_by_default", "ttir",
]  # fmt: skip


class Stages(NamedTuple):
    """The classes that compile a jitted function for a target GPU."""

    GPUTarget: Any
    ASTSource: Any


def stages(of: Any = None) -> Stages | None:
    """The classes for a jitted function, by default for one in Triton's own language; None if this Triton lacks one."""
    target, source = find("triton_target"), find("gluon_source" if is_gluon(of) else "triton_source")
    return None if target is None or source is None else Stages(target, source)


def is_gluon(function: Any) -> bool:
    """Whether a jitted function is in Gluon, Triton's language of layouts."""
    says = getattr(function, "is_gluon", None)
    return says is not None and bool(says())


def nvidia_driver() -> Any | None:
    """The class of Triton's driver for NVIDIA GPUs; None if this Triton lacks it."""
    backends = find("triton_backends")
    return None if backends is None or "nvidia" not in backends else backends["nvidia"].driver


def time_by_default(kernel: Any, timer: Callable[..., list[float]]) -> None:
    """Set the timer of an autotuned kernel, unless the kernel has one."""
    if find("autotuner_timer") is not None and getattr(kernel, "_do_bench", timer) is None:
        kernel._do_bench = timer


def ttir(source: Any, options: Mapping[str, Any]) -> str | None:
    """The text, with locations, of what Triton's frontend makes of an ``ASTSource`` for an H100, which need not be
    present; None if this Triton lacks a part of it."""
    ir, make_backend, parts = find("triton_ir"), find("triton_make_backend"), stages()
    if ir is None or make_backend is None or parts is None:
        return None
    target = parts.GPUTarget("cuda", 90, 32)
    backend = make_backend(target)
    parsed = backend.parse_options(dict(options))
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    arguments = (parsed, backend.get_codegen_implementation(parsed), backend.get_module_map(), context)
    takes_target = "target" in inspect.signature(source.make_ir).parameters  # since Triton 3.5
    module = source.make_ir(*((target,) if takes_target else ()), *arguments)
    return _with_plain_pointers(ir, module)


def _with_plain_pointers(ir: Any, module: Any) -> str:
    """The module's text, with block pointers as arithmetic on pointers and masks. Triton's frontend writes them so
    since 3.8; before, a pass of its compiler did, which sees one function."""
    text, passes = str(module), find("triton_passes")
    if passes is None or "tt.make_tensor_ptr" not in text or not hasattr(passes.ttir, "add_rewrite_tensor_pointer"):
        return text
    manager = ir.pass_manager(module.context)
    passes.common.add_inliner(manager)
    passes.ttir.add_rewrite_tensor_pointer(manager)
    takes_name = "arg1" in (manager.run.__doc__ or "")  # since Triton 3.5
    manager.run(module, *(("block_pointers",) if takes_name else ()))
    return str(module)


# What launches jitted functions in this thread, in place of Triton.
_launch: contextvars.ContextVar[Callable[..., bool] | None] = contextvars.ContextVar("opwright_launch", default=None)


@contextlib.contextmanager
def launches_go_to(launch: Callable[..., bool]) -> Iterator[None]:
    """A block in which this thread's jitted functions are launched by ``launch(function, grid, arguments, keywords)``,
    unless it returns False; and in which autotuners take their first configuration, without measuring unless they are
    asked to (``autotuners_measure``)."""
    _replace_launchers()
    token = _launch.set(launch)
    try:
        yield
    finally:
        _launch.reset(token)


_measuring: contextvars.ContextVar[bool] = contextvars.ContextVar("opwright_measuring", default=False)


@contextlib.contextmanager
def autotuners_measure() -> Iterator[None]:
    """A block in which autotuners whose launches go elsewhere launch each configuration once on the tensors that they
    get, as they do to measure them, before the launch that is asked for; in each call."""
    token = _measuring.set(True)
    try:
        yield
    finally:
        _measuring.reset(token)


def _without_a_clock(kernel_call: Callable[[], Any], quantiles: Any = None) -> list[float]:
    kernel_call()
    return [0.0, 0.0, 0.0]


@functools.cache
def _replace_launchers() -> None:
    """Let Triton's classes ask ``_launch`` first. It stays so, as another thread may be in such a block."""
    function_class, autotuner = find("triton_jit_function"), find("triton_autotuner")
    if function_class is None or autotuner is None:
        raise NotSimulatedError("this Triton has no launcher that can be replaced", fix="use Triton 3.4 to 3.9")
    run, tuned_run = function_class.run, autotuner.run

    @functools.wraps(run)
    def run_or_launch(self: Any, *args: Any, **keywords: Any) -> Any:
        launch = _launch.get()
        if launch is None or keywords.get("warmup") or "grid" not in keywords:
            return run(self, *args, **keywords)
        rest = {name: value for name, value in keywords.items() if name not in ("grid", "warmup")}
        return None if launch(self, keywords["grid"], args, rest) else run(self, *args, **keywords)

    @functools.wraps(tuned_run)
    def run_first(self: Any, *args: Any, **keywords: Any) -> Any:
        if _launch.get() is None:
            return tuned_run(self, *args, **keywords)
        first = copy.copy(self)  # other threads may use it at the same time
        if _measuring.get():
            first.cache, first.cache_results = {}, False
            vars(first)["do_bench"] = _without_a_clock  # in the place of what a cached property keeps
        elif len(self.configs) > 1:  # as Triton does before it measures
            first.nargs = dict(zip(self.arg_names, args, strict=False))
            first.configs = list(first.prune_configs(keywords))[:1] or self.configs[:1]
        result = tuned_run(first, *args, **keywords)
        self.best_config = first.best_config
        return result

    function_class.run, autotuner.run = run_or_launch, run_first


class LaunchOf(NamedTuple):
    """A launch of a jitted function: its arguments by position and by name, options included; ``run`` makes it, and
    returns the binary."""

    function: Any
    grid: Any
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    run: Callable[[], Any]


_watched = threading.Lock()
_watchers: dict[int, Callable[[LaunchOf], Any]] = {}


@contextlib.contextmanager
def launches_made_by(make: Callable[[LaunchOf], Any]) -> Iterator[None]:
    """A block in which ``make`` makes the launches of jitted functions of this thread. (Triton's own hooks get no
    arguments.) Triton's class is changed only while some thread is in such a block."""
    function_class = find("triton_jit_function")
    if function_class is None:
        yield
        return
    thread = threading.get_ident()
    with _watched:
        if not _watchers:
            function_class.run = _asking_watchers(function_class.run)
        _watchers[thread] = make
    try:
        yield
    finally:
        with _watched:
            del _watchers[thread]
            if not _watchers:
                function_class.run = function_class.run.__wrapped__


def _asking_watchers(run: Any) -> Any:
    @functools.wraps(run)
    def run_or_ask(self: Any, *args: Any, **keywords: Any) -> Any:
        make = _watchers.get(threading.get_ident())
        if make is None or keywords.get("warmup") or "grid" not in keywords:
            return run(self, *args, **keywords)
        rest = {name: value for name, value in keywords.items() if name not in ("grid", "warmup")}
        return make(LaunchOf(self, keywords["grid"], args, rest, lambda: run(self, *args, **keywords)))

    return run_or_ask
