"""Kernels in Triton: tests without a GPU, and the interpreter in another process."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright import target
from opwright.backends import get_backend
from opwright.errors import KernelError, KernelRefusedError, SignatureMismatchError
from opwright.machine import this_machine
from opwright.results import Accepted, Refused


def double(namespace: str) -> ow.Op:
    @ow.op(f"{namespace}::double")
    def double(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x * 2

    return double


FILE = """
import torch
import triton
import triton.language as tl

@triton.jit
def double_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)

def double(x):
    out = torch.empty_like(x)
    double_kernel[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), BLOCK=64)
    return out
"""

SCRIPT = """
import torch, opwright as ow
from jaxtyping import Float
from torch import Tensor

@ow.op("{namespace}::double")
def double(x: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    return x * 2
"""


@pytest.mark.slow  # a process with the interpreter
@pytest.mark.triton
def test_a_file_launcher_runs_in_the_interpreter(run_python: Any, tmp_path: Path, namespace: str) -> None:
    (tmp_path / "double_triton.py").write_text(FILE)
    script = SCRIPT.format(namespace=namespace) + (
        "double.triton('double_triton.py', name='file')\n"
        "x = torch.randn(1000)\n"
        "torch.testing.assert_close(double.kernels['file'](x), x * 2)\n"
        "print(double.explain(x).chosen.kernel, double.kernels['file'].probe('cpu'))\n"
        "torch.testing.assert_close(torch.compile(lambda x: double(x), backend='aot_eager')(x), x * 2)\n"
    )
    done = run_python(script, env={"TRITON_INTERPRET": "1"})
    assert 'file Accepted(note="in Triton\'s interpreter")' in done.stdout


@pytest.mark.triton
def test_on_a_cpu_it_is_refused_with_the_remedy_and_the_reference_runs(namespace: str) -> None:
    op = double(namespace)
    op.triton(lambda x: x * 3, name="k")
    assert op(torch.ones(1)).item() == 2
    with pytest.raises(KernelRefusedError) as error:
        op.kernels["k"](torch.ones(1))
    assert (
        "Triton kernels run on a GPU; on a CPU only in the simulator, or in Triton's interpreter" in error.value.message
    )
    assert "TRITON_INTERPRET=1" in error.value.fix
    assert "opwright check" in error.value.fix


def test_without_triton_it_is_refused_with_the_command_to_type(namespace: str) -> None:
    op = double(namespace)
    op.triton(lambda x: x * 3, name="k")
    bare = dataclasses.replace(this_machine(), triton=None)
    outcome = op.kernels["k"].probe("cpu", bare)
    assert outcome == Refused("Triton is not installed", "pip install triton")
    assert op(torch.ones(1)).item() == 2
    if this_machine().triton is None:
        assert "pip install triton" in str(op.explain(torch.ones(1)))
        with pytest.raises(KernelRefusedError, match="Triton is not installed"):
            op.kernels["k"](torch.ones(1))


def test_the_interpreter_and_a_gpu_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = get_backend("triton")
    machine = dataclasses.replace(this_machine(), triton="3.9.0", gpus=())
    with monkeypatch.context() as patch:
        patch.setattr(target, "_of_check", [target.Engine.INTERPRETER])
        assert "in its interpreter" in backend.available(machine).note  # type: ignore[union-attr]
    without_gpu = backend.available(machine)
    assert isinstance(without_gpu, Accepted)
    assert "opwright check" in without_gpu.note


def test_a_file_is_not_imported_when_it_is_attached(namespace: str, tmp_path: Path) -> None:
    (tmp_path / "double_triton.py").write_text("raise RuntimeError('imported')\n\ndef double(x): ...\n")
    op = double(namespace)
    kernel = op.triton(tmp_path / "double_triton.py")
    assert kernel.name == "triton"
    assert op(torch.ones(1)).item() == 2


@pytest.mark.parametrize(
    ("text", "expected_message"),
    [
        ("def double(x, n): ...", "must take (x), got (x, n)"),
        ("def double(y): ...", "must take (x), got (y)"),
        ("def double(x, *, n): ...", "must take (x), got (x, *, n)"),
    ],
)
def test_a_mismatch_in_a_file_is_refused_when_it_is_attached(
    text: str, expected_message: str, namespace: str, tmp_path: Path
) -> None:
    (tmp_path / "k.py").write_text(text)
    with pytest.raises(SignatureMismatchError) as error:
        double(namespace).triton(tmp_path / "k.py")
    assert expected_message in error.value.message
    assert error.value.fix == "write it as def double(x)"


def test_a_missing_function_or_a_broken_file_is_refused_when_it_is_attached(namespace: str, tmp_path: Path) -> None:
    (tmp_path / "k.py").write_text("def other(x): ...\n")
    with pytest.raises(KernelError, match=r"must define the function 'double', got \['other'\]"):
        double(namespace).triton(tmp_path / "k.py")
    (tmp_path / "k.py").write_text("x = 1\ndef double(x:\n")
    with pytest.raises(KernelError, match=r"k.py:2: "):
        double(namespace).triton(tmp_path / "k.py")


@pytest.mark.triton
def test_heuristics_above_autotune_are_refused_in_place_and_in_a_file(namespace: str, tmp_path: Path) -> None:
    import triton
    import triton.language as tl

    @triton.heuristics({"BLOCK": lambda args: 64})
    @triton.autotune([triton.Config({}, num_warps=4)], key=["n"])
    @triton.jit
    def wrong(x, n, BLOCK: tl.constexpr): ...  # type: ignore[no-untyped-def]

    op = double(namespace)
    with pytest.raises(KernelError, match=r"wrong has @triton.heuristics above @triton.autotune") as error:

        @op.triton
        def launcher(x: Tensor) -> Tensor:
            wrong[(1,)](x, 1)
            return x

    assert "@triton.autotune first" in error.value.fix


@pytest.mark.triton
def test_a_traceable_kernel_is_wrapped_for_torch_compile(namespace: str) -> None:
    import triton

    from opwright.backends.triton.tracing import kernels_reached

    source: dict[str, Any] = {}
    path = Path(__file__).parent / "double_triton_for_tests.py"
    code = compile(FILE, str(path), "exec")
    import linecache

    linecache.cache[str(path)] = (len(FILE), None, FILE.splitlines(keepends=True), str(path))
    exec(code, source)
    op = double(namespace)
    op.triton(source["double"], name="k")
    kernel = op.kernels["k"]
    assert [k.fn.__name__ for k in kernels_reached(source["double"])] == ["double_kernel"]
    traceable = kernel.traceable()
    wrapped = traceable.__globals__["double_kernel"]
    assert type(wrapped).__module__ == "opwright.backends.triton.tracing"
    assert isinstance(source["double_kernel"], triton.JITFunction), "the name in the user's module is unchanged"


@pytest.mark.triton
def test_a_launcher_in_a_file_is_traceable_too(namespace: str, tmp_path: Path) -> None:
    (tmp_path / "double_file.py").write_text(FILE)
    op = double(namespace)
    op.triton(tmp_path / "double_file.py", entry="double", name="k")
    wrapped = op.kernels["k"].traceable().__globals__["double_kernel"]
    assert type(wrapped).__module__ == "opwright.backends.triton.tracing"


@pytest.mark.triton
def test_kernels_are_found_through_closures_and_helpers(namespace: str) -> None:
    import triton

    from opwright.backends.triton.tracing import kernels_reached

    @triton.jit
    def inner(x): ...  # type: ignore[no-untyped-def]

    def helper(x: Tensor) -> None:
        inner[(1,)](x)

    def launcher(x: Tensor) -> Tensor:
        helper(x)
        return launcher(x) if x.numel() == 0 else x

    assert list(kernels_reached(launcher)) == [inner]
    op = double(namespace)
    op.triton(launcher, name="k")
    assert op.kernels["k"].traceable() is not None


@pytest.mark.triton
def test_an_edited_file_and_another_of_the_same_name_are_imported_anew(tmp_path: Path, namespace: str) -> None:
    backend, op = get_backend("triton"), double(namespace)
    payloads = []
    for folder, value in (("a", 1), ("b", 2)):
        (tmp_path / folder).mkdir()
        file = tmp_path / folder / "k.py"
        file.write_text(f"VALUE = {value}\ndef double(x):\n    return VALUE\n")
        import os

        os.utime(file, (1, 1))
        op.triton(file, name=folder)
        kernel = op.kernels[folder]
        payloads.append(backend.compile(kernel.spec, op.contract, None).payload(None))  # type: ignore[arg-type]
    assert payloads == [1, 2]
