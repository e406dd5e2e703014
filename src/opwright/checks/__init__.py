"""Verifying kernels: checks that compare them with the reference in worker processes. ``ow.check``: ``run.check``."""
