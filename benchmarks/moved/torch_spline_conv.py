"""In place of ``torch_spline_conv/__init__.py``, which loads the libraries that ``setup.py`` builds."""

import torch_spline_conv_kernels  # registers the operators
from torch_spline_conv.basis import spline_basis
from torch_spline_conv.conv import spline_conv
from torch_spline_conv.weighting import spline_weighting

__all__ = ["spline_basis", "spline_conv", "spline_weighting", "torch_spline_conv_kernels"]
