"""Torch's own functions as kernels: every verdict that is not right is a false alarm, or a bug of torch."""
