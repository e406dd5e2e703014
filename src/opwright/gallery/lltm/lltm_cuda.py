"""The LLTM cell's launchers of CUDA kernels: of lltm.cu with torch's products, of lltm_small.cu and lltm_tiles.cu."""

import torch
import torch.nn.functional as F

import opwright as ow

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
cuda, small, tiles = ow.cuda_module("lltm.cu"), ow.cuda_module("lltm_small.cu"), ow.cuda_module("lltm_tiles.cu")
CPP_TYPE = {torch.float64: "double", torch.float32: "float", torch.float16: "__half", torch.bfloat16: "__nv_bfloat16"}
WIDE = {dtype: torch.float64 if dtype == torch.float64 else torch.float32 for dtype in FLOATS}
LANES, ROWS = 32, 16  # as in cell.cuh and lltm.cu
WARPS, GROUP, OWN, MOST_ROWS, MOST_WEIGHTS = 8, 16, 4, 64, 1 << 19  # as in lltm_small.cu
# As in lltm_tiles.cu.
ACROSS, DOWN, PARTS, MOST_TILED_ROWS, MOST_TILED_WEIGHTS, MOST_STRIDE = 8, 8, 4, 512, 1 << 21, 1 << 24
FORWARD_ROWS, FORWARD_COLUMNS, INPUTS_ROWS, WEIGHT_ROWS, TILE_COLUMNS = 32, 16, 32, 64, 64


def widths(dtype):
    """The numbers of elements that a thread may load at once: one, or 16 bytes."""
    return 1, 16 // dtype.itemsize


# By dtype, width and, for the backward, the dtype of a block's sums of the bias's gradient.
FORWARD = {(d, w): cuda[f"lltm_forward<{CPP_TYPE[d]}, {w}>"] for d in FLOATS for w in widths(d)}
BACKWARD = {
    (d, w, p): cuda[f"lltm_backward<{CPP_TYPE[d]}, {w}, {CPP_TYPE[p]}>"]
    for d in FLOATS for w in widths(d) for p in {d, WIDE[d]}
}  # fmt: skip
FORWARD_SMALL = {d: small[f"lltm_small_forward<{CPP_TYPE[d]}>"] for d in FLOATS}
BACKWARD_SMALL = {d: small[f"lltm_small_backward<{CPP_TYPE[d]}>"] for d in FLOATS}
FORWARD_TILES, PRODUCTS_TILES = tiles["lltm_tiles_forward"], tiles["lltm_tiles_products"]
FORWARD_ACCESSORS = {d: cuda[f"lltm_forward_accessors<{CPP_TYPE[d]}>"] for d in FLOATS}
BACKWARD_ACCESSORS = {
    (d, p): cuda[f"lltm_backward_accessors<{CPP_TYPE[d]}, {CPP_TYPE[p]}>"] for d in FLOATS for p in {d, WIDE[d]}
}


def width_for(columns, *tensors):
    """As wide as rows and addresses allow: the address of a load must be a multiple of its size."""
    width = 16 // tensors[0].dtype.itemsize
    if columns % width:
        return 1
    for tensor in tensors:
        if tensor is not None and tensor.data_ptr() % 16:
            return 1
    return width


def empty(tensor):
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def forward_grid(rows, columns, width):
    return (ow.cdiv(columns, width * LANES), min(ow.cdiv(rows, 8), 65535)), (LANES, 8)


def sums_of_blocks(gates):
    """The rows of a block of the backward, the number of blocks for each few columns, and a tensor for their sums: the
    bias's gradient itself if one block is enough, else a row for each block."""
    rows, columns = gates.shape
    if rows <= 256:
        return max(rows, 1), 1, gates.new_empty(columns)
    rows_of_a_block = max(128, ow.cdiv(rows, 1024))
    blocks = ow.cdiv(rows, rows_of_a_block)
    return rows_of_a_block, blocks, gates.new_empty((blocks, columns), dtype=WIDE[gates.dtype])


def total(sums, dtype):
    # Always in one order, so that results repeat.
    return sums if sums.dim() == 1 else sums.sum(0).to(dtype)


def is_small(rows, columns, width):
    """Whether a step is worth a kernel that does all of it in one launch: few rows, and few weights, of ``width``
    columns."""
    return 0 < rows <= MOST_ROWS and 0 < 3 * columns * max(width, 1) <= MOST_WEIGHTS


def is_middle(rows, columns, width, dtype):
    """Whether a step is so small that calling torch's products costs more than their work. They have tensor cores for
    other dtypes."""
    few = 0 < rows <= MOST_TILED_ROWS and 0 < 3 * columns * width <= MOST_TILED_WEIGHTS
    return few and dtype == torch.float32


def in_fours(*matrices):
    """Whether four elements of a row can be loaded at once. Rows lie one after the other, or ``rows_in_fours``."""
    return not any(m.shape[1] % 4 or m.data_ptr() % 16 for m in matrices)


def rows_in_fours(weight):
    """Some columns of a weight need no copy if each row begins where four elements can be loaded at once."""
    row, column = weight.stride()
    return weight if column == 1 and row % 4 == 0 and row < MOST_STRIDE else weight.contiguous()


def forward(x, weight, bias, h, c):
    rows, columns = c.shape
    width = weight.shape[1]
    if is_small(rows, columns, width):
        grid = ow.cdiv(columns, WARPS), ow.cdiv(rows, GROUP)
        return whole_step(FORWARD_SMALL[c.dtype][grid, (LANES, WARPS)], x, weight, bias, h, c)
    c = c.contiguous()
    if is_middle(rows, columns, width, c.dtype) and weight.is_contiguous():
        x, h = contiguous(x, h)
        if in_fours(x, weight, h):
            grid = ow.cdiv(columns, FORWARD_COLUMNS), ow.cdiv(rows, FORWARD_ROWS)
            return whole_step(FORWARD_TILES[grid, (ACROSS, DOWN, PARTS)], x, weight, bias, h, c)
    inputs = torch.cat((h, x), 1)
    gates = F.linear(inputs, weight, bias)
    h_new, c_new = empty(c), empty(c)
    elements = width_for(columns, c)
    grid, block = forward_grid(rows, columns, elements)
    FORWARD[c.dtype, elements][grid, block](gates, c, h_new, c_new, rows, columns)
    return h_new, c_new, inputs, gates


def whole_step(launch, x, weight, bias, h, c):
    """The step by a kernel that computes all of it in one launch."""
    rows, columns = c.shape
    h_new, c_new = empty(c), empty(c)
    inputs, gates = c.new_empty((rows, weight.shape[1])), c.new_empty((rows, 3 * columns))
    launch(*contiguous(h, x, weight, bias, c), inputs, gates, h_new, c_new, rows, columns, x.shape[1])
    return h_new, c_new, inputs, gates


def backward_pointwise(grad_h, grad_c, gates, c_new):
    gates, c_new, grad_h, grad_c = contiguous(gates, c_new, grad_h, grad_c)
    grad_gates, grad_c_old = empty(gates), empty(c_new)
    rows, columns = c_new.shape
    rows_of_a_block, blocks, sums = sums_of_blocks(gates)
    # A single block for each few columns: the fewer, the more blocks.
    width = width_for(columns, gates, c_new, grad_h, grad_c) if blocks > 1 else 1
    BACKWARD[gates.dtype, width, sums.dtype][(ow.cdiv(columns, width * LANES), blocks), (LANES, ROWS)](
        gates, c_new, grad_h, grad_c, grad_gates, grad_c_old, sums, rows, columns, rows_of_a_block
    )
    return grad_gates, total(sums, gates.dtype), grad_c_old


def backward(grad_h, grad_c, weight, inputs, gates, c_new):
    rows, columns = c_new.shape
    (_, wanted), (_, width) = weight.shape, inputs.shape
    if not is_small(rows, columns, max(wanted, width)):
        grad_gates, grad_bias, grad_c_old = backward_pointwise(grad_h, grad_c, gates, c_new)
        return *products(grad_gates, weight, inputs), grad_bias, grad_c_old
    weight = weight if weight.stride(1) == 1 else weight.contiguous()  # some columns are as good as all
    inputs, gates, c_new, grad_h, grad_c = contiguous(inputs, gates, c_new, grad_h, grad_c)
    grad_inputs, grad_weight = gates.new_empty((rows, wanted)), gates.new_empty((3 * columns, width))
    grad_bias, grad_c_old = gates.new_empty(3 * columns), empty(c_new)
    blocks = ow.cdiv(columns, OWN) + ow.cdiv(rows, OWN) * ow.cdiv(wanted, LANES)
    BACKWARD_SMALL[gates.dtype][blocks, (LANES, WARPS)](
        grad_h, grad_c, weight, inputs, gates, c_new, grad_inputs, grad_weight, grad_bias, grad_c_old,
        rows, columns, wanted, weight.stride(0), width,
    )  # fmt: skip
    return grad_inputs, grad_weight, grad_bias, grad_c_old


def contiguous(*tensors):
    return [t.contiguous() if t is not None else None for t in tensors]


def products(grad_gates, weight, inputs):
    """The gradients of the inputs and of the weight."""
    (rows, gates), wanted, width = grad_gates.shape, weight.shape[1], inputs.shape[1]
    if is_middle(rows, gates // 3, max(wanted, width), grad_gates.dtype):
        weight, inputs = rows_in_fours(weight), inputs.contiguous()
        if in_fours(grad_gates, weight, inputs):
            grad_inputs, grad_weight = grad_gates.new_empty((rows, wanted)), grad_gates.new_empty((gates, width))
            blocks = ow.cdiv(rows, INPUTS_ROWS) * ow.cdiv(wanted, TILE_COLUMNS)
            blocks += ow.cdiv(gates, WEIGHT_ROWS) * ow.cdiv(width, TILE_COLUMNS)
            PRODUCTS_TILES[blocks, (ACROSS, DOWN, PARTS)](
                grad_gates, weight, inputs, grad_inputs, grad_weight, rows, gates, wanted, weight.stride(0), width
            )
            return grad_inputs, grad_weight
    return torch.mm(grad_gates, weight), torch.mm(grad_gates.t(), inputs)


def forward_accessors(x, weight, bias, h, c):
    inputs = torch.cat((h, x), 1)
    gates = F.linear(inputs, weight, bias)
    h_new, c_new = empty(c), empty(c)
    rows, columns = c.shape
    grid, block = forward_grid(rows, columns, 1)
    FORWARD_ACCESSORS[c.dtype][grid, block](gates, c, h_new, c_new, rows, columns, *c.stride())
    return h_new, c_new, inputs, gates


def backward_pointwise_accessors(grad_h, grad_c, gates, c_new):
    gates, c_new = gates.contiguous(), c_new.contiguous()
    grad_gates, grad_c_old = empty(gates), empty(c_new)
    rows, columns = c_new.shape
    rows_of_a_block, blocks, sums = sums_of_blocks(gates)
    strides = [stride for g in (grad_h, grad_c) for stride in (g.stride() if g is not None else (0, 0))]
    BACKWARD_ACCESSORS[gates.dtype, sums.dtype][(ow.cdiv(columns, LANES), blocks), (LANES, ROWS)](
        gates, c_new, grad_h, grad_c, grad_gates, grad_c_old, sums, rows, columns, rows_of_a_block, *strides
    )
    return grad_gates, total(sums, gates.dtype), grad_c_old


def backward_accessors(grad_h, grad_c, weight, inputs, gates, c_new):
    grad_gates, grad_bias, grad_c_old = backward_pointwise_accessors(grad_h, grad_c, gates, c_new)
    return torch.mm(grad_gates, weight), torch.mm(grad_gates.t(), inputs), grad_bias, grad_c_old
