"""The LLTM cell, forward and backward: in CUDA C++ (raw pointers and bounds-aware accessors), C++ and Triton."""

import functools
from typing import Annotated

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

import opwright as ow

__all__ = ["lltm", "lltm_backward", "lltm_with"]

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


# -- what it means ------------------------------------------------------------------------------------------


@ow.op("gallery::lltm", autocast="lower")
def lltm(
    x: Float[Tensor, "b i"],
    weight: Float[Tensor, "3*s s+i"],
    bias: Float[Tensor, "3*s"],
    h: Float[Tensor, "b s"],
    c: Float[Tensor, "b s"],
) -> tuple[
    Float[Tensor, "b s"],
    Float[Tensor, "b s"],
    Annotated[Float[Tensor, "b s+i"], ow.saved],
    Annotated[Float[Tensor, "b 3*s"], ow.saved],
]:
    """The next state (h, c) of a long long-term memory, an LSTM without a forget gate whose candidate is an ELU.

    The cell of PyTorch's tutorial on C++ and CUDA extensions
    (https://docs.pytorch.org/tutorials/advanced/cpp_extension.html). It keeps for its backward the inputs of the matrix
    product and the gates *before* their activations: both are in memory anyway, and the activations are cheaper to
    compute again than to write and read.
    """
    inputs = torch.cat((h, x), 1)
    gates = torch.addmm(bias, inputs, weight.t())
    input_gate, output_gate, candidate = gates.chunk(3, 1)
    c_new = c + F.elu(candidate) * torch.sigmoid(input_gate)
    h_new = torch.tanh(c_new) * torch.sigmoid(output_gate)
    return h_new, c_new, inputs, gates


@ow.op("gallery::lltm_backward")
def lltm_backward(
    grad_h: Float[Tensor, "b s"] | None,
    grad_c: Float[Tensor, "b s"] | None,
    gates: Float[Tensor, "b 3*s"],
    c_new: Float[Tensor, "b s"],
) -> tuple[Float[Tensor, "b 3*s"], Float[Tensor, "3*s"], Float[Tensor, "b s"]]:
    """The pointwise part of the backward: the gradients of the gates, of the bias and of the old cell.

    ``grad_h`` and ``grad_c`` belong to the new state; None counts as zeros.
    """
    input_gate, output_gate, candidate = gates.chunk(3, 1)
    input_gate, output_gate = torch.sigmoid(input_gate), torch.sigmoid(output_gate)
    slope = torch.exp(candidate.clamp(max=0))  # of the ELU
    squashed = torch.tanh(c_new)
    grad_h = torch.zeros_like(c_new) if grad_h is None else grad_h
    grad_c = torch.zeros_like(c_new) if grad_c is None else grad_c
    grad_c = grad_c + grad_h * output_gate * (1 - squashed * squashed)
    grad_gates = torch.cat(
        (
            grad_c * F.elu(candidate) * input_gate * (1 - input_gate),
            grad_h * squashed * output_gate * (1 - output_gate),
            grad_c * input_gate * slope,
        ),
        1,
    )
    return grad_gates, grad_gates.sum(0), grad_c


# -- its gradient: the pointwise part above, and two matrix products of torch's ---------------------------------


def save_for_backward(ctx, inputs, output):
    ctx.set_materialize_grads(False)  # a state that nothing depends on has None, which costs nothing
    _, weight, _, _, _ = inputs
    _, c_new, cell_inputs, gates = output
    ctx.save_for_backward(weight, cell_inputs, gates, c_new)


def grads_of_inputs(grad_gates, weight, state_size, needs_h, needs_x):
    """The gradients of h and x: two views of one product, or the product that is wanted alone."""
    if needs_h and needs_x:
        # For few rows cuBLAS sums the transposed product in parts, and takes an eighth of the time: 6.4 µs instead of
        # 54 for 16 rows, the same for 256 (one H200, 384 by 160).
        few = grad_gates.shape[0] <= 64
        grad_inputs = (weight.t() @ grad_gates.t()).t() if few else grad_gates @ weight
        return grad_inputs[:, :state_size], grad_inputs[:, state_size:]
    grad_h = grad_gates @ weight[:, :state_size] if needs_h else None
    grad_x = grad_gates @ weight[:, state_size:] if needs_x else None
    return grad_h, grad_x


def register_gradient(operator, pointwise):
    """Give an operator like ``lltm`` its backward, whose pointwise part is an operator like ``lltm_backward``."""

    def backward(ctx, grad_h, grad_c):
        weight, inputs, gates, c_new = ctx.saved_tensors
        ctx.maybe_clear_saved_tensors()  # unless the graph is retained
        needs_x, needs_weight, _, needs_h, _ = ctx.needs_input_grad
        state_size = c_new.shape[1]
        grad_gates, grad_bias, grad_c = pointwise(grad_h, grad_c, gates, c_new)
        del gates  # a fifth of what a step has in memory: free for what comes now
        grad_h, grad_x = grads_of_inputs(grad_gates, weight, state_size, needs_h, needs_x)
        grad_weight = grad_gates.t() @ inputs if needs_weight else None
        return grad_x, grad_weight, grad_bias, grad_h, grad_c

    operator.register_autograd(backward, setup_context=save_for_backward)


register_gradient(lltm, lltm_backward)


# -- kernels ---------------------------------------------------------------------------------------------------

lltm.cpp("lltm.cpp", dtypes=FLOATS)
lltm_backward.cpp("lltm.cpp", entry="lltm_backward", dtypes=FLOATS)

cuda = ow.cuda_module("lltm.cu")
CPP_TYPE = {torch.float64: "double", torch.float32: "float", torch.float16: "__half", torch.bfloat16: "__nv_bfloat16"}
WIDE = {dtype: torch.float64 if dtype == torch.float64 else torch.float32 for dtype in FLOATS}
LANES, ROWS = 32, 16  # as in lltm.cu


def widths(dtype):
    """How many elements a thread may take at once: one, or 16 bytes."""
    return 1, 16 // dtype.itemsize


# By dtype, width and, for the backward, the dtype of what a block sums of the bias's gradient.
FORWARD = {(d, w): cuda[f"lltm_forward<{CPP_TYPE[d]}, {w}>"] for d in FLOATS for w in widths(d)}
BACKWARD = {
    (d, w, p): cuda[f"lltm_backward<{CPP_TYPE[d]}, {w}, {CPP_TYPE[p]}>"]
    for d in FLOATS for w in widths(d) for p in {d, WIDE[d]}
}  # fmt: skip
FORWARD_ACCESSORS = {d: cuda[f"lltm_forward_accessors<{CPP_TYPE[d]}>"] for d in FLOATS}
BACKWARD_ACCESSORS = {
    (d, p): cuda[f"lltm_backward_accessors<{CPP_TYPE[d]}, {CPP_TYPE[p]}>"] for d in FLOATS for p in {d, WIDE[d]}
}


def width_for(columns, *tensors):
    """As wide as rows and addresses allow: what is loaded at once has to begin at a multiple of its size."""
    width = 16 // tensors[0].dtype.itemsize
    return width if columns % width == 0 and all(t.data_ptr() % 16 == 0 for t in tensors if t is not None) else 1


def empty(tensor):
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def forward_grid(rows, columns, width):
    return (ow.cdiv(columns, width * LANES), min(ow.cdiv(rows, 8), 65535)), (LANES, 8)


def sums_of_blocks(gates):
    """Rows that a block of the backward walks down, and a place for its sums of them: the bias's gradient itself where
    one block for each few columns is enough, else a row for each block."""
    rows, columns = gates.shape
    if rows <= 256:
        return max(rows, 1), gates.new_empty((1, columns))
    rows_of_a_block = max(128, ow.cdiv(rows, 1024))
    return rows_of_a_block, gates.new_empty((ow.cdiv(rows, rows_of_a_block), columns), dtype=WIDE[gates.dtype])


def total(sums, dtype):
    # Always in one order, so that results repeat.
    return sums.view(-1) if len(sums) == 1 else sums.sum(0).to(dtype)


@lltm.cuda(name="cuda", dtypes=FLOATS)
def _(x, weight, bias, h, c):
    inputs = torch.cat((h, x), 1)
    gates, c = F.linear(inputs, weight, bias), c.contiguous()
    h_new, c_new = empty(c), empty(c)
    rows, columns = c.shape
    width = width_for(columns, c)
    grid, block = forward_grid(rows, columns, width)
    FORWARD[c.dtype, width][grid, block](gates, c, h_new, c_new, rows, columns)
    return h_new, c_new, inputs, gates


@lltm_backward.cuda(name="cuda", dtypes=FLOATS)
def _(grad_h, grad_c, gates, c_new):
    gates, c_new = gates.contiguous(), c_new.contiguous()
    grad_h = grad_h.contiguous() if grad_h is not None else None
    grad_c = grad_c.contiguous() if grad_c is not None else None
    grad_gates, grad_c_old = empty(gates), empty(c_new)
    rows, columns = c_new.shape
    rows_of_a_block, sums = sums_of_blocks(gates)
    # A single block for each few columns: the fewer, the more blocks.
    width = width_for(columns, gates, c_new, grad_h, grad_c) if len(sums) > 1 else 1
    BACKWARD[gates.dtype, width, sums.dtype][(ow.cdiv(columns, width * LANES), len(sums)), (LANES, ROWS)](
        gates, c_new, grad_h, grad_c, grad_gates, grad_c_old, sums, rows, columns, rows_of_a_block
    )
    return grad_gates, total(sums, gates.dtype), grad_c_old


@lltm.cuda(name="cuda_accessors", dtypes=FLOATS)
def _(x, weight, bias, h, c):
    inputs = torch.cat((h, x), 1)
    gates = F.linear(inputs, weight, bias)
    h_new, c_new = empty(c), empty(c)
    rows, columns = c.shape
    grid, block = forward_grid(rows, columns, 1)
    FORWARD_ACCESSORS[c.dtype][grid, block](gates, c, h_new, c_new, rows, columns, *c.stride())
    return h_new, c_new, inputs, gates


@lltm_backward.cuda(name="cuda_accessors", dtypes=FLOATS)
def _(grad_h, grad_c, gates, c_new):
    gates, c_new = gates.contiguous(), c_new.contiguous()
    grad_gates, grad_c_old = empty(gates), empty(c_new)
    rows, columns = c_new.shape
    rows_of_a_block, sums = sums_of_blocks(gates)
    strides = [stride for g in (grad_h, grad_c) for stride in (g.stride() if g is not None else (0, 0))]
    BACKWARD_ACCESSORS[gates.dtype, sums.dtype][(ow.cdiv(columns, LANES), len(sums)), (LANES, ROWS)](
        gates, c_new, grad_h, grad_c, grad_gates, grad_c_old, sums, rows, columns, rows_of_a_block, *strides
    )
    return grad_gates, total(sums, gates.dtype), grad_c_old


# The same kernels with C++ in place of the launchers above: nvcc builds it, and a package can hold it.
lltm.cuda("lltm_host.cu", name="cuda_host", entry="forward", dtypes=FLOATS)
lltm_backward.cuda("lltm_host.cu", name="cuda_host", entry="backward", dtypes=FLOATS)

lltm.triton("lltm_triton.py", entry="lltm", dtypes=FLOATS)
lltm_backward.triton("lltm_triton.py", entry="lltm_backward", dtypes=FLOATS)

lltm.bench_sizes(b=(16, 256, 4096), i=(32, 512, 1024), s=(128, 512, 1024))
lltm_backward.bench_sizes(b=(16, 256, 4096), s=(128, 512, 1024))


# -- one kernel, and no other -------------------------------------------------------------------------------


@functools.cache
def lltm_with(kernel):
    """The operator with one kernel, forward and backward, under a name of its own (``gallery::lltm_triton``).

    ``op.only`` restricts a block of code, and a backward runs outside of any; this holds in every thread, and
    torch.compile tells one from another. Where the kernel does not fit, the meaning runs.
    """
    if kernel not in lltm.kernels:
        raise ValueError(f"the LLTM cell has no kernel {kernel!r}; it has {', '.join(lltm.kernels)}")
    forward, pointwise = restricted(lltm, kernel), restricted(lltm_backward, kernel)
    register_gradient(forward, pointwise)
    return forward


def restricted(operator, kernel):
    spec = operator.kernels[kernel].spec
    contract = operator.contract
    made = ow.op(f"{contract.qualname}_{kernel}", autocast=contract.autocast)(contract.function)
    attach = getattr(made, spec.backend)
    attach(
        spec.source, name=kernel, entry=spec.entry, devices=spec.devices, dtypes=spec.dtypes, when=spec.when,
        **spec.options,
    )  # fmt: skip
    return made
