"""Kernels under tools that watch each access to memory: AddressSanitizer for C++, compute-sanitizer for a GPU."""
