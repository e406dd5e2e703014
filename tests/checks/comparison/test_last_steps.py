"""How narrow the steps of a reference are: each result is compared in the precision of its own last step."""

from __future__ import annotations

import pytest
import torch

from opwright.checks.comparison.tolerance import Computation

HALVES = (torch.float16, torch.bfloat16)


def computation(function, *arguments, terms=1):
    def run(values):
        results = function(*values)
        return tuple(r.contiguous() for r in (results if isinstance(results, tuple) else (results,)))

    return Computation(run, list(arguments), lambda i: terms)


def wrong(expected, got, i=0):
    return int(expected.wrong(i, got).sum())


def normal(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def logsumexp(x):
    return x.float().logsumexp(-1)


def rstd(x):
    return torch.rsqrt(x.float().square().mean(-1) + 1e-5)


def rms_norm(x):
    scale = rstd(x)
    return (x.float() * scale[..., None]).to(x.dtype), scale


def shares(x):
    return x.float().softmax(-1).to(x.dtype), x.float().logsumexp(-1)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("function", [logsumexp, rstd, lambda x: x.float().square().sum(-1)])
def test_a_float32_result_of_half_inputs_has_float32_s_precision(dtype, function):
    x = normal(64, 300, dtype=dtype)
    expected = computation(function, x, terms=600)
    assert wrong(expected, function(x.double()).float()) == 0
    assert wrong(expected, function(x.flip(1))) == 0
    assert wrong(expected, function(x) * 1.0005) > 50
    assert wrong(expected, function(x).to(dtype).float()) > 50


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("function", [rms_norm, shares])
def test_each_of_several_results_has_the_precision_of_its_own_last_step(dtype, function):
    x = normal(64, 300, dtype=dtype)
    expected = computation(function, x, terms=600)
    y, saved = function(x)
    assert wrong(expected, y) == 0
    assert wrong(expected, saved, 1) == 0
    assert wrong(expected, saved * 1.0005, 1) > 50
    assert wrong(expected, saved.to(dtype).float(), 1) > 50


@pytest.mark.parametrize("dtype", HALVES)
def test_a_last_step_in_half_may_be_off_by_a_half_s_rounding(dtype):
    x, w = normal(64, 300, dtype=dtype), normal(300, dtype=dtype, seed=1)

    def scaled(x, w):
        return (x * w).float(), (x.float() * w.float())

    expected = computation(scaled, x, w)
    in_float32 = x.float() * w.float()
    assert wrong(expected, in_float32) == 0
    assert wrong(expected, in_float32, 1) == 0
    assert wrong(expected, in_float32.to(dtype).float(), 1) > 1000


def test_a_norm_that_gives_its_statistics_in_float32():
    x = normal(64, 300, dtype=torch.bfloat16)

    def norm(x):
        wide = x.float()
        mean, scale = wide.mean(-1), torch.rsqrt(wide.var(-1, correction=0) + 1e-5)
        return torch.nn.functional.layer_norm(x, x.shape[-1:]), mean, scale

    expected = computation(norm, x, terms=600)
    y, mean, scale = norm(x.double())
    assert wrong(expected, y.bfloat16()) == 0
    assert wrong(expected, mean.float(), 1) == 0
    assert wrong(expected, scale.float(), 2) == 0
    assert wrong(expected, scale.float() * 1.002, 2) > 50


def test_an_error_of_a_percent_in_a_half_result_that_float32_computes_is_wrong():
    x = normal(64, 300, dtype=torch.float16)
    expected = computation(lambda x: (x.float() * 1.7).to(x.dtype), x)
    assert wrong(expected, (x.float() * 1.7).half()) == 0
    assert wrong(expected, x * torch.tensor(1.7, dtype=torch.float16)) == 0  # one more rounding
    assert wrong(expected, (x.float() * 1.705).half()) > 10_000


def moments(beta, power):
    def step(m, g, b, lr):
        m = b * m + (1 - b) * g
        return m, lr * m / (1 - b**power)

    return step


@pytest.mark.parametrize("beta", [0.9, 0.999, 0.9999])
def test_one_less_a_number_of_float32_is_right(beta):
    m, g = normal(500), normal(500, seed=1)
    expected = computation(moments(beta, 1), m, g, beta, 1e-3)
    b = torch.tensor(beta)
    rate = torch.tensor(1e-3) * (1 / (1 - b**1))
    got = b * m + (1 - b) * g
    assert wrong(expected, got) == 0
    assert wrong(expected, rate * got, 1) == 0
    assert wrong(expected, b * m + (1 - b) * 1.1 * g) > 200
    assert wrong(expected, rate * got * (1 + 1e-2), 1) > 400


def test_a_number_of_few_bits_is_the_same_in_every_kernel():
    m = normal(500).double()
    expected = computation(lambda m, b: m - (1 - b) * m, m, 0.5)
    assert wrong(expected, m - 0.5 * m) == 0
    assert wrong(expected, m - 0.5 * (1 - 1e-7) * m) > 400


def test_a_number_that_says_how_many_elements_are_taken_is_not_a_little_off():
    x = normal(40, 10)

    def first(x, share):
        count = int(share * x.shape[1])
        return torch.cat([x[:, :count], torch.zeros_like(x[:, count:])], 1) * 1.3

    expected = computation(first, x, 0.3)
    assert wrong(expected, first(x, 0.3)) == 0
    assert wrong(expected, first(x, 0.25)) == 40


def test_a_reference_that_refuses_other_numbers_keeps_its_errors():
    x = normal(40, 10)

    def scaled(x, step):
        return (x * {0.1: 3.0}[step]).sum(-1)

    expected = computation(scaled, x, 0.1, terms=10)
    assert wrong(expected, (x.flip(1) * 3).sum(-1)) == 0


def attention(q, k, v):
    scores = q.float() @ k.float().mT * q.shape[-1] ** -0.5
    return (scores.softmax(-1) @ v.float()).to(q.dtype)


def attention_and_sums(q, k, v):
    scores = q.float() @ k.float().mT * q.shape[-1] ** -0.5
    return scores.softmax(-1) @ v.float(), scores.logsumexp(-1)


def with_narrow_weights(q, k, v, dtype):
    scores = q.float() @ k.float().mT * q.shape[-1] ** -0.5
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    return (powers.to(dtype).float() @ v.float()) / powers.sum(-1, keepdim=True)


@pytest.mark.parametrize("dtype", HALVES)
def test_weights_of_attention_may_be_rounded_beside_a_reference_in_float32(dtype):
    q, k, v = (normal(2, 100, 64, dtype=dtype, seed=s) for s in range(3))
    expected = computation(attention_and_sums, q, k, v, terms=400)
    got = with_narrow_weights(q, k, v, dtype)
    assert int((got - expected.exact[0]).abs().gt(1e-5).sum()) > 1000
    assert wrong(expected, got) == 0
    assert wrong(computation(attention, q, k, v, terms=400), got.to(dtype)) == 0
    assert wrong(expected, 1.01 * got) > 500
    assert wrong(expected, expected.rounded[1] * 1.001, 1) > 100
    assert wrong(expected, with_narrow_weights(q, k, v, torch.float8_e4m3fn)) > 1000


def slopes_and_product(x, w):
    """As the backward of a loss: what is converted to a half dtype is of the order of 1, and sums cancel."""
    slopes = (x.float().softmax(-1) - 0.01).to(x.dtype)
    return slopes, slopes @ w


@pytest.mark.parametrize("dtype", HALVES)
def test_an_operand_that_the_reference_converts_to_a_half_dtype_may_be_rounded_otherwise(dtype):
    x, w = normal(60, 100, dtype=dtype), normal(100, 50, dtype=dtype, seed=1)
    expected = computation(slopes_and_product, x, w, terms=400)
    assert wrong(expected, slopes_and_product(x, w)[1], 1) == 0
    wide = x.double().softmax(-1) - 0.01
    scaled = (wide * 0.3).to(dtype)  # rounded in other places
    assert wrong(expected, ((scaled.double() @ w.double()) / 0.3).to(dtype), 1) == 0
    assert wrong(expected, (wide.to(torch.float8_e4m3fn).double() @ w.double()).to(dtype), 1) > 1000
    assert wrong(expected, ((wide + 0.002).to(dtype).double() @ w.double()).to(dtype), 1) > 500
    assert wrong(expected, (wide * 1.03).to(dtype)) > 1000  # the conversion itself is a last step


@pytest.mark.parametrize("join", [lambda a, b: torch.cat([a, b], -1), lambda a, b: torch.where(b > 0, b, a)])
def test_a_part_that_is_not_converted_is_not_rounded_beside_one_that_is(join):
    def product(x, w, convert=lambda t: t):
        return join(convert(x * 1.7), (x * 1.3).bfloat16().float()) @ w

    x = normal(60, 100)
    w = normal(join(x, x).shape[-1], 50, seed=1)
    expected = computation(product, x, w, terms=400)
    assert wrong(expected, product(x, w)) == 0
    assert wrong(expected, product(x, w, lambda t: t.bfloat16().float())) > 1000


def test_an_input_is_not_rounded_beside_one_that_is_narrow():
    x, w = normal(60, 200, dtype=torch.bfloat16), normal(200, 50, seed=1)
    expected = computation(lambda x, w: x.float() @ w, x, w, terms=400)
    assert wrong(expected, (x.double() @ w.double()).float()) == 0
    assert wrong(expected, x.float() @ w.bfloat16().float()) > 1000


def test_sums_in_half_beside_a_reference_in_float32_are_wrong():
    x, w = normal(60, 40, dtype=torch.float16), normal(40, 50, dtype=torch.float16, seed=1)
    expected = computation(lambda x, w: x.float() @ w.float(), x, w, terms=80)
    total = torch.zeros(60, 50, dtype=torch.float16)
    for i in range(40):
        total = total + x[:, i, None] * w[i]
    assert wrong(expected, total.float()) > 1000


@pytest.mark.parametrize("dtype", HALVES)
def test_a_product_with_a_mask_rounds_nothing_and_hides_no_sums_in_half(dtype):
    x, keep = normal(60, 300, dtype=dtype), (normal(60, 300, seed=1) > 0).to(dtype)

    def total(x, keep):
        return (x * keep).float().sum(-1)

    expected = computation(total, x, keep, terms=300)
    assert wrong(expected, total(x.flip(1), keep.flip(1))) == 0
    sums = torch.zeros(60, dtype=dtype)
    for column in (x * keep).unbind(1):
        sums = sums + column
    assert wrong(expected, sums.float()) > 50
    scaled = computation(total, x, keep * 1.1, terms=300)  # does round
    assert wrong(scaled, (x.float() * (keep * 1.1).float()).sum(-1)) == 0


def test_what_is_converted_to_float32_before_a_difference_may_be_off_by_a_unit():
    x = normal(300, dtype=torch.float64) + 1000

    def centred(x):
        x = x.float()
        return (x - x.mean()).double()

    expected = computation(centred, x, terms=300)
    others = torch.nextafter(x.float(), torch.tensor(torch.inf))
    assert wrong(expected, centred(x)) == 0
    assert wrong(expected, (others - others.flip(0).mean()).double()) == 0
    assert wrong(expected, centred(x.half().double())) > 200


def test_a_last_step_in_float32_of_a_float64_result():
    x = normal(300, dtype=torch.float64)
    expected = computation(lambda x: (x.float() * 1.7).double(), x)
    assert wrong(expected, (x * 1.7).float().double()) == 0
    assert wrong(expected, (x * 1.7).bfloat16().double()) > 200
    alone = computation(lambda x: x * 1.7, x)
    assert wrong(alone, (x * 1.7).float().double()) > 200
