"""What calls need of native code: extensions, and loading them at once; and the folders where compilers keep files."""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig

from opwright.backends.build_tools import build_tools
from opwright.backends.native.extension import TESTED_PYTHONS, is_tested_python
from opwright.backends.native.graph_step import graph_steps
from opwright.backends.native.tensor_access import python_headers
from opwright.fast_path.extension import fast_calls_extension
from opwright.fast_path.switch import Mode, mode
from opwright.internals.compiler import set_by_imports
from opwright.results import Accepted, Probe, Refused

__all__ = ["compiler_caches", "load_extensions", "probe_fast_calls"]

# The variables that name folders of compilers, and the folders in opwright's cache for those that are not set: their
# own defaults are in the user's home.
_CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton", "CUDA_CACHE_PATH": "cuda"}


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


def compiler_caches() -> list[str]:
    """The folders in which this process's compilers keep what they have built: opwright's, and theirs. They are made,
    as far as possible, because only a folder that exists can be made writable for a confined process."""
    root = build_tools().cache.root
    for variable, folder in _CACHES.items():
        os.environ.setdefault(variable, str(root / folder))
    # Inductor keeps precompiled headers in its default folder, wherever its cache is.
    folders = [str(root), *(os.environ[variable] for variable in _CACHES), *set_by_imports().values()]
    for each in folders:
        with contextlib.suppress(OSError):  # it cannot be used, as compilers say
            os.makedirs(each, mode=0o700, exist_ok=True)
    return folders
