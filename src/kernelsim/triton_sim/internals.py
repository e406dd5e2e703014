"""Wrappers of Triton's private APIs. Imports Triton only when one is used."""

from __future__ import annotations

import contextlib
import contextvars
import copy
import functools
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kernelsim.errors import NotSimulatedError
from kernelsim.host import Host

__all__ = ["NAMES", "ast_source", "autotuners_measure", "launches_go_to", "named", "parsed_options", "ttir"]

# The private names by key, as a host is asked for them. They are the same in Triton 3.4 to 3.9.
NAMES = {
    "triton_target": "triton.backends.compiler.GPUTarget",
    "triton_source": "triton.compiler.ASTSource",
    "triton_ir": "triton._C.libtriton.ir",
    "triton_passes": "triton._C.libtriton.passes",  # block pointers in Triton 3.4 to 3.7; later ones need no pass
    "triton_make_backend": "triton.compiler.compiler.make_backend",
    "triton_jit_function": "triton.runtime.jit.JITFunction",
    "triton_autotuner": "triton.runtime.Autotuner",
}


def named(key: str) -> Any | None:
    """The object with a private name; None if it is missing."""
    module, rest = NAMES[key].split(".")[0], NAMES[key].split(".")[1:]
    try:
        found: Any = importlib.import_module(module)
        for part in rest:
            module = f"{module}.{part}"
            found = getattr(found, part) if hasattr(found, part) else importlib.import_module(module)
    except ImportError:
        return None
    return found


def ast_source(host: Host) -> Any | None:
    """The class of the source that Triton compiles; None if this Triton lacks it, or a part of what compiles it."""
    keys = ("triton_source", "triton_target", "triton_ir", "triton_make_backend")
    found = [host.triton_name(key) for key in keys]
    return found[0] if all(one is not None for one in found) else None


def _backend(options: Mapping[str, Any], host: Host) -> tuple[Any, Any, Any]:
    """The target, Triton's backend for it, and the options as that takes them."""
    make_backend: Any = host.triton_name("triton_make_backend")
    target_of: Any = host.triton_name("triton_target")
    assert None not in (make_backend, target_of)  # see ast_source
    target = target_of("cuda", 90, 32)
    backend = make_backend(target)
    return target, backend, backend.parse_options(dict(options))


def parsed_options(options: Mapping[str, Any], host: Host) -> str:
    """The options that decide what the frontend makes, as text; "" if there is no such Triton."""
    return "" if ast_source(host) is None else repr(_backend(options, host)[2])


def ttir(source: Any, options: Mapping[str, Any], host: Host) -> str:
    """The text, with locations, of what Triton's frontend makes of an ``ast_source`` for an H100, which need not be
    present."""
    ir: Any = host.triton_name("triton_ir")
    target, backend, parsed = _backend(options, host)
    assert ir is not None  # see ast_source
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    arguments = (parsed, backend.get_codegen_implementation(parsed), backend.get_module_map(), context)
    takes_target = "target" in inspect.signature(source.make_ir).parameters  # since Triton 3.5
    module = source.make_ir(*((target,) if takes_target else ()), *arguments)
    return _with_plain_pointers(ir, module, host)


def _with_plain_pointers(ir: Any, module: Any, host: Host) -> str:
    """The module's text, with block pointers as arithmetic on pointers and masks. Triton's frontend writes them so
    since 3.8; before, a pass of its compiler did, which sees one function."""
    text, passes = str(module), host.triton_name("triton_passes")
    if passes is None or "tt.make_tensor_ptr" not in text or not hasattr(passes.ttir, "add_rewrite_tensor_pointer"):
        return text
    manager = ir.pass_manager(module.context)
    passes.common.add_inliner(manager)
    passes.ttir.add_rewrite_tensor_pointer(manager)
    takes_name = "arg1" in (manager.run.__doc__ or "")  # since Triton 3.5
    manager.run(module, *(("block_pointers",) if takes_name else ()))
    return str(module)


# What launches jitted functions in this thread, in place of Triton.
_launch: contextvars.ContextVar[Callable[..., bool] | None] = contextvars.ContextVar("kernelsim_launch", default=None)


@contextlib.contextmanager
def launches_go_to(launch: Callable[..., bool], host: Host) -> Iterator[None]:
    """A block in which this thread's jitted functions are launched by ``launch(function, grid, arguments, keywords)``,
    unless it returns False; and in which autotuners take their first configuration, without measuring unless they are
    asked to (``autotuners_measure``).

    Raises:
        NotSimulatedError: this Triton has no launcher that can be replaced.
    """
    function_class, autotuner = host.triton_name("triton_jit_function"), host.triton_name("triton_autotuner")
    if function_class is None or autotuner is None:
        raise NotSimulatedError("this Triton has no launcher that can be replaced", fix="use Triton 3.4 to 3.9")
    _replace_launchers(function_class, autotuner)
    token = _launch.set(launch)
    try:
        yield
    finally:
        _launch.reset(token)


_measuring: contextvars.ContextVar[bool] = contextvars.ContextVar("kernelsim_measuring", default=False)


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
def _replace_launchers(function_class: Any, autotuner: Any) -> None:
    """Let Triton's classes ask ``_launch`` first. It stays so, as another thread may be in such a block."""
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
