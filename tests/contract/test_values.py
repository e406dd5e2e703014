"""Test inputs as annotations state them: bounds from dims, sentinels, order, offsets; what cannot be is refused."""

from __future__ import annotations

import itertools
from typing import Annotated

import pytest
import torch
from jaxtyping import Bool, Complex, Float, Float8e4m3fn, Float32, Int, Int32, Int64, UInt8
from torch import Tensor

import opwright as ow
from opwright.contract.definition.define import make_contract
from opwright.contract.inputs.arguments import arguments_of
from opwright.contract.inputs.cases import cases
from opwright.contract.inputs.text import parse_case
from opwright.errors import CheckError
from opwright.timing.candidates import input_sets


def contract_of(function):
    return make_contract("inputs::f", function, {})


def drawn(function, case):
    contract = contract_of(function)
    return arguments_of(contract, parse_case(contract, case), "cpu")


def losses(
    logits: Float[Tensor, "t v"], labels: Annotated[Int64[Tensor, " t"], ow.values(0, "v-1", also=(-100,))]
) -> Float[Tensor, " t"]:
    return torch.nn.functional.cross_entropy(logits, labels, reduction="none", ignore_index=-100)


def test_a_bound_follows_a_dim_and_some_elements_are_a_sentinel():
    _, labels = drawn(losses, "t=400 v=6")
    assert set(labels.tolist()) == {-100, 0, 1, 2, 3, 4, 5}
    assert 0.1 < (labels == -100).float().mean() < 0.45


def test_the_reference_runs_on_every_case_of_which_there_are_values():
    contract = contract_of(losses)
    ran, without = 0, []
    for case in cases(contract, "quick"):
        try:
            arguments = arguments_of(contract, case, "cpu")
        except CheckError:
            without.append(dict(case.sizes)["v"])
            continue
        if dict(case.sizes)["v"]:
            contract.reference(arguments)
            ran += 1
    assert ran > 30
    assert set(without) == {0}


def test_unique_sorted_and_a_permutation():
    def f(
        x: Float[Tensor, " n"],
        order: Annotated[Int64[Tensor, " n"], ow.values(0, "n-1", unique=True)],
        ascending: Annotated[Int64[Tensor, "2 n"], ow.values(0, 3, sorted=True)],
    ) -> Float[Tensor, " n"]:
        return x[order]

    _, order, ascending = drawn(f, "n=50")
    assert sorted(order.tolist()) == list(range(50))
    assert order.tolist() != list(range(50))
    assert (ascending.diff(dim=-1) >= 0).all()


def test_offsets_reach_from_nought_to_the_total_and_never_descend():
    def f(
        x: Float[Tensor, "t d"],
        offsets: Annotated[Int32[Tensor, "b+1"], ow.inputs.offsets("t")],
        b_like: Float[Tensor, "b"],
    ) -> Float[Tensor, "b d"]:
        return torch.stack([x[i:j].sum(0) for i, j in itertools.pairwise(offsets)])

    for b, layout in ((1, "contiguous"), (2, "contiguous"), (9, "expanded")):
        _, offsets, _ = drawn(f, f"t=20 b={b} layout={layout}")
        assert (offsets[0], offsets[-1], offsets.shape) == (0, 20, (b + 1,))
        assert (offsets.diff() >= 0).all()
    with pytest.raises(CheckError, match="cannot reach from 0 to 20"):
        drawn(f, "t=20 b=0")


def test_bounds_of_numbers_may_follow_dims_too():
    def f(x: Float[Tensor, " n"], k: Annotated[int, ow.values(1, "n")]) -> Float[Tensor, " k"]:
        return x.topk(k).values

    assert all(1 <= drawn(f, f"n={n}")[1] <= n for n in range(1, 20))
    with pytest.raises(CheckError, match="no value of 'k'"):
        drawn(f, "n=0")


def test_too_few_values_for_a_size_are_a_reason_to_skip_it():
    def f(x: Annotated[Int64[Tensor, " n"], ow.values(0, 3, unique=True)]) -> Int64[Tensor, " n"]:
        return x

    assert sorted(drawn(f, "n=4")[0].tolist()) == [0, 1, 2, 3]
    with pytest.raises(CheckError, match="5 different values are needed, and from 0 to 3 there are 4"):
        drawn(f, "n=5")


def test_wrong_statements_are_refused():
    for wrong, message in (
        (lambda: ow.values(0, "v-"), "cannot be computed"),
        (lambda: ow.values(2, 1), "is empty"),
        (lambda: ow.values(0, 1, one_of=(1,)), "a range or one_of"),
        (lambda: ow.values(0, 9, unique=True, sorted=True), "neither sorted nor also"),
        (lambda: ow.inputs.offsets("t("), "cannot be computed"),
        (lambda: ow.inputs.offsets(-3), "nothing to divide"),
        (lambda: ow.values(one_of=(1,), also=(2,)), "a range or one_of"),
        (lambda: ow.values(0, float("nan")), "is not a number"),
        (lambda: ow.values([0], 3), "is not a number"),
        (lambda: ow.values(zeros=2), "is not a share"),
    ):
        with pytest.raises(ow.errors.ContractError, match=message):
            wrong()

    def unknown(x: Annotated[Int64[Tensor, " n"], ow.values(0, "q")]) -> Int64[Tensor, " n"]:
        return x

    def several(x: Annotated[Int64[Tensor, "*n"], ow.values(0, "n")]) -> Int64[Tensor, "*n"]:
        return x

    for function in (unknown, several):
        with pytest.raises(ow.errors.ContractError, match="the values of 'x' are computed from"):
            contract_of(function)


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        (Annotated[Int64[Tensor, " n"], ow.values(0, 3), ow.inputs.offsets("n")], "states values twice"),
        (Annotated[Int64[Tensor, " n"], ow.values(0, 3, also=(1.5,))], "1.5 is not a value of torch.int64"),
        (Annotated[UInt8[Tensor, " n"], ow.values(0, 3, also=(-1,))], "-1 is not a value of torch.uint8"),
        (Annotated[Int64[Tensor, " n"], ow.values(one_of=(0, "n-1"))], "'n-1' is not a value"),
        (Annotated[Bool[Tensor, " n"], ow.values(unique=True)], "unique is not possible in torch.bool"),
        (Annotated[Complex[Tensor, " n"], ow.values(sorted=True)], "sorted is not possible"),
        (Annotated[Float[Tensor, " n"], ow.inputs.offsets("n")], "offsets is not possible"),
        (Annotated[Int64[Tensor, " n"], ow.inputs.probabilities()], "probabilities is not possible in torch.int64"),
    ],
)
def test_values_that_cannot_be_are_refused_at_definition(annotation, message):
    def f(x, k=1):
        return x

    f.__annotations__ = {"x": annotation, "k": int, "return": Float[Tensor, "n"]}
    with pytest.raises(ow.errors.ContractError) as error:
        contract_of(f)
    assert message in str(error.value)


def test_one_number_is_not_arranged():
    def f(x: Float[Tensor, " n"], k: Annotated[int, ow.inputs.offsets("n")]) -> Float[Tensor, " n"]:
        return x

    with pytest.raises(ow.errors.ContractError, match="offsets is of tensors, and this is one number"):
        contract_of(f)


def test_integers_never_wrap():
    def f(
        x: Float[Tensor, "n"],
        index: Annotated[Int[Tensor, " m"], ow.values(0, "n-1")],
        ends: Annotated[Int[Tensor, " m"], ow.inputs.offsets("n")],
    ) -> Float[Tensor, " m"]:
        return x[index]

    for n in (100, 1000, 100_000):
        for name, dtype in (
            ("int8", torch.int8),
            ("int16", torch.int16),
            ("int64", torch.int64),
        ):
            case = f"n={n} m=50 Float=float32 Int={name}"
            if n - 1 > torch.iinfo(dtype).max:
                with pytest.raises(CheckError, match=f"{name} cannot hold the values from 0"):
                    drawn(f, case)
            elif n <= torch.iinfo(dtype).max:
                _, index, ends = drawn(f, case)
                assert 0 <= index.min() <= index.max() < n
                assert ends[-1] == n


def test_a_bound_that_cannot_be_computed_is_a_reason_to_skip_the_case():
    def f(x: Annotated[Int64[Tensor, " n"], ow.values(0, "10//(n-n)")]) -> Int64[Tensor, " n"]:
        return x

    with pytest.raises(CheckError, match="a bound of the values cannot be computed"):
        drawn(f, "n=3")


@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
def test_unique_floats_and_few_of_many_integers(dtype):
    def f(
        x: Annotated[Float[Tensor, " n"], ow.values(unique=True)],
        ids: Annotated[Int64[Tensor, " n"], ow.values(0, 10**12, unique=True)],
    ) -> Float[Tensor, " n"]:
        return x

    x, ids = drawn(f, f"n=1025 dtype={dtype}")
    assert x.unique().numel() == ids.unique().numel() == 1025


def test_distributions_and_matrices():
    def f(
        p: Annotated[Float[Tensor, "n k"], ow.inputs.probabilities()],
        spd: Annotated[Float[Tensor, "b m m"], ow.inputs.positive_definite()],
        a: Annotated[Float[Tensor, "m k"], ow.inputs.well_conditioned()],
        sparse: Annotated[Float[Tensor, "n k"], ow.values(zeros=0.9)],
        mask: Annotated[Bool[Tensor, "k k"], ow.inputs.drawn_by(lambda shape, generator: torch.ones(shape).tril())],
    ) -> Float[Tensor, "n k"]:
        return p

    p, spd, a, sparse, mask = drawn(f, "n=40 k=20 b=3 m=6 dtype=float64 layout=expanded")
    torch.testing.assert_close(p.sum(-1), torch.ones(40, dtype=torch.float64))
    assert (p > 0).all()
    torch.testing.assert_close(spd, spd.mT)
    eigenvalues = torch.linalg.eigvalsh(spd)
    assert 0.49 < eigenvalues.min() <= eigenvalues.max() < 2.01
    assert 0.49 < torch.linalg.svdvals(a).min() <= torch.linalg.svdvals(a).max() < 2.01
    assert 0.85 < (sparse == 0).float().mean() <= 1
    assert torch.equal(mask, torch.ones(20, 20).tril().bool())


def test_what_goes_together_stays_together_in_a_benchmark():
    def f(x: Float[Tensor, " n"], ends: Annotated[Int64[Tensor, " m"], ow.inputs.offsets("n")]) -> Float[Tensor, " n"]:
        return x

    operator = ow.op("inputs::stays")(f)
    sets = input_sets(operator, parse_case(operator.contract, "n=64 m=5"), "cpu", 1 << 12, 1 << 20)
    assert len(sets) > 3
    assert all(ends[0] == 0 and ends[-1] == 64 and (ends.diff() >= 0).all() for _, ends in sets)
    assert len({ends.data_ptr() for _, ends in sets}) == len(sets)
    assert not torch.equal(sets[0][0], sets[1][0])


def test_a_float_with_a_default_keeps_it_among_others_and_a_small_one_its_size():
    def f(x: Float[Tensor, " n"], eps: float = 1e-6, scale: float = 1.0) -> Float[Tensor, " n"]:
        return scale * x / (x.abs() + eps)

    found = [drawn(f, f"n={n}")[1:] for n in range(40)]
    assert 5 < sum(eps == 1e-6 for eps, _ in found) < 35
    assert all(5e-7 <= eps <= 2e-6 for eps, _ in found)
    assert 5 < sum(scale == 1.0 for _, scale in found) < 35
    assert min(scale for _, scale in found) < 0


def test_a_number_with_a_range_keeps_its_default_and_what_is_stated_beside_it():
    def f(
        x: Float[Tensor, " n"],
        window: Annotated[int, ow.values(0, 100)] = 0,  # 0 is off
        cap: Annotated[float, ow.values(0.0, 50.0)] = 0.0,
        scale: Annotated[float, ow.values(0.5, 2.0, also=(0.0,))] = 1.0,
        eps: Annotated[float, ow.values(1e-6, 1e-3)] = 0.0,  # which is not meant
        top: Annotated[int, ow.values(5, 9, also=(-1,))] = 7,
    ) -> Float[Tensor, " n"]:
        return x

    found = [drawn(f, f"n={n}")[1:] for n in range(1, 61)]
    windows, caps, scales, epsilons, tops = zip(*found, strict=True)
    for numbers, default in ((windows, 0), (caps, 0.0)):
        assert 15 < numbers.count(default) < 45
        assert len(set(numbers)) > 10
    for numbers, beside in ((scales, (1.0, 0.0)), (tops, (7, -1))):
        assert all(5 < numbers.count(value) < 40 for value in beside)
    assert set(tops) == {-1, 5, 6, 7, 8, 9}
    assert all(0.5 <= scale <= 2 or scale == 0 for scale in scales)
    assert all(1e-6 <= eps <= 1e-3 for eps in epsilons)


@pytest.mark.parametrize("case", ["t=40 layout=contiguous values=bounds", "t=40", "t=40 layout=transposed"])
def test_floats_of_a_byte_have_bounds_zeros_sentinels_and_an_order(case):
    def f(
        x: Annotated[Float8e4m3fn[Tensor, " t"], ow.values(-112, 448, zeros=0.25)],
        y: Annotated[Float8e4m3fn[Tensor, " t"], ow.values(0.5, 4, also=(-8,))],
        z: Annotated[Float8e4m3fn[Tensor, " t"], ow.values(0.5, 4, sorted=True)],
    ) -> Float32[Tensor, " t"]:
        return x.float() + y.float() + z.float()

    x, y, z = drawn(f, case)
    assert {t.dtype for t in (x, y, z)} == {torch.float8_e4m3fn}
    x, y, z = x.float(), y.float(), z.float()
    assert ((x == 0).any(), x.amin() >= -112, x.amax() <= 448) == (True, True, True)
    assert set(y[y < 0.5].tolist()) == {-8}
    assert (z.diff() >= 0).all()
    if "bounds" in case:
        assert {-112, 448} <= set(x.tolist())
