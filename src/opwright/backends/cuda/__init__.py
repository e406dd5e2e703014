"""CUDA C++: device code through NVRTC or the simulator, host functions through nvcc."""
