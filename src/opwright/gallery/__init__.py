"""The gallery: operators to run, to read and to copy.

Each is a folder: ``__init__.py`` has the operator's reference and attaches its kernels, which are in
the same folder, one file for each language. They use only opwright's public interface.

>>> import importlib
>>> from opwright.gallery import OPERATORS
>>> for name in OPERATORS:
...     print(name, "-", importlib.import_module(name).__doc__.splitlines()[0])

``OPERATORS`` has the modules' names; this module imports none of them. Importing one needs neither
Triton nor a compiler: kernels are built when they are first used, and skipped where they cannot run.
"""

from __future__ import annotations

__all__ = ["OPERATORS"]

OPERATORS = (
    "opwright.gallery.add",
    "opwright.gallery.trig",
    "opwright.gallery.kmeans",
    "opwright.gallery.outer_sum",
    "opwright.gallery.conv1d",
    "opwright.gallery.lltm",
)
