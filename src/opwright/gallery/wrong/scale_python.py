"""WRONG ON PURPOSE: see __init__.py. For a machine without g++, which the simulator of CUDA needs."""

import torch


def loop(x, a):
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    for i in range(len(x) + 1):  # it should be range(len(x))
        out[i] = a * x[i]
    return out
