"""A Llama of 1B parameters in bfloat16, trained and generating: plain, compiled, with Liger-Kernel and on opwright's
operators. Usage: llm_model.py FILE [--cpu] [--only VARIANT...] [--what training|generation]

Each variant runs in a process of its own, with random weights from the same seed, and with fast calls, whose extension
is built before. Training with 4 × 2,048 tokens a step: ``ms`` is the mean of 10 steps in a row, the median of 3 rounds;
``ms_alone`` is one step, after which the host waits, the median of 10. Also tokens a second, the peak of memory in GiB
and the losses. Generation: tokens a second of 128
tokens after prompts of 512, for one sequence and for 32. ``--cpu`` runs a small model, to see that all of it works.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from opwright.machine import this_machine

VARIANTS = (
    "plain", "plain, compiled", "plain, max-autotune", "Liger", "Liger, compiled", "opwright", "opwright, compiled",
)  # fmt: skip
# As Llama 3.2 1B has them.
SHAPE = {
    "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128_256, "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}  # fmt: skip
SMALL = SHAPE | {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 256,
}  # fmt: skip
BATCH, TOKENS, STEPS, ROUNDS = 4, 2048, 10, 3
FIRST, WARM = 3, 13  # fast calls record after some calls, and make their first repetitions both ways
PROMPT, FEW, MANY = 512, 16, 144  # the difference of the last two is timed


def model_of(variant: str, device: str) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    if variant.startswith("Liger"):
        from liger_kernel.transformers import apply_liger_kernel_to_llama

        apply_liger_kernel_to_llama()
    torch.manual_seed(0)
    with torch.device(device):
        model = LlamaForCausalLM(LlamaConfig(**(SMALL if device == "cpu" else SHAPE))).bfloat16()
    if variant.startswith("opwright"):
        from opwright.gallery import llm

        llm.patch(model, without_logits=True)
    return model


def compiled(model: Any, variant: str) -> Any:
    if variant.endswith("compiled"):
        return torch.compile(model, dynamic=False)
    return torch.compile(model, dynamic=False, mode="max-autotune") if variant.endswith("max-autotune") else model


def optimizer_of(model: Any, variant: str, device: str) -> torch.optim.Optimizer:
    if variant.startswith("opwright"):
        from opwright.gallery import llm

        return llm.AdamW(model.parameters(), lr=1e-4, moments=torch.bfloat16)  # as torch has them
    return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device == "cuda")


def seconds(run: Callable[[], object], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def training(variant: str, device: str) -> dict[str, Any]:
    model = model_of(variant, device).train()
    run, optimizer = compiled(model, variant), optimizer_of(model, variant, device)
    tokens = TOKENS if device == "cuda" else 32
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, model.config.vocab_size, (BATCH, tokens), generator=generator).to(device)
    losses = []

    def step() -> None:
        optimizer.zero_grad()
        loss = run(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())

    first = seconds(lambda: [step() for _ in range(FIRST)], device)
    seconds(lambda: [step() for _ in range(WARM)], device)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    alone = statistics.median(seconds(step, device) for _ in range(STEPS))
    rounds = [seconds(lambda: [step() for _ in range(STEPS)], device) / STEPS for _ in range(ROUNDS)]
    median = statistics.median(rounds)
    return {
        "ms": round(1e3 * median, 2), "ms_alone": round(1e3 * alone, 2), "tokens_per_s": round(BATCH * tokens / median),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2) if device == "cuda" else None,
        "first_steps_s": round(first, 1), "losses": [round(float(loss), 4) for loss in losses],
    }  # fmt: skip


def generation(variant: str, device: str) -> dict[str, Any]:
    model = model_of(variant, device).eval()
    found: dict[str, Any] = {}
    for batch in (1, 32) if device == "cuda" else (1, 2):
        generator = torch.Generator().manual_seed(2)
        ids = torch.randint(3, model.config.vocab_size, (batch, PROMPT if device == "cuda" else 8), generator=generator)
        generate = generate_with(model, variant, ids.to(device))
        few, many = (FEW, MANY) if device == "cuda" else (2, 6)
        generate(many)
        least = {n: min(seconds(functools.partial(generate, n), device) for _ in range(3)) for n in (few, many)}
        found[f"tokens_per_s_of_{batch}"] = round(batch * (many - few) / (least[many] - least[few]), 1)
    return found


def generate_with(model: Any, variant: str, ids: torch.Tensor) -> Callable[[int], object]:
    if variant.startswith("opwright"):
        from opwright.gallery import llm

        return lambda count: llm.generate(model, list(ids), count)
    options: dict[str, Any] = {"do_sample": False, "eos_token_id": None, "attention_mask": torch.ones_like(ids)}
    if variant.endswith(("compiled", "max-autotune")):
        options["cache_implementation"] = "static"  # transformers compiles the decoding step then
    return lambda count: model.generate(ids, max_new_tokens=count, min_new_tokens=count, **options)


def build_fast_calls() -> None:
    command = [sys.executable, "-m", "opwright", "doctor", "--build"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def in_a_process(variant: str, what: str, device: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "-", "--child", variant, what, *(["--cpu"] if device == "cpu" else [])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        errors = [line for line in lines if re.match(r"\w[\w.]*Error\b", line)]
        return {"error": (errors or lines)[-1][:300]}
    return json.loads(lines[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--only", nargs="*", default=VARIANTS, choices=VARIANTS)
    parser.add_argument("--what", nargs="*", default=("training", "generation"), choices=("training", "generation"))
    parser.add_argument("--child", nargs=2)
    options = parser.parse_args()
    device = "cpu" if options.cpu else "cuda"
    if options.child:
        variant, what = options.child
        print(json.dumps({"training": training, "generation": generation}[what](variant, device)))
        return
    packages = ("torch", "triton", "transformers", "liger-kernel")
    installed = {d.metadata["Name"].lower().replace("_", "-") for d in metadata.distributions()}
    versions = {name: metadata.version(name) for name in packages if name in installed}
    record: dict[str, Any] = {"machine": this_machine().to_json(), "versions": versions, "rows": []}
    if any(variant.startswith("opwright") for variant in options.only):
        build_fast_calls()
    for variant in options.only:
        for what in options.what:
            if what == "generation" and variant in ("Liger, compiled", "opwright, compiled"):
                continue  # Liger has no kernel for it, and opwright's loop is not compiled
            try:
                row = {"variant": variant, "what": what, **in_a_process(variant, what, device)}
            except subprocess.TimeoutExpired:
                row = {"variant": variant, "what": what, "error": "it took more than 400 s"}
            record["rows"].append(row)
            print({name: value for name, value in row.items() if name != "losses"}, flush=True)
            Path(options.file).write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
