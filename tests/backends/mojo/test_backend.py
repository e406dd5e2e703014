"""Mojo kernels: the convention, compile-time parameters, prebuilt PTX, and the message for every mistake."""

from __future__ import annotations

import dataclasses
import itertools
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from jaxtyping import Float, Inexact, Int64
from torch import Tensor

import opwright as ow
from opwright.backends.mojo.backend import MojoBackend
from opwright.backends.mojo.source import Slot, literal, modules_imported, read_declaration
from opwright.contract.shapes.dims import parse_dims
from opwright.contract.signature import TensorType
from opwright.errors import (
    ArgumentError,
    CompileError,
    KernelError,
    KernelRefusedError,
    LaunchError,
    SignatureMismatchError,
)
from opwright.machine import Compiler, Gpu, Machine, this_machine
from opwright.results import Accepted, Refused
from tests.backends.mojo.mojo_sources import GPU, GPU_SCALE
from tests.sampled import quick

_numbers = itertools.count()

SCALE = """
def scale[dtype: DType, factor: Int = 2](
    output: Pointer[Scalar[dtype], MutAnyOrigin], output_n: Int64,
    x: Pointer[Scalar[dtype], MutAnyOrigin], n: Int64,
):
    for i in range(Int(n)):
        output[unsafe_offset=i] = x[unsafe_offset=i] * Scalar[dtype](factor)
"""

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a Mojo source; a new name each time, as a module's name is in what is compiled."""

    def source(text: str, name: str | None = None) -> Path:
        path = tmp_path / (name or f"source{next(_numbers)}.mojo")
        path.write_text(textwrap.dedent(text))
        return path

    return source


def machine(mojo: bool = False, gpu: bool = True) -> Machine:
    gpus = (Gpu("some GPU", (9, 0), 1 << 30),) if gpu else ()
    return dataclasses.replace(this_machine(), gpus=gpus, mojo=this_machine().mojo if mojo else None)


# -- without Mojo: errors before anything is compiled -------------------------------------------------------


def test_a_kernel_is_refused_where_there_is_no_mojo_with_the_command_that_brings_it(scale, write):
    kernel = scale.mojo(write(SCALE))
    refused = kernel.probe("cpu", machine(mojo=False))
    assert refused == Refused("Mojo is not installed", "pip install 'opwright[mojo]'")


def test_whether_a_kernel_can_run_is_asked_without_looking_at_files_or_packages(scale, write, monkeypatch):
    kernel, with_mojo = scale.mojo(write(SCALE)), dataclasses.replace(machine(), mojo=Compiler("mojo", "Mojo 1"))

    def must_not_be_called(*_, **__):
        raise AssertionError("a call looked at what it was made from")

    monkeypatch.setattr(Path, "open", must_not_be_called)
    monkeypatch.setattr("importlib.metadata.version", must_not_be_called)
    assert isinstance(kernel.probe("cpu", with_mojo), Accepted)
    assert kernel.probe("cpu", machine()) == Refused("Mojo is not installed", "pip install 'opwright[mojo]'")
    few = dataclasses.replace(with_mojo, mojo_lacks=("max-core",))
    assert "CPU kernels only, as max-core is not installed" in MojoBackend().available(few).note


def test_a_cpu_kernel_is_refused_where_nothing_can_link_it(scale, write):
    kernel = scale.mojo(write(SCALE))
    here = dataclasses.replace(machine(gpu=False), mojo=Compiler("mojo", "Mojo 1"), cc=False)
    assert kernel.probe("cpu", here).remedy == "install gcc (apt install gcc)"
    assert MojoBackend().available(here).remedy == "install gcc (apt install gcc)"
    with_gpu = dataclasses.replace(machine(gpu=True), mojo=Compiler("mojo", "Mojo 1"), cc=False)
    assert isinstance(MojoBackend().available(with_gpu), Accepted), "PTX needs no linking"


def test_a_declaration_is_read_with_its_parameters_arguments_and_effects():
    text = """
    # def f[wrong: Int](x: Int64): a comment
    def f[
        dtype: DType, width: Int = max(1, 2), *, flag: Bool
    ](output: Pointer[Scalar[dtype], MutAnyOrigin], n: Int64) raises -> None:
        pass
    """
    found = read_declaration(textwrap.dedent(text), "f")
    assert found is not None
    assert found.parameters == ("dtype", "width", "flag")
    assert found.optional == {"width"}
    assert found.arguments == ("output", "n")
    assert found.raises
    assert found.returns == "None"
    assert read_declaration(textwrap.dedent(text), "g") is None


def test_a_misspelt_parameter_is_named_with_the_right_one(scale, write):
    with pytest.raises(
        KernelError,
        match=r"scale:mojo: .*must be compile-time parameters of scale, \['dtype', 'factor'\], got 'facter'",
    ) as caught:
        scale.mojo(write(SCALE), params={"facter": 3})
    assert caught.value.fix == "write 'factor'"


def test_a_parameter_without_a_default_has_to_be_given(scale, write):
    with pytest.raises(KernelError, match=r"params must have the compile-time parameter 'factor' of scale, got \[\]"):
        scale.mojo(write(SCALE.replace("factor: Int = 2", "factor: Int")))


def test_an_output_that_was_left_out_is_said_with_the_declaration_to_write(scale, write):
    source = write("def scale[dtype: DType](x: Pointer[Scalar[dtype], MutAnyOrigin], n: Int64):\n    pass\n")
    with pytest.raises(
        SignatureMismatchError, match=r"must take 4 arguments .*, got 2 \(x, n\).* the output was left out"
    ) as caught:
        scale.mojo(source)
    assert "def scale[dtype: DType](output: Pointer[Scalar[dtype], MutAnyOrigin], output_0: Int64, x:" in str(
        caught.value
    )


def test_a_function_that_is_not_there_is_named_with_those_that_are(scale, write):
    with pytest.raises(KernelError, match=r"must define the function 'skale', got") as caught:
        scale.mojo(write(SCALE), entry="skale")
    assert "['scale']" in str(caught.value)


def test_a_gpu_kernel_needs_a_grid_and_a_cpu_kernel_has_none(scale, write):
    with pytest.raises(KernelError, match="a GPU kernel must have grid= and block=, got"):
        scale.mojo(write(SCALE), devices=["cuda"])
    with pytest.raises(KernelError, match="grid must be left out for a CPU kernel, got 1"):
        scale.mojo(write(SCALE), grid=1, block=1)
    with pytest.raises(KernelError, match="devices must be"):
        scale.mojo(write(SCALE), devices=["cpu", "cuda"], grid=1, block=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"params": {"factor": [1]}}, r"params\['factor'\] must be .*, got \[1\]"),
        ({"params": {"factor": torch.complex64}}, r"params\['factor'\] must be .*, got torch.complex64"),
        ({"params": 4}, "params must be a dict of compile-time parameters, got 4"),
        ({"alignment": 3}, "alignment must be a power of two, got 3"),
        ({"options": "-g"}, "options must be a list of flags, got"),
        ({"prebuilt": "here"}, "prebuilt must be left out for a CPU kernel, got"),
        ({"parms": {}}, "an option of op.mojo must be one of .*, got 'parms'"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_when_it_is_passed(options, message, scale, write):
    with pytest.raises(KernelError, match=message):
        scale.mojo(write(SCALE), **options)


def test_arguments_that_have_no_form_in_mojo_are_refused(namespace, write):
    @ow.op(f"{namespace}::total")
    def total(xs: list[Float[Tensor, " n"]]) -> Float[Tensor, " n"]:
        """Their sum."""
        return torch.stack(xs).sum(0)

    with pytest.raises(KernelError, match="cannot take the argument 'xs'"):
        total.mojo(write("def total(output: Pointer[Float32, MutAnyOrigin], n: Int64):\n    pass\n"))


def test_sizes_of_several_axes_are_passed_as_their_product():
    slot = Slot("x", TensorType(parse_dims("b *n k"), "Float", (torch.float32,), "torch"))
    assert slot.sizes == 3
    assert slot.sizes_of((2, 3, 4, 5)) == [2, 12, 5]
    assert slot.sizes_of((2, 5)) == [2, 1, 5]


def test_values_are_written_as_mojo_writes_them():
    assert [literal(v) for v in (3, True, 0.5, torch.bfloat16, 'a"b')] == [
        "3", "True", "0.5", "DType.bfloat16", '"a\\"b"',
    ]  # fmt: skip
    assert literal(torch.complex64) is None
    assert literal(None) is None


def test_modules_beside_a_source_are_found_with_what_they_import(write, tmp_path):
    write("comptime X = 1\n", "deep.mojo")
    write("from deep import X\n", "helper.mojo")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.mojo").write_text("")
    (tmp_path / "package" / "part.mojo").write_text("")
    source = write("from helper import X\nfrom std.math import exp\nimport package.part, nowhere\n")
    found = [str(p.relative_to(tmp_path)) for p in modules_imported(source)]
    assert found == ["deep.mojo", "helper.mojo", "package/__init__.mojo", "package/part.mojo"]


def test_a_dtype_that_mojo_lacks_keeps_the_kernel_out(namespace, write):
    @ow.op(f"{namespace}::scale")
    def scale(x: Inexact[Tensor, " n"]) -> Inexact[Tensor, " n"]:
        """Twice x."""
        return 2 * x

    kernel = scale.mojo(write(SCALE))
    x = torch.ones(3, dtype=torch.complex64)
    assert scale(x).tolist() == [2, 2, 2]
    assert scale.explain(x).chosen.kernel == "reference"
    if this_machine().mojo is not None:
        with pytest.raises(KernelRefusedError, match=r"takes bfloat16, .* not complex64"):
            kernel(x)


# -- with Mojo, on the CPU ---------------------------------------------------------------------------------------


@pytest.mark.mojo
@pytest.mark.parametrize(
    "dtype",
    # Mojo compiles each for three seconds; other tests here use float32.
    quick([torch.float32, torch.float16, torch.float64, torch.bfloat16], 3),
)
def test_one_source_serves_every_dtype(dtype, scale, write):
    scale.mojo(write(SCALE))
    x = torch.randn(100).to(dtype)
    assert torch.equal(scale(x), 2 * x)
    assert scale.explain(x).chosen.kernel == "mojo"


@pytest.mark.slow
@pytest.mark.mojo
def test_inputs_that_are_not_contiguous_are_made_so(scale, write):
    kernel = scale.mojo(write(SCALE))
    x = torch.randn(40)
    for view in (x[::2], x.expand(3, 40)[1], x.view(8, 5).T[2], x[3:]):
        assert torch.equal(kernel(view), 2 * view)


@pytest.mark.slow  # Mojo compiles for seconds
@pytest.mark.mojo
def test_an_alignment_that_is_asked_for_is_kept_by_a_copy(scale, write):
    source = write(
        """
        def scale[dtype: DType](
            output: Pointer[Scalar[dtype], MutAnyOrigin], output_n: Int64,
            x: Pointer[Scalar[dtype], MutAnyOrigin], n: Int64,
        ) raises:
            if Int(x) % 64 != 0:
                raise Error("not aligned")
            for i in range(Int(n)):
                output[unsafe_offset=i] = x[unsafe_offset=i] * 2
        """
    )
    aligned = scale.mojo(source, name="aligned", alignment=64)
    plain = scale.mojo(source, name="plain")
    x = torch.randn(100)[1:]
    assert torch.equal(aligned(x), 2 * x)
    with pytest.raises(LaunchError, match=r"scale: the Mojo kernel 'plain' raised: not aligned"):
        plain(x)


@pytest.mark.slow
@pytest.mark.mojo
def test_a_call_like_an_earlier_one_uses_its_own_addresses_and_raises_as_the_first_one(scale, write):
    source = SCALE.replace("\n):", "\n) raises:").replace(
        "    for", "    if Int(x) % 64: raise Error('address')\n    for"
    )
    for options in ({"name": "copies", "alignment": 64}, {"name": "raises"}):
        scale.kernels.clear()
        scale.mojo(write(source), **options)
        at_once, later = torch.randn(100), torch.randn(101)[1:]
        for _ in range(3):
            assert torch.equal(scale(at_once), 2 * at_once)
        if "alignment" in options:
            assert torch.equal(scale(later), 2 * later)
        else:
            with pytest.raises(LaunchError, match="raised: address"):
                scale(later)


@pytest.mark.slow
@pytest.mark.mojo
def test_numbers_lists_of_sizes_and_several_outputs_are_passed_in_order(namespace, write):
    @ow.op(f"{namespace}::several")
    def several(
        x: Float[Tensor, "*b k"], times: int, i: Int64[Tensor, " k"], *, by: float = 1.5, negate: bool = False
    ) -> tuple[Float[Tensor, "*b k"], Int64[Tensor, " k"]]:
        """Two outputs."""
        return (x * times + by) * (-1 if negate else 1), i + times

    several.mojo(
        write(
            """
            def several[dtype: DType](
                a: Pointer[Scalar[dtype], MutAnyOrigin], a_b: Int64, a_k: Int64,
                b: Pointer[Int64, MutAnyOrigin], b_k: Int64,
                x: Pointer[Scalar[dtype], MutAnyOrigin], x_b: Int64, x_k: Int64, times: Int64,
                i: Pointer[Int64, MutAnyOrigin], i_k: Int64, by: Float64, negate: Bool,
            ):
                for e in range(Int(x_b * x_k)):
                    var value = x[unsafe_offset=e] * times.cast[dtype]() + by.cast[dtype]()
                    a[unsafe_offset=e] = -value if negate else value
                for e in range(Int(i_k)):
                    b[unsafe_offset=e] = i[unsafe_offset=e] + times
            """
        )
    )
    x, i = torch.randn(2, 3, 4), torch.arange(4)
    for negate in (False, True, True, False):  # the last two are like earlier ones
        first, second = several(x, 3, i, by=0.25, negate=negate)
        assert several.explain(x, 3, i, by=0.25, negate=negate).chosen.kernel == "mojo"
        torch.testing.assert_close(first, (x * 3 + 0.25) * (-1 if negate else 1))
        assert torch.equal(second, i + 3)


@pytest.mark.slow  # Mojo compiles for seconds
@pytest.mark.mojo
def test_parameters_may_follow_from_the_arguments(scale, write):
    kernel = scale.mojo(write(SCALE), params={"factor": lambda x: x.shape[0]})
    assert kernel(torch.ones(3)).tolist() == [3, 3, 3]
    assert kernel(torch.ones(4)).tolist() == [4, 4, 4, 4]
    wrong = scale.mojo(write(SCALE), params={"factor": lambda x: None})
    with pytest.raises(KernelError, match=r"params\['factor'\] returned None"):
        wrong(torch.ones(3))


@pytest.mark.slow
@pytest.mark.mojo
def test_a_size_that_disagrees_with_a_compile_time_parameter_is_refused(scale, write):
    source = SCALE.replace("factor: Int = 2", "n: Int").replace("factor", "2")
    source = source.replace(", n: Int64,", ", size: Int64,").replace("Int(n)", "n")
    fixed = scale.mojo(write(source), params={"n": 4})
    assert fixed(torch.ones(4)).tolist() == [2, 2, 2, 2]
    with pytest.raises(KernelRefusedError, match=r"it is compiled for n = 4, but 'x' has n = 5"):
        fixed(torch.ones(5))
    assert scale.explain(torch.ones(5)).chosen.kernel == "reference"
    assert scale(torch.ones(5)).tolist() == [2] * 5


@pytest.mark.mojo
def test_a_source_that_does_not_compile_is_one_error_with_place_and_line(scale, write):
    source = write(SCALE.replace("* Scalar[dtype](factor)", "* unknown_name"))
    kernel = scale.mojo(source)
    with pytest.raises(CompileError) as caught:
        kernel(torch.ones(3))
    lines = str(caught.value).splitlines()
    assert lines[0].endswith(f"scale:mojo [dtype=float32]: {source.name} does not compile for cpu")
    column = lines[2].index("unknown_name")
    assert lines[1] == f"{source.name}:7:{column + 1}: error: use of unknown declaration 'unknown_name'"
    assert lines[2] == "        output[unsafe_offset=i] = x[unsafe_offset=i] * unknown_name"
    assert lines[3] == " " * column + "^" + "~" * (len("unknown_name") - 1)
    assert '"kind":"error"' in caught.value.log
    with pytest.raises(CompileError) as again:  # known, so not compiled again
        kernel(torch.ones(3))
    assert again.value is caught.value


@pytest.mark.mojo
def test_an_argument_of_another_type_is_the_compilers_error_at_the_generated_call(scale, write):
    source = write(SCALE.replace("n: Int64,\n)", "n: Float32,\n)").replace("Int(n)", "3"))
    with pytest.raises(CompileError, match=r"\(generated: how the operator calls it\): error: .*'n'"):
        scale.mojo(source)(torch.ones(3))


@pytest.mark.slow
@pytest.mark.mojo
def test_a_failed_constraint_says_which(scale, write):
    source = write(SCALE.replace("    for i in", '    comptime assert factor > 2, "too small"\n    for i in', 1))
    with pytest.raises(CompileError, match="constraint failed: too small"):
        scale.mojo(source)(torch.ones(3))


@pytest.mark.mojo
def test_wrong_ranks_devices_and_dtypes_are_refused_before_a_pointer_is_passed(scale, write):
    scale.mojo(write(SCALE))
    with pytest.raises(ArgumentError, match=r"scale: argument 'x'"):
        scale(torch.ones(3, 3))
    with pytest.raises(ArgumentError, match=r"scale: argument 'x'"):
        scale(torch.ones(3, dtype=torch.int64))
    with pytest.raises(KernelRefusedError, match=r"written for cpu, not for meta"):
        scale.kernels["mojo"](torch.ones(3, device="meta"))


@pytest.mark.mojo
@pytest.mark.slow  # two compilations
def test_an_edited_module_beside_the_source_is_compiled_anew(namespace, write):
    write("comptime FACTOR = 2\n", "factor_of.mojo")
    source = write("from factor_of import FACTOR\n" + SCALE.replace("](factor)", "](FACTOR)"), "imports_it.mojo")
    results = []
    for factor in (2, 5):
        write(f"comptime FACTOR = {factor}\n", "factor_of.mojo")

        @ow.op(f"{namespace}{factor}::scale")
        def scale(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
            """Twice x."""
            return 2 * x

        results.append(scale.mojo(source)(torch.ones(1)).item())
    assert results == [2, 5]


@pytest.mark.mojo
@pytest.mark.slow  # two compilations
def test_a_source_that_was_edited_after_a_call_is_compiled_anew_for_calls_unlike_that(scale, write):
    source = write(SCALE)
    kernel = scale.mojo(source)
    assert kernel(torch.ones(2)).tolist() == [2, 2]
    source.write_text(source.read_text().replace("](factor)", "](factor + 1)"))
    assert kernel(torch.ones(3)).tolist() == [3, 3, 3]
    assert kernel(torch.ones(2)).tolist() == [2, 2]  # what was compiled for such calls stays loaded


@pytest.mark.slow
@pytest.mark.mojo
def test_the_operator_stays_one_in_torch_compile_and_has_gradients(scale, write):
    scale.mojo(write(SCALE))
    x = torch.randn(5, requires_grad=True)
    compiled = torch.compile(lambda x: scale(x).sum(), fullgraph=True, backend="aot_eager")
    compiled(x).backward()
    assert x.grad.tolist() == [2] * 5
    torch.library.opcheck(scale.overload, (torch.randn(4),))


@pytest.mark.mojo
def test_a_gpu_kernel_may_not_raise(scale, write):
    with pytest.raises(KernelError, match="raises, which a GPU kernel cannot"):
        scale.mojo(write(SCALE.replace("\n):", "\n) raises:")), **GPU)


@pytest.mark.gpu
@pytest.mark.mojo
def test_a_gpu_kernel_is_compiled_for_the_gpu_at_hand(scale, write):
    kernel = scale.mojo(write(GPU_SCALE), **GPU)
    for x in (torch.randn(1000, device="cuda"), torch.randn(0, device="cuda"), torch.randn(64, device="cuda")[::2]):
        assert torch.equal(kernel(x), 2 * x)


@pytest.mark.gpu
@pytest.mark.mojo
def test_calls_of_a_gpu_kernel_like_an_earlier_one_give_the_same_result(scale, write):
    scale.mojo(write(GPU_SCALE), **GPU)
    x = torch.randn(1000, device="cuda")
    for _ in range(3):
        assert torch.equal(scale(x), 2 * x)
    launch = scale.kernels["mojo"].load()
    assert launch.for_calls_like((x,)) is not launch
    assert launch.for_calls_like((x[::2],)) is launch
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        assert torch.equal(scale(x), 2 * x)
