"""In place of pytorch3d's extension module ``pytorch3d._C``: its operators of ``pytorch3d_kernels``."""

from pytorch3d_kernels import (
    face_areas_normals_backward,
    face_areas_normals_forward,
    packed_to_padded,
    padded_to_packed,
)

EPS, MAX_UINT = 1e-6, 2**32 - 1  # defaults of its renderer, whose operators are not moved

__all__ = [
    "EPS",
    "MAX_UINT",
    "face_areas_normals_backward",
    "face_areas_normals_forward",
    "packed_to_padded",
    "padded_to_packed",
]
