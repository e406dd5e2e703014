"""detectron2's operators on rotated boxes (https://github.com/facebookresearch/detectron2) with opwright: in place of
their dispatch (``*.h``) and their lines in ``vision.cpp`` and ``setup.py``. It stands beside the folder ``detectron2``
of that repository, as ``ops.py``."""

from __future__ import annotations

# ruff: noqa: F821  # names of dims
import math
from typing import Annotated

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

import opwright as ow

__all__ = ["box_iou_rotated", "nms_rotated", "roi_align_rotated_backward", "roi_align_rotated_forward"]

# -- boxes: x and y of the centre, width, height, angle in degrees -----------------------------------------------------

LEAST_TO_MOST = torch.tensor([[0, 0, 1, 1, -180], [8, 8, 4, 4, 180]], dtype=torch.float64)
EDGE = 1e-9  # what lies this close to an edge lies on it


def boxes(shape, generator):
    least, most = LEAST_TO_MOST
    return least + torch.rand(shape, generator=generator, dtype=torch.float64) * (most - least)


def corners(box: Tensor) -> Tensor:
    """The four corners, one after another around the box."""
    x, y, w, h, angle = box.double().unbind(-1)
    cos, sin = torch.cos(angle * (math.pi / 180)), torch.sin(angle * (math.pi / 180))
    right = torch.stack([cos * w, -sin * w], -1) / 2
    down = torch.stack([sin * h, cos * h], -1) / 2
    centre = torch.stack([x, y], -1)
    return torch.stack([centre + a * right + b * down for a, b in ((1, 1), (-1, 1), (-1, -1), (1, -1))], -2)


def cross(a: Tensor, b: Tensor) -> Tensor:
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]


def inside(points: Tensor, quad: Tensor) -> Tensor:
    """Which points lie in a convex quadrangle: on one side of all its edges."""
    edges = quad.roll(-1, -2) - quad
    sides = cross(edges[..., None, :, :], points[..., :, None, :] - quad[..., None, :, :])
    return (sides <= EDGE).all(-1) | (sides >= -EDGE).all(-1)


def crossings(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Where the edges of two quadrangles cross, and whether they do."""
    along, across = (a.roll(-1, -2) - a)[..., :, None, :], (b.roll(-1, -2) - b)[..., None, :, :]
    between = b[..., None, :, :] - a[..., :, None, :]
    det = cross(along, across)
    is_parallel = det.abs() < EDGE
    s, t = (cross(between, other) / torch.where(is_parallel, 1.0, det) for other in (across, along))
    do_cross = ~is_parallel & (s >= 0) & (s <= 1) & (t >= 0) & (t <= 1)
    return (a[..., :, None, :] + s[..., None] * along).flatten(-3, -2), do_cross.flatten(-2)


def overlap(a: Tensor, b: Tensor) -> Tensor:
    """The area that two quadrangles share: of the polygon of all corners inside the other one, and all crossings."""
    at, do_cross = crossings(a, b)
    points, valid = torch.cat([a, b, at], -2), torch.cat([inside(a, b), inside(b, a), do_cross], -1)
    number = valid.sum(-1, keepdim=True)
    centre = (points * valid[..., None]).sum(-2, keepdim=True) / number.clamp_min(1)[..., None]
    points = torch.where(valid[..., None], points - centre, 0.0)
    order = torch.where(valid, torch.atan2(points[..., 1], points[..., 0]), math.inf).argsort(-1)
    around = points.gather(-2, order[..., None].expand_as(points))
    last = torch.arange(points.shape[-2], device=a.device) >= number - 1
    following = torch.where(last[..., None], around[..., :1, :], around.roll(-1, -2))
    return torch.where(number[..., 0] >= 3, cross(around, following).sum(-1).abs() / 2, 0.0)


def ious(boxes1: Tensor, boxes2: Tensor) -> Tensor:
    a, b = torch.broadcast_tensors(corners(boxes1)[:, None], corners(boxes2)[None])
    both = overlap(a, b)
    areas = [(box[:, 2] * box[:, 3]).double() for box in (boxes1, boxes2)]
    return both / (areas[0][:, None] + areas[1][None] - both)


@ow.op("detectron2::box_iou_rotated")
@torch.no_grad()
def box_iou_rotated(
    boxes1: Annotated[Float32[Tensor, "n 5"], ow.inputs.drawn_by(boxes)],
    boxes2: Annotated[Float32[Tensor, "m 5"], ow.inputs.drawn_by(boxes)],
) -> Float32[Tensor, "n m"]:
    return ious(boxes1, boxes2).float()


@ow.op("detectron2::nms_rotated")
def nms_rotated(
    dets: Annotated[Float[Tensor, "n 5"], ow.inputs.drawn_by(boxes)],
    scores: Annotated[Float[Tensor, "n"], ow.values(0, 1, unique=True)],
    iou_threshold: Annotated[float, ow.values(0.1, 0.9)],
) -> Int64[Tensor, "kept"]:
    """The boxes, best score first, that overlap with none before them."""
    left, kept = scores.argsort(descending=True), []
    while len(left):
        kept.append(left[0])
        covered = ious(dets[left[:1]], dets[left[1:]])[0] >= iou_threshold
        left = left[1:][~covered]
    return torch.stack(kept) if kept else left


# -- regions: the image of a batch, and a box --------------------------------------------------------------------------


def regions(shape, generator):
    return torch.cat([torch.zeros(*shape[:-1], 1, dtype=torch.float64), boxes((*shape[:-1], 5), generator)], -1)


Regions = Annotated[Float[Tensor, "r 6"], ow.inputs.drawn_by(regions)]
Scale = Annotated[float, ow.values(one_of=(1.0, 0.5))]
Size = Annotated[int, ow.values(1, 4)]
Ratio = Annotated[int, ow.values(0, 2)]
Pooled = Float[Tensor, "r c pooled_height pooled_width"]
Image = Float[Tensor, "batch c h w"]
NOT_EMPTY = ["batch >= 1", "h >= 1", "w >= 1", "pooled_height >= 1", "pooled_width >= 1"]


def grid(size: Tensor, bins: int, ratio: int) -> tuple[Tensor, int]:
    """Where the samples of each bin lie along one axis of a region, from its centre; and how many a bin has."""
    each = ratio if ratio > 0 else math.ceil(float(size) / bins)
    steps = torch.arange(bins * each, dtype=size.dtype, device=size.device)
    return ((steps + 0.5) / max(bins * each, 1) - 0.5) * size, each


def samples(region: Tensor, scale: float, bins: tuple[int, int], ratio: int, shape: tuple[int, int]):
    """For each bin of a region, the pixels of which its mean consists, and their weights."""
    centre, size, angle = region[1:3] * scale - 0.5, region[3:5] * scale, region[5] * (math.pi / 180)
    xs, across = grid(size[0], bins[1], ratio)
    ys, down = grid(size[1], bins[0], ratio)
    yy, xx = torch.meshgrid(ys, xs, indexing="ij")
    places = yy * angle.cos() - xx * angle.sin() + centre[1], yy * angle.sin() + xx * angle.cos() + centre[0]
    is_in = [(v >= -1) & (v <= n) for v, n in zip(places, shape, strict=True)]
    weight = (is_in[0] & is_in[1]).to(region.dtype) / max(across * down, 1)
    ends = []
    for v, n in zip(places, shape, strict=True):
        v = v.clamp(0, n - 1)
        low = v.floor()
        ends.append([(low.long(), low + 1 - v), ((low.long() + 1).clamp_max(n - 1), v - low)])
    pixels = torch.stack([y * shape[1] + x for y, _ in ends[0] for x, _ in ends[1]], -1)
    weights = torch.stack([a * b * weight for _, a in ends[0] for _, b in ends[1]], -1)

    def by_bin(t: Tensor) -> Tensor:
        return t.reshape(bins[0], down, bins[1], across, 4).transpose(1, 2).reshape(bins[0] * bins[1], -1)

    return by_bin(pixels), by_bin(weights)


@ow.op("detectron2::roi_align_rotated_forward", where=NOT_EMPTY)
def roi_align_rotated_forward(
    input: Image, rois: Regions, spatial_scale: Scale, pooled_height: Size, pooled_width: Size, sampling_ratio: Ratio
) -> Pooled:
    bins, results = (pooled_height, pooled_width), []
    for region in rois.detach():
        pixels, weights = samples(region, spatial_scale, bins, sampling_ratio, input.shape[2:])
        image = input[int(region[0])].flatten(1)
        results.append((image[:, pixels] * weights).sum(-1).unflatten(1, bins))
    return torch.stack(results) if results else input.new_zeros(0, input.shape[1], *bins)


@ow.op("detectron2::roi_align_rotated_backward", where=["rows >= 1", "columns >= 1", "batch_size >= 1"])
def roi_align_rotated_backward(
    grad: Float[Tensor, "r c rows columns"],
    rois: Regions,
    spatial_scale: Scale,
    pooled_height: Annotated[int, ow.values("rows", "rows")],
    pooled_width: Annotated[int, ow.values("columns", "columns")],
    batch_size: Annotated[int, ow.values(1, 3)],
    channels: Annotated[int, ow.values("c", "c")],
    height: Annotated[int, ow.values(1, 9)],
    width: Annotated[int, ow.values(1, 9)],
    sampling_ratio: Ratio,
) -> Float[Tensor, "batch_size channels height width"]:
    bins = (pooled_height, pooled_width)
    result = grad.new_zeros(batch_size, channels, height * width)
    for region, of_bins in zip(rois.detach(), grad, strict=True):
        pixels, weights = samples(region, spatial_scale, bins, sampling_ratio, (height, width))
        terms = of_bins.flatten(1)[..., None] * weights
        result[int(region[0])] = result[int(region[0])].index_add(1, pixels.flatten(), terms.flatten(1))
    return result.unflatten(2, (height, width))


FUNCTIONS = {
    box_iou_rotated: ("box_iou_rotated", "box_iou_rotated"),
    nms_rotated: ("nms_rotated", "nms_rotated"),
    roi_align_rotated_forward: ("ROIAlignRotated", "ROIAlignRotated_forward"),
    roi_align_rotated_backward: ("ROIAlignRotated", "ROIAlignRotated_backward"),
}
FLOATS = (torch.float32, torch.float64)


def are_contiguous(*arguments):
    return all(x.is_contiguous() for x in arguments if isinstance(x, Tensor))  # the sources' own dispatch sees to it


for operator, (name, function) in FUNCTIONS.items():
    source, entry = f"detectron2/layers/csrc/{name}/{name}", f"detectron2::{function}"
    dtypes = None if operator is box_iou_rotated else FLOATS
    operator.cpp(f"{source}_cpu.cpp", entry=f"{entry}_cpu", abi="aten", dtypes=dtypes, when=are_contiguous)
    operator.cuda(
        f"{source}_cuda.cu", entry=f"{entry}_cuda", abi="aten", options=("-DWITH_CUDA",), dtypes=dtypes,
        when=are_contiguous,
    )  # fmt: skip
