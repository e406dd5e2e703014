"""Moves eight public extensions: attaches their sources as they are, rewrites them for torch's stable ABI, and checks.

Usage: python benchmarks/ports.py CHECKOUTS RESULT.json [--builds] [NAME...]

CHECKOUTS is a folder with the repositories, each under its own name. Nothing of them is stored here; the sources are
copied to a temporary folder, in which ``opwright port`` writes. CUDA sources are compiled where there is no GPU, and
compared and checked where there is one. With ``--builds``, only the builds of sources for the CPU as they are are timed:
the first one, and one after an edit.
"""

from __future__ import annotations

# ruff: noqa: E501, F821  # one line for each extension; names of dims
import dataclasses
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

import opwright as ow
from opwright.machine import this_machine
from opwright.port.run import port
from opwright.results import CheckReport


@dataclass(frozen=True)
class Extension:
    """One source of a repository, and the operator that it becomes.

    Attributes:
        folder: the part of the repository that is copied.
        include: a folder of headers, below it.
        written: the lines of the operator's definition in this file.
    """

    repository: str
    folder: str
    source: str
    entry: str
    operator: Any
    include: str = "."
    options: tuple[str, ...] = ()


# -- the operators: what an author writes in place of schema, registration, fake and tests' inputs ---------------------


@ow.op("ports::muladd")
def muladd(a: Float32[Tensor, "*n"], b: Float32[Tensor, "*n"], c: float) -> Float32[Tensor, "*n"]:
    return a * b + c


@ow.op("ports::muladd_cuda")
def muladd_cuda(a: Float32[Tensor, "*n"], b: Float32[Tensor, "*n"], c: float) -> Float32[Tensor, "*n"]:
    return a * b + c


@ow.op("ports::gather_csr")
def gather_csr(
    src: Float[Tensor, "rows k"],
    indptr: Annotated[Int64[Tensor, "rows+1"], ow.inputs.offsets("elements")],
    out: Float[Tensor, "elements k"] | None,
) -> Float[Tensor, "elements k"]:
    return torch.repeat_interleave(src, indptr.diff(), dim=0)


@ow.op("ports::grid")
def grid(
    pos: Annotated[Float32[Tensor, "n d"], ow.values(0, 8)],
    size: Annotated[Float32[Tensor, "d"], ow.values(1, 2)],
    start: Annotated[Float32[Tensor, "d"], ow.values(0, 0)] | None,
    end: Annotated[Float32[Tensor, "d"], ow.values(8, 8)] | None,
) -> Int64[Tensor, "n"]:
    start = pos.amin(0) if start is None else start
    end = pos.amax(0) if end is None else end
    voxels = ((end - start) / size).long() + 1
    before = torch.cat([torch.ones_like(voxels[:1]), voxels.cumprod(0)])[: size.shape[0]]
    return (((pos - start) / size).long() * before).sum(1)


@ow.op("ports::spline_weighting")
def spline_weighting(
    x: Float[Tensor, "e i"],
    weight: Float[Tensor, "k i o"],
    basis: Float[Tensor, "e s"],
    weight_index: Annotated[Int64[Tensor, "e s"], ow.values(0, "k-1")],
) -> Float[Tensor, "e o"]:
    return torch.einsum("es,esio,ei->eo", basis, weight[weight_index], x)


@ow.op("ports::packed_to_padded", where="rows <= max_size")
def packed_to_padded(
    packed: Float32[Tensor, "rows d"],
    first: Annotated[Int64[Tensor, "b"], ow.values(0, "rows", sorted=True)],
    max_size: int,
) -> Float32[Tensor, "b max_size d"]:
    if not packed.shape[0]:
        return packed.new_zeros(first.shape[0], max_size, packed.shape[1])
    end = torch.cat([first[1:], torch.full_like(first[:1], packed.shape[0])])
    index = first[:, None] + torch.arange(max_size, device=first.device)
    rows = packed[index.clamp_max(packed.shape[0] - 1)]
    return torch.where((index < end[:, None])[..., None], rows, rows.new_zeros(()))


@ow.op("ports::face_areas_normals")
def face_areas_normals(
    verts: Float32[Tensor, "v 3"], faces: Annotated[Int64[Tensor, "n 3"], ow.values(0, "v-1")]
) -> tuple[Float32[Tensor, "n"], Float32[Tensor, "n 3"]]:
    a, b, c = verts[faces].unbind(1)
    cross = torch.linalg.cross(b - a, c - a)
    norm = cross.norm(dim=1)
    return norm / 2, cross / norm.clamp_min(1e-6)[:, None]


def _boxes(shape, generator):  # centre, size, and an angle of 0
    boxes = torch.rand(shape, generator=generator, dtype=torch.float64) * 4 + 0.5
    return boxes * torch.tensor([1, 1, 1, 1, 0], dtype=torch.float64)


@ow.op("ports::box_iou_rotated")
def box_iou_rotated(
    boxes1: Annotated[Float32[Tensor, "n 5"], ow.inputs.drawn_by(_boxes)],
    boxes2: Annotated[Float32[Tensor, "m 5"], ow.inputs.drawn_by(_boxes)],
) -> Float32[Tensor, "n m"]:
    """Of boxes that are not turned."""
    a, b = boxes1[:, None], boxes2[None]
    least = torch.maximum(a[..., :2] - a[..., 2:4] / 2, b[..., :2] - b[..., 2:4] / 2)
    most = torch.minimum(a[..., :2] + a[..., 2:4] / 2, b[..., :2] + b[..., 2:4] / 2)
    both = (most - least).clamp_min(0).prod(-1)
    return both / (a[..., 2:4].prod(-1) + b[..., 2:4].prod(-1) - both)


def _window(x: Tensor) -> Tensor:
    """A Gaussian of 11 numbers, in both directions, with zeros outside."""
    t = torch.arange(11, dtype=x.dtype, device=x.device) - 5
    g = torch.exp(-(t**2) / (2 * 1.5**2))
    g = (g / g.sum())[None, None]
    flat = x.reshape(-1, 1, *x.shape[2:])
    rows = torch.nn.functional.conv2d(flat, g[..., None, :], padding=(0, 5))
    return torch.nn.functional.conv2d(rows, g[..., :, None], padding=(5, 0)).reshape(x.shape)


@ow.op("ports::fused_ssim")
def fused_ssim(
    c1: Annotated[float, ow.values(1e-4, 1e-4)],
    c2: Annotated[float, ow.values(9e-4, 9e-4)],
    img1: Annotated[Float32[Tensor, "b c h w"], ow.values(0, 1)],
    img2: Annotated[Float32[Tensor, "b c h w"], ow.values(0, 1)],
    train: bool,
) -> tuple[
    Float32[Tensor, "b c h w"], Float32[Tensor, "b c h w"], Float32[Tensor, "b c h w"], Float32[Tensor, "b c h w"]
]:
    if not train:
        raise ValueError("the derivatives that are kept for the backward are tensors without elements then")
    mu1, mu2 = _window(img1), _window(img2)
    s1, s2, s12 = (_window(p) - m for p, m in ((img1**2, mu1**2), (img2**2, mu2**2), (img1 * img2, mu1 * mu2)))
    top1, top2, low1, low2 = 2 * mu1 * mu2 + c1, 2 * s12 + c2, mu1**2 + mu2**2 + c1, s1 + s2 + c2
    ssim = top1 * top2 / (low1 * low2)
    by_variance, by_covariance = -ssim / low2, 2 * top1 / (low1 * low2)
    by_mean = 2 * mu2 * (top2 - top1) / (low1 * low2) + 2 * mu1 * ssim * (1 / low2 - 1 / low1)
    return ssim, by_mean, by_variance, by_covariance


@ow.op("ports::deformable_attention")
def deformable_attention(
    value: Float[Tensor, "b s h c"],
    shapes: Int64[Tensor, "levels 2"],
    starts: Int64[Tensor, "levels"],
    locations: Float[Tensor, "b q h levels p 2"],
    weights: Float[Tensor, "b q h levels p"],
    step: int,
) -> Float[Tensor, "b q h*c"]:
    raise NotImplementedError("sizes of levels are values of a tensor: its inputs have to be written by hand")


EXTENSIONS = {
    "extension-cpp": Extension("extension-cpp", "extension_cpp/csrc", "muladd.cpp", "extension_cpp::mymuladd_cpu", muladd),
    "extension-cpp cuda": Extension(
        "extension-cpp", "extension_cpp/csrc", "cuda/muladd.cu", "extension_cpp::mymuladd_cuda", muladd_cuda
    ),
    "pytorch_scatter": Extension("pytorch_scatter", "csrc", "cpu/segment_csr_cpu.cpp", "gather_csr_cpu", gather_csr),
    "pytorch_cluster": Extension("pytorch_cluster", "csrc", "cpu/grid_cpu.cpp", "grid_cpu", grid),
    "pytorch_spline_conv": Extension(
        "pytorch_spline_conv", "csrc", "cpu/weighting_cpu.cpp", "spline_weighting_fw_cpu", spline_weighting
    ),
    "pytorch3d": Extension(
        "pytorch3d", "pytorch3d/csrc", "face_areas_normals/face_areas_normals_cpu.cpp", "FaceAreasNormalsForwardCpu",
        face_areas_normals,
    ),
    "pytorch3d packed_to_padded": Extension(
        "pytorch3d", "pytorch3d/csrc", "packed_to_padded_tensor/packed_to_padded_tensor_cpu.cpp", "PackedToPaddedCpu",
        packed_to_padded,
    ),
    "detectron2": Extension(
        "detectron2", "detectron2/layers/csrc", "box_iou_rotated/box_iou_rotated_cpu.cpp",
        "detectron2::box_iou_rotated_cpu", box_iou_rotated,
    ),
    "fused-ssim": Extension("fused-ssim", ".", "ssim.cu", "fusedssim", fused_ssim),
    "Deformable-DETR": Extension(
        "Deformable-DETR", "models/ops/src", "cuda/ms_deform_attn_cuda.cu", "ms_deform_attn_cuda_forward",
        deformable_attention,
    ),
}  # fmt: skip


def copy_of(extension: Extension, checkouts: Path, folder: Path) -> tuple[Path, Path]:
    """A copy of an extension's source, and its folder of headers."""
    copied = folder / extension.repository
    if not copied.exists():
        shutil.copytree(checkouts / extension.repository / extension.folder, copied)
    return copied / extension.source, copied / extension.include


def build(extension: Extension, checkouts: Path, folder: Path) -> dict[str, Any]:
    """The seconds of a first build of a source as it is, and of one after an edit; and those of the processor, which other
    work does not lengthen."""
    source, include = copy_of(extension, checkouts, folder)
    seconds: dict[str, Any] = {}
    for name in ("first", "edited"):
        options = [f"-I{include}"]
        kernel = extension.operator.cpp(source, name=name, entry=extension.entry, abi="aten", options=options)
        before = os.times()
        seconds[name] = _timed(kernel.load)
        after = os.times()
        processor = [after[i] - before[i] for i in range(4)]  # of this process, and of the compiler's
        seconds[f"{name}, of the processor"] = round(sum(processor), 1)
        source.write_text(source.read_text() + "\n// edited\n")
    return {"source": extension.source, "seconds": seconds}


def move(name: str, extension: Extension, checkouts: Path, folder: Path) -> dict[str, Any]:
    """What moving one extension takes, and what the checks say."""
    source, include = copy_of(extension, checkouts, folder)
    record: dict[str, Any] = {"source": extension.source, "cuda": source.suffix == ".cu"}
    record["lines"] = sum(bool(line.strip()) for line in source.read_text(errors="replace").splitlines())
    can_run = not record["cuda"] or this_machine().has_gpu
    operator = extension.operator
    attach: Callable[..., Any] = operator.cuda if record["cuda"] else operator.cpp
    kernel = attach(source, name="original", entry=extension.entry, abi="aten", options=[f"-I{include}"])
    record["build"] = {"aten": _timed(kernel.load)}
    start = time.perf_counter()
    report = port(source, include=[include])
    record["port"] = {
        "complete": report.is_complete,
        "seconds": round(time.perf_counter() - start, 1),
        "compile_seconds": round(report.compile_seconds, 1),
        "lines_before": sum(file.lines[0] for file in report.files),
        "lines_after": sum(file.lines[1] for file in report.files),
        "names_replaced": sum(len(m.lines) for file in report.files for m in file.mapped),
        "operators": report.wrappers,
        "remaining": [dataclasses.asdict(one) for one in report.remaining],
    }
    if can_run and report.is_complete:
        from opwright.port.attached import attached
        from opwright.port.comparing import compare_kernels

        forms = {f: form for file in report.files for f, form in file.wrapped.items()}
        target = f"{Path(__file__).resolve()}:{operator.contract.name}"
        (pair,) = attached(target, source.resolve(), Path(report.files[-1].result), forms, None, [include])
        record["build"]["stable"] = _timed(operator.kernels[pair.ported].load)
        record["compared"] = dataclasses.asdict(compare_kernels(operator, pair.original, pair.ported))
    if can_run:
        record["check"] = _verdicts(ow.check(operator, jobs=1))
    return record


def _timed(build: Callable[[], object]) -> float | str:
    start = time.perf_counter()
    try:
        build()
    except Exception as error:  # a source may not compile: that is a result
        return f"{type(error).__name__}: {str(error)[:300]}"
    return round(time.perf_counter() - start, 1)


def _verdicts(report: CheckReport) -> dict[str, Any]:
    return {
        verdict.kernel: {
            "status": verdict.status.value,
            "findings": [
                f"{f.check}: {f.case}: {f.message}"[:600]
                for f in verdict.findings
                if f.status.value not in ("pass", "PASS")
            ],
        }
        for verdict in report.verdicts
    }


def main() -> None:
    only_builds = "--builds" in sys.argv
    checkouts, result, *chosen = [argument for argument in sys.argv[1:] if argument != "--builds"]
    records: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, extension in EXTENSIONS.items():
            if (chosen and name not in chosen) or (only_builds and extension.source.endswith(".cu")):
                continue
            print(f"== {name}", flush=True)
            try:
                if only_builds:
                    records[name] = build(extension, Path(checkouts), Path(folder))
                else:
                    records[name] = move(name, extension, Path(checkouts), Path(folder))
            except Exception as error:  # one that cannot be moved is a result
                records[name] = {"error": f"{type(error).__name__}: {str(error)[:500]}"}
            print(json.dumps(records[name], indent=1)[:3000], flush=True)
            header = {
                "torch": torch.__version__,
                "python": platform.python_version(),
                "machine": this_machine().to_json(),
            }
            Path(result).write_text(json.dumps({**header, "extensions": records}, indent=1) + "\n")


if __name__ == "__main__":
    import ports  # the operators of the module that workers import

    ports.main()
