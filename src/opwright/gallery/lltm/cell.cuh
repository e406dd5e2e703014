// The arithmetic of one element of the LLTM cell, forward and backward, and what its kernels share.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int LANES = 32;  // threads side by side in a block, of one warp: they read what lies side by side

template <class T>
struct Wide {
  using type = float;  // half types are computed in float and rounded once
};
template <>
struct Wide<double> {
  using type = double;
};

template <class S>
__device__ S sigmoid(S value) {
  return S(1) / (S(1) + exp(-value));
}

template <class S>
struct Gates {
  S in, out, candidate;
  S slope;  // of the ELU, at the candidate before it
};

template <class S>
__device__ Gates<S> activate(S in, S out, S candidate) {
  const S below = expm1(candidate);
  return {sigmoid(in), sigmoid(out), candidate > S(0) ? candidate : below, candidate > S(0) ? S(1) : below + S(1)};
}

template <class S>
struct State {
  S h, c;
};

template <class S>
__device__ State<S> step(S in, S out, S candidate, S c) {
  const Gates<S> gate = activate(in, out, candidate);
  const S c_new = c + gate.candidate * gate.in;
  return {tanh(c_new) * gate.out, c_new};
}

template <class S>
struct Gradients {
  S in, out, candidate, c;
};

template <class S>
__device__ Gradients<S> step_back(S grad_h, S grad_c, S in, S out, S candidate, S c_new) {
  const Gates<S> gate = activate(in, out, candidate);
  const S squashed = tanh(c_new);
  const S grad_cell = grad_c + grad_h * gate.out * (S(1) - squashed * squashed);
  return {grad_cell * gate.candidate * gate.in * (S(1) - gate.in),
          grad_h * squashed * gate.out * (S(1) - gate.out),
          grad_cell * gate.in * gate.slope,
          grad_cell};
}
