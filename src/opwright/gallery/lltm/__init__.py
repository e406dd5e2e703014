"""The LLTM cell, forward and backward: in CUDA C++ (raw pointers and bounds-aware accessors), C++ and Triton."""

import functools
from typing import Annotated

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.gallery.lltm import lltm_cuda
from opwright.gallery.lltm.lltm_cuda import FLOATS

__all__ = ["lltm", "lltm_backward", "lltm_backward_pointwise", "lltm_with"]

# -- the reference ------------------------------------------------------------------------------------------


@ow.op("gallery::lltm", autocast="lower")
def lltm(
    x: Float[Tensor, "b i"],
    weight: Float[Tensor, "3*s s+i"],
    bias: Float[Tensor, " 3*s"],
    h: Float[Tensor, "b s"],
    c: Float[Tensor, "b s"],
) -> tuple[
    Float[Tensor, "b s"],
    Float[Tensor, "b s"],
    Annotated[Float[Tensor, "b s+i"], ow.saved_for_backward],
    Annotated[Float[Tensor, "b 3*s"], ow.saved_for_backward],
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


@ow.op("gallery::lltm_backward_pointwise")
def lltm_backward_pointwise(
    grad_h: Float[Tensor, "b s"] | None,
    grad_c: Float[Tensor, "b s"] | None,
    gates: Float[Tensor, "b 3*s"],
    c_new: Float[Tensor, "b s"],
) -> tuple[Float[Tensor, "b 3*s"], Float[Tensor, " 3*s"], Float[Tensor, "b s"]]:
    """The pointwise part of the backward: the gradients of the gates, of the bias and of the old cell.

    ``grad_h`` and ``grad_c`` belong to the new state; None counts as zeros.
    """
    return pointwise_backward(grad_h, grad_c, gates, c_new)


@ow.op("gallery::lltm_backward")
def lltm_backward(
    grad_h: Float[Tensor, "b s"] | None,
    grad_c: Float[Tensor, "b s"] | None,
    weight: Float[Tensor, "3*s n"],
    inputs: Float[Tensor, "b m"],
    gates: Float[Tensor, "b 3*s"],
    c_new: Float[Tensor, "b s"],
) -> tuple[Float[Tensor, "b n"], Float[Tensor, "3*s m"], Float[Tensor, " 3*s"], Float[Tensor, "b s"]]:
    """The backward in one call: the gradients of inputs, of the weight, of the bias and of the old cell.

    ``weight`` has the columns of those inputs whose gradient is wanted, ``inputs`` those of the weights' gradient: all,
    some or none.
    """
    grad_gates, grad_bias, grad_c = pointwise_backward(grad_h, grad_c, gates, c_new)
    return grad_gates @ weight, grad_gates.t() @ inputs, grad_bias, grad_c


def pointwise_backward(grad_h, grad_c, gates, c_new):
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


# -- its gradient ------------------------------------------------------------------------------------------------

# Elements of the gates. Up to this number a backward is one call, because calls are its cost. Above it, the products
# come after the pointwise part, and the gates are freed before them: a fifth of a step's memory, here 2 MiB in float32.
MOST_IN_ONE_CALL = 1 << 19


def save_for_backward(ctx, inputs, output):
    ctx.set_materialize_grads(False)  # a state that nothing depends on has None, which costs nothing
    _, weight, _, _, _ = inputs
    _, c_new, cell_inputs, gates = output
    needs_weight = ctx.needs_input_grad[1]
    ctx.save_for_backward(weight, cell_inputs if needs_weight else None, gates, c_new)


def columns_of(weight, state_size, needs_h, needs_x):
    """The weight's columns for h, for x, for both or for neither."""
    if needs_h and needs_x:
        return weight
    if needs_h:
        return weight[:, :state_size]
    return weight[:, state_size:] if needs_x else weight[:, :0]


def register_gradient(operator, in_one_call, pointwise):
    """Register the backward of an operator like ``lltm``: operators like ``lltm_backward`` and its pointwise part."""

    def backward(ctx, grad_h, grad_c):
        weight, inputs, gates, c_new = ctx.saved_tensors
        ctx.maybe_clear_saved_tensors()  # unless the graph is retained
        needs_x, needs_weight, _, needs_h, _ = ctx.needs_input_grad
        state_size, features = c_new.shape[1], weight.shape[1] - c_new.shape[1]
        weight = columns_of(weight, state_size, needs_h, needs_x)
        inputs = inputs if needs_weight else c_new[:, :0]
        if gates.numel() <= MOST_IN_ONE_CALL:
            grad_inputs, grad_weight, grad_bias, grad_c = in_one_call(grad_h, grad_c, weight, inputs, gates, c_new)
        else:
            grad_gates, grad_bias, grad_c = pointwise(grad_h, grad_c, gates, c_new)
            del gates
            grad_inputs, grad_weight = grad_gates @ weight, grad_gates.t() @ inputs
        wanted = (state_size if needs_h else 0, features if needs_x else 0)
        grad_h, grad_x = grad_inputs.split_with_sizes(wanted, 1)
        return (
            grad_x if needs_x else None,
            grad_weight if needs_weight else None,
            grad_bias,
            grad_h if needs_h else None,
            grad_c,
        )

    operator.register_autograd(backward, setup_context=save_for_backward)


register_gradient(lltm, lltm_backward, lltm_backward_pointwise)


# -- kernels ---------------------------------------------------------------------------------------------------

lltm.cpp("lltm.cpp", entry="lltm", dtypes=FLOATS)
lltm_backward.cpp("lltm.cpp", entry="lltm_backward", dtypes=FLOATS)
lltm_backward_pointwise.cpp("lltm.cpp", entry="lltm_backward_pointwise", dtypes=FLOATS)

lltm.cuda(lltm_cuda.forward, name="cuda", dtypes=FLOATS)
lltm_backward.cuda(lltm_cuda.backward, name="cuda", dtypes=FLOATS)
lltm_backward_pointwise.cuda(lltm_cuda.backward_pointwise, name="cuda", dtypes=FLOATS)

lltm.cuda(lltm_cuda.forward_accessors, name="cuda_accessors", dtypes=FLOATS)
lltm_backward.cuda(lltm_cuda.backward_accessors, name="cuda_accessors", dtypes=FLOATS)
lltm_backward_pointwise.cuda(lltm_cuda.backward_pointwise_accessors, name="cuda_accessors", dtypes=FLOATS)

# The same kernels with C++ in place of lltm_cuda.py: nvcc builds it, and a package can contain it.
lltm.cuda("lltm_host.cu", name="cuda_host", entry="forward", dtypes=FLOATS)
lltm_backward.cuda("lltm_host.cu", name="cuda_host", entry="backward", dtypes=FLOATS)
lltm_backward_pointwise.cuda("lltm_host.cu", name="cuda_host", entry="backward_pointwise", dtypes=FLOATS)

lltm.triton("lltm_triton.py", entry="lltm", dtypes=FLOATS)
lltm_backward.triton("lltm_triton.py", entry="lltm_backward", dtypes=FLOATS)
lltm_backward_pointwise.triton("lltm_triton.py", entry="lltm_backward_pointwise", dtypes=FLOATS)

lltm.sizes(b=(16, 256, 4096), i=(32, 512, 1024), s=(128, 512, 1024))
lltm_backward.sizes(b=(16, 256, 4096), n=(160, 1024, 2048), m=(160, 1024, 2048), s=(128, 512, 1024))
lltm_backward_pointwise.sizes(b=(16, 256, 4096), s=(128, 512, 1024))


# -- one kernel only ----------------------------------------------------------------------------------------


@functools.cache
def lltm_with(kernel):
    """The operator with only one kernel, forward and backward, under its own name (``gallery::lltm_triton``).

    If the kernel is not applicable, the reference runs.
    """
    forward, in_one_call, pointwise = (o.restricted_to(kernel) for o in (lltm, lltm_backward, lltm_backward_pointwise))
    register_gradient(forward, in_one_call, pointwise)
    return forward
