"""gallery.llm.models: a model of transformers gives the same on opwright's operators, trained and generating."""

from __future__ import annotations

import copy
import importlib

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from opwright.gallery.llm import AdamW, generate, patch, unpatch
from opwright.gallery.llm.models import attend

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

SMALL = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 61, "max_position_embeddings": 32,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
IDS = torch.randint(3, 61, (2, 9), generator=torch.Generator().manual_seed(1))


WIDE = {"hidden_size": 64, "head_dim": 16}  # heads that the kernels of attention know


def model_of(family: str, **others: object) -> torch.nn.Module:
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**{**SMALL, **others})
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


def test_experts_are_replaced_and_those_that_are_not_whole_are_not(monkeypatch):
    model, called = patch(model_of("Mixtral")), []
    experts = [module for module in model.modules() if type(module).__name__ == "MixtralExperts"]
    patches = importlib.import_module("opwright.gallery.llm.models.patch")
    plain = patches.grouped_mm
    monkeypatch.setattr(patches, "grouped_mm", lambda x, *others: called.append(x.shape[0]) or plain(x, *others))
    x, chosen = torch.randn(5, 32), torch.tensor([[0, 3], [3, 1], [0, 1], [1, 0], [3, 0]])
    shares = torch.rand(5, 2)
    found = experts[0](x, chosen, shares)  # nobody asks the third
    assert called == [10, 10]
    torch.testing.assert_close(found, type(experts[0]).forward(experts[0], x, chosen, shares), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(experts[0](x[:0], chosen[:0], shares[:0]), x[:0])
    wrong = experts[0](x, chosen.flip(1), shares)
    assert not torch.allclose(found, wrong, rtol=1e-2)
    for spoiled in ("several processes", "activation"):
        other = model_of("Mixtral")
        for module in other.modules():
            if type(module).__name__ == "MixtralExperts":
                module.num_experts -= spoiled == "several processes"
                module.act_fn = torch.nn.ReLU() if spoiled == "activation" else module.act_fn
        patch(other)
        assert not any("forward" in m.__dict__ for m in other.modules() if type(m).__name__ == "MixtralExperts")


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
    assert of_patched <= count


@pytest.fixture
def attended(monkeypatch):
    """The dtypes of the queries that the operator was called with."""
    seen, plain = [], attend.attention

    def attention(q, *others):
        seen.append(q.dtype)
        return plain(q, *others)

    monkeypatch.setattr(attend, "attention", attention)
    return seen


@pytest.mark.parametrize("family", ["Llama", "Mixtral"])
def test_attention_in_half_precision_is_the_operators(family, attended):
    model = model_of(family, **WIDE).bfloat16()
    before = step(model)
    assert_alike(step(patch(model)), before, rtol=0.05, atol=0.02)
    assert attended == [torch.bfloat16] * 2  # layers
    patch(unpatch(model)).config._attn_implementation = "eager"
    step(model)
    assert len(attended) == 2


def test_attention_stays_torchs_where_the_operator_computes_something_else(attended):
    model = patch(model_of("Llama", **WIDE).bfloat16())
    mask = torch.ones(2, 9, dtype=torch.int64)
    mask[0, :3] = 0
    step(model, attention_mask=mask)  # padding
    model.generate(input_ids=IDS[:, :1], attention_mask=mask[1:2, :1].expand(2, 1), max_new_tokens=3, do_sample=False)
    assert attended == [torch.bfloat16] * 2  # of the prompt, in which one token sees itself
    step(patch(model_of("Llama", **WIDE)))  # float32
    step(patch(model_of("Llama")).bfloat16())  # heads of 8
    step(patch(model_of("Llama", **WIDE, attention_dropout=0.5)).bfloat16().train())
    assert len(attended) == 2


def test_a_window_shorter_than_the_sequence_is_the_operators(attended):
    model = model_of("Mistral", **WIDE, sliding_window=4).bfloat16()
    before = step(model)
    far = step(model_of("Mistral", **WIDE).bfloat16())
    found = step(patch(model))
    assert attended == [torch.bfloat16] * 2
    assert_alike(found, before, rtol=0.05, atol=0.02)
    assert not torch.allclose(found[0], far[0], rtol=0.05, atol=0.02)


def test_a_mask_that_somebody_puts_below_the_model_is_kept(attended):
    def sees_all(module, args, keywords):
        return args, keywords | {"attention_mask": torch.zeros(2, 1, 9, 9, dtype=torch.bfloat16)}

    model = model_of("Llama", **WIDE).bfloat16()
    for layer in model.model.layers:
        layer.self_attn.register_forward_pre_hook(sees_all, with_kwargs=True)
    before = step(model)
    assert_alike(step(patch(model)), before, rtol=0.05, atol=0.02)
    assert attended == []


@pytest.mark.parametrize("inputs", [
    {"position_ids": torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3]]).expand(2, 9)},  # two sequences in a row
    {"attention_mask": torch.ones(2, 1, 9, 9, dtype=torch.bool)},  # all tokens see all
])  # fmt: skip
def test_other_masks_than_that_of_all_tokens_are_kept(inputs, attended):
    model = model_of("Llama", **WIDE).bfloat16()
    before = step(model, use_cache=False, **inputs)
    assert_alike(step(patch(model), use_cache=False, **inputs), before, rtol=0.05, atol=0.02)
    assert attended == []


@pytest.mark.slow  # torch.compile of whole models
@pytest.mark.parametrize("window", [None, 4])
def test_attention_in_half_precision_is_the_operators_in_compiled_models_too(window):
    graphs = list[torch.fx.GraphModule]()

    def keep(graph, inputs):
        graphs.append(graph)
        return graph

    options = {**WIDE, "sliding_window": window} if window else WIDE
    model = model_of("Mistral" if window else "Llama", **options).bfloat16().train()
    before = step(model, use_cache=False)
    run = torch.compile(patch(model), fullgraph=True, backend=keep)
    model.zero_grad()
    out = run(input_ids=IDS, labels=IDS, use_cache=False)
    out.loss.backward()
    found = [out.logits.detach(), out.loss.detach(), *(p.grad for p in model.parameters())]
    assert_alike(found, before, rtol=0.05, atol=0.02)
    called = [str(node.target) for graph in graphs for node in graph.graph.nodes if node.op == "call_function"]
    assert sum("llm" in name and name.endswith("attention.default") for name in called) == 2, called


DYNAMIC = {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}}  # reads positions


@pytest.fixture
def replays(monkeypatch):
    """How often a CUDA graph was replayed."""
    counted, theirs = [], torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda self: (counted.append(1), theirs(self))[1])
    return counted


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(("family", "others"), [
    ("Llama", {}), ("Mistral", {"sliding_window": 5}), ("Qwen2", {}), ("Qwen3", {}), ("Mixtral", {}),
    ("Llama", DYNAMIC),
])  # fmt: skip
def test_a_cache_in_pages_gives_the_same_tokens(family, others, device, replays):
    model = model_of(family, **WIDE, **others).to(device)
    with torch.no_grad():  # logits that differ by more than rounding
        for p in model.parameters():
            p.mul_(4 if p.dim() > 1 else 1)
    prompts = [p.to(device) for p in (IDS[0, :4], IDS[1], IDS[0, 4:5])]
    expected = [
        model.generate(p[None], attention_mask=torch.ones_like(p)[None], max_new_tokens=20, do_sample=False,
                       eos_token_id=None)[0]
        for p in prompts
    ]  # fmt: skip
    found = generate(patch(model), prompts, 20)  # beyond a page
    assert [t.tolist() for t in found] == [t.tolist() for t in expected]
    assert len(replays) == (18 if device == "cuda" and others is not DYNAMIC else 0)
    torch.rand(1, device=device)  # also after a capture that failed
    ends = int(expected[1][12])
    until = expected[1][9:].tolist().index(ends) + 10
    assert generate(model, prompts[1:2], 20, eos_token_id=ends)[0].tolist() == expected[1][:until].tolist()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_sampled_tokens_follow_from_the_seed(device):
    model = patch(model_of("Llama", **WIDE).to(device))
    prompts = [IDS[0, :4], IDS[1]]
    first, again, other = (
        [t.tolist() for t in generate(model, prompts, 8, temperature=1.5, top_k=40, seed=seed)] for seed in (3, 3, 4)
    )
    assert first == again != other
    likeliest = [t.tolist() for t in generate(model, prompts, 8)]
    assert [t.tolist() for t in generate(model, prompts, 8, temperature=1.0, top_k=1)] == likeliest


def test_what_cannot_be_generated_is_refused():
    with pytest.raises(ValueError, match="the attention of each layer must be patched, got LlamaForCausalLM"):
        generate(model_of("Llama"), [IDS[0]], 2)
    model = patch(model_of("Llama"))
    with pytest.raises(ValueError, match=r"a size of 16, 64, 128, 256, got 8"):
        generate(model, [IDS[0]], 2)
    model = patch(model_of("Llama", **WIDE))
    for wrong in ({"temperature": -1.0}, {"top_k": 0}, {"top_p": 0.0}, {"min_p": 2.0}):
        with pytest.raises(ValueError, match=f"must be at least 0.* got .*{next(iter(wrong))}="):
            generate(model, [IDS[0]], 2, **wrong)
    assert generate(model, [IDS[0]], 0)[0].tolist() == IDS[0].tolist()
    with pytest.raises(ValueError, match=r"one dim with a token at least, got \[\[2, 9\]\]"):
        generate(model, [IDS], 2)


@pytest.mark.parametrize("family", ["Llama", "Qwen3"])
def test_a_loss_without_logits_is_the_same_with_its_gradients(family):
    model = model_of(family).train()
    labels = IDS.masked_fill(IDS < 20, -100)
    before = step(model, labels)
    patch(model, without_logits=True)
    model.zero_grad()
    out = model(input_ids=IDS, labels=labels)
    out.loss.backward()
    assert out.logits is None
    assert_alike([out.loss.detach(), *(p.grad for p in model.parameters())], before[1:], rtol=1e-4, atol=1e-6)
    assert model(input_ids=IDS).logits is not None
    assert model.eval()(input_ids=IDS, labels=labels).logits is not None
    assert unpatch(model.train())(input_ids=IDS, labels=labels).logits is not None


def test_the_loss_of_experts_keeps_its_logits():
    assert patch(model_of("Mixtral").train(), without_logits=True)(input_ids=IDS, labels=IDS).logits is not None


def train(run, optimizer, steps):
    """The losses on a sequence that can be learned."""
    generator, losses = torch.Generator().manual_seed(2), []
    for _ in range(steps):
        start = torch.randint(3, 61, (4, 1), generator=generator)
        ids = (start + 7 * torch.arange(16)) % 58 + 3
        optimizer.zero_grad()
        loss = run(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def test_the_optimizer_is_torchs_and_takes_its_state():
    ours, theirs = model_of("Llama"), model_of("Llama")
    groups = [
        [{"params": [p for p in m.parameters() if p.dim() > 1]},
         {"params": [p for p in m.parameters() if p.dim() == 1], "weight_decay": 0.0, "lr": 0.02}]
        for m in (ours, theirs)
    ]  # fmt: skip
    mine, other = AdamW(groups[0], lr=0.01), torch.optim.AdamW(groups[1], lr=0.01)
    found, expected = train(ours, mine, 4), train(theirs, other, 4)
    assert_alike(ours.parameters(), theirs.parameters(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
    mine.load_state_dict(copy.deepcopy(other.state_dict()))
    other.load_state_dict(copy.deepcopy(mine.state_dict()))
    train(ours, mine, 2), train(theirs, other, 2)
    assert_alike(ours.parameters(), theirs.parameters(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_moments_of_half_precision_keep_their_dtype_also_after_a_checkpoint(dtype):
    model = model_of("Llama").bfloat16()
    optimizer = AdamW(model.parameters(), moments=dtype)
    train(model, optimizer, 1)
    copied = AdamW(model.parameters(), moments=dtype)
    copied.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for p in model.parameters():
        assert copied.state[p]["exp_avg_sq"].dtype is dtype
        assert torch.equal(copied.state[p]["exp_avg"], optimizer.state[p]["exp_avg"])


def test_what_an_optimizer_cannot_step_is_refused():
    model = model_of("Llama")
    with pytest.raises(ValueError, match=r"torch\.float32 or torch\.bfloat16, got torch\.float16"):
        AdamW(model.parameters(), moments=torch.float16)
    with pytest.raises(ValueError, match=r"betas at least 0 and below 1, got lr=0\.001, betas=\(0\.9, 1\.0\)"):
        AdamW(model.parameters(), betas=(0.9, 1.0))
    p = torch.nn.Parameter(torch.zeros(3, 4).t())
    p.grad = torch.zeros_like(p)
    with pytest.raises(RuntimeError, match=r"dense and contiguous, got shape \[4, 3\]"):
        AdamW([p]).step()
    good = torch.nn.Parameter(torch.zeros(3))
    good.grad = torch.ones(3)
    optimizer = AdamW([good, p])
    with pytest.raises(RuntimeError, match="dense and contiguous"):
        optimizer.step()
    assert not optimizer.state  # no step was counted
    assert torch.equal(good.detach(), torch.zeros(3))


@pytest.mark.slow  # 300 steps of two models, twice, and torch.compile
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 2e-3), pytest.param(torch.bfloat16, 0.05, marks=pytest.mark.exhaustive)]
)
def test_loss_curves_lie_on_those_of_the_unpatched_model(dtype, tolerance):
    def curve(patched, compiled):
        model = model_of("Llama", **WIDE).to(dtype).train()
        if patched:
            patch(model, without_logits=True)
        optimizer = AdamW(model.parameters(), lr=3e-3)
        run = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
        return train(run, optimizer, 300).float()

    expected = curve(patched=False, compiled=False)
    assert expected[-10:].mean() < expected[:10].mean() / 4  # it has learned
    smooth = torch.nn.functional.avg_pool1d
    for compiled in (False, True):
        found = curve(patched=True, compiled=compiled)
        torch.testing.assert_close(
            smooth(found[None], 10), smooth(expected[None], 10), rtol=tolerance, atol=tolerance * float(expected[0])
        )


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
