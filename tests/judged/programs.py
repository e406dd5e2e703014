"""Tasks and candidates as others publish them, in miniature."""

from __future__ import annotations

PROBLEM = '''
import torch
from torch import nn

class Model(nn.Module):
    """A linear layer, and its largest column for each row."""
    def __init__(self, in_features, out_features, scale=2.0):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu() * self.scale

batch_size = 4096 * 2
in_features = 512
out_features = 2048
unused = 7

def get_inputs():
    return [torch.rand(batch_size, in_features)]

def get_init_inputs():
    return [in_features, out_features]
'''
SOFTMAX = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1)

batch_size = 16
dim = 16384

def get_inputs():
    return [torch.randn(batch_size, dim)]

def get_init_inputs():
    return []
"""
_CANDIDATE = '''
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

source = """
#include <torch/extension.h>
__global__ void softmax_kernel(const float* x, float* out, int dim) {
  __shared__ float parts[128];
  const float* row = x + blockIdx.x * dim;
  float most = -INFINITY, sum = 0;
  for (int i = threadIdx.x; i < dim; i += 128) most = fmaxf(most, row[i]);
  parts[threadIdx.x] = most;
  __syncthreads();
  for (int i = 0; i < 128; i++) most = fmaxf(most, parts[i]);
  __syncthreads();
  for (int i = threadIdx.x; i < dim; i += 128) sum += expf(row[i] - most);
  parts[threadIdx.x] = sum;
  BARRIER
  sum = 0;
  for (int i = 0; i < 128; i++) sum += parts[i];
  for (int i = threadIdx.x; i < END; i += 128) out[blockIdx.x * dim + i] = expf(row[i] - most) / sum;
}
torch::Tensor softmax(torch::Tensor x) {
  TORCH_CHECK(x.is_cuda(), "x must be on a GPU");
  auto out = torch::empty_like(x);
  softmax_kernel<<<x.size(0), 128>>>(x.data_ptr<float>(), out.data_ptr<float>(), x.size(1));
  return out;
}
"""
module = load_inline(name="s", cpp_sources="torch::Tensor softmax(torch::Tensor x);", cuda_sources=source,
                     functions=["softmax"])

class ModelNew(nn.Module):
    def forward(self, x):
        return module.softmax(x)
'''


def softmax_candidate(*, barrier: str = "__syncthreads();", end: str = "dim") -> str:
    """A row softmax in CUDA, compiled in line."""
    return _CANDIDATE.replace("BARRIER", barrier).replace("END", end)
