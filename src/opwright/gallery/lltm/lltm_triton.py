"""The LLTM cell in Triton: the pointwise part in one kernel each way, around torch's matrix products.

Half precision is computed in float32 and rounded once, float64 as it is.
"""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def widen(values):
    if values.dtype.primitive_bitwidth < 32:
        return values.to(tl.float32)
    else:  # noqa: RET505  # Triton 3.6 compiles a return after the `if` as well, and their types differ
        return values


@triton.jit
def expm1(x):
    # exp(x) - 1 for x <= 0. Near zero the subtraction would cancel, and Taylor's series converges fast.
    TERMS: tl.constexpr = 14 if x.dtype == tl.float64 else 8
    series = tl.full(x.shape, 1.0, x.dtype)
    for n in tl.static_range(TERMS - 1):
        series = 1 + x * series * (1.0 / (TERMS - n))
    return tl.where(x > -0.25, x * series, tl.exp(x) - 1)


@triton.jit
def tanh(x):
    below = expm1(-2 * tl.abs(x))  # in (-1, 0], so nothing overflows
    return tl.where(x < 0, below, -below) / (2 + below)


@triton.jit
def sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def activate(gates, rows, columns, inside, s):
    # The three gates after their activations, and the ELU's slope.
    gate = gates + rows * 3 * s + columns
    input_gate = sigmoid(widen(tl.load(gate, mask=inside, other=0)))
    output_gate = sigmoid(widen(tl.load(gate + s, mask=inside, other=0)))
    candidate = widen(tl.load(gate + 2 * s, mask=inside, other=0))
    below = expm1(tl.minimum(candidate, 0, propagate_nan=tl.PropagateNan.ALL))
    slope = tl.where(candidate > 0, 1, below + 1)
    return input_gate, output_gate, tl.where(candidate > 0, candidate, below), slope


@triton.jit
def forward_kernel(gates, c, h_new, c_new, b, s, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    # Offsets are 64 bits wide: a tensor may have more than 2³¹ elements.
    rows = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    columns = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    inside = (rows < b) & (columns < s)
    at = rows * s + columns
    input_gate, output_gate, candidate, _ = activate(gates, rows, columns, inside, s)
    cell = widen(tl.load(c + at, mask=inside, other=0)) + candidate * input_gate
    tl.store(h_new + at, tanh(cell) * output_gate, mask=inside)
    tl.store(c_new + at, cell, mask=inside)


@triton.jit
def load_or_zeros(grad, at, inside, like):
    if grad is None:  # autograd left it out: it counts as zeros
        return tl.zeros_like(like)
    else:  # noqa: RET505
        return widen(tl.load(grad + at, mask=inside, other=0))


@triton.jit
def backward_kernel(
    grad_h, grad_c, gates, c_new, grad_gates, grad_c_old, sums, b, s, per_program,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    # A program processes `per_program` rows of its columns, so it sums their part of the bias's gradient by itself.
    columns = (tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    first = tl.program_id(1).to(tl.int64) * per_program
    WIDE: tl.constexpr = tl.float64 if c_new.dtype.element_ty == tl.float64 else tl.float32
    sum_input = tl.zeros((ROWS, COLUMNS), WIDE)
    sum_output = tl.zeros((ROWS, COLUMNS), WIDE)
    sum_candidate = tl.zeros((ROWS, COLUMNS), WIDE)
    for start in range(0, per_program, ROWS):
        rows = (first + start + tl.arange(0, ROWS))[:, None]
        inside = (rows < b) & (columns < s) & (rows < first + per_program)
        at, gate = rows * s + columns, rows * 3 * s + columns
        input_gate, output_gate, candidate, slope = activate(gates, rows, columns, inside, s)
        squashed = tanh(widen(tl.load(c_new + at, mask=inside, other=0)))
        of_h = load_or_zeros(grad_h, at, inside, squashed)
        of_c = load_or_zeros(grad_c, at, inside, squashed) + of_h * output_gate * (1 - squashed * squashed)
        to_input = of_c * candidate * input_gate * (1 - input_gate)
        to_output = of_h * squashed * output_gate * (1 - output_gate)
        to_candidate = of_c * input_gate * slope
        tl.store(grad_gates + gate, to_input, mask=inside)
        tl.store(grad_gates + gate + s, to_output, mask=inside)
        tl.store(grad_gates + gate + 2 * s, to_candidate, mask=inside)
        tl.store(grad_c_old + at, of_c, mask=inside)
        sum_input += to_input
        sum_output += to_output
        sum_candidate += to_candidate
    own = sums + tl.program_id(1).to(tl.int64) * 3 * s + columns
    tl.store(own, tl.sum(sum_input, axis=0)[None, :], mask=columns < s)
    tl.store(own + s, tl.sum(sum_output, axis=0)[None, :], mask=columns < s)
    tl.store(own + 2 * s, tl.sum(sum_candidate, axis=0)[None, :], mask=columns < s)


def lltm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, h: torch.Tensor, c: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The cell's next state (h, c), with what its backward needs: [h, x] and the gates before their activations."""
    inputs = torch.cat((h, x), 1)
    gates = F.linear(inputs, weight, bias)
    c = c.contiguous()
    h_new = torch.empty_like(c, memory_format=torch.contiguous_format)
    c_new = torch.empty_like(c, memory_format=torch.contiguous_format)
    b, s = c.shape
    if b > 0 and s > 0:  # a grid may not be empty
        rows, columns = 8, 128
        grid = (triton.cdiv(b, rows), triton.cdiv(s, columns))
        forward_kernel[grid](gates, c, h_new, c_new, b, s, ROWS=rows, COLUMNS=columns)
    return h_new, c_new, inputs, gates


def lltm_backward_pointwise(
    grad_h: torch.Tensor | None, grad_c: torch.Tensor | None, gates: torch.Tensor, c_new: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of the gates before their activations, of the bias and of the old cell."""
    gates, c_new = gates.contiguous(), c_new.contiguous()
    grad_h = grad_h.contiguous() if grad_h is not None else None
    grad_c = grad_c.contiguous() if grad_c is not None else None
    b, s = c_new.shape
    grad_gates = torch.empty_like(gates, memory_format=torch.contiguous_format)
    grad_c_old = torch.empty_like(c_new, memory_format=torch.contiguous_format)
    if b <= 256:  # one program for each few columns sums the whole gradient of the bias
        sums, programs, per_program, rows, columns = gates.new_empty(3 * s), 1, b, 32, 32
    else:
        per_program, rows, columns = max(triton.cdiv(b, 1024), 128), 8, 128
        programs = triton.cdiv(b, per_program)
        wide = torch.float64 if gates.dtype == torch.float64 else torch.float32
        sums = gates.new_empty((programs, 3 * s), dtype=wide)
    if s > 0:
        grid = (triton.cdiv(s, columns), programs)  # there are at most 1,024 programs for the same columns
        backward_kernel[grid](
            grad_h, grad_c, gates, c_new, grad_gates, grad_c_old, sums, b, s, per_program, ROWS=rows, COLUMNS=columns
        )
    return grad_gates, sums if programs == 1 else sums.sum(0).to(gates.dtype), grad_c_old


def lltm_backward(
    grad_h: torch.Tensor | None,
    grad_c: torch.Tensor | None,
    weight: torch.Tensor,
    inputs: torch.Tensor,
    gates: torch.Tensor,
    c_new: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of the inputs, of the weight by them, of the bias and of the old cell."""
    grad_gates, grad_bias, grad_c_old = lltm_backward_pointwise(grad_h, grad_c, gates, c_new)
    return grad_gates @ weight, grad_gates.t() @ inputs, grad_bias, grad_c_old
