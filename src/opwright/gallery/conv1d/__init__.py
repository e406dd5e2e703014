"""A 1-D convolution: in Mojo (on a CPU; on a GPU from registers or shared memory), C++, CUDA C++, Triton and NumPy."""

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float32
from torch import Tensor

import opwright as ow

__all__ = ["conv1d", "conv1d_15_4", "conv1d_taps", "demo"]

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
THREADS = 256


def is_narrow(x, k):
    return k.shape[0] in (3, 4, 5)


@ow.op("gallery::conv1d")
def conv1d(x: Float[Tensor, " n"], k: Float[Tensor, " m"]) -> Float[Tensor, " n"]:
    """``out[i] = Σ_j x[i + j] · k[j]``, with zeros past the end of ``x``; ``k`` has at least one tap.

    The kernel that Modular's puzzles write in Mojo and use in PyTorch and in a MAX graph.
    """
    # One zero more than the taps need: torch does not accept an input that is shorter than the kernel.
    padded = F.pad(x, (0, k.shape[0]))
    return F.conv1d(padded[None, None], k[None, None])[0, 0, : x.shape[0]]


# On a GPU in blocks of THREADS, which load and store 16 bytes at a time, twice.
def blocks(x, k):
    return ow.cdiv(x.nbytes, 2 * 16 * THREADS)


conv1d.mojo("conv1d.mojo", dtypes=FLOATS)
conv1d.mojo(
    "conv1d.mojo", entry="conv1d_gpu", name="mojo_gpu", devices=["cuda"], dtypes=FLOATS,
    grid=blocks, block=THREADS, alignment=16, prebuilt="prebuilt",
)  # fmt: skip
# The same in tiles of shared memory, with a barrier. Its PTX is not shipped, so it needs Mojo on the GPU machine.
conv1d.mojo(
    "conv1d_tiled.mojo", entry="conv1d_tiled", name="mojo_gpu_tiled", devices=["cuda"], dtypes=FLOATS,
    grid=blocks, block=THREADS, alignment=16,
)  # fmt: skip
# With a number of taps that is known at compile time, their loop is unrolled.
conv1d.mojo(
    "conv1d.mojo", name="mojo_unrolled", dtypes=FLOATS, params={"width": lambda x, k: k.shape[0]}, when=is_narrow
)

cuda = ow.cuda_module("conv1d.cu")
CPP_TYPE = {torch.float64: "double", torch.float32: "float", torch.float16: "__half", torch.bfloat16: "__nv_bfloat16"}
CUDA_KERNELS = {dtype: cuda[f"conv1d<{name}>"] for dtype, name in CPP_TYPE.items()}


@conv1d.cuda(name="cuda", dtypes=FLOATS)
def _(x, k):
    x, k = x.contiguous(), k.contiguous()
    if x.data_ptr() % 16:  # a view that starts between two of the kernel's loads
        x = x.clone()
    out = torch.empty_like(x)
    CUDA_KERNELS[x.dtype][blocks(x, k), THREADS](x, k, out, x.numel(), k.numel())
    return out


conv1d.triton("conv1d_triton.py", dtypes=FLOATS)
conv1d.cpp("conv1d.cpp", dtypes=FLOATS)


@conv1d.numpy(name="numpy_compiled", devices=["cpu"], dtypes=(torch.float32, torch.float64))
def _(x, k):
    padded = np.concatenate([x, np.zeros_like(k)])
    reach = np.arange(len(x))[:, None] + np.arange(len(k))
    return np.sum(padded[reach] * k, axis=1)


# MAX compiles a graph of the same Mojo code for half a minute: once for all sizes, and here for one dtype.
conv1d.mojo("max_op.mojo", abi="max", name="max_graph", symbolic=True, dtypes=[torch.float32])


@ow.op("gallery::conv1d_15_4")
def conv1d_15_4(x: Float32[Tensor, "15"], k: Float32[Tensor, "4"]) -> Float32[Tensor, "15"]:
    """The same for one pair of sizes, which MAX's CustomOpLibrary gets as compile-time parameters."""
    return F.conv1d(F.pad(x, (0, 4))[None, None], k[None, None])[0, 0, :15]


conv1d_15_4.mojo("max_op.mojo", abi="max", entry="conv1d", name="max_op", params={"n": 15, "m": 4})


# -- the gradient: of x the same convolution backwards, of k an operator of its own --------------------------


@ow.op("gallery::conv1d_taps")
def conv1d_taps(x: Float[Tensor, " n"], grad: Float[Tensor, " n"], m: int) -> Float[Tensor, " m"]:
    """The gradient of ``conv1d`` for its m taps: ``out[j] = Σ_i x[i + j] · grad[i]``, with zeros past the end of x."""
    return F.pad(x, (0, m)).unfold(0, x.shape[0], 1)[:m] @ grad


conv1d_taps.mojo("conv1d.mojo", entry="conv1d_taps", dtypes=FLOATS)
conv1d_taps.cpp("conv1d.cpp", entry="conv1d_taps", dtypes=FLOATS)
TAPS_KERNELS = {dtype: cuda[f"conv1d_taps<{name}>"] for dtype, name in CPP_TYPE.items()}


@conv1d_taps.cuda(name="cuda", dtypes=FLOATS)
def _(x, grad, m):
    x, grad = x.contiguous(), grad.contiguous()
    sums = torch.float64 if x.dtype == torch.float64 else torch.float32
    blocks = min(ow.cdiv(max(x.numel(), 1), 16 * THREADS), 1024)
    # The sums of each block are added in a fixed order, whatever the blocks' timing, so that results repeat.
    partial = torch.empty((blocks, m), dtype=sums, device=x.device)
    TAPS_KERNELS[x.dtype][(blocks, ow.cdiv(m, 8)), THREADS](x, grad, partial, x.numel(), m)
    return partial.sum(0).to(x.dtype)


def save_inputs(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def backward(ctx, grad):
    x, k = ctx.saved_tensors
    grad_x = conv1d(grad.flip(0), k).flip(0) if ctx.needs_input_grad[0] else None
    grad_k = conv1d_taps(x, grad, k.shape[0]) if ctx.needs_input_grad[1] else None
    return grad_x, grad_k


def taps_backward(ctx, grad):
    x, factor = ctx.saved_tensors
    grad_x = conv1d(factor.flip(0), grad).flip(0) if ctx.needs_input_grad[0] else None
    grad_factor = conv1d(x, grad) if ctx.needs_input_grad[1] else None
    return grad_x, grad_factor, None


def save_tensors(ctx, inputs, output):
    ctx.save_for_backward(inputs[0], inputs[1])


conv1d.register_autograd(backward, setup_context=save_inputs)
conv1d_taps.register_autograd(taps_backward, setup_context=save_tensors)

conv1d.sizes(n=(1_000, 100_000, 10_000_000, 100_000_000), m=(4,))


# -- one command that runs it in NumPy, as a PyTorch operator and in a MAX graph -------------------------------------


def demo():
    """Print the results of NumPy, the operator and MAX on input 0 … 14 and kernel 0 … 3. Returns whether all agree."""
    x, k = np.arange(15, dtype=np.float32), np.arange(4, dtype=np.float32)
    expected = np.array([14, 20, 26, 32, 38, 44, 50, 56, 62, 68, 74, 80, 41, 14, 0], dtype=np.float32)
    print(f"Input {x}\nKernel {k}\n")
    results = {"NumPy": np.convolve(np.concatenate([x, np.zeros(3, np.float32)]), k[::-1], mode="valid")}
    tensors = torch.from_numpy(x), torch.from_numpy(k)
    results["PyTorch operator"] = torch.ops.gallery.conv1d(*tensors).numpy()
    in_max = {"MAX custom operator": conv1d_15_4.kernels["max_op"], "MAX graph": conv1d.kernels["max_graph"]}
    for title, kernel in in_max.items():
        probe = kernel.probe("cpu")
        if hasattr(probe, "remedy"):
            print(f"{title}: not run: {probe}\n")
        else:
            results[title] = kernel(*tensors).numpy()
    passed = {title: np.array_equal(result, expected) for title, result in results.items()}
    for title, result in results.items():
        print(f"{title}\n  {result}\n  {'PASSED' if passed[title] else f'FAILED: expected {expected}'}")
    print("\nMATCH" if all(passed.values()) else "\nNO MATCH")
    return all(passed.values())
