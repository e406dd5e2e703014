"""Operators of models, with the faults of their kernels."""
