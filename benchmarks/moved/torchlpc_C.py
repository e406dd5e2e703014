"""In place of torchlpc's extension module ``torchlpc._C``: its operators."""

import torchlpc_kernels  # registers the operators

__all__ = ["torchlpc_kernels"]
