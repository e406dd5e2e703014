"""Reading annotations: accepted ones, and the errors for others."""

# No ``from __future__ import annotations`` here: annotations are objects. The tests at the end have them as strings.

import importlib.util
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Optional

import numpy as np
import pytest
import torch
from jaxtyping import Bool, Complex, Float, Float32, Int, Num, Shaped
from torch import Tensor

import opwright as ow
from opwright.contract.contract import Contract
from opwright.contract.definition.define import make_contract
from opwright.contract.signature import Kind
from opwright.errors import ContractError


def contract_of(function: Callable[..., Any], name: str = "demo::f") -> Contract:
    """The contract alone: nothing is registered with torch."""
    return make_contract(name, function, globals())


def refusal(function: Callable[..., Any]) -> ContractError:
    with pytest.raises(ContractError) as error:
        contract_of(function)
    assert str(error.value).startswith("demo::f")
    assert error.value.fix, "a refusal has a fix"
    return error.value


def test_the_schema_is_torch_s_own() -> None:
    def f(
        x: Float[Tensor, " n"],
        i: int,
        a: float,
        b: bool,
        s: str,
        dt: torch.dtype,
        dev: torch.device,
        xs: list[Float[Tensor, " n"]],
        sizes: list[int],
        scales: list[float],
        flags: list[bool],
        more: Sequence[int],
    ) -> Float[Tensor, " n"]:
        return x

    assert contract_of(f).schema == (
        "(Tensor x, SymInt i, float a, bool b, str s, ScalarType dt, Device dev, Tensor[] xs, SymInt[] sizes, "
        "float[] scales, bool[] flags, SymInt[] more) -> Tensor"
    )


def test_optional_keyword_only_and_defaults_reach_the_schema() -> None:
    def f(
        x: Float[Tensor, " n"],
        bias: Float[Tensor, " n"] | None = None,
        old: Optional[Float[Tensor, " n"]] = None,  # noqa: UP045 (the old spelling is under test)
        i: int | None = None,
        *,
        a: float = 0.5,
        mode: str = "fast",
        on: bool = True,
    ) -> Float[Tensor, " n"]:
        return x

    contract = contract_of(f)
    assert contract.schema == (
        "(Tensor x, Tensor? bias=None, Tensor? old=None, SymInt? i=None, *, float a=0.5, "
        'str mode="fast", bool on=True) -> Tensor'
    )
    assert [a.name for a in contract.signature.keyword_only] == ["a", "mode", "on"]
    assert [a.optional for a in contract.signature.arguments] == [False, True, True, True, False, False, False]


def test_several_outputs_become_a_tuple() -> None:
    def f(x: Float[Tensor, " n"]) -> tuple[Float[Tensor, " n"], Int[Tensor, ""]]:
        return x, x.argmax()

    contract = contract_of(f)
    assert contract.schema == "(Tensor x) -> (Tensor, Tensor)"
    assert contract.signature.returns_tuple
    assert len(contract.signature.returns) == 2


def test_a_tuple_of_one_output_stays_a_tuple() -> None:
    def f(x: Float[Tensor, " n"]) -> tuple[Float[Tensor, " n"]]:
        return (x,)

    assert contract_of(f).signature.returns_tuple


def test_dtype_classes_hold_the_dtypes_that_torch_computes_with() -> None:
    def f(
        x: Float[Tensor, "n"],
        i: Int[Tensor, "n"],
        b: Bool[Tensor, "n"],
        c: Complex[Tensor, "n"],
        s: Shaped[Tensor, "n"],
        e: Float32[Tensor, "n"],
        n: Num[Tensor, "n"],
    ) -> Float[Tensor, "n"]:
        return x

    x, i, b, c, s, e, n = (a.tensor for a in contract_of(f).signature.arguments)
    assert {torch.float16, torch.bfloat16, torch.float32, torch.float64} <= set(x.dtypes)
    assert set(i.dtypes) == {torch.int8, torch.int16, torch.int32, torch.int64}, "no integers of less than a byte"
    assert b.dtypes == (torch.bool,)
    assert set(c.dtypes) == {torch.complex64, torch.complex128}
    assert {torch.bool, torch.uint8, torch.float32} <= set(s.dtypes)
    assert e.dtypes == (torch.float32,)
    assert {torch.int32, torch.float32} <= set(n.dtypes)


def test_annotated_values_are_kept_for_tests_wherever_they_are_written() -> None:
    def f(
        x: Annotated[Float[Tensor, " n"], ow.values(0, 1)],
        axis: Annotated[int, ow.values(one_of=(0, 1))],
        y: Annotated[Float[Tensor, " n"], ow.values(low=2)] | None = None,
    ) -> Float[Tensor, " n"]:
        return x

    x, axis, y = contract_of(f).signature.arguments
    assert (x.values.low, x.values.high) == (0, 1)
    assert axis.values.one_of == (0, 1)
    assert y.optional
    assert y.values.low == 2


def test_values_that_contradict_themselves_are_refused() -> None:
    with pytest.raises(ContractError, match="is empty"):
        ow.values(1, 0)
    with pytest.raises(ContractError, match="not both"):
        ow.values(0, 1, one_of=(1,))


def test_numpy_arrays_make_a_numpy_contract_without_bfloat16() -> None:
    def f(x: Float[np.ndarray, " n"], a: float) -> Float[np.ndarray, " n"]:
        return x * a

    signature = contract_of(f).signature
    assert signature.language == "numpy"
    assert torch.bfloat16 not in signature.arguments[0].tensor.dtypes
    assert signature.arguments[0].schema_type is torch.Tensor


def test_a_list_of_tensors_is_its_own_kind() -> None:
    def f(xs: list[Float[Tensor, " n"]], ys: Sequence[Int[Tensor, " _"]]) -> Float[Tensor, " n"]:
        return xs[0]

    assert [a.kind for a in contract_of(f).signature.arguments] == [Kind.TENSOR_LIST] * 2


def test_the_call_form_reads_like_the_definition() -> None:
    def f(
        x: Float[Tensor, "*n k"], xs: list[Int[Tensor, " k"]], s: list[int], b: Float[Tensor, " k"] | None = None, *,
        i: int | None = None,
    ) -> Float[Tensor, "*n k"]:  # fmt: skip
        return x

    assert contract_of(f).call_form == (
        "demo::f(x: Float[*n k], xs: list[Int[k]], s: list[int], b: Float[k] | None = None, *, i: int | None = None)"
    )


def test_an_output_may_be_computed_from_int_arguments() -> None:
    def f(x: Float[Tensor, " n"], k: int, s: int = 1) -> Float[Tensor, " (n-k)//s+1"]:
        return x.unfold(0, k, s).sum(-1)

    assert contract_of(f).signature.returns[0].tensor.dims[0].text == "(n-k)//s+1"


# -- refusals ---------------------------------------------------------------------------------------


def test_a_missing_annotation_is_refused() -> None:
    def f(x, a: float) -> Float[Tensor, " n"]:  # type: ignore[no-untyped-def]
        return x

    error = refusal(f)
    assert "argument 'x' must have an annotation" in error.message
    assert 'Float[Tensor, "n k"]' in error.fix


def test_a_missing_return_annotation_is_refused() -> None:
    def f(x: Float[Tensor, " n"]):  # type: ignore[no-untyped-def]
        return x

    assert "the return value must have an annotation" in refusal(f).message


def test_a_bare_tensor_is_refused_with_the_annotation_to_write() -> None:
    def f(x: Tensor) -> Float[Tensor, " n"]:
        return x

    error = refusal(f)
    assert "argument 'x' must state a dtype and a shape, got Tensor" in error.message
    assert 'x: Float[Tensor, "n k"]' in error.fix


def test_a_bare_array_is_refused_with_the_annotation_to_write() -> None:
    def f(x: np.ndarray) -> Float[np.ndarray, " n"]:
        return x

    assert 'Float[ndarray, "n k"]' in refusal(f).fix


def test_a_bare_tensor_output_is_refused() -> None:
    def f(x: Float[Tensor, " n"]) -> Tensor:
        return x

    assert "the return value must consist of tensors, got Tensor" in refusal(f).message


def test_an_output_dim_that_no_argument_has_is_refused() -> None:
    def f(x: Float[Tensor, " n"], k: int) -> Float[Tensor, " m"]:
        return x

    error = refusal(f)
    assert "the return value must have dims of the arguments, or sizes that depend on data, got 'm'" in error.message
    assert "['k', 'n']" in error.fix
    assert "'_'" in error.fix


def test_an_unknown_name_in_an_argument_s_expression_is_refused() -> None:
    def f(x: Float[Tensor, " n"], y: Float[Tensor, " n+q"]) -> Float[Tensor, " n"]:
        return x

    error = refusal(f)
    assert "argument 'y' has the dim 'n+q'" in error.message
    assert "['q']" in error.message


def test_an_expression_on_a_variadic_name_is_refused() -> None:
    def f(x: Float[Tensor, "*n"]) -> Float[Tensor, " n+1"]:
        return x

    error = refusal(f)
    assert "the return value computes 'n+1' from ['n']" in error.message


def test_an_int_argument_with_the_name_of_a_dim_is_refused() -> None:
    def f(x: Float[Tensor, "n k"], k: int) -> Float[Tensor, " n"]:
        return x.sum(1)

    error = refusal(f)
    assert "'k' names both an argument and a dim of 'x'" in error.message
    assert "rename" in error.fix


def test_a_malformed_shape_is_refused_with_its_text() -> None:
    def f(x: Float[Tensor, " n/2"]) -> Float[Tensor, "..."]:
        return x

    assert "argument 'x': the axis 'n/2'" in refusal(f).message


def test_mutation_in_a_torch_reference_is_refused() -> None:
    def f(x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        y.add_(x)
        return y

    error = refusal(f)
    assert "must leave its argument 'y' unchanged" in error.message
    assert "clone" in error.fix


def test_mutation_of_an_integer_tensor_or_of_a_view_is_refused() -> None:
    def f(x: Int[Tensor, "n k"]) -> Int[Tensor, "n k"]:
        x[0].mul_(2)
        return x + 1

    assert "must leave its argument 'x' unchanged" in refusal(f).message


def test_mutation_of_a_tensor_in_a_list_is_refused() -> None:
    def f(xs: list[Float[Tensor, " n"]]) -> Float[Tensor, " n"]:
        xs[1].zero_()
        return xs[0] + 1

    assert "must leave its argument 'xs' unchanged" in refusal(f).message


def test_mutation_before_an_error_of_the_reference_is_refused() -> None:
    def f(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        x.add_(1)
        if x.sum() > 0:  # reads values, which a fake tensor does not have
            return x * 2
        return x + 1

    assert "must leave its argument 'x' unchanged" in refusal(f).message


def test_mutation_in_a_numpy_reference_is_refused() -> None:
    def f(x: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        x[0] = 0.0
        return x * 2

    assert "must leave its argument 'x' unchanged" in refusal(f).message


def test_mutation_by_numpy_s_augmented_assignment_is_refused() -> None:
    def f(x: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        x += 1
        return x * 2

    assert "must leave its argument 'x' unchanged" in refusal(f).message


def test_sizes_fit_together_in_the_run_that_looks_for_mutation() -> None:
    seen = []

    def f(x: Float[Tensor, "n 3*k"], w: Float[Tensor, "3*k n+k"], b: Float[Tensor, " k"]) -> Float[Tensor, "n n+k"]:
        seen.append((x.shape, w.shape))
        return x @ w + b.sum()

    contract_of(f)
    assert seen == [((4, 12), (12, 8))]


def test_working_on_a_copy_is_no_mutation() -> None:
    def f(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        x = x.clone()
        x[0] = 0
        return x

    (out,) = contract_of(f).reference([torch.ones(2)])
    assert out.tolist() == [0, 1]


def test_a_return_of_none_is_refused() -> None:
    def f(x: Float[Tensor, " n"]) -> None: ...

    error = refusal(f)
    assert "got None" in error.message
    assert "return the result" in error.fix


def test_variadic_parameters_are_refused() -> None:
    def args(*xs: Float[Tensor, " n"]) -> Float[Tensor, " n"]: ...

    def kwargs(x: Float[Tensor, " n"], **rest: int) -> Float[Tensor, " n"]: ...

    assert "argument 'xs' must be one argument, got *xs" in refusal(args).message
    assert "argument 'rest' must be one argument, got **rest" in refusal(kwargs).message


def test_positional_only_parameters_are_refused() -> None:
    def f(x: Float[Tensor, " n"], /) -> Float[Tensor, " n"]: ...

    error = refusal(f)
    assert "argument 'x' must have a keyword" in error.message
    assert "'/'" in error.fix


def test_an_operator_without_a_tensor_is_refused() -> None:
    def f(a: float) -> Float[Tensor, "..."]:
        return torch.full((), a)

    assert "an argument must be a tensor" in refusal(f).message


@pytest.mark.parametrize(
    ("annotation", "shown"),
    [
        (dict, "dict"),
        (complex, "complex"),
        (int | str, "int | str"),
        (list[list[int]], "list[list[int]]"),
        (list[str], "list[str]"),
        (Sequence, "Sequence"),
        (list, "list"),
        (tuple[int, str], "tuple[int, str]"),
        (Callable[[int], int], "Callable"),
    ],
)
def test_a_type_that_no_schema_has_is_refused(annotation: Any, shown: str) -> None:
    def f(x: Float[Tensor, " n"], a: annotation) -> Float[Tensor, " n"]:
        return x

    error = refusal(f)
    assert "argument 'a'" in error.message
    assert shown in error.message
    assert "list[int]" in error.fix


def test_an_optional_list_of_tensors_is_refused() -> None:
    def f(xs: list[Float[Tensor, " n"]] | None, x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x

    assert "empty list" in refusal(f).fix


def test_a_default_of_none_needs_an_optional_annotation() -> None:
    def f(x: Float[Tensor, " n"], b: Float[Tensor, " n"] = None) -> Float[Tensor, " n"]:  # type: ignore[assignment]
        return x

    error = refusal(f)
    assert "argument 'b' must have a default of type Float[Tensor, 'n'], got None" in error.message
    assert "| None" in error.fix


def test_a_default_that_torch_cannot_express_is_refused() -> None:
    def f(x: Float[Tensor, " n"], s: list[int] = {1: 2}) -> Float[Tensor, " n"]:  # type: ignore[assignment]  # noqa: B006
        return x

    assert "Parameter s" in refusal(f).message


@pytest.mark.parametrize("name", ["demo", "demo::", "demo::a b", "a::b::c", "demo.f", "1a::f"])
def test_a_malformed_operator_name_is_refused(name: str) -> None:
    def f(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x

    with pytest.raises(ContractError, match='the operator must be named "namespace::name"') as error:
        contract_of(f, name)
    assert "namespace::name" in str(error.value)


def test_a_keyword_only_tensor_is_refused_where_it_is_written() -> None:
    def one(x: Float[Tensor, " n"], *, y: Float[Tensor, " n"] | None = None) -> Float[Tensor, " n"]:
        return x

    def several(x: Float[Tensor, " n"], *, ys: list[Float[Tensor, " n"]]) -> Float[Tensor, " n"]:
        return x

    assert "argument 'y' must be positional, got a tensor after the '*'" in refusal(one).message
    assert "argument 'ys' must be positional, got a tensor after the '*'" in refusal(several).message


def test_something_that_is_no_function_is_refused() -> None:
    assert "must decorate a function" in refusal(torch.nn.Identity()).message


# -- annotations as strings -------------------------------------------------------------------------


def load_source(folder: Path, source: str, name: str) -> Any:
    path = folder / f"{name}.py"
    path.write_text(textwrap.dedent(source))
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_future_annotations_are_resolved_in_a_module_and_in_a_function_s_locals(tmp_path: Path, namespace: str) -> None:
    source = f'''
    from __future__ import annotations
    import opwright as ow
    from jaxtyping import Float
    from torch import Tensor

    @ow.op("{namespace}::at_top")
    def at_top(x: Float[Tensor, "n"], a: float = 2.0) -> Float[Tensor, "n"]:
        return x * a

    def make():
        from jaxtyping import Int as Whole
        import torch as th

        @ow.op("{namespace}::inside")
        def inside(x: Whole[th.Tensor, "n"], y: Whole[th.Tensor, "n"] | None = None) -> Whole[th.Tensor, "n"]:
            return x if y is None else x + y

        return inside
    '''
    module = load_source(tmp_path, source, f"{namespace}_future")
    assert module.at_top.contract.schema == "(Tensor x, float a=2.0) -> Tensor"
    assert module.make().contract.schema == "(Tensor x, Tensor? y=None) -> Tensor"


def test_a_name_known_only_to_type_checkers_is_refused(tmp_path: Path, namespace: str) -> None:
    source = f'''
    from __future__ import annotations
    from typing import TYPE_CHECKING
    import opwright as ow
    from jaxtyping import Float
    if TYPE_CHECKING:
        from torch import Tensor

    @ow.op("{namespace}::f")
    def f(x: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
        return x
    '''
    with pytest.raises(ContractError) as error:
        load_source(tmp_path, source, f"{namespace}_checking")
    assert f"{namespace}::f: an annotation uses the name 'Tensor'" in error.value.message
    assert "TYPE_CHECKING" in error.value.fix
