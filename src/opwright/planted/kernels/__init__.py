"""Operators whose kernels have one planted fault each, and right ones: each file has them in ``ROWS``."""
