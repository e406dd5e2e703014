"""Wrappers of Triton's private APIs. Imports Triton only when one is used."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from opwright.internals.lookup import find

__all__ = [
    "LaunchOf", "Stages", "is_gluon", "launches_made_by", "nvidia_driver", "stages", "time_by_default",
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


class LaunchOf(NamedTuple):
    """A launch of a jitted function: its arguments by position and by name, options included; ``run`` makes it with
    such arguments, and returns the binary."""

    function: Any
    grid: Any
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    run: Callable[[tuple[Any, ...], Mapping[str, Any]], Any]


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
        others = {name: keywords[name] for name in ("grid", "warmup") if name in keywords}
        return make(LaunchOf(self, keywords["grid"], args, rest, lambda args, rest: run(self, *args, **rest, **others)))

    return run_or_ask
