"""Checks of gradients: first, inside a kernel, and second."""
