"""Numba: compiled loops over NumPy arrays, and launchers around kernels of ``numba.cuda``."""
