"""CUDA kernels on a CPU, compiled, with every access checked. C++ is in ``include`` and ``runtime``."""
