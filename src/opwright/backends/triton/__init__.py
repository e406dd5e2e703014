"""Triton: launchers around ``@triton.jit`` functions."""
