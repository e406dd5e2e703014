"""What the operators of this folder share: their dtypes, and rows as kernels read them."""

from typing import TYPE_CHECKING, Annotated

import torch
from jaxtyping import AbstractDtype
from torch import Tensor

import opwright as ow

__all__ = [
    "CPP_TYPE", "MOST_COLUMNS", "Eps", "Floats", "cuda_block", "cuda_width", "float32_like", "is_whole", "row_launch",
    "rows_of",
]  # fmt: skip

# A kernel keeps a row of this length in registers. Models have rows of up to 16,384 numbers.
MOST_COLUMNS = 16_384


if TYPE_CHECKING:
    from jaxtyping import Float as Floats
else:

    class Floats(AbstractDtype):
        """The dtypes that models are trained in. Sums are in float32."""

        dtypes = ["float16", "bfloat16", "float32"]  # noqa: RUF012  # as jaxtyping reads it


Eps = Annotated[float, ow.values(1e-6, 1e-3)]


def is_whole(x: Tensor, *_: object) -> bool:
    """Whether a kernel can keep a row."""
    return x.shape[-1] <= MOST_COLUMNS


def rows_of(x: Tensor) -> Tensor:
    """A matrix with rows without gaps: a view where that is possible."""
    x = x.reshape(-1, x.shape[-1])
    return x if x.stride(-1) == 1 else x.contiguous()


def float32_like(x: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=x.device)


def row_launch(n: int) -> dict[str, int]:
    """Triton's options for a block that has a row of n, and threads with 16 to 32 elements of it each."""
    block = max(1 << max(int(n) - 1, 0).bit_length(), 128)
    return {"BLOCK": block, "num_warps": min(max(block // 512, 1), 16)}


# -- for kernels in CUDA C++ ---------------------------------------------------------------------------------------

CPP_TYPE = {torch.float32: "float", torch.float16: "__half", torch.bfloat16: "__nv_bfloat16"}


def cuda_width(n: int, *rows: Tensor) -> int:
    """How many neighbours of a row of n a thread loads at once: 16 bytes, where every row begins at such an address."""
    size = rows[0].element_size()
    aligned = all(t.data_ptr() % 16 == 0 and (t.stride(0) * size % 16 == 0 or len(t) == 1) for t in rows)
    return 16 // size if aligned and n * size % 16 == 0 else 1


def cuda_block(rows: int, n: int, width: int) -> tuple[int, int, tuple[int, int]]:
    """For ``Row`` of rows.cuh: its rounds, the grid and the block. Short rows have a warp each, four in a block."""
    rounds = 4 if width > 1 else 16
    threads = -(-n // (rounds * width * 32)) * 32
    in_block = 4 if threads == 32 else 1
    return rounds, -(-rows // in_block), (threads, in_block)
