"""Inputs derived from a contract: boundaries, layouts, and a text that stands for each."""

from typing import Annotated

import numpy as np
import pytest
import torch
from jaxtyping import AbstractDtype, Bool, Float, Float32, Int
from torch import Tensor

import opwright as ow
from opwright.contract.definition.define import make_contract
from opwright.contract.inputs.arguments import always_its_default, arguments_of
from opwright.contract.inputs.case import Case
from opwright.contract.inputs.cases import cases
from opwright.contract.inputs.layouts import LAYOUTS
from opwright.contract.inputs.samples import sample_cases
from opwright.contract.inputs.sizes import dtypes_to_check, elements, smaller
from opwright.contract.inputs.text import parse_case
from opwright.errors import CheckError


def contract_of(function):
    return make_contract("cases::f", function, {})


def matmul(a: Float[Tensor, "*batch m k"], b: Float[Tensor, "k n"]) -> Float[Tensor, "*batch m n"]:
    return a @ b


def test_every_boundary_of_every_dim_is_there():
    sizes = [dict(c.sizes) for c in cases(contract_of(matmul), "quick") if c.layout == "contiguous"]
    for dim in ("m", "k", "n"):
        assert {0, 1, 2, 31, 33, 127, 129, 1023, 1025} <= {s[dim] for s in sizes}
    assert {(), (0,), (3, 5)} <= {s["batch"] for s in sizes}


def test_arguments_of_which_only_sizes_are_wanted_are_as_large_and_values_that_are_stated_are_drawn():
    def gather(
        x: Float[Tensor, " n #m"],
        at: Annotated[Int[Tensor, " k"], ow.values(0, "n-1")],
        weight: Annotated[Float32[Tensor, " k"], ow.values(0.5, 1.0)],
        bias: Float[Tensor, ""] | None = None,
        factor: float = 2.0,
    ) -> Float[Tensor, "k m"]:
        return x[at]

    contract = contract_of(gather)
    for case in cases(contract, "quick"):
        try:
            drawn = arguments_of(contract, case, "cpu")
        except CheckError:  # no integer is from 0 to -1
            with pytest.raises(CheckError):
                arguments_of(contract, case, "cpu", only_sizes=True)
            continue
        sized = arguments_of(contract, case, "cpu", only_sizes=True)
        assert [(t.shape, t.dtype) for t in drawn[:3]] == [(t.shape, t.dtype) for t in sized[:3]]
        assert (drawn[3] is None) == (sized[3] is None)
        assert 0 <= int(sized[1].sum()) <= len(sized[1]) * len(sized[0])
        assert not len(sized[2]) or 0.5 <= float(sized[2].min()) <= float(sized[2].max()) <= 1


def test_dims_differ_so_that_swapped_ones_show():
    base = dict(cases(contract_of(matmul), "quick")[-1].sizes)
    assert len({base["m"], base["k"], base["n"]}) == 3


def test_any_number_of_axes_has_cases_of_one_with_gaps():
    def each(x: Float32[Tensor, "*n"]) -> Float32[Tensor, "*n"]:
        return x

    contract = contract_of(each)
    arranged = {
        c.layout: c for c in cases(contract, "quick") if len(dict(c.sizes)["n"]) == 1 and c.layout != "contiguous"
    }
    assert set(arranged) == {"sliced", "offset"}
    (x,) = arguments_of(contract, arranged["sliced"], "cpu")
    assert x.ndim == 1
    assert x.stride(0) > 1
    assert x.numel() >= 64


def test_every_dtype_and_layout_is_there_and_a_kernels_dtypes_restrict_them():
    everything = cases(contract_of(matmul), "quick")
    assert {c.dtype for c in everything} == {torch.float32, torch.float16, torch.bfloat16, torch.float64}
    assert {c.layout for c in everything} == {
        *LAYOUTS,
        "far",
        "far_inner",
        *(f"{k}:{a}" for k in ("sliced", "offset", "transposed", "expanded", "repeated") for a in "ab"),
    }
    assert {c.dtype for c in cases(contract_of(matmul), "quick", [torch.float64])} == {torch.float64}
    assert cases(contract_of(matmul), "quick", [torch.int8]) == []


def test_full_has_more_than_quick():
    assert len(cases(contract_of(matmul), "full")) > 3 * len(cases(contract_of(matmul), "quick"))


def test_a_case_is_its_text_and_the_text_gives_the_same_values():
    contract = contract_of(matmul)
    for case in cases(contract, "quick"):
        assert parse_case(contract, str(case)) == case
    case = parse_case(contract, "batch=2x3 m=4 k=5 n=6 dtype=float16 layout=sliced")
    first, second = arguments_of(contract, case, "cpu"), arguments_of(contract, case, "cpu")
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert first[0].shape == (2, 3, 4, 5)
    assert first[0].dtype is torch.float16


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("m", "a part must be name=value"),
        ("m=x", "a size must be a number"),
        ("q=3", "a part must be one of .*, got 'q'"),
        ("dtype=float31", "a dtype must be one of torch"),
        ("layout=upside", "layout must be one of .*, got 'upside'"),
        ("layout=sliced:c", "layout must be one of .*, got 'sliced:c'"),
        ("dtype=int32", "the dtype must be one of .*, got int32"),
    ],
)
def test_a_malformed_case_says_what_is_wrong(text, message):
    with pytest.raises(CheckError, match=message):
        parse_case(contract_of(matmul), text)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_changes_memory_and_not_values(layout):
    contract = contract_of(matmul)
    plain = parse_case(contract, "batch=2 m=4 k=5 n=6")
    (a, _) = arguments_of(contract, Case(plain.sizes, plain.dtypes, layout), "cpu")
    assert a.shape == (2, 4, 5)
    assert torch.isfinite(a).all()
    expected = {
        "contiguous": lambda: a.is_contiguous() and a.storage_offset() == 0,
        "transposed": lambda: a.stride() == (20, 1, 4),
        "padded": lambda: a.stride() == (32, 8, 1),
        "permuted": lambda: a.stride() == (1, 2, 8),
        "sliced": lambda: a.stride()[-1] == 2,
        "offset": lambda: a.storage_offset() == 1,
        "expanded": lambda: a.stride() == (0, 5, 1),
        "repeated": lambda: a.stride() == (4, 1, 0),
    }
    assert expected[layout]()


def test_one_argument_alone_can_be_sliced():
    contract = contract_of(matmul)
    a, b = arguments_of(contract, parse_case(contract, "layout=sliced:b"), "cpu")
    assert a.is_contiguous()
    assert not b.is_contiguous()


def test_every_dim_is_long_at_once_in_some_case():
    assert any(
        min(s for s in dict(c.sizes).values() if isinstance(s, int)) > 32 for c in cases(contract_of(matmul), "quick")
    )


def test_axes_that_may_broadcast_have_size_1_in_some_case():
    def f(x: Float[Tensor, " n"], y: Float[Tensor, "#n"]) -> Float[Tensor, " n"]:
        return x + y

    contract = contract_of(f)
    found = [arguments_of(contract, c, "cpu") for c in cases(contract, "quick")]
    assert any(x.shape == (129,) and y.shape == (1,) for x, y in found)


def test_scalars_vary_unless_only_their_default_is_known():
    def f(
        x: Float[Tensor, " n"],
        scale: float | None = None,
        times: Annotated[int, ow.values(2, 4)] = 1,
        dim: int = 0,
        mode: str | None = None,
    ) -> Float[Tensor, " n"]:
        return x

    contract = contract_of(f)
    drawn = [arguments_of(contract, c, "cpu")[1:] for c in cases(contract, "quick")]
    assert {type(scale) for scale, *_ in drawn} == {float, type(None)}
    assert {times for _, times, *_ in drawn} == {2, 3, 4}
    assert {scale for scale, *_ in drawn} >= {0.0, -1.375, 7.5, 130.5}
    assert {dim for *_, dim, _ in drawn} == {0, -1, 6, 130}
    assert {mode for *_, mode in drawn} == {None}
    assert [a.name for a in contract.signature.arguments if always_its_default(a)] == ["mode"]


def test_memory_around_sliced_and_offset_tensors_is_poisoned():
    def f(x: Float[Tensor, " n"], i: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x + i

    contract = contract_of(f)
    x, i = arguments_of(contract, parse_case(contract, "n=4 Float=float32 Int=int32 layout=sliced"), "cpu")
    assert torch.as_strided(x, (8,), (1,))[1::2].isnan().all()
    largest = torch.iinfo(torch.int32).max
    assert i.stride() == (3,)
    assert (torch.as_strided(i, (4, 2), (3, 1), 1) == largest).all()
    x, i = arguments_of(contract, parse_case(contract, "n=4 Float=float32 Int=int32 layout=offset"), "cpu")
    assert (x.storage_offset(), i.storage_offset()) == (1, 2)
    assert torch.as_strided(x, (6,), (1,), 0)[[0, -1]].isnan().all()


def test_values_are_drawn_from_where_the_author_said():
    def f(
        x: Annotated[Float[Tensor, " n"], ow.values(0, 1)],
        i: Annotated[Int[Tensor, " n"], ow.values(2, 3)],
        mode: Annotated[str, ow.values(one_of=("sum", "mean"))],
        k: Annotated[int, ow.values(4, 5)],
        s: Annotated[float, ow.values(low=7)],
    ) -> Float[Tensor, " n"]:
        return x

    contract = contract_of(f)
    for case in cases(contract, "quick")[5:12]:
        x, i, mode, k, s = arguments_of(contract, case, "cpu")
        assert ((x >= 0) & (x <= 1)).all()
        assert ((i >= 2) & (i <= 3)).all()
        assert mode in ("sum", "mean")
        assert k in (4, 5)
        assert s >= 7


def test_optional_arguments_are_present_in_most_cases_and_absent_in_a_few():
    def f(
        x: Float[Tensor, " n"], bias: Float[Tensor, " n"] | None = None, keep: Bool[Tensor, " n"] | None = None
    ) -> Float[Tensor, " n"]:
        return x

    contract = contract_of(f)
    absent = [c for c in cases(contract, "quick") if c.absent]
    assert [(dict(c.sizes)["n"], c.layout) for c in absent] == [(5, "contiguous"), (129, "contiguous"), (5, "sliced")]
    assert arguments_of(contract, absent[0], "cpu")[1:] == (None, None)
    assert parse_case(contract, str(absent[0])) == absent[0]


def test_a_str_without_values_is_refused_with_what_to_write():
    def f(x: Float[Tensor, " n"], mode: str) -> Float[Tensor, " n"]:
        return x

    contract = contract_of(f)
    with pytest.raises(CheckError, match="there are no test values for the argument 'mode'"):
        arguments_of(contract, cases(contract, "quick")[0], "cpu")


def test_expressions_fixed_sizes_and_int_arguments_shape_the_inputs():
    def f(x: Float32[Tensor, " n"], w: Float32[Tensor, "n+k 3"], k: int) -> Float32[Tensor, " n"]:
        return x

    contract = contract_of(f)
    x, w, k = arguments_of(contract, parse_case(contract, "n=4"), "cpu")
    assert w.shape == (4 + k, 3)
    assert x.shape == (4,)


def test_numpy_contracts_have_no_bfloat16():
    def f(x: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        return x * 2

    assert torch.bfloat16 not in {c.dtype for c in cases(contract_of(f), "quick")}


def test_no_derived_case_is_larger_than_its_level_allows():
    contract = contract_of(matmul)
    assert max(elements(contract, c) for c in cases(contract, "quick")) <= 1 << 19


def test_shrinking_proposes_only_simpler_cases():
    contract = contract_of(matmul)
    case = parse_case(contract, "batch=2x3 m=4 k=5 n=6 layout=sliced")
    for candidate in smaller(contract, case):
        assert candidate.layout == "contiguous" or elements(contract, candidate) <= elements(contract, case)
        assert candidate != case


def test_an_axis_of_any_size_gets_every_boundary_and_is_the_same_in_all_arguments():
    def dot(x: Float[Tensor, " _"], y: Float[Tensor, " _"], rows: Float[Tensor, "... _"]) -> Float[Tensor, ""]:
        return x.sum() + y.sum() + rows.sum()

    contract = contract_of(dot)
    found = [c for c in cases(contract, "quick") if c.layout == "contiguous"]
    shapes = [[t.shape for t in arguments_of(contract, case, "meta")] for case in found]
    assert {0, 1, 2, 31, 33, 127, 129, 1023, 1025, 65_537} <= {x[0] for x, _, _ in shapes}
    assert {0, 1, 33, 65_537} <= {rows[-1] for _, _, rows in shapes}
    assert all(x == y for x, y, _ in shapes)
    apart = [c for c in cases(contract, "quick", admits=lambda case: True) if "y[0]" in dict(c.sizes)]
    assert {(x.shape[0], y.shape[0]) for x, y, _ in (arguments_of(contract, c, "meta") for c in apart)} == {
        (5, 9), (5, 1),
    }  # fmt: skip
    assert [parse_case(contract, str(case)) for case in apart] == apart
    assert not [c for c in cases(contract, "quick", admits=lambda case: "y[0]" not in str(case)) if "y[0]" in str(c)]


def test_samples_have_the_sizes_of_axes_of_any_size():
    @ow.op("cases::of_any_size")
    def of_any_size(x: Float[Tensor, "... _"], y: Float[Tensor, "_ k"]) -> Float[Tensor, ""]:
        return x.sum() + y.sum()

    @of_any_size.samples
    def samples():
        yield torch.ones(2, 3, 4), torch.ones(5, 6)

    (case,) = sample_cases(of_any_size.contract)
    assert dict(case.sizes) == {"_1": 4, "_0": 5, "k": 6}
    assert parse_case(of_any_size.contract, str(case)) == case


class OfAByte(AbstractDtype):
    dtypes = ["int8", "float8_e4m3fn"]  # noqa: RUF012  # as jaxtyping reads it


def test_a_class_of_one_s_own_is_checked_in_floats_of_a_byte():
    def widened(x: OfAByte[Tensor, " n"], y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x.to(y.dtype) + y

    contract = make_contract("demo::f", widened, {})
    of_x = [dict(dtypes)["OfAByte"] for dtypes in dtypes_to_check(contract)]
    assert set(of_x) == {torch.int8, torch.float8_e4m3fn}
    # A kernel's dtypes are those of y.
    limited = dtypes_to_check(contract, [torch.float16])
    assert [tuple(d for _, d in dtypes) for dtypes in limited] == [
        (torch.int8, torch.float16), (torch.float8_e4m3fn, torch.float16),
    ]  # fmt: skip
    # jaxtyping's own classes have all floats of a byte, and mean those that torch computes with.
    assert torch.float8_e4m3fn not in {dict(dtypes)["Float"] for dtypes in dtypes_to_check(contract)}
