"""Triton's own tutorials (https://github.com/triton-lang/triton, python/tutorials, MIT): the kernels of all eleven."""

from __future__ import annotations

import ast
import contextlib
import functools
import linecache
import sys
import types
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.corpus.triton.comparison import both, case, difference
from tests.corpus.triton.packages import stand_in

HALF = 2e-3
ROOT = "python/tutorials"


@functools.cache
def tutorial(number: int) -> Any:
    """A tutorial without what it runs when it is imported: tests and benchmarks of its own, at sizes for a GPU."""
    stand_in("tabulate")
    folder = next(Path(entry) for entry in sys.path if entry.endswith(ROOT))
    (file,) = folder.glob(f"{number:02}-*.py")
    made = types.ModuleType(f"tutorial_{number:02}")
    made.__file__ = str(file)
    vars(made)["is_tileir"] = lambda: False  # a back end of a fork, for which some files ask without defining this
    sys.modules[made.__name__] = made
    linecache.checkcache(str(file))
    tree = ast.parse(file.read_text())
    own = {f.name for f in tree.body if isinstance(f, ast.FunctionDef)}
    for statement in tree.body:
        if not _runs_something(statement, own):
            code = compile(ast.Module([statement], []), str(file), "exec")
            with contextlib.suppress(Exception):  # such as the import of a library of NVIDIA's to compare with
                exec(code, vars(made))
    return made


def _runs_something(statement: ast.stmt, functions: set[str]) -> bool:
    if isinstance(statement, ast.FunctionDef):
        return any("perf_report" in ast.unparse(each) for each in statement.decorator_list)
    called = {n.func.id for n in ast.walk(statement) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    is_call = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
    return is_call or isinstance(statement, ast.For) or (isinstance(statement, ast.Assign) and bool(called & functions))


def normal(*shape: int, dtype: torch.dtype = torch.float16) -> Tensor:
    return torch.randn(shape).to(dtype)


@case("tutorials.01 vector addition")
def vector_add() -> float:
    x, y = torch.randn(2777), torch.randn(2777)
    return difference(tutorial(1).add(x, y), x + y)


@case("tutorials.02 fused softmax")
def softmax() -> float:
    x, out = torch.randn(37, 781), torch.empty(37, 781)
    tutorial(2).softmax_kernel[(4,)](out, x, 781, 781, 37, 781, BLOCK_SIZE=1024, num_stages=2)
    return difference(out, x.softmax(1))


def product(number: int, function: str, *more: Any, transposed: bool = False, shape: tuple[int, int, int]) -> float:
    m, n, k = shape
    a, b = normal(m, k), normal(k, n)
    found = getattr(tutorial(number), function)(a, b.T.contiguous() if transposed else b, *more)
    return difference(found, (a.float() @ b.float()).to(found.dtype))


@case("tutorials.03 matrix multiplication", tolerance=HALF)
def matmul() -> float:
    return product(3, "matmul", shape=(130, 90, 70))


@case("tutorials.03 matrix multiplication with leaky_relu", tolerance=HALF)
def matmul_with_activation() -> float:
    a, b = normal(130, 70), normal(70, 90)
    return difference(tutorial(3).matmul(a, b, "leaky_relu"), F.leaky_relu(a.float() @ b.float(), 0.01).half())


@case("tutorials.04 dropout")
def dropout() -> float:
    x, kept = torch.randn(1777), (torch.rand(1777) > 0.5).int()
    return difference(tutorial(4).dropout(x, x_keep=kept, p=0.5), torch.where(kept == 1, x / 0.5, 0.0))


@case("tutorials.04 seeded dropout")
def seeded_dropout() -> float:
    x = torch.randn(1777)
    out, again = (tutorial(4).seeded_dropout(x, p=0.5, seed=seed) for seed in (123, 512))
    kept = out != 0
    assert 0.45 < kept.float().mean() < 0.55
    assert not torch.equal(kept, again != 0)
    return difference(out, torch.where(kept, x / 0.5, 0.0))


@case("tutorials.05 layer normalization")
def layer_norm() -> float:
    ours = tutorial(5).LayerNorm.apply
    inputs = torch.randn(37, 70), torch.randn(70), torch.randn(70)
    return both(lambda x, w, b: ours(x, (70,), w, b, 1e-5), lambda x, w, b: F.layer_norm(x, (70,), w, b, 1e-5), *inputs)


def attention(*, causal: bool) -> float:
    inputs = [normal(1, 2, 256, 64) for _ in range(3)]
    return both(
        lambda q, k, v: tutorial(6)._attention.apply(q, k, v, causal, 0.125, False, False),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal),
        *inputs,
    )


@case("tutorials.06 fused attention", tolerance=1e-2)
def attention_of_all() -> float:
    return attention(causal=False)


@case("tutorials.06 fused attention, causal", tolerance=1e-2)
def causal_attention() -> float:
    return attention(causal=True)


@case("tutorials.07 libdevice")
def libdevice() -> float:
    x, out = torch.rand(1777), torch.empty(1777)
    tutorial(7).asin_kernel[(2,)](x, out, 1777, BLOCK_SIZE=1024)
    return difference(out, x.asin())


def grouped(function: str, *, transposed: bool) -> float:
    groups = [(normal(m, k), normal(k, n)) for m, n, k in ((256, 128, 256), (128, 384, 128))]
    matrices = [a for a, _ in groups], [b.T.contiguous() if transposed else b for _, b in groups]
    found = getattr(tutorial(8), function)(*matrices)
    return difference(list(found), [(a.float() @ b.float()).half() for a, b in groups])


@case("tutorials.08 grouped multiplication", tolerance=HALF, by_address=True)
def grouped_gemm() -> float:
    return grouped("group_gemm_fn", transposed=False)


@case("tutorials.08 grouped multiplication with descriptors", tolerance=HALF, by_address=True)
def grouped_gemm_with_descriptors() -> float:
    return grouped("group_gemm_tma_fn", transposed=True)


@case("tutorials.09 multiplication", tolerance=HALF)
def not_persistent() -> float:
    return product(9, "matmul", shape=(300, 290, 160))


@case("tutorials.09 multiplication with descriptors of the host", tolerance=HALF)
def with_descriptors() -> float:
    return product(9, "matmul_tma", False, transposed=True, shape=(304, 296, 160))


@case("tutorials.09 persistent multiplication", tolerance=HALF)
def persistent() -> float:
    return product(9, "matmul_persistent", shape=(300, 290, 160))


@case("tutorials.09 persistent multiplication with descriptors of the host", tolerance=HALF)
def persistent_with_descriptors() -> float:
    return product(9, "matmul_tma_persistent", False, transposed=True, shape=(304, 296, 160))


@case("tutorials.09 persistent multiplication with descriptors of the kernel", tolerance=HALF)
def persistent_with_own_descriptors() -> float:
    return product(9, "matmul_descriptor_persistent", False, transposed=True, shape=(304, 296, 160))


def block_scaled(kind: str) -> float:
    """Scales are not above one, and sums are rounded to float16."""
    lesson, size = tutorial(10), (256, 256, 512)
    *operands, rep_m, rep_n, rep_k, configs, expected = lesson.initialize_block_scaled(*size, kind, True)
    found = lesson.block_scaled_matmul(*operands, torch.float16, *size, rep_m, rep_n, rep_k, configs)
    return difference(found.float(), expected)


for _kind in ("nvfp4", "mxfp4", "mxfp8", "mixed"):
    case(f"tutorials.10 block-scaled multiplication, {_kind}", tolerance=HALF, needs="Blackwell")(
        functools.partial(block_scaled, _kind)
    )


@case("tutorials.11 programmatic dependent launch")
def dependent_launch() -> float:
    x, y = torch.randn(2777), torch.randn(2777)
    return difference(tutorial(11).add(x, y, launch_pdl=True), x + y)
