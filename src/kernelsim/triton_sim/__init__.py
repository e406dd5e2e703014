"""Triton kernels on a CPU: Triton's intermediate code (TTIR) is compiled as C++, and every access is checked."""
