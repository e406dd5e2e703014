"""The common parts of C++ and CUDA host functions: torch's stable ABI, building, calling."""
