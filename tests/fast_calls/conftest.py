"""Fast calls need their extension, which is built here once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from opwright.backends.build_tools import build_tools
from opwright.fast_path import switch
from opwright.fast_path.extension import FastCalls, fast_calls_extension
from tests.backends.conftest import kernels, native

__all__ = ["extension", "kernels", "native"]


@pytest.fixture(autouse=True)
def extension() -> Iterator[FastCalls]:
    fast_calls_extension.load(build_tools(), build=True)
    if fast_calls_extension.loaded is None:
        pytest.skip("the extension of fast calls needs a C++ compiler and Python's headers")
    before = switch.mode()
    switch.set_mode("1")
    yield fast_calls_extension.loaded
    switch.set_mode(before)
    fast_calls_extension.loaded.verify()
