"""Kernels under tools that watch each access to memory: AddressSanitizer for C++."""
