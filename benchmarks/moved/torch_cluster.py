"""In place of ``torch_cluster/__init__.py``, which loads the libraries that ``setup.py`` builds."""

import torch_cluster_kernels  # registers the operators
from torch_cluster.grid import grid_cluster

__all__ = ["grid_cluster", "torch_cluster_kernels"]
