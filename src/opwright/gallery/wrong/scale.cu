// WRONG ON PURPOSE: see __init__.py. The last thread to get past the guard has i == n, one past the end.
extern "C" __global__ void scale(const float* __restrict__ x, float* __restrict__ out, float a, long long n) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i <= n) {  // it should be i < n
    out[i] = a * x[i];
  }
}
