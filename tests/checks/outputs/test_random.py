"""Random operators: found at definition, compared by their statistics; faults are found, right kernels pass."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
import torch
from jaxtyping import Bool, Complex, Float, Float32, Float64
from torch import Tensor

import opwright as ow
from opwright.checks.comparison.statistics import first_difference
from tests.sampled import quick


@pytest.fixture
def dropout(namespace):
    @ow.op(f"{namespace}::dropout", random=True)
    def dropout(x: Float32[Tensor, "n m"]) -> Float32[Tensor, "n m"]:
        return torch.nn.functional.dropout(x, 0.25)

    return dropout


@pytest.fixture
def seeded(namespace):
    @ow.op(f"{namespace}::seeded", random="seed")
    def seeded(x: Float32[Tensor, "n m"], seed: int) -> tuple[Float32[Tensor, "n m"], Bool[Tensor, "n m"]]:
        keep = torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)).to(x.device) >= 0.25
        return torch.where(keep, x / 0.75, 0), keep

    return seeded


def drop(x, p=0.25, scale=None, generator=None):
    keep = torch.rand(x.shape, generator=generator, device=x.device) >= p
    return torch.where(keep, x / (1 - p if scale is None else scale), torch.zeros((), dtype=x.dtype))


def same_for_all_rows(x):
    keep = torch.rand(x.shape[1:], device=x.device) >= 0.25
    return torch.where(keep, x / 0.75, torch.zeros((), dtype=x.dtype))


def never_drops_the_last_column(x):
    result = drop(x)
    result[:, -1] = (x / 0.75)[:, -1]
    return result


def by_a_clock(x):
    return drop(x, generator=torch.Generator().manual_seed(time.perf_counter_ns()))


def always_the_same(x):
    return drop(x, generator=torch.Generator().manual_seed(3))


def neighbours_together(x):
    keep = torch.rand((x.shape[0], (x.shape[1] + 1) // 2)).repeat_interleave(2, 1)[:, : x.shape[1]] >= 0.25
    return torch.where(keep, x / 0.75, torch.zeros((), dtype=x.dtype))


def verdict(operator, kernel, **options):
    operator.python(kernel, name="kernel")
    return ow.check(operator, device="cpu", level="smoke", **options).verdicts[0]


# Each is a whole check.
@pytest.mark.slow
@pytest.mark.parametrize(
    "right",
    quick(
        [
            lambda x: drop(x),
            lambda x: (drop(x.double())).to(x.dtype),
            # A whole check each.
            pytest.param(lambda x: torch.nn.functional.dropout(x.contiguous(), 0.25), marks=pytest.mark.slow),
            pytest.param(lambda x: drop(x.mT.contiguous()).mT.contiguous(), marks=pytest.mark.slow),
        ],
        0,
    ),
)
def test_a_kernel_with_the_same_distribution_passes_every_check(dropout, right):
    result = verdict(dropout, right)
    assert result.status.value == "pass", result.failures
    assert "distributions, error rate 1e-06 each" in next(f for f in result.findings if f.check == "values").message
    assert {n.check for n in result.not_checked} <= {"streams", "gradients"}


# Each is a whole check.
@pytest.mark.parametrize(
    ("wrong", "message"),
    quick(
        [
            (lambda x: drop(x, 0.3), ""),
            (lambda x: drop(x, 0.25, scale=1), "the mean"),
            # A whole check each.
            pytest.param(same_for_all_rows, "", marks=pytest.mark.slow),
            pytest.param(never_drops_the_last_column, "", marks=pytest.mark.slow),
            (neighbours_together, "apart in memory"),
            pytest.param(always_the_same, "", marks=pytest.mark.slow),
            (by_a_clock, "two calls with the same torch.manual_seed differs"),
            (lambda x: drop(x)[:-1], "shape"),
        ],
        1,
        6,
    ),
)
def test_a_wrong_distribution_is_found(dropout, wrong, message):
    result = verdict(dropout, wrong, checks=["values"])
    assert result.status.value == "fail"
    assert message in result.failures[0].message


def keeps_by_another_generator(x, seed):
    keep = torch.rand(x.shape, generator=torch.Generator().manual_seed(seed ^ 0x5EED), dtype=torch.float64) >= 0.25
    return torch.where(keep, x / 0.75, torch.zeros((), dtype=x.dtype)), keep


@pytest.mark.slow  # draws many samples
def test_another_generator_for_the_same_seed_is_right(seeded):
    result = verdict(seeded, keeps_by_another_generator)
    assert result.status.value == "pass", result.failures


# Each is a whole check.
@pytest.mark.parametrize(
    ("wrong", "message"),
    quick(
        [
            (lambda x, seed: keeps_by_another_generator(x, 0), ""),
            (lambda x, seed: keeps_by_another_generator(x, seed // 2), "the correlation of calls 1 apart"),
            (lambda x, seed: keeps_by_another_generator(x, seed % 16), ""),
            (
                lambda x, seed: keeps_by_another_generator(x, int(torch.randint(1 << 30, ()))),
                "with the same seed differs",
            ),
            (lambda x, seed: (x / 0.75, keeps_by_another_generator(x, seed)[1]), "output 0"),
        ],
        1,
    ),
)
def test_a_seed_that_is_used_wrongly_is_found(seeded, wrong, message):
    result = verdict(seeded, wrong, checks=["values"])
    assert result.status.value == "fail"
    assert message in result.failures[0].message


def test_an_undeclared_random_reference_is_refused_at_definition(namespace):
    with pytest.raises(
        ow.errors.ContractError, match="the reference must return the same for the same arguments, got random numbers"
    ):

        @ow.op(f"{namespace}::undeclared")
        def undeclared(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
            return torch.nn.functional.dropout(x, 0.5)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x),
        lambda x: torch.nn.functional.dropout(x, 0.5, training=False),
        lambda x: torch.nn.functional.rrelu(x),
        lambda x: torch.nn.functional.dropout(x, 0.0),
    ],
)
def test_an_operation_that_could_draw_and_does_not_is_left_alone(namespace, function):
    @ow.op(f"{namespace}::quiet")
    def quiet(x: Float[Tensor, "b h n d"]) -> Float[Tensor, "b h n d"]:
        return function(x)

    x = torch.arange(4.0).view(1, 1, 2, 2)
    assert torch.equal(quiet(x), function(x))


def test_one_that_hides_it_is_refused_by_the_check(namespace):
    @ow.op(f"{namespace}::hidden")
    def hidden(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x * torch.from_numpy(np.random.rand(*x.shape)).to(x)

    report = ow.check(hidden, device="cpu", checks=["values"])
    assert "the reference gives different results for the same arguments" in report.verdicts[0].failures[0].message


@pytest.mark.parametrize("noise", [0.01, 1e-4j])
def test_one_with_a_little_noise_is_refused_too(namespace, noise):
    calls = itertools.count()

    @ow.op(f"{namespace}::noisy")
    def noisy(x: Complex[Tensor, " n"]) -> Complex[Tensor, " n"]:
        return x * (1 + noise * next(calls))

    report = ow.check(noisy, device="cpu", checks=["values"])
    assert "gives different results for the same arguments" in report.verdicts[0].failures[0].message


def test_a_generator_that_an_argument_seeds_is_not_random(namespace):
    @ow.op(f"{namespace}::noise")
    def noise(x: Float64[Tensor, " n"], seed: int) -> Float64[Tensor, " n"]:
        drawn = torch.rand(x.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return x + drawn.to(x.device)

    assert ow.check(noise, device="cpu", level="smoke").passed


def test_the_seed_is_an_argument(namespace):
    with pytest.raises(ow.errors.ContractError, match="random='key' names no int argument"):
        ow.op(f"{namespace}::plain", random="key")(plain)


def plain(x: Float[Tensor, " n"], seed: int) -> Float[Tensor, " n"]:
    return x


def test_no_gradient_is_derived(dropout):
    x = torch.ones(2, 3, requires_grad=True)
    with pytest.raises(ow.errors.ContractError, match="no gradient is derived"):
        dropout(x).sum().backward()


@pytest.mark.slow  # Inductor compiles
def test_torch_compile_does_not_merge_two_calls(dropout):
    x = torch.ones(20, 30)
    assert torch.compile(lambda x: dropout(x) - dropout(x), fullgraph=True)(x).abs().sum() > 0


def sampled(function, generator):
    return torch.stack([function(torch.rand(300, generator=generator, dtype=torch.float64)) for _ in range(512)])


def gauss(u):
    return torch.special.ndtri(u.clamp(1e-12, 1 - 1e-12))


# Each draws thousands of samples.
@pytest.mark.parametrize(
    ("wrong", "right"),
    quick(
        [
            (
                lambda u: torch.where(u >= 0.1, 3.0 + u, -torch.inf),
                lambda u: torch.where(u >= 0.1, 1.0 + u, -torch.inf),
            ),
            (lambda u: torch.where(u >= 0.2, u, torch.inf), lambda u: torch.where(u >= 0.1, u, torch.inf)),
            (lambda u: torch.where(u >= 0.2, u, torch.nan), lambda u: torch.where(u >= 0.1, u, torch.nan)),
            (lambda u: torch.where(u >= 0.105, 1.0, 0.0), lambda u: torch.where(u >= 0.095, 1.0, 0.0)),
            (lambda u: torch.cat([u[:137], u[:137], u[274:]]), lambda u: u),  # repeated at no usual distance
            (lambda u: gauss(u[:1]).abs() * (u - 0.5).sign(), gauss),  # one magnitude for each call
            (lambda u: gauss(u).sum() * 2, lambda u: gauss(u).sum()),  # one number
        ],
        0,
        3,
        4,
        5,
    ),
)
def test_two_samples_differ(wrong, right):
    generator = torch.Generator().manual_seed(7)
    expected, again, found = (sampled(function, generator) for function in (right, right, wrong))
    assert first_difference(found, expected) is not None
    assert first_difference(again, expected) is None


@pytest.mark.slow  # draws many samples
def test_complex_and_infinite_results(namespace):
    @ow.op(f"{namespace}::noise", random=True)
    def noise(x: Complex[Tensor, " n"]) -> Complex[Tensor, " n"]:
        return x + torch.randn_like(x)

    result = verdict(noise, lambda x: torch.complex(x.real + torch.randn_like(x.real), x.imag), checks=["values"])
    assert result.status.value == "fail"


@pytest.mark.slow  # draws many samples
def test_a_random_number_of_a_call(namespace):
    @ow.op(f"{namespace}::loss", random=True)
    def loss(x: Float[Tensor, " n"]) -> Float[Tensor, ""]:
        return (x + torch.randn_like(x)).sum()

    assert verdict(loss, lambda x: x.sum() + torch.randn_like(x).sum(), checks=["values"]).status.value == "pass"
    assert verdict(loss, lambda x: x.sum() + torch.randn_like(x).mean(), checks=["values"]).status.value == "fail"


def test_a_random_size_is_refused(namespace):
    with pytest.raises(ow.errors.ContractError, match="each call has other sizes"):

        @ow.op(f"{namespace}::thinned", random=True)
        def thinned(x: Float[Tensor, " n"]) -> Float[Tensor, " m"]:
            return x[torch.rand(x.shape) > 0.5]


# Each draws thousands of samples.
@pytest.mark.slow
@pytest.mark.parametrize("p", quick([0.01, 0.5, 0.99], 1, 2))
def test_samples_of_one_distribution_do_not_differ_and_rounding_does_not_matter(p):
    generator = torch.Generator().manual_seed(5)
    scale = torch.linspace(0.5, 2, 200, dtype=torch.float64).view(10, 20)
    for dtype in (torch.float16, torch.float32):
        eps = torch.finfo(dtype).eps
        for _ in range(10):
            a, b = (scale * (torch.rand((256, 10, 20), generator=generator) >= p) / (1 - p) for _ in range(2))
            found = first_difference((a * (1 + 0.9 * eps)).to(dtype).double(), b.to(dtype).double(), 8 * eps)
            assert found is None, found


def repeats(x):
    """A generator that begins again after 4096 numbers."""
    keep = torch.rand(4096).repeat(x.numel() // 4096 + 1)[: x.numel()].reshape(x.shape) >= 0.25
    return torch.where(keep, x / 0.75, torch.zeros((), dtype=x.dtype))


def drops_all_past_column_1024(x):
    out = drop(x)
    out[:, 1024:] = 0
    return out


@pytest.mark.parametrize(
    ("wrong", "status"),
    [
        # Each is a whole check of large samples.
        pytest.param(repeats, "fail", marks=pytest.mark.slow),
        pytest.param(drops_all_past_column_1024, "fail", marks=pytest.mark.slow),
        (lambda x: drop(x.flip(0)).flip(0), "pass"),
    ],
)
def test_large_cases_are_sampled_too(dropout, wrong, status):
    dropout.python(wrong, name="kernel")
    (found,) = ow.check(dropout, device="cpu", checks=["values"]).verdicts
    assert found.status == status, found.findings
    if status == "pass":
        (values,) = found.findings
        assert values.coverage.run == values.coverage.generated > 100


@pytest.mark.slow
@pytest.mark.parametrize(("most", "status"), [(3, "fail"), (1000, "pass")])
def test_a_random_list_has_more_than_the_usual_tensors(namespace, most, status):
    @ow.op(f"{namespace}::noisy_sum_{most}", random=True)
    def noisy_sum(x: list[Float32[Tensor, " _"]]) -> Float32[Tensor, ""]:
        return torch.stack([t.sum() for t in x]).sum() + torch.rand(()) if x else torch.rand(())

    noisy_sum.python(lambda x: torch.stack([t.sum() for t in x[:most]]).sum() + torch.rand(()), name="kernel")
    (found,) = ow.check(noisy_sum, device="cpu", checks=["values"]).verdicts
    assert found.status == status, found.findings


def with_mask(x, same):
    keep = torch.rand(x.shape) >= 0.25
    return torch.where(keep, x / 0.75, torch.zeros((), dtype=x.dtype)), keep if same else torch.rand(x.shape) >= 0.25


@pytest.mark.slow
@pytest.mark.parametrize("same", [True, False])
def test_a_mask_belongs_to_what_it_masks(namespace, same):
    @ow.op(f"{namespace}::masked_{same}", random=True)
    def masked(x: Float32[Tensor, "n m"]) -> tuple[Float32[Tensor, "n m"], Bool[Tensor, "n m"]]:
        keep = torch.rand(x.shape, device=x.device) >= 0.25
        return torch.where(keep, x / 0.75, 0), keep

    found = verdict(masked, lambda x: with_mask(x, same), checks=["values"])
    assert [f.status for f in found.findings] == ["pass" if same else "fail"], found.findings
    assert same or "outputs 0 and 1 do not belong together" in found.findings[0].message
