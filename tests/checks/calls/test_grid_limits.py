"""The check "grid limits": launches that CUDA refuses for long tensors are found, without a GPU or the tensors.

No kernel here runs. Their launchers do, on meta tensors.
"""

from __future__ import annotations

import time
from typing import Annotated, Any

import pytest
import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

import opwright as ow
from opwright.checks.calls import grid_limits
from opwright.checks.context import Context
from opwright.checks.request import Request
from opwright.contract.inputs.cases import cases
from opwright.results import Finding, NotChecked, Status
from opwright.target import Engine, Target

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
pytestmark = pytest.mark.triton


def found(operator: ow.Op, kernel: str, level: str = "smoke") -> list[Finding | NotChecked]:
    request = Request("quick", reproduce="again {check} {case}")
    context = Context(operator, kernel, Target("cpu", Engine.SIMULATOR), cases(operator.contract, level), request)
    with operator.only(kernel):
        return list(grid_limits.check(context))


def name_of(value: Any) -> str:
    return value.contract.name if isinstance(value, ow.Op) else str(value)


# -- launchers --------------------------------------------------------------------------------------------------------


@triton.jit
def double(x, out, rows, columns, BLOCK: tl.constexpr):
    row, block = tl.program_id(0), tl.program_id(1)
    at = block * BLOCK + tl.arange(0, BLOCK)
    mask = at < columns
    tl.store(out + row * columns + at, 2 * tl.load(x + row * columns + at, mask=mask), mask=mask)


def _tuned(*blocks: int, **options: Any) -> Any:
    return triton.autotune([triton.Config({"BLOCK": b}) for b in blocks], key=["columns"], **options)(double)


tuned, tuned_for_long = _tuned(64, 4096), _tuned(32768, 65536)
pruned = _tuned(
    64,
    1 << 20,
    prune_configs_by={"early_config_prune": lambda configs, named, **_: [c for c in configs if c.kwargs["BLOCK"] > 64]},
)
sized = triton.heuristics({"BLOCK": lambda meta: 256 if meta["columns"] > 256 else 64})(double)

source = ow.cuda_module(r"""
template <class T> __global__ void twice(const T* x, T* out, long rows, long columns) {
  long row = blockIdx.y;
  for (long i = threadIdx.x; i < columns; i += blockDim.x) out[row * columns + i] = x[row * columns + i] * T(2);
}
""")


@ow.op("grids::twice")
def twice(x: Float[Tensor, "rows columns"]) -> Float[Tensor, "rows columns"]:
    return 2 * x


@ow.op("grids::flat")
def flat(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    return 2 * x


@flat.triton(name="contiguous in one row")
def _(x):
    rows, columns = (1, x.numel()) if x.is_contiguous() else (x[..., 0].numel(), x.shape[-1])
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        double[rows, triton.cdiv(columns, 1024)](x, out, rows, columns, BLOCK=1024)
    return out


@twice.triton(name="rows in y")
def _(x):
    out = torch.empty_like(x)
    rows, columns = x.shape
    double[(triton.cdiv(columns, 128), rows)](x, out, rows, columns, BLOCK=128)
    return out


@twice.triton(name="a grid of META")
def _(x):
    out = x.new_empty(x.shape)
    rows, columns = x.shape
    double[lambda meta: (rows, triton.cdiv(columns, meta["BLOCK"]))](x, out, rows, columns, BLOCK=512)
    return out


@twice.triton(name="autotuned")
def _(x):
    out = x.new_empty(x.shape)
    rows, columns = x.shape
    tuned[lambda meta: (rows, triton.cdiv(columns, meta["BLOCK"]))](x, out, rows, columns)
    return out


@twice.triton(name="with heuristics")
def _(x):
    out = x.new_empty(x.shape)
    rows, columns = x.shape
    sized[lambda meta: (rows, 1, triton.cdiv(columns, meta["BLOCK"]))](x, out, rows, columns)
    return out


@twice.triton(name="padded rows only")
def _(x):
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows, columns = x.shape
    grid = (rows * columns,) if x.is_contiguous() else (columns, rows)
    double[grid](x, out, rows, columns, BLOCK=1)
    return out


@twice.cuda(name="CUDA: rows in y")
def _(x):
    x = x.contiguous()
    out = torch.empty_like(x)
    kind = {torch.float32: "float", torch.float64: "double"}.get(x.dtype, "float")
    source[f"twice<{kind}>"][(1, x.shape[0]), 256](x, out, *x.shape)
    return out


twice.cuda("grid_limits.cu", entry="grid_limits", name="CUDA: a host function with dim3", dtypes=[torch.float32])

WRONG = {
    (flat, "contiguous in one row"): ("double (BLOCK=1024): the grid's y is 65,536 at n = 67,107,841;", "FAIL"),
    (twice, "rows in y"): ("double (BLOCK=128): the grid's y is 65,536 at rows = 65,536;", "FAIL"),
    (twice, "a grid of META"): ("double (BLOCK=512): the grid's y is 65,536 at columns = 33,553,921;", "FAIL"),
    (twice, "autotuned"): ("double (BLOCK=64): the grid's y is 65,536 at columns = 4,194,241;", "FAIL"),
    (twice, "with heuristics"): ("double (BLOCK=256): the grid's z is 65,536 at columns = 16,776,961;", "FAIL"),
    (twice, "padded rows only"): ("double (BLOCK=1): the grid's y is 65,536 at rows = 65,536;", "FAIL"),
    (twice, "CUDA: rows in y"): ("twice<float>: the grid's y is 65,536 at rows = 65,536;", "FAIL"),
    (twice, "CUDA: a host function with dim3"): ("twice_rows: the grid's y is 65,536 at rows = 65,536;", "FAIL"),
}


@pytest.mark.parametrize(("operator", "kernel"), WRONG, ids=name_of)
def test_a_grid_that_is_too_large_is_found(operator, kernel):
    message, status = WRONG[operator, kernel]
    (finding,) = found(operator, kernel)
    assert isinstance(finding, Finding), finding
    assert finding.message.startswith(message), finding.message
    assert "CUDA allows 65,535" in finding.message
    assert finding.status is Status[status]
    assert finding.reproduce.startswith("again grid limits ")
    assert "let the first dim of the grid be the one that may be long" in finding.remedy


# -- what looks suspicious, and is right ------------------------------------------------------------------------------


@twice.triton(name="rows in x")
def _(x):
    out = torch.empty_like(x)
    double[(x.shape[0],)](x, out, *x.shape, BLOCK=128)
    return out


@twice.triton(name="a loop over the rest")
def _(x):
    out = torch.empty_like(x)
    rows, columns = x.shape
    double[(triton.cdiv(columns, 128), min(triton.cdiv(rows, 8), 65_535))](x, out, rows, columns, BLOCK=128)
    return out


@twice.triton(name="for few rows", when=lambda x: x.shape[0] < 65_536)
def _(x):
    out = torch.empty_like(x)
    double[(triton.cdiv(x.shape[1], 128), x.shape[0])](x, out, *x.shape, BLOCK=128)
    return out


@twice.triton(name="another launch for many rows")
def _(x):
    out = torch.empty_like(x)
    rows, columns = x.shape
    blocks = triton.cdiv(columns, 128)
    double[(rows, 1) if rows > 65_535 else (blocks, rows)](x, out, rows, columns, BLOCK=128)
    return out


@twice.triton(name="several launches")
def _(x):
    out = torch.empty_like(x)
    for part, result in zip(x.split(65_535), out.split(65_535), strict=True):
        double[(triton.cdiv(x.shape[1], 128), part.shape[0])](part, result, *part.shape, BLOCK=128)
    return out


@twice.triton(name="another launch after an error")
def _(x):
    out = torch.empty_like(x)
    try:
        double[(triton.cdiv(x.shape[1], 128), x.shape[0])](x, out, *x.shape, BLOCK=128)
    except RuntimeError:
        double[(x.shape[0],)](x, out, *x.shape, BLOCK=128)
    return out


@twice.triton(name="an error of its own")
def _(x):
    if x.shape[0] > 65_535:
        raise ValueError("at most 65,535 rows")
    out = torch.empty_like(x)
    double[(triton.cdiv(x.shape[1], 128), x.shape[0])](x, out, *x.shape, BLOCK=128)
    return out


@twice.triton(name="scratch that no GPU holds")
def _(x):
    scratch = torch.empty(x.shape[0] ** 2 * 32, dtype=torch.float32, device="cuda")
    double[(triton.cdiv(x.shape[1], 128), x.shape[0])](x, scratch, *x.shape, BLOCK=128)
    return torch.empty_like(x)


@twice.triton(name="pruned configurations")
def _(x):
    out = torch.empty_like(x)
    rows, columns = x.shape
    pruned[lambda meta: (rows, triton.cdiv(columns, meta["BLOCK"]))](x, out, rows, columns)
    return out


@twice.triton(name="configurations for long rows")
def _(x):
    out = torch.empty_like(x)
    rows, columns = x.shape
    tuned_for_long[lambda meta: (rows, triton.cdiv(columns, meta["BLOCK"]))](x, out, rows, columns)
    return out


@twice.cuda(name="CUDA: blocks by the number of processors")
def _(x):
    out = torch.empty_like(x)
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count
    source["twice<float>"][(1, min(x.shape[0], 8 * processors)), 256](x, out, *x.shape)
    return out


@ow.op("grids::bounded", where=["rows <= 4096", "columns % 64 == 0"])
def bounded(x: Float[Tensor, "rows columns"]) -> Float[Tensor, "rows columns"]:
    return 2 * x


@bounded.triton(name="rows in y")
def _(x):
    out = torch.empty_like(x)
    double[(triton.cdiv(x.shape[1], 128), x.shape[0])](x, out, *x.shape, BLOCK=128)
    return out


@ow.op("grids::refusing")
def refusing(x: Float[Tensor, "rows columns"]) -> Float[Tensor, "rows columns"]:
    if x.shape[0] > 4096:
        raise ValueError("at most 4,096 rows")
    return 2 * x


@refusing.triton(name="rows in y")
def _(x):
    out = torch.empty_like(x)
    double[(triton.cdiv(x.shape[1], 128), x.shape[0])](x, out, *x.shape, BLOCK=128)
    return out


RIGHT = [
    *((twice, name) for name in (
        "rows in x", "a loop over the rest", "for few rows", "another launch for many rows", "several launches",
        "another launch after an error", "an error of its own", "scratch that no GPU holds", "pruned configurations",
        "configurations for long rows", "CUDA: blocks by the number of processors",
    )),
    (bounded, "rows in y"),
    (refusing, "rows in y"),
]  # fmt: skip


@pytest.mark.parametrize(("operator", "kernel"), RIGHT, ids=name_of)
def test_a_right_launcher_is_left_alone(operator, kernel):
    (finding,) = found(operator, kernel)
    assert isinstance(finding, Finding), finding
    assert finding.status is Status.PASS, finding.message


# -- what cannot be asked ---------------------------------------------------------------------------------------------


@ow.op("grids::bags")
def bags(x: Float32[Tensor, "n d"], at: Annotated[Int64[Tensor, " b"], ow.values(low=0, high="n")]) -> Float32[
    Tensor, "b d"
]:  # fmt: skip
    return x[at]


@bags.triton(name="reads a value")
def _(x, at):
    out = x.new_empty(len(at), x.shape[1])
    double[(1, int(at.max()) + 1)](x, out, len(at), x.shape[1], BLOCK=128)
    return out


@twice.triton(name="ends its process")
def _(x):
    raise SystemExit(3)


@twice.triton(name="waits")
def _(x):
    time.sleep(3600)
    return x


@twice.triton(name="loops over each row")
def _(x):
    out = torch.empty_like(x)
    for row in range(x.shape[0]):
        double[(1,)](x[row], out[row], 1, x.shape[1], BLOCK=128)
    return out


@pytest.mark.parametrize(
    ("operator", "kernel", "why"),
    [
        (bags, "reads a value", "the launcher raises on meta tensors: "),
        (twice, "ends its process", "the launcher cannot run on meta tensors: its process ended"),
    ],
)
def test_a_launcher_that_cannot_be_asked_is_not_checked(operator, kernel, why):
    (result,) = found(operator, kernel)
    assert isinstance(result, NotChecked), result
    assert result.why.startswith(why)


def test_one_that_waits_is_ended(monkeypatch):
    monkeypatch.setattr(grid_limits, "_MOST_SECONDS", 1)
    (result,) = found(twice, "waits")
    assert isinstance(result, NotChecked)
    assert result.why == "the launcher does not return on meta tensors"


def test_one_that_loops_is_asked_as_far_as_it_returns():
    began = time.monotonic()
    (finding,) = found(twice, "loops over each row")
    assert isinstance(finding, Finding)
    assert finding.status is Status.PASS
    assert time.monotonic() - began < 10


kept: list[Tensor] = []


@twice.triton(name="keeps a workspace")
def _(x):
    if not kept or kept[0].numel() < x.numel():
        kept[:] = [torch.empty(x.numel(), device=x.device)]
    double[(x.shape[0],)](x, kept[0], *x.shape, BLOCK=128)
    return torch.empty_like(x)


def test_what_a_launcher_keeps_of_meta_tensors_is_gone():
    (finding,) = found(twice, "keeps a workspace")
    assert finding.status is Status.PASS
    assert kept == []


@twice.triton(name="for many elements", when=lambda x: x.numel() > 1 << 17)
def _(x):
    out = torch.empty_like(x)
    double[(x.shape[0],)](x, out, *x.shape, BLOCK=128)
    return out


def test_threads_that_only_this_process_has_are_not_waited_for():
    _ = torch.rand(1 << 22).exp()  # begins torch's threads
    (finding,) = found(twice, "for many elements", "quick")
    assert isinstance(finding, Finding), finding
    assert finding.status is Status.PASS


def test_large_tensors_give_a_warning(monkeypatch):
    monkeypatch.setattr(grid_limits, "_MOST_OF_FAILURE", 1 << 10)
    (finding,) = found(flat, "contiguous in one row")
    assert finding.status is Status.WARNING


def test_a_kernel_of_another_language_launches_nothing():
    twice.python(lambda x: 2 * x, name="python")
    assert found(twice, "python") == []


def test_it_is_quick():
    began = time.monotonic()
    found(twice, "rows in x")
    assert time.monotonic() - began < 2


def test_it_runs_in_a_check_by_default():
    (verdict,) = ow.check(twice, kernels=["rows in y"], checks=[grid_limits.NAME], device="cpu").verdicts
    (finding,) = verdict.findings
    assert finding.status is Status.FAIL
    assert "--check 'grid limits' --case" in finding.reproduce
