"""What C++ and CUDA host functions share: torch's stable ABI, building, calling."""
