"""The state of the hardware while something is timed: clocks, cores, caches, precision."""
