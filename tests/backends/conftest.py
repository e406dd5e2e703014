"""What tests of several languages share."""

from __future__ import annotations

import pytest
from jaxtyping import Float
from torch import Tensor

import opwright as ow


@pytest.fixture
def scale(namespace: str) -> ow.Op:
    @ow.op(f"{namespace}::scale")
    def scale(x: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
        """Twice x."""
        return 2 * x

    return scale
