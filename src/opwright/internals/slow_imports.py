"""Modules of torch that are slow to import."""

from __future__ import annotations

__all__ = ["DYNAMO", "SLOW_IMPORTS"]

# Modules of torch that checks need and that are slow to import. They are imported, where they exist, before processes
# fork. (AOTAutograd imports the last four as soon as a graph has a gradient, and torch.compile at its first call.)
SLOW_IMPORTS = (
    "torch._dynamo", "torch._functorch.aot_autograd", "torch.testing._internal.optests",
    "torch._inductor.pattern_matcher", "torch._dynamo.repro.after_dynamo", "torch._dynamo.backends.inductor",
    "torch.export._trace",
)  # fmt: skip
# A module that is loaded as soon as something has been compiled.
DYNAMO = "torch._dynamo"
