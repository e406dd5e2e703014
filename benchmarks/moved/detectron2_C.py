"""In place of detectron2's extension module ``detectron2._C``: its operators on rotated boxes."""

import detectron2_kernels  # registers the operators

__all__ = ["detectron2_kernels"]
