// The kernels of drawn launchers, for NVRTC on a GPU. driver.cpp has the same ones for the imitated driver on a CPU.
extern "C" __global__ void scale(const float* x, float* out, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = a * x[i];
}
extern "C" __global__ void subtract(const float* x, const float* y, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = x[i] - y[i];
}
extern "C" __global__ void increase(float* x, int k, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] += k;
}
