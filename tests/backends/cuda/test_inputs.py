"""CUDA C++ is compiled anew when a header has changed, however it is named: by NVRTC, the simulator and nvcc."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kernelsim.cuda_sim import compilation
from kernelsim.cuda_sim.kernel import SimulatedKernel
from kernelsim.text.source import CudaSource
from opwright.backends import get_backend
from opwright.backends.build_tools import BuildTools, build_tools
from opwright.backends.compiler import run_compiler
from opwright.backends.compiler_inputs import BuildWatch
from opwright.backends.cuda import nvrtc
from opwright.backends.simulation import host
from opwright.cache import ArtifactCache
from opwright.machine import this_machine
from tests.backends.cuda.test_backend import HOST, scale
from tests.sampled import quick

KERNEL = "__global__ void k(int* x) { *x = 1000 + VALUE; }\n"
INCLUDE, ANGLED = '#include "value.h"\n' + KERNEL, "#include <value.h>\n" + KERNEL
OPTIONAL = '#if __has_include("extra.h")\n#include "extra.h"\n#else\n#define VALUE 1\n#endif\n' + KERNEL
# The source, its options, the file that changes, files that stay.
WAYS: dict[str, tuple[str, tuple[str, ...], str, dict[str, str]]] = {
    "beside": (INCLUDE, (), "value.h", {}),
    "through another": ('#include "sub/a.h"\n' + KERNEL, (), "sub/value.h", {"sub/a.h": '#include "value.h"\n'}),
    "-I": (ANGLED, ("-I{}/inc",), "inc/value.h", {}),
    "--include-path": (ANGLED, ("--include-path={}/inc",), "inc/value.h", {}),
    "-isystem": (ANGLED, ("-isystem", "{}/inc"), "inc/value.h", {}),
    "-include": (KERNEL, ("-include={}/inc/value.h",), "inc/value.h", {}),
    "--pre-include": (KERNEL, ("--pre-include", "{}/inc/value.h"), "inc/value.h", {}),
    "a macro": ('#define HEADER "value.h"\n#include HEADER\n' + KERNEL, (), "value.h", {}),
    "a line that goes on": ('#inc\\\nlude "val\\\nue.h"\n' + KERNEL, (), "value.h", {}),
    "a new file": (OPTIONAL, (), "extra.h", {}),
    "a new file in an earlier folder": (ANGLED, ("-I{}/early", "-I{}/inc"), "early/value.h",
                                        {"inc/value.h": "#define VALUE 1\n"}),
}  # fmt: skip
NEW = ("a new file", "a new file in an earlier folder")


class Tools:
    """Build tools that have looked at nothing yet, as each process has, and the messages of compilations.

    They share the session's cache, in which the simulator's runtime is.
    """

    def __init__(self) -> None:
        self.messages = list[str]()

    def make(self) -> BuildTools:
        return BuildTools(this_machine(), ArtifactCache(build_tools().cache.root), self.messages.append)

    def builds(self) -> int:
        return len([m for m in self.messages if "k.cu" in m])


def by_nvrtc(source: CudaSource, tools: Tools) -> int:
    code = nvrtc.compile_device_code(source, (), "sm_90", tools.make())
    assert code.ptx is not None
    return int(re.findall(r"\b100(\d);", code.ptx.read_text())[0])


def by_simulator(source: CudaSource, tools: Tools) -> int:
    x = torch.zeros(1, dtype=torch.int32)
    artifact = compilation.compile_kernel(source, "k", host(tools.make()), checked=False)
    SimulatedKernel(artifact, host(tools.make())).launch((1, 1, 1), (1, 1, 1), 0, [x])
    return int(x) - 1000


def assert_that_builds_follow(way: str, folder: Path, value: Callable[[CudaSource, Tools], int]) -> None:
    text, options, name, others = WAYS[way]
    text += f"// {folder}\n"  # nothing else has compiled this
    source, tools = CudaSource(text, folder / "k.cu", tuple(option.format(folder) for option in options)), Tools()
    (folder / "k.cu").write_text(text)

    def write(path: str, content: str) -> None:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)

    for path, content in {**others, "early/other.h": ""}.items():
        write(path, content)
    if way not in NEW:
        write(name, "#define VALUE 1\n")
    assert value(source, tools) == 1
    write(f"{Path(name).parent}/unrelated.h", "")
    assert (value(source, tools), tools.builds()) == (1, 1)
    write(name, "#define VALUE 2\n")
    assert (value(source, tools), tools.builds()) == (2, 2)


@pytest.mark.nvrtc
@pytest.mark.parametrize("way", quick(WAYS, 0, 3, 6, 7, 8, 9, 10))
def test_nvrtc_compiles_anew(way: str, tmp_path: Path) -> None:
    assert_that_builds_follow(way, tmp_path, by_nvrtc)


@pytest.mark.nvrtc
def test_an_nvrtc_that_lists_no_headers_keeps_only_what_includes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvrtc, "_TRACES", (99, 0))
    tools = Tools()
    (tmp_path / "value.h").write_text("#define VALUE 1\n")
    for text, builds in ((INCLUDE, 2), ("#define VALUE 1\n" + KERNEL, 3)):
        for _ in range(2):
            assert by_nvrtc(CudaSource(f"{text}// {tmp_path}\n", tmp_path / "k.cu"), tools) == 1
        assert tools.builds() == builds


SIMULATED = ("through another", "a macro")
OTHERS = [pytest.param(way, marks=() if way in SIMULATED else pytest.mark.slow) for way in WAYS]


@pytest.mark.compiler
@pytest.mark.parametrize(
    "way", OTHERS
)  # slow: what g++ itself decides, as tests/backends/test_compiler_inputs.py tests
def test_the_simulator_compiles_anew(way: str, tmp_path: Path) -> None:
    assert_that_builds_follow(way, tmp_path, by_simulator)


@pytest.mark.exhaustive
@pytest.mark.nvcc
@pytest.mark.slow  # three runs of nvcc with torch's headers
def test_nvcc_builds_anew(tmp_path: Path, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    tools = BuildTools(this_machine(), ArtifactCache(tmp_path / "cache"), messages.append)
    monkeypatch.setattr("opwright.runtime.kernel.build_tools", lambda: tools)
    monkeypatch.setenv("NVCC_APPEND_FLAGS", f"-I{tmp_path}/early -I{tmp_path}/inc")
    (tmp_path / "early").mkdir()
    (tmp_path / "inc").mkdir()
    (tmp_path / "scale.cu").write_text("#define HEADER <factor.h>\n#include HEADER\n" + HOST)

    def files_after(changed: str, text: str) -> Path:
        (tmp_path / changed).write_text(text)
        op = scale(namespace)
        op.cuda(tmp_path / "scale.cu", name="native", dtypes=[torch.float32], options=["-arch=sm_90"])
        spec, contract = op.kernels["native"].spec, op.contract
        artifact = get_backend("cuda").compile(spec, contract, tools)
        assert artifact.file is not None
        return artifact.file

    first = files_after("inc/factor.h", "#define FACTOR 1\n")
    assert files_after("inc/unrelated.h", "") == first
    assert files_after("inc/factor.h", "#define FACTOR 2\n") != first
    assert files_after("early/factor.h", "#define FACTOR 3\n") != first
    shutil.rmtree(tmp_path / "early")
    assert files_after("inc/factor.h", "#define FACTOR 1\n") == first
    assert len(messages) == 3


@pytest.mark.slow
@pytest.mark.nvcc
@pytest.mark.skipif(shutil.which("gcc") is None, reason="nvcc has no gcc to start")
def test_nvcc_lists_what_it_reads_for_several_architectures_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No two compilers, which run at the same time, write to one report: it would be in pieces."""
    compiler = this_machine().nvcc
    assert compiler is not None
    (tmp_path / "bin").mkdir()
    gcc = tmp_path / "bin" / "gcc"
    gcc.write_text(f'#!/bin/sh\necho "$SUNPRO_DEPENDENCIES" >> {tmp_path}/reports\nexec {shutil.which("gcc")} "$@"\n')
    gcc.chmod(0o700)
    monkeypatch.setenv("PATH", f"{gcc.parent}{os.pathsep}{os.environ['PATH']}")
    lines, flags = ["#ifndef __CUDA_ARCH__", '#include "host.h"'], ["--threads", "0", "-c"]
    for architecture in ("75", "80", "90"):
        lines += [f"#elif __CUDA_ARCH__ == {architecture}0", f'#include "for_{architecture}.h"']
        flags.append(f"-gencode=arch=compute_{architecture},code=sm_{architecture}")
    headers = {"host.h", "for_75.h", "for_80.h", "for_90.h"}
    for name in headers:
        (tmp_path / name).write_text("")
    (tmp_path / "k.cu").write_text("\n".join([*lines, "#endif", "__global__ void k() {}"]))
    watch = BuildWatch(compiler)
    run_compiler([compiler.path, *flags, "k.cu", "-o", "k.o"], "k.cu", environment=watch.environment, folder=tmp_path)
    reports = (tmp_path / "reports").read_text().split()
    assert len(reports) == len(set(reports)) > 3
    given = [*flags, "k.cu"]
    read = watch.read_files(
        given, base=tmp_path, built_in=tmp_path / "none", installed=[], folder=tmp_path, linked=False
    )
    assert read.complete
    assert {name for name, _ in read.own} >= {"k.cu", *headers}
