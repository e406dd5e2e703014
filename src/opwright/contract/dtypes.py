"""Dtypes by the short names that messages and records use."""

from __future__ import annotations

import torch

__all__ = ["is_floating", "short"]


def short(dtype: torch.dtype) -> str:
    """``torch.float32`` → ``float32``."""
    return str(dtype).removeprefix("torch.")


def is_floating(dtype: torch.dtype) -> bool:
    """Whether it holds floating-point or complex numbers."""
    return dtype.is_floating_point or dtype.is_complex
