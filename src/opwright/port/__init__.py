"""``opwright port``: host functions on ATen's tensors, rewritten for torch's stable ABI."""
