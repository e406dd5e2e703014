"""Proving kernels: checks of checks, run in worker processes. ``ow.check`` is ``run.check``."""
