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
    """Continue prompts with a model of ``transformers`` that ``patch`` has changed. On a GPU, steps are replayed as a
    CUDA graph, unless the model reads values on the CPU.

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
    _refuse(model, prompts)
    _refuse_numbers(max_new_tokens, temperature, top_k, top_p, min_p)
    config, device = model.config, model.device
    pages = Pages(config, [len(p) + max_new_tokens for p in prompts], model.dtype, device)
    settings = _settings(len(prompts), config.vocab_size, device, temperature, top_k, top_p, min_p)
    first = torch.full((), seed * max_new_tokens, device=device)
    decoding = _Decoding(model, pages, prompts, max_new_tokens, settings if temperature else None, first)
    counts = torch.full((len(prompts),), max_new_tokens, device=device)
    ended = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    for step in range(max_new_tokens):
        if step == 0:
            decoding.begin()
        elif step == 2 and device.type == "cuda":  # compiled and warm by now
            decoding.capture()
        if step:
            decoding.advance()
        if eos_token_id is not None:
            is_end = decoding.tokens == eos_token_id
            counts = torch.where(~ended & is_end, step + 1, counts)
            ended |= is_end
            if bool(ended.all()):
                break
    new = decoding.found.t()
    return [torch.cat([p.to(device), row[:count]]) for p, row, count in zip(prompts, new, counts, strict=True)]


class _Decoding:
    """The state of a generation, all of it in tensors that stay where they are, so that a step can be a CUDA graph."""

    def __init__(self, model, pages: Pages, prompts, steps: int, settings: list[Tensor] | None, first: Tensor) -> None:
        device, count = model.device, len(prompts)
        self.model, self.pages, self.prompts, self.settings = model, pages, prompts, settings
        self.rows = torch.arange(count, device=device)
        self.tokens = torch.zeros_like(self.rows)
        self.lengths = torch.tensor([len(p) for p in prompts], device=device)
        self.step, self.first = torch.zeros((), dtype=torch.int64, device=device), first
        self.found = torch.zeros(steps, count, dtype=torch.int64, device=device)
        self.advance = self._advance

    def begin(self) -> None:
        """The prompts, and the first token of each."""
        each = zip(self.rows[:, None], self.prompts, strict=True)
        self._take(torch.cat([_prefill(self.model, self.pages, row, p.to(row.device)) for row, p in each]))

    def _advance(self) -> None:
        """One more token for each sequence."""
        positions = (self.lengths + self.step - 1)[:, None]
        self._take(_logits(self.model, self.pages, self.rows, self.tokens[:, None], positions))

    def _take(self, logits: Tensor) -> None:
        if self.settings is None:
            self.tokens.copy_(logits.argmax(1))
        else:
            seeds = (self.first + self.step) * len(self.rows) + self.rows
            self.tokens.copy_(sample(logits, seeds, *self.settings))
        self.found.index_copy_(0, self.step[None], self.tokens[None])
        self.step += 1

    def capture(self) -> None:
        """Replay the steps that follow as a CUDA graph. Models that read values on the CPU go on without one."""
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._advance()
        except RuntimeError:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):  # the failed one leaves torch's generator in its mode
                self.rows.clone()
        else:
            self.advance = graph.replay


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
