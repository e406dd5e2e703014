"""The on-disk cache of compiled kernels, which threads, processes and runs share."""

from __future__ import annotations

from opwright.cache.artifact import ArtifactKey
from opwright.cache.folders import FULL_DISK, CacheFallbackWarning
from opwright.cache.store import ArtifactCache, Supplier, Turn
from opwright.cache.transfer import pack, unpack

__all__ = [
    "FULL_DISK", "ArtifactCache", "ArtifactKey", "CacheFallbackWarning", "Supplier", "Turn", "pack", "unpack",
]  # fmt: skip
