"""``opwright port`` on whole files: the result compiles, gives the same values, or says what is left to do."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from jaxtyping import Float32
from torch import Tensor

import opwright as ow
from opwright.errors import TargetError
from opwright.machine import this_machine
from opwright.port import comparing
from opwright.port.run import port
from opwright.results.port import PortReport
from tests.package.shipping import opwright

SOURCES = Path(__file__).parent / "sources"

SMALL = """\
#include <torch/extension.h>
#include "own.h"
void scaled(const at::Tensor& x, at::Tensor& out, float by) { out.copy_(x.mul(by).add(1)); }
at::Tensor plain(const at::Tensor& x) { return own(x); }
TORCH_LIBRARY(small, m) { m.def("plain(Tensor x) -> Tensor", &plain); }
"""
OWN = "#pragma once\n#include <ATen/ATen.h>\ninline at::Tensor own(const at::Tensor& x) { return x.sigmoid().t(); }\n"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    (tmp_path / "small.cpp").write_text(SMALL)
    (tmp_path / "own.h").write_text(OWN)
    (tmp_path / "other.h").write_text("int unused();\n")
    return tmp_path / "small.cpp"


@pytest.mark.slow
@pytest.mark.compiler
def test_a_file_and_its_headers_are_rewritten_beside_them_and_compile(small: Path) -> None:
    before = {file.name: file.read_text() for file in small.parent.iterdir()}
    report = port(small)
    assert report.is_complete, report.remaining
    assert report.compiled
    assert [Path(file.source).name for file in report.files] == ["own.h", "small.cpp"]
    assert report.files[-1].wrapped == {"scaled": "scaled_stable"}
    assert [left_out.line for left_out in report.files[-1].left_out] == [5]
    assert {f.name: f.read_text() for f in small.parent.iterdir() if f.name in before} == before
    written = {file.name for file in small.parent.iterdir()} - set(before)
    assert written == {"small.stable.cpp", "own.stable.h", "own.stable_ops.h"}
    assert port(small).is_complete  # again, over its own results


@pytest.mark.slow
@pytest.mark.compiler
def test_what_remains_is_named_and_the_exit_code_is_one(small: Path, tmp_path: Path) -> None:
    small.write_text(SMALL.replace("x.mul(by)", "x.mul(by).mul(x.norm())"))
    output = opwright("port", small, "--json", tmp_path / "port.json", expect=1)
    assert "small.cpp:3: torch's stable ABI cannot pass Scalar: aten::norm" in output
    assert "does not compile yet" in output
    record = json.loads((tmp_path / "port.json").read_text())
    assert record["schema"] == "opwright.port/1"
    assert {r["in_result"] for r in record["remaining"]} == {False, True}
    small.write_text(SMALL)
    assert "compiles on torch's stable ABI" in opwright("port", small)


def test_no_file_of_the_user_is_written_over(small: Path) -> None:
    own = small.with_name("own.stable.h")
    own.write_text("// mine\n")
    with pytest.raises(TargetError, match=r"own\.stable\.h exists, and opwright has not written it"):
        port(small)
    assert own.read_text() == "// mine\n"
    assert not small.with_name("small.stable.cpp").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no.cpp", "must be a file that exists"),
        ("own.h", "the source must be a .cpp"),
        ("a.stable.cpp", "is a result of"),
    ],
)
def test_files_that_do_not_do(small: Path, name: str, message: str) -> None:
    small.with_name("a.stable.cpp").touch()
    with pytest.raises(TargetError, match=message):
        port(small.with_name(name))


@pytest.mark.compiler
def test_functions_that_the_stable_abi_cannot_call_are_named(tmp_path: Path) -> None:
    (tmp_path / "two.cpp").write_text(
        "#include <torch/extension.h>\n"
        "at::Tensor sized(at::Tensor x, std::tuple<int, int> size) { return x; }\n"
        "std::vector<at::Tensor> many(std::vector<at::Tensor> x) { return x; }\n"
        "static at::Tensor helper(at::Tensor x, std::tuple<int, int> size) { return x; }\n"
    )
    report = port(tmp_path / "two.cpp")
    assert [(r.line, r.what.split("(")[0]) for r in report.remaining] == [(2, "sized"), (3, "many")]
    assert report.compiled


def muladd(folder: Path, namespace: str) -> ow.Op:
    tensor = "torch::stable::Tensor"
    (folder / "muladd.cu").write_text(f"{tensor} muladd(const {tensor}& a, const {tensor}& b) {{ return a; }}\n")

    @ow.op(f"{namespace}::muladd")
    def muladd(a: Float32[Tensor, " n"], b: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
        return a * b + 1

    for name in ("cuda", "cuda_stable"):
        muladd.cuda(str(folder / "muladd.cu"), name=name, entry="muladd")
    return muladd


def test_without_a_gpu_its_kernels_are_not_run_and_nothing_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, namespace: str
) -> None:
    monkeypatch.setattr(comparing, "this_machine", lambda: dataclasses.replace(this_machine(), gpus=()))
    compared = comparing.compare_kernels(muladd(tmp_path, namespace), "cuda", "cuda_stable")
    assert compared.not_run == "cuda runs on cuda, which is not here"
    report = PortReport((), (), (), compiled=True, compared=(compared,))
    assert (report.is_complete, report.was_compared) == (True, False)
    different = dataclasses.replace(compared, not_run="", different="n=1: result 0 differs")
    assert not PortReport((), (), (), compiled=True, compared=(compared, different)).is_complete
    none_ran = dataclasses.replace(compared, not_run="", refused=3)
    assert not PortReport((), (), (), compiled=True, compared=(none_ran,)).is_complete


@pytest.mark.timeout(1200)
@pytest.mark.slow  # the original reads all of ATen's headers
@pytest.mark.compiler
@pytest.mark.exhaustive  # more than a minute
def test_the_result_is_compared_with_the_original(tmp_path: Path) -> None:
    folder = shutil.copytree(SOURCES, tmp_path / "cell")
    report = port(folder / "cell.cpp", target=str(folder / "cell.py"), check=False)
    (compared,) = report.compared
    assert (compared.original, compared.ported) == ("cpp", "cpp_stable")
    assert not compared.different, compared
    assert compared.cases > 20
    assert compared.refused > 0  # those that are not contiguous
    assert report.is_complete

    # A result that was changed, as by a port that is wrong.
    from opwright.port.attached import attached
    from opwright.port.comparing import compare_kernels

    made = folder / "cell.stable.cpp"
    made.write_text(made.read_text().replace("opwright::write(opwright::at(sums, 0), ", "(void)("))
    pair = attached(f"{folder}/cell.py", folder / "cell.cpp", made, {"forward": "cell::forward_stable"}, None, ())
    wrong = compare_kernels(pair[0].operator, "cpp", "cpp_stable")
    assert "result 1 differs by" in wrong.different
    assert wrong.original_wrong == 0
    made.write_text(made.read_text().replace("CHECK_FLAT(input);", "std::abort();"))
    pair = attached(f"{folder}/cell.py", folder / "cell.cpp", made, {"forward": "cell::forward_stable"}, None, ())
    assert "the process that ran them ended with -6" in compare_kernels(pair[0].operator, "cpp", "cpp_stable").different
