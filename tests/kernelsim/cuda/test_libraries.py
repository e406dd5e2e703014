"""Thrust's tuples and cuRAND's functions for kernels: the simulator and NVRTC take the same sources."""

from __future__ import annotations

import math

import pytest
import torch

import kernelsim
import opwright as ow
from kernelsim.text.library_headers import curand_folder
from opwright.backends.cuda.nvrtc import available
from opwright.errors import SimulatorError
from opwright.results import Refused

pytestmark = pytest.mark.compiler
needs_nvrtc = pytest.mark.skipif(isinstance(available(), Refused), reason="there is no NVRTC")
needs_curand = pytest.mark.skipif(curand_folder() is None, reason="cuRAND's headers are not installed")

TUPLES = """
#include <thrust/pair.h>
#include <thrust/tuple.h>
__device__ thrust::tuple<float, int> largest(const float* x, int n) {
  float value = x[0];
  int place = 0;
  for (int i = 1; i < n; i++) {
    if (x[i] > value) { value = x[i]; place = i; }
  }
  return thrust::make_tuple(value, place);
}
__global__ void k(const float* x, float* out, int n) {
  float value;
  int place;
  thrust::tie(value, place) = largest(x, n);
  thrust::pair<float, float> both = thrust::make_pair(value, 1.0f);
  const thrust::tuple<float, int> again = largest(x, n);
  out[0] = both.first + both.second;
  out[1] = thrust::get<1>(again) + place;
}
"""

RANDOM = """
#include <curand_kernel.h>
__global__ void philox(float* uniform, float* normal, unsigned long long seed, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  curandStatePhilox4_32_10_t state;
  curand_init(seed, i, 4, &state);
  uniform[i] = curand_uniform(&state);
  normal[i] = curand_normal(&state);
}
template <class State>
__global__ void others(float* uniform, double* normal, unsigned* count, unsigned long long seed, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  State state;
  curand_init(seed, i, 3, &state);
  uniform[i] = curand_uniform(&state);
  normal[i] = curand_normal_double(&state);
  count[i] = curand_poisson(&state, 4.0);
}
"""
OTHERS = ("curandState", "curandStateMRG32k3a", "curandStatePhilox4_32_10_t")


def philox4x32_10(counter: list[int], key: tuple[int, int]) -> list[int]:
    """Ten rounds of the generator of Salmon et al., 2011."""
    k0, k1 = key
    c0, c1, c2, c3 = counter
    for _ in range(10):
        first, second = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1 = (second >> 32) ^ c1 ^ k0, second & 0xFFFFFFFF
        c2, c3 = (first >> 32) ^ c3 ^ k1, first & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return [c0, c1, c2, c3]


def drawn(device: str, state: str, n: int = 2000) -> tuple[torch.Tensor, ...]:
    uniform = torch.zeros(n, device=device)
    normal = torch.zeros(n, dtype=torch.float64, device=device)
    count = torch.zeros(n, dtype=torch.int32, device=device)
    ow.cuda_module(RANDOM)[f"others<{state}>"][ow.cdiv(n, 128), 128](uniform, normal, count, 99, n)
    return uniform.cpu(), normal.cpu(), count.cpu()


def test_tuples_and_pairs() -> None:
    x, out = torch.tensor([1.0, 5.0, 3.0]), torch.zeros(2)
    ow.cuda_module(TUPLES)["k"][1, 1](x, out, 3)
    assert out.tolist() == [6.0, 2.0]


def test_an_access_in_a_function_that_returns_a_tuple_is_checked() -> None:
    with pytest.raises(SimulatorError, match="out-of-bounds: reads 4 bytes") as raised:
        ow.cuda_module(TUPLES)["k"][1, 1](torch.zeros(3), torch.zeros(2), 4)
    assert "x[i] > value" in str(raised.value)


@needs_nvrtc
@needs_curand
@pytest.mark.parametrize("text", [TUPLES, RANDOM])
def test_nvrtc_takes_them(text: str) -> None:
    assert ow.cuda_module(text).compile("sm_90").entries


@needs_curand
@pytest.mark.parametrize("checked", [True, False])
def test_philox_is_the_published_generator(checked: bool) -> None:
    uniform, normal, seed, n = torch.zeros(300), torch.zeros(300), 2**40 + 1234, 300
    with kernelsim.options(checked=checked):
        ow.cuda_module(RANDOM)["philox"][3, 128](uniform, normal, seed, n)
    for i in (0, 1, 299):  # four numbers have been skipped: the counter's second value
        word = philox4x32_10([1, 0, i, 0], (seed & 0xFFFFFFFF, seed >> 32))[0]
        assert uniform[i].item() == pytest.approx(word * 2**-32 + 2**-33, abs=2**-24)
    assert abs(normal.mean().item()) < 4 / math.sqrt(n)


@needs_curand
@pytest.mark.parametrize("state", [OTHERS[0], *(pytest.param(o, marks=pytest.mark.slow) for o in OTHERS[1:])])
def test_the_distributions_are_plausible(state: str) -> None:
    uniform, normal, count = drawn("cpu", state)
    n = uniform.numel()
    assert uniform.min() > 0
    assert uniform.max() <= 1
    assert uniform.unique().numel() > 0.99 * n
    assert abs(uniform.mean().item() - 0.5) < 4 * math.sqrt(1 / 12 / n)
    assert abs(normal.mean().item()) < 4 / math.sqrt(n)
    assert abs(normal.var().item() - 1) < 4 * math.sqrt(2 / n)
    assert abs(count.double().mean().item() - 4) < 4 * math.sqrt(4 / n)


@needs_curand
def test_a_write_past_the_end_is_reported_where_it_is() -> None:
    wrong = RANDOM.replace("if (i >= n) return;", "if (i > n) return;")
    with pytest.raises(
        SimulatorError, match="out-of-bounds: writes 4 bytes just past the end of argument 'uniform'"
    ) as raised:
        ow.cuda_module(wrong)["philox"][1, 128](torch.zeros(100), torch.zeros(101), 1, 100)
    assert "uniform[i] = curand_uniform(&state);" in str(raised.value)


@needs_curand
@pytest.mark.gpu
@pytest.mark.parametrize("state", OTHERS)
def test_a_gpu_draws_the_same(state: str) -> None:
    here, there = drawn("cpu", state), drawn("cuda", state)
    assert torch.equal(here[0], there[0])
    assert torch.allclose(here[1], there[1], rtol=1e-12, atol=1e-12)
    assert (here[2] != there[2]).double().mean() < 0.01  # approximations of exp and log may fall to another side


INVERSES = """
__global__ void k(const double* x, double* inverse_erf, double* inverse_erfc, double* quantile, int n) {
  int i = threadIdx.x;
  inverse_erf[i] = erfinv(x[i]);
  inverse_erfc[i] = erfcinv(x[i]);
  quantile[i] = normcdfinv(x[i]);
}
"""


def test_inverses_of_the_error_function() -> None:
    x = torch.tensor([1e-300, 1e-20, 1e-3, 0.1, 0.4999, 0.5, 0.9, 0.999999], dtype=torch.float64)
    results = [torch.zeros_like(x) for _ in range(3)]
    ow.cuda_module(INVERSES)["k"][1, len(x)](x, *results, len(x))
    inverse_erf, inverse_erfc, quantile = results
    assert torch.allclose(inverse_erf, torch.special.erfinv(x), rtol=1e-13, atol=0)
    assert torch.allclose(torch.special.erfc(inverse_erfc), x, rtol=1e-12, atol=0)
    assert torch.allclose(quantile, torch.special.ndtri(x), rtol=1e-9, atol=1e-15)
