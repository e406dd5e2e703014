"""Verifying kernels: checks that compare them with the reference, run in worker processes. ``ow.check`` is ``run.check``."""
