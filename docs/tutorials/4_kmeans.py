"""
K-means in NumPy, compiled to C++ and CUDA
==========================================

After this tutorial you can compile NumPy code without changing it, keep it in float32, and differentiate it. You can
also replace its slowest line by a kernel in C++ or CUDA.

The example is that of PyTorch's text `Compiling NumPy code into C++ or CUDA via torch.compile
<https://pytorch.org/blog/compiling-numpy-code/>`_. This page goes further in four points:

- The first call is compared with NumPy, and a difference is an error.
- Code that cannot be compiled is an error with its line. It does not become slow silently.
- An operator with a NumPy reference has a gradient.
- A check compares your own kernels with the NumPy code, NaN included.

It needs a C++ compiler, and in a clone of the repository ``pip install -e '.[report]'``. Its files are in a temporary
folder. Three functions stand for your editor, your terminal and an import.
"""

import importlib
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

temporary = tempfile.TemporaryDirectory()
folder = Path(temporary.name)


def write(name, text):
    """Write a file of the folder."""
    (folder / name).write_text(text)


def run(command, code=0):
    """Run a command in the folder, and print its output. Its exit code must be this one."""
    print(f"$ {command}")
    done = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True)
    print(done.stdout.partition("\nnot checked\n")[0])  # what could not be checked is left out here
    assert done.returncode == code, done.stdout + done.stderr


def load(name):
    """Import a file of the folder."""
    sys.path.insert(0, str(folder))
    return importlib.import_module(name)


# %%
# Compile it
# ----------
# One iteration assigns each point to the nearest mean, and moves each mean to the middle of its points. The function
# is plain NumPy. One thread computes it, so that other work on this machine disturbs the times less.

write(
    "clusters.py",
    """
import numpy as np

import opwright as ow


def step(X, means):
    labels = np.argmin(np.linalg.norm(X - means[:, None], axis=2), axis=0)
    own = (labels == np.arange(len(means))[:, None])[:, :, None]
    return labels, np.sum(np.where(own, X, 0 * X), axis=1) / np.sum(own, axis=1)


compiled_step = ow.compile_numpy(step)


@ow.compile_numpy
def step_in_float32(X, means):
    labels, moved = step(X, means)
    return labels, moved.astype(X.dtype)


@ow.compile_numpy
def loud(X, means):
    distances = np.linalg.norm(X - means[:, None], axis=2)
    print("largest distance:", distances.max())
    return np.argmin(distances, axis=0)


@ow.compile_numpy
def first_half(X):
    return X[: len(X) // 2]
""",
)

torch.set_num_threads(1)
clusters = load("clusters")

random = np.random.default_rng(0)
centres = random.uniform(-10, 10, size=(8, 2))
X = (centres[random.integers(8, size=100_000)] + random.normal(size=(100_000, 2))).astype(np.float32)
means = X[:8]

labels, moved = clusters.compiled_step(X, means)
print(clusters.compiled_step.explain())

# %%
# The last line compares this machine's times. Calls of a size for which NumPy was faster go to NumPy.
#
# Keep it in float32
# ------------------
# The points have float32. The new means do not:

print("means:", means.dtype, "→", moved.dtype)

# %%
# NumPy divides a float32 array by an int64 array in float64. So the second iteration of a loop computes everything in
# float64, and takes twice the memory. ``astype`` ends that:

labels, moved = clusters.step_in_float32(X, means)
print("means:", means.dtype, "→", moved.dtype)

# %%
# No copies
# ---------
# Arrays go in and out without a copy. A result that is a view in NumPy is a view of your array here, too. A tensor
# gives a tensor.

print("the result shares memory with X:", np.shares_memory(clusters.first_half(X), X))
print("of a tensor:", type(clusters.compiled_step(torch.from_numpy(X), torch.from_numpy(means))[0]).__name__)

# %%
# Graph breaks
# ------------
# ``torch.compile`` splits a function where it meets something that it cannot compile. That is silent, and slow. Here it
# is an error with the line. (The first call has run in NumPy, so it prints.)

try:
    clusters.loud(X, means)
except Exception as error:
    print(str(error).replace(str(folder) + "/", ""))

# %%
# Run K-means
# -----------

path = [means]
for _ in range(15):
    labels, means = clusters.step_in_float32(X, means)
    path.append(means)

figure, axes = plt.subplots(figsize=(6, 5), layout="constrained")
axes.scatter(*X[::20].T, c=labels[::20], s=2, cmap="tab10", alpha=0.5)
axes.plot(*np.stack(path).transpose(2, 0, 1), color="black", linewidth=1)
axes.scatter(*means.T, color="black", marker="x", s=60)
axes.set(title="points by cluster, and the ways of the means", xticks=[], yticks=[])
print(f"moved in the last iteration: {np.abs(path[-1] - path[-2]).max():.3f}")

# %%
# Gradients
# ---------
# K-means lowers the sum of squared distances. As an operator with a NumPy reference, this sum has a gradient, and you
# can lower it with any optimizer of PyTorch.

write(
    "inertia.py",
    """
import numpy as np
from jaxtyping import Float32

import opwright as ow


@ow.op("tutorial::inertia")
def inertia(X: Float32[np.ndarray, "n d"], means: Float32[np.ndarray, "k d"]) -> Float32[np.ndarray, ""]:
    return np.sum(np.min(np.sum((X - means[:, None]) ** 2, axis=2), axis=0))
""",
)

inertia = load("inertia").inertia

points = torch.from_numpy(X[:2000])
variables = torch.from_numpy(X[:8].copy()).requires_grad_()
optimizer = torch.optim.Adam([variables], lr=0.2)
for iteration in range(101):
    loss = inertia(points, variables) / len(points)
    if iteration % 25 == 0:
        print(f"iteration {iteration:3}: {loss.item():.3f}")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# %%
# Your own kernels
# ----------------
# The assignment is the slowest line. As an operator it takes kernels: here one in C++ and one in CUDA. They need no
# array of all distances. Both are first attempts.

write(
    "assign.py",
    """
import numpy as np
import torch
from jaxtyping import Float32, Int64

import opwright as ow


@ow.op("tutorial::nearest")
def nearest(X: Float32[np.ndarray, "n d"], means: Float32[np.ndarray, "k d"]) -> Int64[np.ndarray, "n"]:
    return np.argmin(np.linalg.norm(X - means[:, None], axis=2), axis=0)


nearest.cpp("nearest.cpp")
kernels = ow.cuda_module("nearest.cu")


@nearest.cuda
def cuda(X, means):
    X, means = X.contiguous(), means.contiguous()
    (n, d), k = X.shape, means.shape[0]
    out = torch.empty(n, dtype=torch.int64, device=X.device)
    kernels["nearest"][ow.cdiv(n, 128), 128](X, means, out, n, d, k)
    return out
""",
)

first_cpp = """
#include <cmath>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

using torch::stable::Tensor;

Tensor nearest(const Tensor& any_X, const Tensor& any_means) {
  const Tensor X = torch::stable::contiguous(any_X), means = torch::stable::contiguous(any_means);
  const int64_t n = X.size(0), d = X.size(1), k = means.size(0);
  Tensor out = torch::stable::new_empty(X, {n}, torch::headeronly::ScalarType::Long);
  const float *x = X.const_data_ptr<float>(), *mean = means.const_data_ptr<float>();
  int64_t* label = out.mutable_data_ptr<int64_t>();
  torch::stable::parallel_for(0, n, 1024, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float best = INFINITY;
      for (int64_t j = 0; j < k; ++j) {
        float distance = 0;
        for (int64_t c = 0; c < d; ++c) distance += (x[i * d + c] - mean[j * d + c]) * (x[i * d + c] - mean[j * d + c]);
        if (distance < best) {
          best = distance;
          label[i] = j;
        }
      }
    }
  });
  return out;
}
"""
write("nearest.cpp", first_cpp)

first_cuda = """
__global__ void nearest(const float* X, const float* means, long long* out, int n, int d, int k) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  float best = INFINITY;
  for (int j = 0; j < k; ++j) {
    float distance = 0;
    for (int c = 0; c < d; ++c) {
      const float offset = X[i * d + c] - means[j * d + c];
      distance += offset * offset;
    }
    if (distance < best) {
      best = distance;
      out[i] = j;
    }
  }
}
"""
write("nearest.cu", first_cuda)
run("opwright check assign.py --check values --check 'special values'", code=1)

# %%
# There are two faults. The report shows the second one for C++ only, because the CUDA kernel stops at its first:
#
# - The CUDA kernel writes past the end of ``out``, in the line that the report names. The last block has more threads
#   than points, and nothing stops them.
# - Both kernels compare with ``distance < best``. If a distance is NaN or infinite, no mean is nearer, and the label is
#   never written. NumPy's ``argmin`` takes the first NaN.
#
# The correction begins with label 0, and lets NaN be nearer than any number:

before, after = "if (distance < best) {", "if (j == 0 || distance < best || (isnan(distance) && !isnan(best))) {"
write("nearest.cpp", first_cpp.replace(before, after.replace("isnan", "std::isnan")))
write("nearest.cu", first_cuda.replace(before, after).replace("float best", "if (i >= n) return;\n  float best"))
run("opwright check assign.py")

# %%
# Large arrays of points now need no array of n × k distances, on the CPU and on a GPU. The same call takes arrays and
# tensors:

nearest = load("assign").nearest

expected = np.argmin(np.linalg.norm(X - means[:, None], axis=2), axis=0)
print("the same labels:", np.array_equal(nearest(X, means), expected))

# %%
# Next
# ----
# - :doc:`/numpy` says what is compiled, what is refused, and which functions agree with NumPy.
# - :doc:`/guides/no-gpu` checks CUDA kernels on a laptop.
# - :doc:`/guides/tolerance` explains when a difference counts as an error.
