"""Tolerances: what rounding explains passes in every dtype, the next lower precision and small faults do not."""

from __future__ import annotations

import pytest
import torch

from opwright.checks.comparison.tolerance import Computation, next_lower


def computation(function, *arguments, terms=1):
    return Computation(lambda values: (function(*values).contiguous(),), list(arguments), lambda i: terms)


def wrong(expected, got):
    return int(expected.wrong(0, got).sum())


def normal(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def summed_in(dtype, a, b):
    """A product of matrices with an accumulator of a dtype, one term after the other."""
    total = torch.zeros(a.shape[0], b.shape[1], dtype=dtype)
    for k in range(a.shape[1]):
        total = total + a[:, k : k + 1].to(dtype) * b[k].to(dtype)
    return total.to(a.dtype)


HALVES = (torch.float16, torch.bfloat16)


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32, torch.float64])
def test_a_sum_in_any_order_is_right_and_one_without_a_term_is_not(dtype):
    a, b = normal(9, 1000, dtype=dtype), normal(1000, 11, dtype=dtype, seed=1)
    expected = computation(torch.matmul, a, b, terms=2000)
    wide = torch.float32 if dtype in HALVES else dtype
    assert wrong(expected, summed_in(wide, a, b)) == 0
    assert wrong(expected, summed_in(wide, a.flip(1), b.flip(0))) == 0
    assert wrong(expected, summed_in(wide, a[:, 1:], b[1:])) > 50 or dtype is torch.bfloat16


def test_accumulators_of_half_are_wrong():
    a, b = normal(32, 1500, dtype=torch.float16), normal(1500, 32, dtype=torch.float16, seed=1)
    assert wrong(computation(torch.matmul, a, b, terms=3000), summed_in(torch.float16, a, b)) > 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALVES])
@pytest.mark.parametrize(
    "function",
    [lambda x: x.exp(), lambda x: torch.softmax(x, -1), lambda x: x * torch.sigmoid(x), lambda x: x @ x.mT],
    ids=["exp", "softmax", "silu", "product"],
)
def test_the_next_lower_precision_is_wrong(dtype, function):
    expected = computation(function, normal(40, 40, dtype=dtype), terms=80)
    assert wrong(expected, expected.lowered(next_lower(dtype)[1])[0]) > 0
    assert wrong(expected, function(normal(40, 40, dtype=dtype))) == 0


@pytest.mark.parametrize("dtype", HALVES)
def test_computed_in_float32_or_rounded_after_each_step_both_are_right(dtype):
    x, w = normal(64, 200, dtype=dtype), normal(200, dtype=dtype, seed=1)

    def rms(x, w):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * w

    expected = computation(rms, x, w, terms=400)
    assert wrong(expected, rms(x.float(), w.float()).to(dtype)) == 0
    assert wrong(expected, rms(x, w)) == 0


def test_a_reference_in_float32_does_not_excuse_a_kernel_in_half():
    x = normal(64, 300, dtype=torch.float16)

    def wide(x):
        return (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True))).to(x.dtype)

    expected = computation(wide, x, terms=600)
    assert wrong(expected, wide(x)) == 0
    assert wrong(expected, (x.bfloat16() * torch.rsqrt(x.bfloat16().square().mean(-1, keepdim=True))).half()) > 0


def test_a_small_column_beside_a_large_one_has_its_own_tolerance():
    x = normal(100, 2).abs() + 1
    scale = torch.tensor([1.0, 1e6])
    expected = computation(lambda x: x * scale, x)
    assert wrong(expected, x * scale) == 0
    assert wrong(expected, x * scale + torch.tensor([1e-4, 0.0])) == 100


@pytest.mark.parametrize(("dtype", "least"), [(torch.float32, 1e-4), (torch.float16, 2e-2), (torch.float64, 1e-9)])
def test_small_values_that_are_flushed_to_zero_are_wrong(dtype, least):
    x = normal(3000, dtype=dtype)
    x[:50] *= least
    expected = computation(torch.sin, x)
    assert wrong(expected, torch.where(x.abs() < least, 0, x.sin())) > 20


@pytest.mark.parametrize(
    ("function", "other"),
    [
        (lambda x: torch.sigmoid(-x), lambda x: 1 - torch.sigmoid(x)),
        (lambda x: torch.exp(x.clamp(max=0)), lambda x: torch.expm1(x.clamp(max=0)) + 1),
        (lambda x: torch.exp(40 * x), lambda x: torch.exp2(x * (40 * 1.4426950408889634))),
        (lambda x: x.var(-1), lambda x: (x - x.mean(-1, keepdim=True)).square().sum(-1) / (x.shape[-1] - 1)),
        (lambda x: torch.logsumexp(x, -1), lambda x: x.exp().sum(-1).log()),
        (lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
         lambda x: x * torch.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))),
        (lambda x: torch.sin(x), lambda x: torch.cos(x - 1.5707963267948966)),
    ],
    ids=["complement", "expm1", "steep", "variance", "logsumexp", "gelu", "shifted"],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_another_formula_is_right(function, other, dtype):
    x = 5 * normal(300, 40, dtype=dtype)
    assert wrong(computation(function, x, terms=80), other(x).contiguous()) == 0


def test_a_cancelling_formula_is_wrong():
    x = normal(50, 40) + 1000
    expected = computation(lambda x: x.var(-1), x, terms=80)
    naive = (x.square().mean(-1) - x.mean(-1).square()) * 40 / 39
    assert wrong(expected, naive) > 0


def test_results_narrower_than_the_arguments_have_the_results_precision():
    x = normal(500, dtype=torch.float64)
    expected = computation(lambda x: x.float().exp(), x)
    assert wrong(expected, x.exp().float()) == 0
    assert wrong(expected, x.bfloat16().exp().float()) > 0


def test_constants_of_another_dtype_are_widened_too():
    x = normal(4, 4, dtype=torch.float64)
    table = normal(4, 4)
    expected = computation(lambda x: x @ table.to(x.dtype) @ torch.eye(4, dtype=x.dtype), x, terms=8)
    assert expected.exact[0].dtype is torch.float64
    single = computation(lambda x: x @ table @ torch.eye(4), x.float(), terms=8)
    assert single.exact[0].dtype is torch.float64
    assert wrong(single, x.float() @ table) == 0


def test_overflow_in_a_step_of_the_reference_excuses_overflow_and_nothing_else():
    x = torch.tensor([300.0, 2.0], dtype=torch.float16)
    expected = computation(lambda x: (x * x) / x, x)  # 300 * 300 is infinite in float16
    assert expected.rounded[0].tolist() == [float("inf"), 2.0]
    assert wrong(expected, torch.tensor([300.0, 2.0], dtype=torch.float16)) == 0
    assert wrong(expected, torch.tensor([float("nan"), 2.0], dtype=torch.float16)) == 0
    assert wrong(expected, torch.tensor([5.0, 2.0], dtype=torch.float16)) == 1
    assert wrong(expected, torch.tensor([300.0, float("inf")], dtype=torch.float16)) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_either_of_equal_values_may_be_chosen_and_no_other(dtype):
    x = normal(200, 300, dtype=dtype)
    expected = computation(lambda x: x.argmax(-1), x, terms=300)
    last = x.shape[1] - 1 - x.flip(1).argmax(-1)
    assert wrong(expected, last) == 0
    assert wrong(expected, x.topk(2).indices[:, 1]) > 80  # bfloat16 has many ties


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_either_of_equal_infinities_may_be_chosen_and_no_other(dtype):
    """NaN is the largest number where torch chooses."""
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([[1, inf, 2, inf, -inf, 5], [nan, 3, nan, 1, inf, 2]], dtype=dtype)
    expected = computation(lambda x: x.topk(2).indices, x, terms=6)
    assert wrong(expected, torch.tensor([[1, 3], [0, 2]])) == 0
    assert wrong(expected, torch.tensor([[3, 1], [2, 0]])) == 0
    assert wrong(expected, torch.tensor([[1, 5], [0, 4]])) == 2
    assert wrong(expected, torch.tensor([[1, 4], [4, 2]])) == 2


def test_denormal_results_may_be_zero_in_float32_and_not_in_float16():
    tiny = torch.full((3,), 1e-39)
    assert wrong(computation(lambda x: x * 1, tiny), torch.zeros(3)) == 0
    tiny = torch.full((3,), 3e-5, dtype=torch.float16)
    assert wrong(computation(lambda x: x * 1, tiny), torch.zeros(3, dtype=torch.float16)) == 3


def test_a_numpy_reference_has_the_precision_of_its_arguments():
    x = normal(2000, dtype=torch.float16)
    expected = computation(lambda x: torch.from_numpy((x.numpy() * x.numpy() + x.numpy()) * x.numpy()), x)
    assert wrong(expected, ((x.float() * x.float() + x.float()) * x.float()).half()) == 0
    assert wrong(expected, ((x.bfloat16() * x.bfloat16() + x.bfloat16()) * x.bfloat16()).half()) > 0


def descending(x):
    """The places of values in descending order, and of equal ones in the opposite order of a stable sort."""
    return torch.argsort(x, dim=-1, stable=True).flip(-1)


@pytest.mark.parametrize("dtype", HALVES)
def test_equal_values_may_come_in_any_order_however_many_there_are(dtype):
    x, g = normal(60, 129, dtype=dtype), normal(60, 129, dtype=dtype, seed=1)
    places = computation(lambda x: torch.argsort(x, dim=-1, descending=True, stable=True), x)
    assert int((places.rounded[0] != descending(x)).sum()) > 100
    assert wrong(places, descending(x)) == 0
    assert wrong(places, descending(x).roll(1, -1)) > 1000
    gradient = computation(
        lambda x, g: torch.zeros_like(x).scatter(-1, torch.argsort(x, dim=-1, descending=True, stable=True), g), x, g
    )
    assert wrong(gradient, torch.zeros_like(x).scatter(-1, descending(x), g)) == 0
    assert wrong(gradient, torch.zeros_like(x).scatter(-1, descending(x), g.roll(1, -1))) > 1000


@pytest.mark.parametrize("dtype", HALVES)
def test_the_backward_of_softmax_may_round_the_term_that_it_subtracts(dtype):
    x, g = normal(30, 200, dtype=dtype), torch.full((30, 200), 1.7, dtype=dtype)
    expected = computation(lambda x, g: torch._softmax_backward_data(g, x.softmax(-1), -1, x.dtype), x, g)
    out = x.float().softmax(-1).to(dtype)
    term = (g * out).float()  # rounded to half precision before
    assert wrong(expected, (term - out.float() * term.sum(-1, keepdim=True)).to(dtype)) == 0
    assert wrong(expected, (term - out.float() * term[:, 40:].sum(-1, keepdim=True)).to(dtype)) > 100


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_logarithm_of_a_sum_near_one_is_off_absolutely(dtype):
    x = torch.tensor([[0.0, -7.0, -9.0], [0.0, -7.5, -8.0]], dtype=dtype)
    result = x.log_softmax(-1)
    off = result + torch.tensor([[1.0], [-1.0]], dtype=dtype) * torch.finfo(dtype).eps
    assert wrong(computation(lambda x: x.log_softmax(-1), x, terms=3), off) == 0
    assert wrong(computation(lambda x: x.log_softmax(-1), x, terms=3), result * (1 + 1e-4)) > 0


def test_beside_the_largest_number_a_step_of_either_may_overflow():
    x = torch.tensor([710.0, 3.0], dtype=torch.float64)
    expected = computation(lambda x: x.exp() / 2, x)
    assert wrong(expected, torch.stack([(x[0] - 0.6931471805599453).exp(), x[1].exp() / 2])) == 0
    assert wrong(expected, torch.tensor([1e300, 10.042768461593834], dtype=torch.float64)) == 1
    near = computation(lambda x: x * 1, torch.tensor([3e38, 1e37]))
    assert wrong(near, torch.tensor([torch.inf, torch.inf])) == 1


def test_an_infinity_does_not_take_the_tolerance_of_interpolated_values():
    x, at = normal(1, 2, 4, 5), 4 * normal(1, 6, 7, 2, seed=1)
    x[0, 0, 0, 0] = float("inf")

    def sample(x, at):
        return torch.nn.functional.grid_sample(x, at, align_corners=False)

    got = sample(x, at) + 1e-8
    assert wrong(computation(sample, x, at, terms=4), got) == 0


def test_of_thousands_of_equal_pairs_each_may_be_chosen_in_either_way():
    pairs = torch.arange(4000.0).repeat_interleave(2).reshape(4000, 2)
    g = normal(4000, 2, seed=1)

    def placed(order):
        return lambda x, g: torch.zeros_like(g).scatter(-1, order(x), g)

    expected = computation(placed(lambda x: torch.argsort(x, dim=-1, stable=True)), pairs, g)
    assert wrong(expected, placed(descending)(pairs, g)) == 0
    got = placed(descending)(pairs, g)
    got[1234, 1] += 100.0
    assert wrong(expected, got) == 1


def blocked_cholesky(x):
    """Column by column, in the order of another algorithm than LAPACK's."""
    out = torch.zeros_like(x)
    for j in range(x.shape[-1]):
        out[j:, j] = (x[j:, j] - (out[j:, :j] * out[j, :j]).sum(-1)) / (x[j, j] - out[j, :j].square().sum()).sqrt()
    return out


def test_factors_of_a_matrix_are_off_by_its_largest_elements():
    x = normal(60, 20)
    x[:, 3] *= 1e-4  # what belongs to small columns is off by more than a share of itself
    a = x.mT @ x + 1e-6 * torch.eye(20)
    expected = computation(torch.linalg.cholesky, a, terms=20)
    assert wrong(expected, blocked_cholesky(a)) == 0
    assert wrong(expected, blocked_cholesky(a.bfloat16().float())) > 100
    assert wrong(expected, blocked_cholesky(a).mT.contiguous()) > 100
    q = torch.linalg.qr(x).Q
    other = torch.linalg.qr(x.flip(0)).Q.flip(0)  # the same columns, with signs of their own
    other = other * (other * q).sum(0).sign()
    expected = computation(lambda x: torch.linalg.qr(x).Q, x, terms=60)
    assert int((other != q).sum()) > 100
    assert wrong(expected, other) == 0
    assert wrong(expected, q * torch.where(torch.arange(60) == 7, 1.001, 1.0)[:, None]) > 10


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_sums_of_a_fourier_transform_are_off_by_the_mean_of_all(dtype):
    x = torch.complex(normal(3, 129, dtype=torch.float64), normal(3, 129, dtype=torch.float64, seed=1)).to(dtype)
    x[2] *= 1e-3
    n = torch.arange(129)
    turns = torch.polar(
        torch.ones(129, 129, dtype=torch.float64), -2 * torch.pi * (n[:, None] * n % 129).double() / 129
    )
    expected = computation(lambda x: torch.fft.fft(x), x, terms=5 * 129)
    got = x @ turns.to(dtype)
    assert wrong(expected, got) == 0
    got[2, 5] += 1e-2 * got[2, 5]
    assert wrong(expected, got) == 1


def test_any_place_among_many_equal_values_is_right_and_places_outside_are_not():
    x = normal(3, 1, 40).expand(3, 15, 40)
    expected = computation(lambda x: x.median(1).indices, x)
    for place in (0, 7, 14):
        assert wrong(expected, torch.full((3, 40), place)) == 0
    assert wrong(expected, torch.full((3, 40), -1)) == 120
    assert wrong(expected, torch.full((3, 40), 30)) == 120
    x = torch.zeros(2, 5000)
    assert wrong(computation(lambda x: x.argmax(-1), x), torch.tensor([0, 4999])) == 0
    x[1, 77] = 1
    assert wrong(computation(lambda x: x.argmax(-1), x), torch.tensor([0, 76])) == 1


def test_a_gradient_through_a_sort_of_equal_values_may_go_to_either():
    x, g = normal(129, 7, 3, dtype=torch.bfloat16), normal(129, 7, 3, dtype=torch.bfloat16, seed=1)

    def gradient(order):
        return lambda x, g: torch.zeros_like(g).scatter(0, order(x), g)

    for seed in range(40):
        x, g = (
            normal(129, 7, 3, dtype=torch.bfloat16, seed=seed),
            normal(129, 7, 3, dtype=torch.bfloat16, seed=seed + 1),
        )
        expected = computation(gradient(lambda x: torch.argsort(x, dim=0, stable=True)), x, g)
        other = gradient(lambda x: 128 - torch.argsort(x.flip(0), dim=0, stable=True))(x, g)
        assert wrong(expected, other) == 0


def test_of_three_equal_values_each_may_get_any_gradient_of_theirs_and_no_other():
    def gradient(x, g):
        return torch.zeros_like(g).scatter(0, torch.argsort(x, dim=0, stable=True), g)

    x = normal(40, dtype=torch.bfloat16).unique().repeat_interleave(3)
    for seed in range(60):
        g = normal(len(x), dtype=torch.bfloat16, seed=seed)
        expected = computation(gradient, x, g)
        turned = g.view(-1, 3).roll(1 + seed % 2, 1).flatten()
        assert wrong(expected, turned) == 0, seed
    beside = turned.clone()
    beside[0] = 10.0  # is no gradient of these three
    assert wrong(expected, beside) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_pseudoinverse_may_come_from_any_stable_algorithm(dtype):
    def from_transposed(a):
        u, s, vh = torch.linalg.svd(a.mT.contiguous(), full_matrices=False)
        return (u / s.unsqueeze(-2)) @ vh

    for seed in range(10):
        a = normal(40, 3, 6, dtype=dtype, seed=seed)
        expected = computation(torch.linalg.pinv, a, terms=6)
        assert wrong(expected, from_transposed(a)) == 0, seed
    narrow = torch.linalg.pinv(
        a.to(torch.float32).to(torch.bfloat16 if dtype is torch.float32 else torch.float32).double()
    )
    assert wrong(expected, narrow.to(dtype)) > 600


def test_an_intermediate_result_may_be_flushed_before_it_is_multiplied():
    x = torch.tensor([3e-39, 2e-20])
    expected = computation(lambda x: (x * 1.0) * 20.0, x)
    assert wrong(expected, torch.tensor([0.0, 4e-19])) == 0
    assert wrong(expected, torch.tensor([6e-38, 0.0])) == 1


@pytest.mark.parametrize("groups", [4, 16])
def test_a_group_norm_may_round_the_terms_that_cancel_and_no_more(groups):
    x, weight, bias = normal(500, 16), normal(16, seed=1), normal(16, seed=2)

    def after(swish):
        return lambda x, *others: torch.group_norm(swish(x), groups, *others)

    found = computation(after(lambda x: x * torch.sigmoid(x)), x, weight, bias)
    other = after(lambda x: x * (1 / (1 + torch.exp(-x))))(x, weight, bias)
    assert not wrong(found, other)  # where a group has one element, all of it cancels
    assert wrong(found, other * (1 + 2e-4)) > found.exact[0].numel() // 2
    assert bool(wrong(found, after(lambda x: (x * torch.sigmoid(x)).half().float())(x, weight, bias))) is (groups < 16)
