"""A device guard for CUDA, for fake CUDA tensors in a torch that was built without CUDA.

Even indexing a fake tensor in Python uses the device guard of its device type, which switches between devices. A torch
for the CPU has none for CUDA; the guard registered here does nothing.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

from opwright.backends.compiler import run_compiler
from opwright.errors import CompileError, KernelRefusedError
from opwright.machine import Compiler

__all__ = ["provide_cuda_guard"]

_SOURCE = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
C10_REGISTER_GUARD_IMPL(CUDA, c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA>);
"""
_FIX = "install a torch that was built for CUDA (pip install torch); it needs no GPU for this"


def provide_cuda_guard(compiler: Compiler | None, folder: Path) -> None:
    """Register a device guard for CUDA if this torch has none. It stays for the process, which must not use a GPU.

    Raises:
        KernelRefusedError: no guard can be registered in this torch.
    """
    version = f"torch {torch.__version__} was built without CUDA"
    if torch.version.cuda is not None:
        return
    if torch.version.hip is not None or compiler is None:
        why = "there is no C++ compiler" if compiler is None else "it is for AMD's GPUs"
        raise KernelRefusedError(f"{version}, and {why}: no code for CUDA can be generated", fix=_FIX)
    source = folder / "cuda_guard.cpp"
    library, torch_folder = folder / "cuda_guard.so", Path(torch.__file__).parent
    source.write_text(_SOURCE)
    flags = ["-O0", "-std=c++20", "-shared", "-fPIC", f"-I{torch_folder / 'include'}"]
    link = [f"-L{torch_folder / 'lib'}", "-lc10"]
    try:
        run_compiler([compiler.path, *flags, str(source), "-o", str(library), *link], "a device guard for CUDA")
        ctypes.CDLL(str(library))
    except (CompileError, OSError) as error:
        raise KernelRefusedError(
            f"{version}, and a device guard for it cannot be registered: {error}", fix=_FIX
        ) from error
