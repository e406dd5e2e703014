"""The process that uses the GPU once, before a kernel does: it waits for what the driver does only the first time."""

from __future__ import annotations

import contextlib

import torch

__all__ = ["main"]


def main() -> None:
    """Use the first GPU, if there is one."""
    with contextlib.suppress(Exception):  # the first kernel reports what is wrong
        if torch.cuda.is_available():
            torch.empty(1, device="cuda")
            torch.cuda.synchronize()
