"""MAX's custom operators as kernels: the checks before MAX is called, and one compilation by each method."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.errors import ArgumentError, CompileError, KernelError, KernelRefusedError, SignatureMismatchError
from opwright.machine import this_machine
from opwright.results import Refused

SCALE = """
import extensibility
from extensibility import InputTensor, OutputTensor

@extensibility.register("scale")
struct Scale:
    @staticmethod
    def execute[target: StaticString, factor: Int = 2](
        output: OutputTensor[rank=1, ...],
        x: InputTensor[dtype=output.dtype, rank=1, ...],
    ) raises:
        for i in range(x.dim_size(0)):
            output.unsafe_ptr()[unsafe_offset=i] = x.unsafe_ptr()[unsafe_offset=i] * Scalar[output.dtype](factor)
"""

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write the one source of a Mojo package."""

    def source(text: str = SCALE) -> Path:
        folder = tmp_path / "package"
        folder.mkdir(exist_ok=True)
        (folder / "__init__.mojo").write_text("")
        (folder / "scale.mojo").write_text(textwrap.dedent(text))
        return folder / "scale.mojo"

    return source


def test_without_max_a_kernel_is_refused_with_the_command_that_brings_it(scale, write):
    assert scale.mojo(write(), abi="max").probe("cpu", dataclasses.replace(this_machine(), max=None)) == Refused(
        "MAX is not installed", "pip install 'opwright[max]'"
    )


def test_an_output_that_was_left_out_is_said(scale, write):
    text = SCALE.replace("        output: OutputTensor[rank=1, ...],\n", "")
    with pytest.raises(SignatureMismatchError, match=r"scale takes \(x\), but .*passes \(output, x\); .*left out"):
        scale.mojo(write(text), abi="max")


def test_a_misspelt_parameter_is_named_with_those_that_there_are(scale, write):
    with pytest.raises(
        KernelError, match=r"params must be compile-time parameters of scale, \['factor'\], got 'facter'"
    ) as caught:
        scale.mojo(write(), params={"facter": 3}, abi="max")
    assert caught.value.fix == "leave it out, or add it to the source"


def test_a_parameter_without_a_default_has_to_be_given(scale, write):
    with pytest.raises(KernelError, match=r"params must have the compile-time parameter 'factor' of scale, got \[\]"):
        scale.mojo(write(SCALE.replace("factor: Int = 2", "factor: Int")), abi="max")


def test_a_name_that_is_not_registered_is_named_with_those_that_are(scale, write):
    with pytest.raises(KernelError, match=r"must register the operator 'skale', got") as caught:
        scale.mojo(write(), entry="skale", abi="max")
    assert "['scale']" in str(caught.value)


def test_a_file_outside_a_package_is_refused(scale, tmp_path):
    (tmp_path / "scale.mojo").write_text(SCALE)
    with pytest.raises(KernelError, match="must be in a Mojo package, got"):
        scale.mojo(tmp_path / "scale.mojo", abi="max")


def test_numbers_and_nameless_dims_are_refused_where_max_cannot_take_them(namespace, write):
    @ow.op(f"{namespace}::scale")
    def scale(x: Float[Tensor, "*n"], by: float) -> Float[Tensor, "*n"]:
        """By a number."""
        return x * by

    @ow.op(f"{namespace}::any")
    def any_rank(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """Of any rank."""
        return 2 * x

    with pytest.raises(KernelError, match="the arguments must be tensors for MAX, got 'by'"):
        scale.mojo(write(), abi="max")
    with pytest.raises(KernelError, match=r"with symbolic=True, dims must have a name or a fixed size, got \*n"):
        any_rank.mojo(write(), entry="scale", symbolic=True, abi="max")


@pytest.mark.max
@pytest.mark.slow
def test_max_compiles_once_for_all_sizes_and_takes_what_its_own_operator_refuses(scale, write):
    kernel = scale.mojo(write(), symbolic=True, params={"factor": 3}, name="thrice", abi="max")
    x = torch.randn(20, requires_grad=True)
    assert torch.equal(kernel(x.detach()), 3 * x.detach())
    for other in (x.detach()[::2], torch.randn(7), torch.randn(0)):
        assert torch.equal(kernel(other), 3 * other)
    with scale.only("thrice"):
        scale(x).sum().backward()
        assert x.grad.tolist() == [2] * 20  # the gradient is the reference's, whatever the kernel
        compiled = torch.compile(lambda x: scale(x), fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(x.detach()), 3 * x.detach())
    with pytest.raises(ArgumentError, match="argument 'x'"):
        kernel(torch.ones(3, 3))


@pytest.mark.exhaustive
@pytest.mark.max
@pytest.mark.slow
def test_a_size_that_disagrees_with_a_compile_time_parameter_is_refused(scale, write):
    kernel = scale.mojo(
        write(SCALE.replace("factor: Int = 2", "n: Int").replace("](factor)", "](2)")), params={"n": 4}, abi="max"
    )
    assert kernel(torch.ones(4)).tolist() == [2, 2, 2, 2]
    with pytest.raises(KernelRefusedError, match=r"it is compiled for n = 4, but 'x' has n = 5"):
        kernel(torch.ones(5))


@pytest.mark.max
@pytest.mark.slow
def test_a_source_that_does_not_compile_is_one_error_with_the_compilers_lines(scale, write):
    kernel = scale.mojo(write(SCALE.replace("](factor)", "](unknown_name)")), abi="max")
    with pytest.raises(
        CompileError, match=r"(?s)MAX does not compile scale.mojo.*scale.mojo:13:\d+: error: .*unknown_name"
    ):
        kernel(torch.ones(3))


# -- on a GPU, with the gallery's convolution -------------------------------------------------------------------

EXPECTED = [14, 20, 26, 32, 38, 44, 50, 56, 62, 68, 74, 80, 41, 14, 0]


def max_source() -> Path:
    from opwright.gallery import conv1d

    return Path(str(conv1d.__file__)).parent / "max_op.mojo"


@pytest.mark.gpu
@pytest.mark.max
@pytest.mark.slow
def test_maxs_own_operator_runs_on_a_gpu(namespace):
    @ow.op(f"{namespace}::conv1d")
    def conv1d(x: Float[Tensor, "15"], k: Float[Tensor, "4"]) -> Float[Tensor, "15"]:
        return torch.nn.functional.conv1d(torch.nn.functional.pad(x, (0, 4))[None, None], k[None, None])[0, 0, :15]

    kernel = conv1d.mojo(max_source(), entry="conv1d", params={"n": 15, "m": 4}, devices=["cuda"], abi="max")
    assert kernel(torch.arange(15.0, device="cuda"), torch.arange(4.0, device="cuda")).tolist() == EXPECTED


@pytest.mark.gpu
@pytest.mark.max
@pytest.mark.slow
def test_a_max_graph_runs_on_a_gpu_on_torchs_stream(namespace):
    @ow.op(f"{namespace}::conv1d")
    def conv1d(x: Float[Tensor, "n"], k: Float[Tensor, "m"]) -> Float[Tensor, "n"]:
        padded = torch.nn.functional.pad(x, (0, k.shape[0]))
        return torch.nn.functional.conv1d(padded[None, None], k[None, None])[0, 0, : x.shape[0]]

    kernel = conv1d.mojo(
        max_source(), entry="conv1d", name="max", symbolic=True, dtypes=[torch.float32], devices=["cuda"], abi="max"
    )
    assert kernel(torch.arange(15.0, device="cuda"), torch.arange(4.0, device="cuda")).tolist() == EXPECTED
    for n, m in ((1, 1), (4099, 7), (1_000_003, 4)):
        x, k = torch.randn(n, device="cuda"), torch.randn(m, device="cuda")
        torch.testing.assert_close(kernel(x, k), conv1d.contract.reference((x, k))[0], rtol=1e-4, atol=1e-4)
    with torch.cuda.stream(torch.cuda.Stream()):
        counted = torch.zeros(10_000_000, device="cuda")
        for _ in range(20):
            counted += 1
        assert kernel(counted, torch.ones(1, device="cuda")).eq(20).all()
    x = torch.randn(100, device="cuda", requires_grad=True)
    with conv1d.only("max"):
        conv1d(x, torch.ones(1, device="cuda")).sum().backward()
    assert x.grad is not None
    assert x.grad.eq(1).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"abi": "max", "grid": 4}, "grid must be left out with abi='max'"),
        ({"abi": "max", "alignment": 16}, "alignment must be left out with abi='max'"),
        ({"abi": "gpu"}, "abi must be 'mojo' or 'max', got 'gpu'"),
        ({"symbolic": True}, "symbolic=True must be used with abi='max'"),
    ],
)
def test_options_of_the_other_abi_are_refused(options, message, namespace, tmp_path):
    (tmp_path / "scale.mojo").write_text("")
    operator = ow.op(f"{namespace}::scale")(scale)
    with pytest.raises(ow.errors.KernelError, match=re.escape(message)):
        operator.mojo(tmp_path / "scale.mojo", **options)


def scale(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    return x * 2
