"""What is run: which kernels on which devices, in which order and work items, up to one verdict for each."""
