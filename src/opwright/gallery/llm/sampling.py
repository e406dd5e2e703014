"""Sampling of tokens: top-k, top-p and min-p for each row, with its own seed, in Triton."""

from typing import Annotated

import torch
from jaxtyping import Float32, Int32, Int64
from torch import Tensor

import opwright as ow
from opwright.gallery.llm.floats import Floats

__all__ = ["sample"]


@ow.op("llm::sample", where="1 <= v < 2**24")
def sample(
    logits: Annotated[Floats[Tensor, "b v"], ow.values(finite=True)],
    seeds: Annotated[Int64[Tensor, " b"], ow.values(0, 2**40)],
    temperature: Annotated[Float32[Tensor, " b"], ow.values(0.3, 2)],
    top_k: Annotated[Int32[Tensor, " b"], ow.values(1, "v")],
    top_p: Annotated[Float32[Tensor, " b"], ow.values(0.1, 1)],
    min_p: Annotated[Float32[Tensor, " b"], ow.values(0, 0.3)],
) -> Int64[Tensor, " b"]:
    """A token for each row, with the probability of its share among the kept ones in ``softmax(logits / temperature)``.

    Kept are tokens that are among the ``top_k`` largest, of these tokens those above which the shares' sum is less than
    ``top_p`` (also the one that reaches it), and those with at least ``min_p`` times the largest share. Equal
    logits are kept or left out together. The same seed gives the same token, in every batch.
    """
    wide, v = logits.float(), logits.shape[1]
    scaled = (wide - wide.amax(1, keepdim=True)) / temperature[:, None]
    order = wide.sort(1, descending=True)
    shares = scaled.exp().gather(1, order.indices)
    shares = torch.where(order.values >= order.values.gather(1, top_k[:, None].long() - 1), shares, 0)
    above = shares.cumsum(1) - shares
    first = torch.searchsorted(-order.values, -wide.contiguous())  # of the tokens with this logit
    kept = wide >= order.values.gather(1, top_k[:, None].long() - 1)
    kept &= above.gather(1, first) < top_p[:, None] * shares.sum(1, keepdim=True)
    kept &= scaled.exp() >= min_p[:, None]
    random = uniform(seeds[:, None], torch.arange(v, device=logits.device)).clamp(min=1e-10)
    # The exponential time of a token is the first of all with the probability of its share.
    return torch.where(kept, scaled - torch.log(-torch.log(random)), -torch.inf).argmax(1)


def uniform(seed: Tensor, counter: Tensor) -> Tensor:
    """Numbers from 0 to 1 by Philox (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), as tl.rand
    has them. Words of 32 bits are kept in int64."""
    word = 0xFFFFFFFF
    low, high = seed & word, (seed >> 32) & word
    counters = [counter + 0 * seed, *(0 * (counter + seed) for _ in range(3))]
    for _ in range(10):
        first, second = counters[0] * 0xD2511F53, counters[2] * 0xCD9E8D57
        counters = [
            (second >> 32) & word ^ counters[1] ^ low, second & word, (first >> 32) & word ^ counters[3] ^ high,
            first & word,
        ]  # fmt: skip
        low, high = (low + 0x9E3779B9) & word, (high + 0xBB67AE85) & word
    signed = torch.where(counters[0] > 0x7FFFFFFF, word - counters[0], counters[0])
    return signed.float() * 4.6566127342e-10


sample.triton("kernels/sampling_triton.py", entry="sample")
sample.sizes(b=(1, 32, 256), v=(32_000, 128_256))
