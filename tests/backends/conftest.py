"""Fixtures for tests of several languages."""

from __future__ import annotations

import ctypes

import pytest
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.backends.build_tools import build_tools
from opwright.backends.native.native_call import NativeCalls, native_calls
from tests.backends.native.imitations import compiled


@pytest.fixture
def scale(namespace: str) -> ow.Op:
    @ow.op(f"{namespace}::scale")
    def scale(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Twice x."""
        return 2 * x

    return scale


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return ctypes.CDLL(str(compiled(tmp_path_factory.mktemp("kernels"))))


@pytest.fixture(scope="module")
def native() -> NativeCalls:
    made = native_calls(build_tools())
    assert made is not None
    return made
