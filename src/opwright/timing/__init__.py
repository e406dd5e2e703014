"""Timing kernels honestly: timers, statistics, the machine's limits, comparison. ``ow.bench`` is ``run.bench``."""
