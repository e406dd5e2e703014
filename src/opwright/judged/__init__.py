"""Kernels in the form in which others publish them: tasks read, their contracts inferred, candidates attached."""
