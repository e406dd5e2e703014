"""Tensors that say they are on a GPU, in a torch that was built without CUDA.

Even a fake tensor's indexing in Python asks for the "device guard" of its kind of device, which switches between
devices. A torch for the CPU has none for CUDA; the one given here switches nothing.
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
    """Nothing to do, in a torch that was built for CUDA. It stays for the process, which must not come to use a GPU.

    Raises:
        KernelRefusedError: this torch cannot have one.
    """
    version = f"torch {torch.__version__} was built without CUDA"
    if torch.version.cuda is not None:
        return
    if torch.version.hip is not None or compiler is None:
        why = "there is no C++ compiler" if compiler is None else "it is for AMD's GPUs"
        raise KernelRefusedError(f"{version}, and {why}: no code for CUDA can be generated", fix=_FIX)
    library, home = folder / "cuda_guard.so", Path(torch.__file__).parent
    (folder / "cuda_guard.cpp").write_text(_SOURCE)
    flags = ["-O0", "-std=c++20", "-shared", "-fPIC", f"-I{home / 'include'}"]
    command = [compiler.path, *flags, str(folder / "cuda_guard.cpp"), "-o", str(library), f"-L{home / 'lib'}", "-lc10"]
    try:
        run_compiler(command, "a device guard for CUDA")
        ctypes.CDLL(str(library))
    except (CompileError, OSError) as error:
        raise KernelRefusedError(f"{version}, and takes no device guard for it: {error}", fix=_FIX) from error
