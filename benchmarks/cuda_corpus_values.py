"""Published CUDA kernels against references in torch, in the checked simulator.

``python benchmarks/cuda_corpus_values.py FOLDER --json FILE`` takes a folder of checkouts (``xlite-dev+LeetCUDA``,
``siboehm+SGEMM_CUDA``, ``BBuf+how-to-optim-algorithm-in-cuda`` and ``NVIDIA+cutlass`` for kernels that use CuTe,
``karpathy+llm.c``, ``NVIDIA+FasterTransformer`` and ``bytedance+lightseq``). Each
kernel runs at a size that its tiles divide, where results are compared, and elementwise kernels and reductions at one
that they do not divide. What the simulator reports is in the record, with its line.
``--gpu`` makes each launch on a GPU as well, from the same bits, and says how far the two results are apart.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import records
import torch
from cuda_corpus_cute import Case, cute_cases, hopper_cases, tutorial_cases
from cuda_corpus_models import model_cases

import kernelsim
import opwright as ow
from opwright.errors import OpwrightError, SimulatorError

# The checkouts by the first part of a case's file; without one of these, LeetCUDA.
REPOSITORIES = {
    "siboehm": "siboehm+SGEMM_CUDA", "BBuf": "BBuf+how-to-optim-algorithm-in-cuda", "NVIDIA": "NVIDIA+cutlass",
    "karpathy": "karpathy+llm.c", "FasterTransformer": "NVIDIA+FasterTransformer", "lightseq": "bytedance+lightseq"
}  # fmt: skip
# Folders of a checkout with headers.
INCLUDED = {"FasterTransformer": (".",), "lightseq": ("lightseq/csrc/kernels/cuda/includes",)}
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i8": torch.int8}


@dataclass
class Result:
    file: str
    kernel: str
    size: str
    status: str  # agrees, differs, findings, refused
    detail: list[str] = field(default_factory=list)
    gpu: str = ""  # the same bits, or the largest difference


def hardshrink(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.hardshrink(x, 0.5)


ELEMENTWISE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu, "sigmoid": torch.sigmoid, "elu": torch.nn.functional.elu, "swish": torch.nn.functional.silu,
    "gelu": lambda x: torch.nn.functional.gelu(x, approximate="tanh"), "hardswish": torch.nn.functional.hardswish,
    "hardshrink": hardshrink,
}  # fmt: skip


def lanes_of(kernel: str) -> int:
    found = re.search(r"_(?:b?f\d+|i\d+)x(\d+)", kernel)
    return int(found[1]) if found else 1


def dtype_of(kernel: str) -> torch.dtype:
    return DTYPES[re.search(r"_(bf16|f16|f32|i8)", kernel)[1]]  # type: ignore[index]


def elementwise_cases() -> Iterator[Case]:
    forms = ("f32", "f32x4", "f16", "f16x2", "f16x8", "f16x8_pack")
    for name in (*ELEMENTWISE, "elementwise_add"):
        for form in forms:
            kernel = f"{name}_{form}_kernel"
            folder = name.removesuffix("_add")
            for n in (4096, 1003):
                yield Case(f"kernels/{folder}/{folder}.cu", kernel, str(n), elementwise(kernel, name, n))


def elementwise(kernel: str, name: str, n: int) -> Callable[[Any], tuple[torch.Tensor, torch.Tensor]]:
    def launch(run: Any) -> tuple[torch.Tensor, torch.Tensor]:
        dtype, lanes = dtype_of(kernel), lanes_of(kernel)
        x, b, y = torch.randn(n).to(dtype), torch.randn(n).to(dtype), torch.zeros(n, dtype=dtype)
        inputs = (x, b) if name == "elementwise_add" else (x,)
        run[ow.cdiv(n, 256 * lanes), 256](*inputs, y, n)
        return y, x + b if name == "elementwise_add" else ELEMENTWISE[name](x.float()).to(dtype)

    return launch


def reduction_cases() -> Iterator[Case]:
    names = ("f32_f32", "f32x4_f32", "f16_f32", "f16x2_f32", "f16x8_pack_f32")
    for n in (4096, 1003):
        for name in names:
            kernel = f"dot_prod_{name}_kernel"
            yield Case("kernels/dot-product/dot_product.cu", f"{kernel}<{256}>", str(n), reduction(kernel, 2, n))
        for name in (*names, "bf16_f32", "bf16x2_f32", "bf16x8_pack_f32", "i8_i32", "i8x16_pack_i32"):
            kernel = f"block_all_reduce_sum_{name}_kernel"
            yield Case("kernels/reduce/block_all_reduce.cu", f"{kernel}<{256}>", str(n), reduction(kernel, 1, n))


def reduction(kernel: str, count: int, n: int) -> Callable[[Any], tuple[torch.Tensor, torch.Tensor]]:
    def launch(run: Any) -> tuple[torch.Tensor, torch.Tensor]:
        dtype, lanes = dtype_of(kernel), lanes_of(kernel)
        inputs = [torch.randint(-4, 4, (n,)).to(dtype) for _ in range(count)]
        y = torch.zeros(1, dtype=torch.int32 if dtype == torch.int8 else torch.float32)
        run[ow.cdiv(n, 256 * lanes), 256](*inputs, y, n)
        return y, torch.stack([i.double() for i in inputs]).prod(0).sum().to(y.dtype).reshape(1)

    return launch


def row_cases() -> Iterator[Case]:
    file = "kernels/softmax/softmax.cu"
    for name in ("softmax_f32", "softmax_f32x4", "safe_softmax_f32", "safe_softmax_f32x4", "safe_softmax_f16_f32",
                 "safe_softmax_f16x2_f32", "safe_softmax_f16x8_pack_f32"):  # fmt: skip
        kernel = f"{name}_per_token_kernel"
        yield Case(file, f"{kernel}<{256 // lanes_of(kernel)}>", "8x256", softmax(kernel))
    for name in ("f32", "f32x4", "f16_f32", "f16x8_pack_f32", "f16_f16", "f16x2_f16"):
        for norm in ("layer_norm", "rms_norm"):
            kernel, folder = f"{norm}_{name}_kernel", norm.replace("_", "-")
            yield Case(
                f"kernels/{folder}/{norm}.cu", f"{kernel}<{256 // lanes_of(kernel)}>", "8x256", normalised(kernel, norm)
            )


def softmax(kernel: str) -> Callable[[Any], tuple[torch.Tensor, torch.Tensor]]:
    def launch(run: Any) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(8, 256).to(dtype_of(kernel))
        y = torch.zeros_like(x)
        run[8, 256 // lanes_of(kernel)](x, y, x.numel())
        return y, torch.softmax(x.float(), -1).to(x.dtype)

    return launch


def normalised(kernel: str, norm: str) -> Callable[[Any], tuple[torch.Tensor, torch.Tensor]]:
    def launch(run: Any) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(8, 256).to(dtype_of(kernel))
        y, v = torch.zeros_like(x), x.double()
        if norm == "rms_norm":
            run[8, 256 // lanes_of(kernel)](x, y, 2.0, 8, 256)
            return y, (2 * v * torch.rsqrt(v.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype)
        run[8, 256 // lanes_of(kernel)](x, y, 2.0, 1.0, 8, 256)
        centred = v - v.mean(-1, keepdim=True)
        return y, (2 * centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5) + 1).to(x.dtype)

    return launch


def product_cases() -> Iterator[Case]:
    own = "siboehm/src/kernels"
    for file, kernel, block, tile in (
        ("1_naive.cuh", "sgemm_naive", (32, 32), 32),
        ("2_kernel_global_mem_coalesce.cuh", "sgemm_global_mem_coalesce<32>", (1024,), 32),
        ("3_kernel_shared_mem_blocking.cuh", "sgemm_shared_mem_block<32>", (1024,), 32),
        ("4_kernel_1D_blocktiling.cuh", "sgemm1DBlocktiling<64, 64, 8, 8>", (512,), 64),
    ):
        yield Case(f"{own}/{file}", kernel, "64x64x64", product(block, tile))
    # The repository launches these with tiles of 128, and of 64 for smaller matrices.
    for file, kernel in (
        ("5_kernel_2D_blocktiling.cuh", "sgemm2DBlocktiling"),
        ("6_kernel_vectorize.cuh", "sgemmVectorize"),
        ("7_kernel_resolve_bank_conflicts.cuh", "sgemmResolveBankConflicts"),
        ("8_kernel_bank_extra_col.cuh", "sgemmResolveBankExtraCol"),
    ):
        for tile in (128, 64):
            name = f"{kernel}<{tile}, {tile}, 8, 8, 8>"
            yield Case(f"{own}/{file}", name, f"{tile}x{tile}x{tile}", product((tile * tile // 64,), tile))
    for kernel, block in (("sgemm_naive_f32_kernel", (32, 32)), ("sgemm_sliced_k_f32_kernel<32, 32, 32>", (32, 32))):
        yield Case("kernels/sgemm/sgemm.cu", kernel, "64x64x64", plain_product(block, torch.float32))
    for kernel, block in (("hgemm_naive_f16_kernel", (32, 32)), ("hgemm_sliced_k_f16_kernel<32, 32, 32>", (32, 32))):
        yield Case("kernels/hgemm/naive/hgemm.cu", kernel, "64x64x64", plain_product(block, torch.float16))


def product(block: tuple[int, ...], tile: int) -> Callable[[Any], tuple[torch.Tensor, torch.Tensor]]:
    def launch(run: Any) -> tuple[torch.Tensor, torch.Tensor]:
        n = max(tile, 64)
        a, b, c = torch.randn(n, n), torch.randn(n, n), torch.randn(n, n)
        wanted = 0.5 * (a.double() @ b.double()) + 3 * c.double()
        run[(n // tile, n // tile), block](n, n, n, 0.5, a, b, 3.0, c)
        return c, wanted.float()

    return launch


def plain_product(block: tuple[int, ...], dtype: torch.dtype) -> Callable[[Any], tuple[torch.Tensor, torch.Tensor]]:
    def launch(run: Any) -> tuple[torch.Tensor, torch.Tensor]:
        # Small whole numbers, of which sums in half are exact: these kernels add up in their arguments' dtype.
        a, b = (torch.randint(-3, 4, (64, 64)).to(dtype) for _ in range(2))
        c = torch.zeros(64, 64, dtype=dtype)
        run[(2, 2), block](a, b, c, 64, 64, 64)
        return c, (a.double() @ b.double()).to(dtype)

    return launch


@dataclass
class InBothPlaces:
    """A kernel whose launches on a CPU are followed by the same launch on a GPU.

    Attributes:
        different: the largest difference of a tensor after a launch, relative to its largest element.
    """

    kernel: Any
    different: float = 0.0

    def __getitem__(self, sizes: Any) -> Callable[..., None]:
        def launch(*arguments: Any) -> None:
            there = [a.cuda() if isinstance(a, torch.Tensor) else a for a in arguments]
            self.kernel[sizes](*arguments)  # first: what it finds must not happen on the GPU
            self.kernel[sizes](*there)
            torch.cuda.synchronize()
            for a, b in zip(arguments, there, strict=True):
                if isinstance(a, torch.Tensor) and not torch.equal(a.view(torch.uint8), b.cpu().view(torch.uint8)):
                    self.different = max(self.different, apart(a.double(), b.cpu().double()))

        return launch


def apart(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference relative to the largest element; NaN equals NaN."""
    same = (a == b) | (a.isnan() & b.isnan())
    most = a.abs().nan_to_num(0.0, 0.0, 0.0).max().clamp(min=1e-9)
    return float((torch.where(same, 0.0, a - b).abs().max() / most).nan_to_num(torch.inf))


def run(case: Case, folder: Path, *, with_gpu: bool) -> Result:
    first, _, rest = case.file.partition("/")
    within = f"{REPOSITORIES[first]}/{rest}" if first in REPOSITORIES else f"xlite-dev+LeetCUDA/{case.file}"
    file = folder / within
    result = Result(within, case.kernel, case.size, "agrees")
    try:
        torch.manual_seed(0)
        headers = [file.parent, *(folder / REPOSITORIES[first] / within for within in INCLUDED.get(first, ()))]
        options = [*case.options, *(f"-I{place}" for place in headers)]
        kernel = ow.cuda_module(file, options=options)[case.kernel]
        both = InBothPlaces(kernel)
        with kernelsim.options(time_limit_s=60, seed=1):
            came, wanted = case.launch(both if with_gpu else kernel)
        if with_gpu:
            result.gpu = f"{both.different:.3g}" if both.different else "same bits"
        tolerance = {torch.float16: 2e-2, torch.bfloat16: 5e-2}.get(came.dtype, 1e-4)
        if not torch.allclose(came.double(), wanted.double(), rtol=tolerance, atol=tolerance):
            error = (came.double() - wanted.double()).abs().max().item()
            result.status, result.detail = "differs", [f"largest difference {error:.3g}"]
    except SimulatorError as error:
        lines = [f"{f.line}: {f.kind}: {f.message} | {f.source_line}" for f in error.findings]
        result.status, result.detail = "findings", lines
    except OpwrightError as error:
        result.status, result.detail = "refused", [str(error).partition("\n")[0]]
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="+", default=[""], help="parts of the files' and kernels' names")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--gpu", action="store_true", help="make each launch on a GPU as well")
    chosen = parser.parse_args()
    began = time.monotonic()
    cases = [*product_cases(), *cute_cases(), *tutorial_cases(), *hopper_cases(), *model_cases()]
    cases += [*row_cases(), *reduction_cases(), *elementwise_cases()]
    cases = [case for case in cases if any(part in f"{case.file}/{case.kernel}" for part in chosen.only)]
    with ThreadPoolExecutor(chosen.jobs) as pool:
        results = []
        for result in pool.map(lambda case: run(case, chosen.folder, with_gpu=chosen.gpu), cases):
            results.append(result)
            print(
                f"{result.status:9} {result.kernel} {result.size} {result.gpu} {'; '.join(result.detail)[:240]}",
                flush=True,
            )
    statuses = {s: sum(r.status == s for r in results) for s in ("agrees", "differs", "findings", "refused")}
    kernels = len({(r.file, r.kernel) for r in results})
    agreeing = len({(r.file, r.kernel) for r in results if r.status == "agrees"})
    print(f"{kernels} kernels, {agreeing} agree in a case; cases: {statuses}; {time.monotonic() - began:.0f} s")
    if chosen.gpu:
        compared = [r for r in results if r.gpu]
        same = sum(r.gpu == "same bits" for r in compared)
        print(f"on {torch.cuda.get_device_name()}: {same} of {len(compared)} cases the same bits")
    if chosen.json:
        records.write(
            chosen.json,
            {"kernels": kernels, "kernels that agree": agreeing, "cases": statuses,
             "seconds": time.monotonic() - began,
             "gpu": torch.cuda.get_device_name() if chosen.gpu else "", "results": [asdict(r) for r in results]},
        )  # fmt: skip


if __name__ == "__main__":
    main()
