"""gallery.llm.patch: a model of transformers gives the same on opwright's operators, forward and backward."""

from __future__ import annotations

import copy

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from opwright.gallery.llm import patch, unpatch

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

SMALL = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 61, "max_position_embeddings": 32,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
IDS = torch.randint(3, 61, (2, 9), generator=torch.Generator().manual_seed(1))


def model_of(family: str, **others: object) -> torch.nn.Module:
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SMALL, **others)
    return getattr(transformers, f"{family}ForCausalLM")(config).eval()


def step(model, labels=IDS, **inputs):
    """The logits, the loss, and the gradient of each parameter."""
    model.zero_grad()
    out = model(input_ids=IDS, labels=labels, **inputs)
    out.loss.backward()
    return [out.logits.detach(), out.loss.detach(), *(p.grad.clone() for p in model.parameters())]


def assert_alike(ours, theirs, **tolerance):
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, **tolerance)


@pytest.mark.parametrize("family", ["Llama", "Mistral", "Qwen2", "Qwen3", "Mixtral"])
def test_a_patched_model_gives_the_same_and_its_gradients(family):
    model = model_of(family)
    before, names = step(model), list(model.state_dict())
    labels = IDS.masked_fill(IDS < 20, -100)
    with_ignored = step(model, labels)
    assert patch(model) is model
    assert list(model.state_dict()) == names
    assert_alike(step(model), before, rtol=1e-4, atol=1e-6)
    assert_alike(step(model, labels), with_ignored, rtol=1e-4, atol=1e-6)
    unpatch(model)
    assert_alike(step(model), before, rtol=0, atol=0)


def test_it_generates_the_same_tokens():
    model = model_of("Llama")
    prompt = {"input_ids": IDS[:, :4], "attention_mask": torch.ones(2, 4, dtype=torch.int64)}
    expected = model.generate(**prompt, max_new_tokens=12, do_sample=False)
    assert torch.equal(patch(model).generate(**prompt, max_new_tokens=12, do_sample=False), expected)


def test_bfloat16_is_as_near_as_rounding_allows():
    model = model_of("Llama").bfloat16()
    before = step(model)
    assert_alike(step(patch(model)), before, rtol=0.05, atol=0.02)


def test_checkpointing_and_accumulated_gradients_are_the_same():
    model = model_of("Llama").train()
    model.gradient_checkpointing_enable()
    before = step(model)
    patch(model)
    assert_alike(step(model), before, rtol=1e-4, atol=1e-6)
    twice = [p.grad.clone() for p in model.parameters()]
    model(input_ids=IDS, labels=IDS).loss.backward()
    assert_alike([p.grad for p in model.parameters()], [2 * g for g in twice], rtol=1e-4, atol=1e-6)


def test_checkpoints_go_both_ways():
    model = model_of("Llama")
    other = patch(copy.deepcopy(model))
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(1.5)
    model.load_state_dict(other.state_dict())
    assert_alike(step(model), step(other), rtol=1e-4, atol=1e-5)
    other.load_state_dict(model.state_dict())
    assert_alike(step(unpatch(other)), step(model), rtol=0, atol=0)


@pytest.mark.slow  # torch.compile of whole models takes half a minute
def test_the_compiled_model_has_no_graph_break_and_no_more_compilations_for_other_lengths():
    def compilations(model):
        counter = CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
        for length in (9, 7, 5, 8):
            ids = IDS[:, :length].contiguous()
            model.zero_grad()
            out = compiled(input_ids=ids, labels=ids, use_cache=False)
            out.loss.backward()
        return counter.frame_count, [out.logits.detach(), out.loss.detach(), *(p.grad for p in model.parameters())]

    count, expected = compilations(model_of("Llama"))
    of_patched, found = compilations(patch(model_of("Llama")))
    assert_alike(found, expected, rtol=1e-4, atol=1e-6)
    assert of_patched == count


def test_what_is_not_known_stays():
    with pytest.raises(ValueError, match=r"must have parts of Llama, .* from transformers, got Linear"):
        patch(torch.nn.Linear(2, 2))
    model = model_of("Llama", hidden_act="relu")
    norm, mlp = model.model.norm, model.model.layers[0].mlp
    own = norm.forward = lambda x: x
    patch(model)
    assert norm.forward is own
    assert "forward" not in mlp.__dict__
    unpatch(model)
    assert norm.forward is own
