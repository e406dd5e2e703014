"""The process that the workers of tests' checks are forked from: opwright's own, which has imported pytest as well.

Each worker imports the file of its operator: here a test file, which imports pytest for a quarter of a second.
"""

import runpy

import pytest  # noqa: F401

if __name__ == "__main__":
    runpy.run_module("opwright.workers", run_name="__main__")
