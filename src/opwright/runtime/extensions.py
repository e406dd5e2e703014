"""The native extensions that calls use, loaded at once where a process is to time or watch calls."""

from __future__ import annotations

from opwright.backends.build_tools import build_tools
from opwright.backends.native.graph_step import graph_steps
from opwright.backends.native.tracked_call import tracked_calls
from opwright.runtime.call.native_guards import guarded_calls

__all__ = ["load_extensions"]


def load_extensions(*, build: bool) -> None:
    """Load them now.

    Args:
        build: build what calls of operators use and is not in the cache; what is not built now, this process does
            without, so that no compiler runs beside what it times or watches.
    """
    guarded_calls.load(build_tools(), build=build)
    tracked_calls.load(build_tools(), build=build)
    graph_steps.load(build_tools(), build=False)  # no call of an operator replays a graph
