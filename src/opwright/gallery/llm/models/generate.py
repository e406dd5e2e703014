"""Generation with a cache in pages: prompts of any lengths, without padding."""

from collections.abc import Sequence

import torch
from torch import Tensor

from opwright.gallery.llm.models.attend import HEAD_DIMS, Pages
from opwright.gallery.llm.sampling import sample

__all__ = ["generate"]


@torch.no_grad()
def generate(
    model,
    prompts: Sequence[Tensor],
    max_new_tokens: int,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 0,
    eos_token_id: int | None = None,
) -> list[Tensor]:
    """Continue prompts with a model of ``transformers`` that ``patch`` has changed.

    Args:
        prompts: token ids, a tensor of one dim for each sequence.
        temperature: 0 takes the likeliest token; others sample from those that ``sample`` keeps.
        seed: the same one gives the same tokens for the same prompts.
        eos_token_id: ends a sequence.

    Returns:
        Each prompt with its new tokens.

    Raises:
        ValueError: the model is not patched, its heads have another size than the kernels know, a prompt is empty, or a
            number is out of its range.
    """
    config, device = model.config, model.device
    _refuse(model, prompts)
    _refuse_numbers(max_new_tokens, temperature, top_k, top_p, min_p)
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    pages = Pages(config, [len(p) + max_new_tokens for p in prompts], model.dtype, device)
    rows = torch.arange(len(prompts), device=device)
    settings = _settings(len(prompts), config.vocab_size, device, temperature, top_k, top_p, min_p)
    found = torch.zeros(len(prompts), max_new_tokens, dtype=torch.int64, device=device)
    logits = torch.cat([_prefill(model, pages, rows[i : i + 1], p.to(device)) for i, p in enumerate(prompts)])
    ended = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    counts = torch.full_like(lengths, max_new_tokens)
    for step in range(max_new_tokens):
        if temperature == 0:
            tokens = logits.argmax(1)
        else:
            tokens = sample(logits, (seed * max_new_tokens + step) * len(prompts) + rows, *settings)
        found[:, step] = tokens
        if eos_token_id is not None:
            counts = torch.where(~ended & (tokens == eos_token_id), step + 1, counts)
            ended |= tokens == eos_token_id
            if bool(ended.all()):
                break
        if step + 1 < max_new_tokens:
            logits = _logits(model, pages, rows, tokens[:, None], (lengths + step)[:, None])
    return [torch.cat([p.to(device), new[:count]]) for p, new, count in zip(prompts, found, counts, strict=True)]


def _prefill(model, pages: Pages, row: Tensor, prompt: Tensor) -> Tensor:
    return _logits(model, pages, row, prompt[None], torch.arange(len(prompt), device=prompt.device)[None])


def _logits(model, pages: Pages, rows: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
    """Those that follow the last tokens. No mask: the attention to pages knows the sequences' lengths."""
    pages.begin(rows, positions)
    out = model.model(input_ids=tokens, position_ids=positions, use_cache=False, pages=pages)
    return model.lm_head(out.last_hidden_state[:, -1])


def _settings(count, vocabulary, device, temperature, top_k, top_p, min_p) -> list[Tensor]:
    k = vocabulary if top_k is None else min(top_k, vocabulary)
    options = ((temperature, torch.float32), (k, torch.int32), (top_p, torch.float32), (min_p, torch.float32))
    return [torch.full((count,), value, dtype=dtype, device=device) for value, dtype in options]


def _refuse(model, prompts: Sequence[Tensor]) -> None:
    layers = getattr(getattr(model, "model", None), "layers", ())
    if not layers or not all(getattr(layer.self_attn, "runs_on_opwright", False) for layer in layers):
        raise ValueError(
            f"generate: the attention of each layer must be patched, got {type(model).__name__}\n"
            "  → call opwright.gallery.llm.patch(model) first"
        )
    head_dim = layers[0].self_attn.head_dim
    if head_dim not in HEAD_DIMS:
        raise ValueError(f"generate: heads must have a size of {', '.join(map(str, HEAD_DIMS))}, got {head_dim}")
    if any(p.dim() != 1 or len(p) == 0 for p in prompts) or not prompts:
        shapes = [list(p.shape) for p in prompts]
        raise ValueError(f"generate: prompts must be tensors of one dim with a token at least, got {shapes}")


def _refuse_numbers(max_new_tokens: int, temperature: float, top_k: int | None, top_p: float, min_p: float) -> None:
    in_range = max_new_tokens >= 0 and temperature >= 0 and (top_k is None or top_k >= 1)
    if not in_range or not 0 < top_p <= 1 or not 0 <= min_p <= 1:
        raise ValueError(
            "generate: max_new_tokens and temperature must be at least 0, top_k at least 1, top_p above 0 and at most "
            f"1, min_p from 0 to 1, got {max_new_tokens=}, {temperature=}, {top_k=}, {top_p=}, {min_p=}"
        )
