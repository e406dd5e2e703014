"""What launches of attention share: sizes of tiles, and numbers that kernels compute with."""

import math

import torch

__all__ = ["NO_LIMIT", "TILES", "Offsets", "band", "factors", "new_like", "options", "tiles_of", "with_near_columns"]

LOG2_E = math.log2(math.e)
NO_LIMIT = 1 << 30

# Of each kernel, by the head dim: queries and keys of a tile, warps, and stages of loads. For 64 and 128, the fastest
# that ``benchmarks/attention.py --tune`` found on an H200.
TILES = {
    "forward": {64: (64, 64, 4, 3), 128: (128, 128, 8, 3), 256: (128, 64, 8, 2)},
    "of_queries": {64: (64, 64, 4, 3), 128: (64, 64, 4, 2), 256: (64, 32, 8, 2)},
    "of_keys": {64: (128, 64, 4, 2), 128: (32, 64, 4, 3), 256: (32, 64, 8, 2)},
}
# Of float32, whose products run without tensor cores, and of short sequences.
SMALL_TILE = (32, 32, 4, 2)

Offsets = tuple[torch.Tensor, torch.Tensor] | None


def new_like(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def with_near_columns(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def options(kernel: str, q: torch.Tensor, rows: int, softcap: float, packed: bool) -> tuple[dict[str, int], int]:
    """Triton's options for a kernel, and how many rows each of its programs has."""
    d = q.shape[-1]
    is_small = q.dtype == torch.float32 or rows <= SMALL_TILE[0]
    queries, keys, warps, stages = SMALL_TILE if is_small else TILES[kernel][max(d, 64)]
    caps = (1 + (q.dtype == torch.float32)) * (softcap > 0)  # float32 needs a more exact tanh
    found = {
        "D": d, "BQ": queries, "BK": keys, "CAPS": caps, "PACKED": packed,
        "num_warps": warps, "num_stages": stages,
    }  # fmt: skip
    return found, keys if kernel == "of_keys" else queries


def tiles_of(rows: int, block: int, sequences: int | None) -> int:
    """How many tiles rows have. Packed sequences share none; each but the last may leave one unfilled."""
    return -(-rows // block) if sequences is None else rows // block + sequences


def band(causal: bool, window: int) -> tuple[int, int]:
    """How far a query sees back and ahead."""
    far = window - 1 if window > 0 else NO_LIMIT
    return far, 0 if causal else far


def factors(q: torch.Tensor, softcap: float, scale: float | None) -> tuple[float, float, float]:
    """What is multiplied with a product before tanh and after it, and the scale."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if softcap > 0:
        return 2 * LOG2_E * scale / softcap, LOG2_E * softcap, scale
    return 0.0, LOG2_E * scale, scale
