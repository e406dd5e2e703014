"""What a kernel does with memory: bounds, what was never written, peaks, offsets past 32 bits."""
