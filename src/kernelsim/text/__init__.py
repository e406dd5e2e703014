"""Reads CUDA C++ as text, before a compiler does: kernels, variables, and the device code of whole files."""
