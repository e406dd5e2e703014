"""
Replace one operator of your own model
======================================

After this tutorial you can put a kernel of your own under a model. You replace the RMSNorm of a small transformer, and
show that the model still computes the same, trains the same and compiles.

PyTorch's `page on custom operators <https://docs.pytorch.org/tutorials/advanced/python_custom_ops.html>`_ ends where
the operator is registered. This page goes further in three points:

- The kernel is checked alone before it is in the model.
- The loss and every gradient are compared with those of the old module.
- ``torch.compile`` captures the whole model, with no graph break.

It needs a C++ compiler, and in a clone of the repository ``pip install -e .``. Its files are in a temporary folder.
"""

# sphinx_gallery_thumbnail_path = 'pictures/times.svg'

import copy
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

temporary = tempfile.TemporaryDirectory()
folder = Path(temporary.name)

# %%
# The model
# ---------
# A model that you have. Its norm is a module of PyTorch.


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.RMSNorm(width, eps=1e-6)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.nn.functional.silu(self.up(self.norm(x))))


class Model(torch.nn.Module):
    def __init__(self, width=64, blocks=2):
        super().__init__()
        self.blocks = torch.nn.Sequential(*(Block(width) for _ in range(blocks)))

    def forward(self, x):
        return self.blocks(x).square().mean()


torch.manual_seed(0)
model = Model()
x = torch.randn(4, 16, 64)

# %%
# The operator
# ------------
# The reference is the formula of ``torch.nn.RMSNorm``. ``*b n`` admits any number of axes before the last one. The
# kernel is in C++; for a GPU you would attach one in Triton or CUDA C++ beside it.

(folder / "norms.py").write_text(
    """
import torch
from jaxtyping import Float32
from torch import Tensor

import opwright as ow


@ow.op("model::rms_norm", where="1 <= n")
def rms_norm(x: Float32[Tensor, "*b n"], weight: Float32[Tensor, "n"]) -> Float32[Tensor, "*b n"]:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


rms_norm.cpp("norms.cpp")
"""
)
(folder / "norms.cpp").write_text(
    """
#include <cmath>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

using torch::stable::Tensor;

Tensor rms_norm(const Tensor& any_x, const Tensor& any_weight) {
  const Tensor x = torch::stable::contiguous(any_x), weight = torch::stable::contiguous(any_weight);
  const int64_t columns = weight.size(0), rows = x.numel() / columns;
  Tensor out = torch::stable::empty_like(x);
  const float* from = x.const_data_ptr<float>();
  const float* scale = weight.const_data_ptr<float>();
  float* to = out.mutable_data_ptr<float>();
  torch::stable::parallel_for(0, rows, 16, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float* row = from + i * columns;
      float squares = 0;
      for (int64_t j = 0; j < columns; ++j) squares += row[j] * row[j];
      const float factor = 1 / std::sqrt(squares / columns + 1e-6f);
      for (int64_t j = 0; j < columns; ++j) to[i * columns + j] = row[j] * factor * scale[j];
    }
  });
  return out;
}
"""
)

# %%
# Check it alone
# --------------
# A fault is easier to find here than in a loss that does not fall. The check takes sizes, layouts, special values,
# gradients and ``torch.compile``.

done = subprocess.run(["opwright", "check", "norms.py"], cwd=folder, capture_output=True, text=True)
print(done.stdout)
assert done.returncode == 0, done.stdout + done.stderr

# %%
# Put it under the model
# ----------------------
# The new module has the same parameter, so checkpoints go both ways.

sys.path.insert(0, str(folder))
import norms


class OwnRMSNorm(torch.nn.Module):
    def __init__(self, old):
        super().__init__()
        self.weight = old.weight

    def forward(self, x):
        return norms.rms_norm(x, self.weight)


mine = copy.deepcopy(model)
for block in mine.blocks:
    block.norm = OwnRMSNorm(block.norm)

print(norms.rms_norm.explain(x, mine.blocks[0].norm.weight))
assert mine.state_dict().keys() == model.state_dict().keys()

# %%
# Compare the loss and every gradient
# -----------------------------------
# You wrote no gradient: opwright derives it from the reference.


def step(some):
    """The loss, and the gradient of each parameter."""
    some.zero_grad()
    loss = some(x)
    loss.backward()
    return [loss.detach(), *(parameter.grad for parameter in some.parameters())]


for old, new in zip(step(model), step(mine), strict=True):
    torch.testing.assert_close(new, old)

# %%
# The same after some steps of training:

for some in (model, mine):
    optimizer = torch.optim.AdamW(some.parameters(), lr=1e-3)
    for _ in range(20):
        step(some)
        optimizer.step()
print(f"loss after 20 steps: {model(x).item():.6f} before, {mine(x).item():.6f} with the operator")
torch.testing.assert_close(mine(x), model(x), rtol=1e-4, atol=1e-5)

# %%
# Compile it
# ----------
# ``fullgraph=True`` refuses a graph break. ``backend="aot_eager"`` needs no compiler; leave it out to use Inductor.

compiled = torch.compile(mine, fullgraph=True, backend="aot_eager")
torch.testing.assert_close(compiled(x), mine(x))

temporary.cleanup()

# %%
# Next
# ----
# - :doc:`/guides/model`: operators of a language model that exist already, and a call that puts them under Llama
# - :doc:`/guides/two-outputs`: a backward of your own
# - :doc:`/guides/capture`: check the shapes that your model uses
