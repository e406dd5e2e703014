"""The native extensions that calls use: whether they are built, and loading them at once."""

from __future__ import annotations

import sys
import sysconfig

from opwright.backends.build_tools import build_tools
from opwright.backends.native.extension import TESTED_PYTHONS, is_tested_python
from opwright.backends.native.graph_step import graph_steps
from opwright.backends.native.tensor_access import python_headers
from opwright.fast_path.extension import fast_calls_extension
from opwright.fast_path.switch import Mode, mode
from opwright.results import Accepted, Probe, Refused

__all__ = ["load_extensions", "probe_fast_calls"]


def load_extensions(*, build: bool) -> None:
    """Load them now.

    Args:
        build: build what is not in the cache. This process does without what is not built now.
    """
    fast_calls_extension.load(build_tools(), build=build)
    graph_steps.load(build_tools(), build=build)


def probe_fast_calls() -> Probe:
    """Whether calls like earlier ones skip torch's dispatcher in processes like this one."""
    if not is_tested_python():
        version, tested = ".".join(map(str, sys.version_info[:2])), ", ".join(f"{a}.{b}" for a, b in TESTED_PYTHONS)
        without_lock = " without a global lock" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
        return Refused(f"they were not tested with Python {version}{without_lock}", f"use Python {tested}")
    if mode() is Mode.OFF:
        return Refused("OPWRIGHT_FAST_CALLS switches them off", "unset it")
    if build_tools().machine.cxx is None or python_headers() is None:
        return Refused("they need a C++ compiler and Python's headers", "install g++ and python3-dev")
    load_extensions(build=False)
    if fast_calls_extension.loaded is None:
        return Refused("their extension is not built for this torch and Python", "run `opwright doctor --build` once")
    return Accepted("built; OPWRIGHT_FAST_CALLS=verify makes each call both ways" if mode() is Mode.ON else "verified")
