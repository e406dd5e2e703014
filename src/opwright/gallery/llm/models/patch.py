"""Puts the operators of this folder under models of ``transformers``, and takes them out again."""

import functools
import inspect
import types

import torch
import torch.nn.functional as F

from opwright.gallery.llm.activations import Activation, glu
from opwright.gallery.llm.cross_entropy import IGNORED, cross_entropy
from opwright.gallery.llm.experts import combine, grouped_mm, permute, sort_by_expert
from opwright.gallery.llm.linear_cross_entropy import linear_cross_entropy
from opwright.gallery.llm.models.attend import Attention
from opwright.gallery.llm.norms import add_rms_norm, rms_norm
from opwright.gallery.llm.rope import rope

__all__ = ["patch", "unpatch"]

# Classes are listed by name: others of a like name compute something else, such as Gemma's norm, which adds 1.
FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3", "Mixtral")
ACTIVATIONS: dict[str, Activation] = {"SiLU": "silu", "SiLUActivation": "silu", "GELUTanh": "gelu_tanh"}


def patch(model, without_logits=False):
    """Compute norms, gated activations, rotary embeddings, attention, experts and the loss with these operators.

    Parameters, buffers and their names stay, so that checkpoints go both ways. Only modules whose classes are known to
    compute the same are changed: those of Llama, Mistral, Qwen2, Qwen3 and Mixtral. A module whose ``forward`` somebody
    has replaced stays as it is, as does a loss; so do experts that several processes share.

    Args:
        model: a model of ``transformers``, or any module that contains parts of one. Its attention is replaced where it
            is torch's (``attn_implementation="sdpa"``, the default), in half precision, for all tokens of a sequence
            without padding, and for heads of 16, 64, 128 or 256 elements. Torch computes the others, as before.
        without_logits: in training, compute the loss from the last hidden states, and return None for the logits, which
            are never there as a whole. Mixtral keeps them, as its loss has other parts.

    Returns:
        The model itself.

    Raises:
        ValueError: nothing in the model is known.
    """
    found = [(module, forward) for module in model.modules() if (forward := forward_for(module)) is not None]
    if not found:
        raise ValueError(
            f"patch: the model must have parts of {', '.join(FAMILIES)} from transformers, got {type(model).__name__}\n"
            "  → call the operators of opwright.gallery.llm in its own modules"
        )
    if without_logits and (forward := loss_forward_for(model)) is not None:
        found.append((model, forward))
    for module, forward in found:
        module.forward, module.runs_on_opwright = types.MethodType(forward, module), True
    if type(model).__name__.endswith("ForCausalLM") and "_loss_function" not in model.__dict__:
        model.loss_function = causal_loss
    return model


def unpatch(model):
    """Undo ``patch``. Returns the model."""
    for module in model.modules():
        if module.__dict__.pop("runs_on_opwright", False):
            del module.forward
    if model.__dict__.get("_loss_function") is causal_loss:
        del model.__dict__["_loss_function"]
    return model


def forward_for(module):
    """The forward that replaces that of a module; None if that stays."""
    known = {f"{family}{part}": make for family in FAMILIES for part, make in PARTS.items()}
    make = known.get(type(module).__name__)
    is_theirs = type(module).__module__.startswith("transformers.models.") and "forward" not in module.__dict__
    return make(module) if make is not None and is_theirs else None


def for_norm(module):
    return lambda self, x: rms_norm(x, self.weight, self.variance_epsilon)


def for_mlp(module):
    activation = ACTIVATIONS.get(type(module.act_fn).__name__)
    if activation is None:
        return None
    return lambda self, x: self.down_proj(glu(self.gate_proj(x), self.up_proj(x), activation))


def for_experts(module):
    activation = ACTIVATIONS.get(type(module.act_fn).__name__)
    if not hasattr(module, "config"):
        return None
    count, inner, outer = module.config.num_local_experts, module.intermediate_dim, module.hidden_dim
    sizes = [tuple(weights.shape) for weights in (module.gate_up_proj, module.down_proj)]
    has_all = module.num_experts == count and sizes == [(count, 2 * inner, outer), (count, outer, inner)]
    return experts_forward(activation) if activation is not None and has_all else None


def experts_forward(activation):
    """Each expert computes all rows of its tokens at once."""

    def forward(self, hidden_states, top_k_index, top_k_weights):
        places, _, offsets = sort_by_expert(top_k_index.to(torch.int32), self.num_experts)
        rows = permute(hidden_states, places)
        gate, up = grouped_mm(rows, self.gate_up_proj, offsets).chunk(2, -1)
        return combine(grouped_mm(glu(gate, up, activation), self.down_proj, offsets), top_k_weights.float(), places)

    return forward


def for_attention(module):
    """The same code, with other functions for the rotary embedding and for attention."""
    code = inspect.unwrap(type(module).forward)
    others: dict[str, object] = {"apply_rotary_pos_emb": turn_both}
    if "ALL_ATTENTION_FUNCTIONS" in code.__globals__:
        others["ALL_ATTENTION_FUNCTIONS"] = Attention(code.__globals__["ALL_ATTENTION_FUNCTIONS"])
    names = {**code.__globals__, **others}
    del names["__name__"]  # torch.compile would look for them in the module of that name
    return types.FunctionType(code.__code__, names, code.__name__, code.__defaults__, code.__closure__)


def turn_both(q, k, cos, sin, unsqueeze_dim=1):
    """As ``apply_rotary_pos_emb``, which gets heads before tokens, and each angle twice."""
    half = q.shape[-1] // 2
    return tuple(rope(x.transpose(1, 2), cos[..., :half], sin[..., :half]).transpose(1, 2) for x in (q, k))


def for_layer(module):
    return layer_forward if type(module).__name__ != "MixtralDecoderLayer" else None


def layer_forward(self, hidden_states, **keywords):
    """A decoder layer whose first sum is computed with the norm that follows."""
    attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **keywords)
    norm = self.post_attention_layernorm
    both = add_rms_norm(attended, hidden_states, norm.weight, norm.variance_epsilon)
    return both[1] + self.mlp(both[0])


def for_model(module):
    """The same. Attention gets ``all_tokens``, unless there is padding, a cache or a second sequence in a row."""
    theirs = type(module).forward

    @functools.wraps(theirs)
    def forward(self, *args, **keywords):
        given = {name for name, value in keywords.items() if value is not None}
        more = {"all_tokens": True} if len(args) <= 1 and given <= FOR_ALL_TOKENS else {}
        return theirs(self, *args, **keywords, **more)

    return forward


# Keywords of a model that leave its mask as it is: causal.
FOR_ALL_TOKENS = {
    "input_ids", "inputs_embeds", "use_cache", "return_dict", "output_attentions", "output_hidden_states",
    "output_router_logits", "num_items_in_batch",
}  # fmt: skip
PARTS = {
    "RMSNorm": for_norm, "MLP": for_mlp, "Experts": for_experts, "Attention": for_attention, "DecoderLayer": for_layer,
    "Model": for_model,
}  # fmt: skip


def causal_loss(
    logits, labels, vocab_size, num_items_in_batch=None, ignore_index=IGNORED, shift_labels=None, **keywords
):
    """The loss of ``transformers`` for causal models. It makes no float32 copy of the logits."""
    labels = labels_of_next(labels, shift_labels, ignore_index).to(logits.device)
    total = torch.sum(torch.as_tensor(cross_entropy(logits.reshape(-1, vocab_size), labels)))
    return mean_loss(total, labels, num_items_in_batch)


def labels_of_next(labels, shift_labels, ignore_index=IGNORED):
    """For each token, the label of the next one."""
    if shift_labels is None:
        shift_labels = F.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    labels = shift_labels.reshape(-1)
    return labels.masked_fill(labels == ignore_index, IGNORED)


def mean_loss(total, labels, num_items_in_batch):
    return total / ((labels != IGNORED).sum() if num_items_in_batch is None else num_items_in_batch)


def loss_forward_for(model):
    """The forward of a causal model that computes no logits in training; None if its loss has other parts."""
    theirs, known = type(model).forward, [f"{family}ForCausalLM" for family in FAMILIES if family != "Mixtral"]
    if type(model).__name__ not in known or "forward" in model.__dict__ or model.lm_head.bias is not None:
        return None
    from transformers.modeling_outputs import CausalLMOutput

    @functools.wraps(theirs)
    def forward(self, *args, labels=None, **keywords):
        if labels is None or not self.training or args or any(keywords.get(name) for name in FOR_LOGITS):
            return theirs(self, *args, labels=labels, **keywords)
        shift_labels, count = keywords.pop("shift_labels", None), keywords.get("num_items_in_batch")
        out = self.model(**{"use_cache": False, **keywords})
        labels = labels_of_next(labels, shift_labels).to(out.last_hidden_state.device)
        total = linear_cross_entropy(out.last_hidden_state.flatten(0, -2), self.lm_head.weight, labels)
        loss = mean_loss(total, labels, count)
        return CausalLMOutput(loss=loss, hidden_states=out.hidden_states, attentions=out.attentions)

    return forward


# Keywords that ask for logits, for a cache, or for another loss.
FOR_LOGITS = ("logits_to_keep", "return_dict", "ignore_index", "use_cache", "cache", "past_key_values")
