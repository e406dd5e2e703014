// pytorch_scatter's functions for CUDA, by one signature for each operator of scatter.py: the sources choose a
// reduction by its name, and whether they write into a given tensor by an optional one.
#include "csrc/cuda/segment_coo_cuda.cu"
#include "csrc/cuda/segment_csr_cuda.cu"

at::Tensor gather_csr(const at::Tensor& src, const at::Tensor& indptr) {
  return gather_csr_cuda(src, indptr, std::nullopt);
}
void gather_csr_out(const at::Tensor& src, const at::Tensor& indptr, at::Tensor& out) {
  gather_csr_cuda(src, indptr, out);
}
at::Tensor segment_sum_csr(const at::Tensor& src, const at::Tensor& indptr) {
  return std::get<0>(segment_csr_cuda(src, indptr, std::nullopt, "sum"));
}
at::Tensor gather_coo(const at::Tensor& src, const at::Tensor& index) {
  return gather_coo_cuda(src, index, std::nullopt);
}
void gather_coo_out(const at::Tensor& src, const at::Tensor& index, at::Tensor& out) {
  gather_coo_cuda(src, index, out);
}
at::Tensor segment_sum_coo(const at::Tensor& src, const at::Tensor& index, int64_t rows) {
  return std::get<0>(segment_coo_cuda(src, index, std::nullopt, rows, "sum"));
}
