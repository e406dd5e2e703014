"""Recorded calls: their file, how they are recorded (``ow.capture``), and how checks and benchmarks replay them."""
