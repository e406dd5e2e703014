"""
LLTM, from PyTorch to C++ to CUDA
=================================

After this tutorial you can move a recurrent cell to C++ and CUDA, forward and backward. You also know which inputs
break a first attempt that follows the book.

The cell is that of PyTorch's `tutorial on C++ and CUDA extensions
<https://docs.pytorch.org/tutorials/advanced/cpp_extension.html>`_, called LLTM: an LSTM without a forget gate. This
page goes further in three points:

- You need no GPU: the CUDA kernels run in a simulator, which checks every memory access.
- The check finds three faults in the first attempts. The original text has two of them.
- The backward is an operator, so it is checked like the forward. ``torch.compile`` traces both.

It needs a C++ compiler, and in a clone of the repository ``pip install -e '.[report]'``. Its files are in a temporary
folder. Two functions stand for your editor and your terminal.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F

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


# %%
# In PyTorch
# ----------
# The matrix product stays with PyTorch. The rest is pointwise: three gates and the old cell give the new state.
# The second operator is the backward. It takes the two incoming gradients, and what it needs by name: the gates, and
# ``result1``, the second result of the forward. The last line makes it the gradient of the first operator.

operators = '''
import torch
import torch.nn.functional as F
from jaxtyping import Float32
from torch import Tensor

import opwright as ow

State = Float32[Tensor, "b s"]
Gates = Float32[Tensor, "b 3 s"]


@ow.op("tutorial::lltm_cell")
def cell(gates: Gates, c: State) -> tuple[State, State]:
    """The new state (h, c) from the gates before their activations, and the old cell."""
    input_gate, output_gate, candidate = gates.unbind(1)
    c_new = c + F.elu(candidate) * torch.sigmoid(input_gate)
    return torch.tanh(c_new) * torch.sigmoid(output_gate), c_new


@ow.op("tutorial::lltm_cell_backward")
def cell_backward(grad_h: State, grad_c: State, gates: Gates, result1: State) -> tuple[Gates, State]:
    """The gradients of the gates and of the old cell. ``result1`` is the new cell, the second result of ``cell``."""
    input_gate, output_gate, candidate = gates.unbind(1)
    input_gate, output_gate = torch.sigmoid(input_gate), torch.sigmoid(output_gate)
    tanh_c = torch.tanh(result1)
    grad_c = grad_c + grad_h * output_gate * (1 - tanh_c * tanh_c)
    grad_gates = torch.stack(
        (
            grad_c * F.elu(candidate) * input_gate * (1 - input_gate),
            grad_h * tanh_c * output_gate * (1 - output_gate),
            grad_c * input_gate * torch.exp(candidate.clamp(max=0)),
        ),
        1,
    )
    return grad_gates, grad_c


cell.register_autograd(cell_backward)
'''
write("lltm.py", operators)

# %%
# In C++
# ------
# The functions take tensors of torch's stable ABI. ``contiguous`` copies a tensor only if its elements are not next to
# each other. The three small functions are written as in the original text: ``elu`` is ``exp(z) - 1`` below zero.

first_cpp = """
#include <cmath>
#include <tuple>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

using torch::stable::Tensor;

static float sigmoid(float z) { return 1 / (1 + std::exp(-z)); }
static float elu(float z) { return z > 0 ? z : std::exp(z) - 1; }
static float d_elu(float z) { return z > 0 ? 1 : std::exp(z); }

std::tuple<Tensor, Tensor> forward(const Tensor& any_gates, const Tensor& any_c) {
  const Tensor gates = torch::stable::contiguous(any_gates), c = torch::stable::contiguous(any_c);
  const int64_t rows = c.size(0), columns = c.size(1);
  Tensor h_new = torch::stable::empty_like(c), c_new = torch::stable::empty_like(c);
  const float *gate = gates.const_data_ptr<float>(), *cell = c.const_data_ptr<float>();
  float *to_h = h_new.mutable_data_ptr<float>(), *to_c = c_new.mutable_data_ptr<float>();
  torch::stable::parallel_for(0, rows, 16, [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* z = gate + row * 3 * columns;
      for (int64_t j = 0; j < columns; ++j) {
        const int64_t at = row * columns + j;
        to_c[at] = cell[at] + elu(z[2 * columns + j]) * sigmoid(z[j]);
        to_h[at] = std::tanh(to_c[at]) * sigmoid(z[columns + j]);
      }
    }
  });
  return {h_new, c_new};
}

std::tuple<Tensor, Tensor> backward(const Tensor& any_grad_h, const Tensor& any_grad_c, const Tensor& any_gates,
                                    const Tensor& any_c_new) {
  const Tensor grad_h = torch::stable::contiguous(any_grad_h), grad_c = torch::stable::contiguous(any_grad_c);
  const Tensor gates = torch::stable::contiguous(any_gates), c_new = torch::stable::contiguous(any_c_new);
  const int64_t rows = c_new.size(0), columns = c_new.size(1);
  Tensor grad_gates = torch::stable::empty_like(gates), grad_c_old = torch::stable::empty_like(c_new);
  const float *from_h = grad_h.const_data_ptr<float>(), *from_c = grad_c.const_data_ptr<float>();
  const float *gate = gates.const_data_ptr<float>(), *cell = c_new.const_data_ptr<float>();
  float *to_gates = grad_gates.mutable_data_ptr<float>(), *to_c = grad_c_old.mutable_data_ptr<float>();
  torch::stable::parallel_for(0, rows, 16, [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* z = gate + row * 3 * columns;
      float* to = to_gates + row * 3 * columns;
      for (int64_t j = 0; j < columns; ++j) {
        const int64_t at = row * columns + j;
        const float in = sigmoid(z[j]), out = sigmoid(z[columns + j]), candidate = z[2 * columns + j];
        const float tanh_c = std::tanh(cell[at]);
        const float grad = from_c[at] + from_h[at] * out * (1 - tanh_c * tanh_c);
        to[j] = grad * elu(candidate) * in * (1 - in);
        to[columns + j] = from_h[at] * tanh_c * out * (1 - out);
        to[2 * columns + j] = grad * in * d_elu(candidate);
        to_c[at] = grad;
      }
    }
  });
  return {grad_gates, grad_c_old};
}
"""
write("lltm.cpp", first_cpp)

attach_cpp = """
cell.cpp("lltm.cpp", entry="forward")
cell_backward.cpp("lltm.cpp", entry="backward")
"""
write("lltm.py", operators + attach_cpp)

# %%
# ``--check values`` compares the results with those of the reference in float64:

run("opwright check lltm.py --check values", code=1)

# %%
# Values near zero are wrong, and the report shows a case of small values. There, ``exp(z)`` is nearly 1, and the
# subtraction leaves only the rounding error. A test with ``torch.allclose`` does not see it, because the values are
# small. The mend is ``expm1``, which computes the difference at once:

write("lltm.cpp", first_cpp.replace("std::exp(z) - 1", "std::expm1(z)"))

# %%
# In CUDA, first attempt
# ----------------------
# One thread computes one element. As in the original text, ``blockIdx.y`` is the row, and the kernels take raw
# pointers.

write(
    "lltm.cu",
    """
__device__ float sigmoid(float z) { return 1 / (1 + expf(-z)); }
__device__ float elu(float z) { return z > 0 ? z : expm1f(z); }
__device__ float d_elu(float z) { return z > 0 ? 1 : expf(z); }

__global__ void lltm_forward(const float* gates, const float* c, float* h_new, float* c_new, int rows, int columns) {
  const int j = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
  if (j >= columns) return;
  const float* z = gates + row * 3 * columns + j;
  const int at = row * columns + j;
  c_new[at] = c[at] + elu(z[2 * columns]) * sigmoid(z[0]);
  h_new[at] = tanhf(c_new[at]) * sigmoid(z[columns]);
}

__global__ void lltm_backward(const float* grad_h, const float* grad_c, const float* gates, const float* c_new,
                              float* grad_gates, float* grad_c_old, int rows, int columns) {
  const int j = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
  if (j >= columns) return;
  const float* z = gates + row * 3 * columns + j;
  float* to = grad_gates + row * 3 * columns + j;
  const int at = row * columns + j;
  const float in = sigmoid(z[0]), out = sigmoid(z[columns]), tanh_c = tanhf(c_new[at]);
  const float grad = grad_c[at] + grad_h[at] * out * (1 - tanh_c * tanh_c);
  to[0] = grad * elu(z[2 * columns]) * in * (1 - in);
  to[columns] = grad_h[at] * tanh_c * out * (1 - out);
  to[2 * columns] = grad * in * d_elu(z[2 * columns]);
  grad_c_old[at] = grad;
}
""",
)

# %%
# The launchers allocate the results and start the kernels: ``kernel[grid, block](arguments)``.

write(
    "lltm.py",
    operators
    + attach_cpp
    + """
kernels = ow.cuda_module("lltm.cu")


def grid(rows, columns):
    return (ow.cdiv(columns, 128), rows), 128


def empty(tensor):
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


@cell.cuda
def cuda(gates, c):
    gates, c = gates.contiguous(), c.contiguous()
    h_new, c_new = empty(c), empty(c)
    kernels["lltm_forward"][grid(*c.shape)](gates, c, h_new, c_new, *c.shape)
    return h_new, c_new


@cell_backward.cuda(name="cuda")
def cuda_backward(grad_h, grad_c, gates, result1):
    gates, c_new = gates.contiguous(), result1.contiguous()
    grad_gates, grad_c_old = empty(gates), empty(c_new)
    kernels["lltm_backward"][grid(*c_new.shape)](
        grad_h, grad_c, gates, c_new, grad_gates, grad_c_old, *c_new.shape
    )
    return grad_gates, grad_c_old
""",
)
run("opwright check lltm.py --check values", code=1)

# %%
# The C++ kernels are right now. The reports on the CUDA kernels show two faults:
#
# - **A grid may have 65,535 rows of blocks.** A batch of 65,536 is too large for the launch. The original text launches
#   its kernels in the same way.
# - **Incoming gradients have strides of their own.** The report names the line that reads between the elements of a
#   view. The gradient of ``h.sum()`` is such a view: one number, expanded to all elements.
#
# In CUDA, with accessors
# -----------------------
# Accessors solve the second fault without a copy. An accessor holds the address, the sizes and the strides of a
# tensor, so ``grad_h[row][j]`` is the right element of any view. You pass the tensors themselves. A loop over rows
# solves the first fault. ``PackedTensorAccessor64`` has strides of 64 bits, which the largest tensors need.

write(
    "lltm.cu",
    """
template <size_t N>
using Accessor = torch::PackedTensorAccessor64<float, N, torch::RestrictPtrTraits>;

__device__ float sigmoid(float z) { return 1 / (1 + expf(-z)); }
__device__ float elu(float z) { return z > 0 ? z : expm1f(z); }
__device__ float d_elu(float z) { return z > 0 ? 1 : expf(z); }

__global__ void lltm_forward(Accessor<3> gates, Accessor<2> c, Accessor<2> h_new, Accessor<2> c_new) {
  const int j = blockIdx.x * blockDim.x + threadIdx.x;
  if (j >= c.size(1)) return;
  for (int row = blockIdx.y; row < c.size(0); row += gridDim.y) {
    c_new[row][j] = c[row][j] + elu(gates[row][2][j]) * sigmoid(gates[row][0][j]);
    h_new[row][j] = tanhf(c_new[row][j]) * sigmoid(gates[row][1][j]);
  }
}

__global__ void lltm_backward(Accessor<2> grad_h, Accessor<2> grad_c, Accessor<3> gates, Accessor<2> c_new,
                              Accessor<3> grad_gates, Accessor<2> grad_c_old) {
  const int j = blockIdx.x * blockDim.x + threadIdx.x;
  if (j >= c_new.size(1)) return;
  for (int row = blockIdx.y; row < c_new.size(0); row += gridDim.y) {
    const float in = sigmoid(gates[row][0][j]), out = sigmoid(gates[row][1][j]), candidate = gates[row][2][j];
    const float tanh_c = tanhf(c_new[row][j]);
    const float grad = grad_c[row][j] + grad_h[row][j] * out * (1 - tanh_c * tanh_c);
    grad_gates[row][0][j] = grad * elu(candidate) * in * (1 - in);
    grad_gates[row][1][j] = grad_h[row][j] * tanh_c * out * (1 - out);
    grad_gates[row][2][j] = grad * in * d_elu(candidate);
    grad_c_old[row][j] = grad;
  }
}
""",
)

write(
    "lltm.py",
    operators
    + attach_cpp
    + """
kernels = ow.cuda_module("lltm.cu")


def grid(rows, columns):
    return (ow.cdiv(columns, 128), min(rows, 65535)), 128


def empty(tensor):
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


@cell.cuda
def cuda(gates, c):
    h_new, c_new = empty(c), empty(c)
    kernels["lltm_forward"][grid(*c.shape)](gates, c, h_new, c_new)
    return h_new, c_new


@cell_backward.cuda(name="cuda")
def cuda_backward(grad_h, grad_c, gates, result1):
    grad_gates, grad_c_old = empty(gates), empty(result1)
    kernels["lltm_backward"][grid(*result1.shape)](grad_h, grad_c, gates, result1, grad_gates, grad_c_old)
    return grad_gates, grad_c_old
""",
)

# %%
# Without ``--check``, every check runs: also gradients, second derivatives, other settings and ``torch.compile``.

run("opwright check lltm.py --kernel cuda")

# %%
# Use it
# ------
# The module multiplies matrices with PyTorch, and calls the operator for the rest. The plain module is the same with
# the reference.

sys.path.insert(0, str(folder))

import lltm


class LLTM(torch.nn.Module):
    def __init__(self, features, states, cell):
        super().__init__()
        self.linear = torch.nn.Linear(features + states, 3 * states)
        self.head = torch.nn.Linear(states, 1)
        self.states, self.cell = states, cell

    def forward(self, sequence):  # time, batch, features
        h = c = sequence.new_zeros(sequence.shape[1], self.states)
        for x in sequence:
            gates = self.linear(torch.cat((h, x), 1))
            h, c = self.cell(gates.view(len(x), 3, self.states), c)
        return self.head(h)[:, 0]


# %%
# Both learn to add two marked numbers of a sequence. They begin with the same weights and see the same batches. One
# thread is enough for matrices of this size.

torch.set_num_threads(1)


def train(cell, steps=200):
    torch.manual_seed(0)
    model, losses = LLTM(2, 32, cell), []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        numbers, marks = torch.rand(10, 64), torch.zeros(10, 64)
        marks[:5].scatter_(0, torch.randint(5, (1, 64)), 1.0)
        marks[5:].scatter_(0, torch.randint(5, (1, 64)), 1.0)
        loss = F.mse_loss(model(torch.stack((numbers, marks), 2)), (numbers * marks).sum(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


with_kernels = train(lltm.cell)
plain = train(lltm.cell.contract.function)
figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
axes.plot(plain, label="plain PyTorch", linewidth=4, alpha=0.4)
axes.plot(with_kernels, label="C++ kernels", linewidth=1)
axes.set(xlabel="step", ylabel="mean squared error", yscale="log")
axes.legend()
difference = max(abs(a - b) for a, b in zip(plain[:20], with_kernels[:20], strict=True))
print(f"the first 20 losses differ by at most {difference:.1e}")

# %%
# The two curves lie on each other. On a GPU the same module runs the CUDA kernels, because the tensors are there.
#
# Next
# ----
# - :doc:`/lltm` has the cell with its products fused, in CUDA graphs, and all times.
# - :doc:`/guides/two-outputs` writes a backward that needs what the forward computed.
# - :doc:`/guides/existing-cu` binds a ``.cu`` file that you already have.
