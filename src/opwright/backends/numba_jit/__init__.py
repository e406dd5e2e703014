"""Numba's compiler, made to compute what Python and NumPy compute or to refuse: for kernels in Numba and in NumPy."""
