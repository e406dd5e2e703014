"""The cases of ``cuda_corpus_values.py`` from libraries of models: llm.c, FasterTransformer and lightseq."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from cuda_corpus_cute import Case
from torch.nn import functional

import opwright as ow

Results = tuple[torch.Tensor, torch.Tensor]
LLM = "karpathy/dev/cuda"
FASTER = "FasterTransformer/src/fastertransformer/kernels"
LIGHTSEQ = "lightseq/lightseq/csrc/kernels/cuda"
EPSILON = 1e-5


def softmax(grid: Callable[[int], int], shared: int, rows: int, columns: int) -> Callable[[Any], Results]:
    def launch(run: Any) -> Results:
        x, out = torch.randn(rows, columns), torch.zeros(rows, columns)
        run[grid(rows), 128, shared](out, x, rows, columns)
        return out, x.softmax(1)

    return launch


def layer_norm(
    grid: Callable[[int], int], block: Any, shared: int, rows: int, columns: int
) -> Callable[[Any], Results]:
    def launch(run: Any) -> Results:
        x, weight, bias = torch.randn(rows, columns), torch.randn(columns), torch.randn(columns)
        out, mean, rstd = torch.zeros(rows, columns), torch.zeros(rows), torch.zeros(rows)
        run[grid(rows), block, shared](out, mean, rstd, x, weight, bias, rows, columns)
        return out, functional.layer_norm(x, (columns,), weight, bias, EPSILON)

    return launch


def cross_entropy(rows: int, columns: int) -> Callable[[Any], Results]:
    def launch(run: Any) -> Results:
        probabilities, targets = torch.randn(rows, columns).softmax(1), torch.randint(columns, (rows,)).int()
        losses = torch.zeros(rows)
        run[ow.cdiv(rows, 128), 128](losses, probabilities, targets, 1, rows, columns)
        return losses, -probabilities[torch.arange(rows), targets.long()].log()

    return launch


def elementwise(inputs: int, per_thread: int, n: int, of: Callable[..., torch.Tensor]) -> Callable[[Any], Results]:
    def launch(run: Any) -> Results:
        given, out = [torch.randn(n).bfloat16() for _ in range(inputs)], torch.zeros(n).bfloat16()
        run[ow.cdiv(n, 128 * per_thread), 128](out, *given, n)
        return out, of(*(x.float() for x in given)).bfloat16()

    return launch


def llm_cases() -> Iterator[Case]:
    row, warp = (lambda rows: rows), (lambda rows: ow.cdiv(rows * 32, 128))
    for rows, columns in ((16, 256), (13, 205)):
        size = f"{rows}x{columns}"
        for name, grid, shared in (
            ("softmax_forward_kernel2", row, 512), ("softmax_forward_kernel4", row, 16),
            ("softmax_forward_kernel7", row, 32), ("softmax_forward_online_kernel8", warp, 0),
        ):  # fmt: skip
            yield Case(f"{LLM}/softmax_forward.cu", name, size, softmax(grid, shared, rows, columns))
        for number, grid, block in ((3, warp, 128), (4, warp, 128), (5, row, 128)):
            launch = layer_norm(grid, block, 0, rows, columns)
            yield Case(f"{LLM}/layernorm_forward.cu", f"layernorm_forward_kernel{number}", size, launch)
        launch = layer_norm(lambda rows: ow.cdiv(rows, 4), (32, 4), 6 * columns * 4, rows, columns)
        yield Case(f"{LLM}/layernorm_forward.cu", "layernorm_forward_kernel6", size, launch)
        yield Case(f"{LLM}/crossentropy_forward.cu", "crossentropy_forward_kernel1", size, cross_entropy(rows, columns))
    for n in (4096, 1003):
        for number, per_thread in ((1, 1), (2, 8)):
            gelu = elementwise(1, per_thread, n, lambda x: functional.gelu(x, approximate="tanh"))
            yield Case(f"{LLM}/gelu_forward.cu", f"gelu_forward_kernel{number}", str(n), gelu)
            total = elementwise(2, per_thread, n, torch.add)
            yield Case(f"{LLM}/residual_forward.cu", f"residual_forward_kernel{number}", str(n), total)


def faster_cases() -> Iterator[Case]:
    def residual(rows: int, columns: int) -> Callable[[Any], Results]:
        def launch(run: Any) -> Results:
            out, x = torch.randn(rows, columns), torch.randn(rows, columns)
            wanted = out + x
            run[(rows, ow.cdiv(columns, 128)), 128](out, x, rows, columns)
            return out, wanted

        return launch

    def tanh(rows: int, columns: int) -> Callable[[Any], Results]:
        def launch(run: Any) -> Results:
            out, bias = torch.randn(rows, columns), torch.randn(columns)
            wanted = (out + bias).tanh()
            run[4, 128](out, bias, rows, columns)
            return out, wanted

        return launch

    def transposed(rows: int, columns: int) -> Callable[[Any], Results]:
        def launch(run: Any) -> Results:
            x, out = torch.randn(rows, columns), torch.zeros(columns, rows)
            run[(ow.cdiv(columns, 32), ow.cdiv(rows, 32)), (32, 32)](out, x, rows, columns)
            return out, x.T.contiguous()

        return launch

    for rows, columns in ((64, 128), (37, 75)):
        size = f"{rows}x{columns}"
        yield Case(f"{FASTER}/add_residual_kernels.cu", "T5addResidual<float>", size, residual(rows, columns))
        yield Case(f"{FASTER}/activation_kernels.cu", "add_bias_tanh<float>", size, tanh(rows, columns))
        yield Case(f"{FASTER}/matrix_transpose_kernels.cu", "matrix_transpose<float>", size, transposed(rows, columns))


def lightseq_cases() -> Iterator[Case]:
    def sums(rows: int, columns: int) -> Callable[[Any], Results]:
        def launch(run: Any) -> Results:
            x, out = torch.randn(rows, columns), torch.zeros(columns)
            run[ow.cdiv(columns, 32), (32, 32)](x, out, rows, columns)
            return out, x.sum(0)

        return launch

    def joined(rows: int, columns: int) -> Callable[[Any], Results]:
        def launch(run: Any) -> Results:
            a, b = torch.randn(3, rows, 4 * columns), torch.randn(3, 2, 4 * columns)
            out = torch.zeros(3, rows + 2, 4 * columns)
            run[ow.cdiv(out.numel() // 4, 128), 128](a, b, out, 3, columns, rows, 2)
            return out, torch.cat([a, b], 1)

        return launch

    def gated(rows: int, columns: int) -> Callable[[Any], Results]:
        def launch(run: Any) -> Results:
            x, out = torch.randn(rows, 2, columns), torch.zeros(rows, columns)
            run[ow.cdiv(out.numel(), 128), 128](x, out, rows, columns, out.numel())
            return out, functional.silu(x[:, 0]) * x[:, 1]

        return launch

    def rms_norm(rows: int, columns: int) -> Callable[[Any], Results]:
        def launch(run: Any) -> Results:
            x, scale = torch.randn(rows, columns), torch.randn(columns)
            out, rms = torch.zeros(rows, columns), torch.zeros(rows)
            run[rows, 128](x, scale, out, rms, columns, EPSILON)
            return out, x * torch.rsqrt(x.square().mean(1, keepdim=True) + EPSILON) * scale

        return launch

    for rows, columns in ((64, 128), (37, 75)):
        size = f"{rows}x{columns}"
        yield Case(f"{LIGHTSEQ}/general_kernels.cu", "column_sum_reduce<float>", size, sums(rows, columns))
        yield Case(f"{LIGHTSEQ}/general_kernels.cu", "kernel_concat3_dim1<float>", size, joined(rows, columns))
        yield Case(f"{LIGHTSEQ}/llama_kernels.cu", "kernel_silu_elewise_product<float>", size, gated(rows, columns))
        yield Case(f"{LIGHTSEQ}/llama_kernels.cu", "ker_rms_layer_norm<float>", size, rms_norm(rows, columns))


def model_cases() -> Iterator[Case]:
    yield from llm_cases()
    yield from faster_cases()
    yield from lightseq_cases()
