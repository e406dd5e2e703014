"""Mojo: one source for the CPU and the GPU, and custom operators of MAX."""
