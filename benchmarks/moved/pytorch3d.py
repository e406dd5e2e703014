"""Two of pytorch3d's groups of operators (https://github.com/facebookresearch/pytorch3d) with opwright: in place of
their dispatch (``*.h``) and their lines in ``ext.cpp`` and ``setup.py``. It stands beside the folder ``pytorch3d`` of
that repository, as ``ops.py``."""

from __future__ import annotations

# ruff: noqa: F821  # names of dims
from typing import Annotated

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

import opwright as ow

__all__ = ["face_areas_normals_backward", "face_areas_normals_forward", "packed_to_padded", "padded_to_packed"]

Verts = Float32[Tensor, "v 3"]
Faces = Annotated[Int64[Tensor, "f 3"], ow.values(0, "v-1")]
LEAST = 1e-6  # what a length is at least, where it divides


def rows_of(first: Tensor, number: int, most: int) -> tuple[Tensor, Tensor]:
    """The row of a packed tensor for each place of a padded one, and whether there is one."""
    end = torch.cat([first[1:], torch.full_like(first[:1], number)])
    index = first[:, None] + torch.arange(most, device=first.device)
    return index, index < end[:, None]


@ow.op("pytorch3d::packed_to_padded")
def packed_to_padded(
    inputs: Float32[Tensor, "f d"],
    first_idxs: Annotated[Int64[Tensor, "n"], ow.values(0, "f", sorted=True)],
    max_size: Annotated[int, ow.values("f", "f+3")],  # at least the longest part: the sources do not ask
) -> Float32[Tensor, "n max_size d"]:
    index, has_row = rows_of(first_idxs, inputs.shape[0], max_size)
    rows = torch.cat([inputs, inputs.new_zeros(1, inputs.shape[1])])
    return rows[torch.where(has_row, index, inputs.shape[0])]


@ow.op("pytorch3d::padded_to_packed")
def padded_to_packed(
    inputs: Float32[Tensor, "n most d"],
    first_idxs: Annotated[Int64[Tensor, "n"], ow.values(0, "num_inputs", sorted=True)],
    num_inputs: Annotated[int, ow.values(0, "most")],
) -> Float32[Tensor, "num_inputs d"]:
    index, has_row = rows_of(first_idxs, num_inputs, inputs.shape[1])
    packed = inputs.new_zeros(num_inputs + 1, inputs.shape[2])
    places = torch.where(has_row, index, num_inputs).flatten()
    return packed.index_add(0, places, inputs.flatten(0, 1))[:num_inputs]


def areas_and_normals(verts: Tensor, faces: Tensor) -> tuple[Tensor, Tensor]:
    a, b, c = verts[faces].unbind(1)
    cross = torch.linalg.cross(b - a, c - a)
    norm = torch.linalg.vector_norm(cross, dim=1)
    return norm / 2, cross / norm.clamp_min(LEAST)[:, None]


@ow.op("pytorch3d::face_areas_normals_forward")
def face_areas_normals_forward(verts: Verts, faces: Faces) -> tuple[Float32[Tensor, "f"], Float32[Tensor, "f 3"]]:
    return areas_and_normals(verts, faces)


@ow.op("pytorch3d::face_areas_normals_backward")
def face_areas_normals_backward(
    grad_areas: Float32[Tensor, "f"], grad_normals: Float32[Tensor, "f 3"], verts: Verts, faces: Faces
) -> Verts:
    a, b, c = verts[faces].unbind(1)
    u, v = b - a, c - a
    cross = torch.linalg.cross(u, v)
    norm = torch.linalg.vector_norm(cross, dim=1).clamp_min(LEAST)[:, None]
    normal = cross / norm
    along = (grad_normals * normal).sum(1, keepdim=True)
    of_cross = grad_areas[:, None] * normal / 2 + (grad_normals - along * normal) / norm
    of_b, of_c = torch.linalg.cross(v, of_cross), torch.linalg.cross(of_cross, u)
    of_corners = torch.stack([-of_b - of_c, of_b, of_c], 1)
    return torch.zeros_like(verts).index_add(0, faces.flatten(), of_corners.flatten(0, 1))


FUNCTIONS = {
    packed_to_padded: ("packed_to_padded_tensor", "PackedToPadded"),
    padded_to_packed: ("packed_to_padded_tensor", "PaddedToPacked"),
    face_areas_normals_forward: ("face_areas_normals", "FaceAreasNormalsForward"),
    face_areas_normals_backward: ("face_areas_normals", "FaceAreasNormalsBackward"),
}


def are_contiguous(*arguments):
    return all(x.is_contiguous() for x in arguments if isinstance(x, Tensor))  # those for CUDA ask for it


for operator, (name, function) in FUNCTIONS.items():
    source = f"pytorch3d/csrc/{name}/{name}"
    operator.cpp(f"{source}_cpu.cpp", entry=f"{function}Cpu", abi="aten")
    operator.cuda(f"{source}.cu", entry=f"{function}Cuda", abi="aten", when=are_contiguous)
