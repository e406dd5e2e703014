"""The messages when Inductor generates nothing, and the settings that torch gets for it. Generated code is tested in
tests/runtime/test_inductor_views.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from opwright.backends.inductor import cuda_guard
from opwright.backends.inductor.stages import Compilable, _as_opwright_error, kernels_in
from opwright.backends.inductor.target_gpus import target_gpu
from opwright.errors import KernelRefusedError
from opwright.gallery.add import add

GPU = target_gpu("sm_90")


def test_what_a_torch_does_not_answer_for_is_refused_with_its_version() -> None:
    compilable = Compilable("gallery::add", add.contract, add.contract.function, "torch")
    wrapped = RuntimeError("backend='...' raised:")
    wrapped.__cause__ = AttributeError("no attribute 'L3_cache_size'\nmore")
    output = _as_opwright_error(GPU, compilable, wrapped)
    assert isinstance(output, KernelRefusedError)
    assert output.message == (
        f"gallery::add: Inductor of torch {torch.__version__} generates nothing for sm_90 without such a GPU: "
        "AttributeError: no attribute 'L3_cache_size'"
    )
    assert "without --arch" in str(output)


def test_kernels_are_found_in_what_inductor_writes() -> None:
    gpu = "a_0 = async_compile.triton('a_0', '''\n@triton.jit\ndef a_0(): pass\n''', device_str='cuda')\n"
    cpu = "b_0 = async_compile.cpp_pybinding(['float*'], r'''\nvoid kernel() {}\n''')\n"
    assert [(k.name, k.language, k.text) for k in kernels_in(gpu + cpu)] == [
        ("b_0", "cpp", "void kernel() {}"),
        ("a_0", "python", "@triton.jit\ndef a_0(): pass"),
    ]
    assert [k.name for k in kernels_in("extern_kernels.mm(x, y)")] == ["calls of libraries"]


@pytest.mark.compiler
def test_fake_tensors_on_a_gpu_can_be_indexed_in_any_torch(run_python) -> None:  # type: ignore[no-untyped-def]
    run_python(
        """
        import tempfile
        from pathlib import Path
        import torch
        from torch._subclasses import FakeTensorMode
        from opwright.backends.inductor.cuda_guard import provide_cuda_guard
        from opwright.machine import this_machine

        with tempfile.TemporaryDirectory() as folder:
            provide_cuda_guard(this_machine().cxx, Path(folder))
        with FakeTensorMode():
            assert torch.empty(3, 4, device="cuda")[:, None].shape == (3, 1, 4)
        """
    )


def test_a_torch_without_cuda_needs_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_guard.torch.version, "cuda", None)
    with pytest.raises(KernelRefusedError, match="built without CUDA, and there is no C"):
        cuda_guard.provide_cuda_guard(None, tmp_path)
