"""Triton kernels of public libraries, forward and backward, in the simulator and beside references in torch."""
