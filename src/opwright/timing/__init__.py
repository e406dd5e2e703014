"""Times kernels: timers, statistics, the machine's roofline limits, comparisons. ``ow.bench`` is ``run.bench``."""
