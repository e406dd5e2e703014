"""Proving kernels: families of checks, run in worker processes. ``ow.check`` is ``run.check``."""
