"""What ``opwright show`` prints of a kernel: its source, and what compilers make of it for a named architecture."""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from opwright.backends import get_backend
from opwright.backends.device_code import DeviceCode, EntryPoint
from opwright.backends.reach import values_reached
from opwright.backends.sass import disassemble
from opwright.errors import KernelRefusedError
from opwright.results import Shown
from opwright.runtime.cuda_module import CudaKernel, CudaModule, cuda_module
from opwright.runtime.kernel import Kernel

__all__ = ["VIEWS", "show_cuda_file", "show_kernel"]


def show_kernel(kernel: Kernel, what: str, arch: str) -> list[Shown]:
    """One view of a kernel.

    Args:
        what: a key of ``VIEWS``.
        arch: such as ``sm_90``, for views of compiled code.

    Raises:
        KernelRefusedError: this kernel has no such view, or a tool for it is missing.
    """
    return VIEWS[what](kernel, arch)


def show_cuda_file(file: Path, what: str, arch: str, instances: tuple[str, ...]) -> list[Shown]:
    """A view of the kernels of a ``.cu`` file that belongs to no operator."""
    if what == "source":
        return [Shown(file.name, "cuda", file.read_text())]
    module = cuda_module(file.resolve(), instances=instances)
    code = module.compile(arch)
    if not code.entries:
        raise KernelRefusedError(
            f"{file.name} holds only templates, and none was instantiated",
            fix=f'add --instance "{module.defined[0]}<...>" (repeatable)',
        )
    return [_of_device_code(what, code, entry) for entry in code.entries]


def _source(kernel: Kernel, arch: str) -> list[Shown]:
    backend = get_backend(kernel.backend)
    language = {"cpp": "cpp", "cuda": "cuda", "mojo": "mojo"}.get(kernel.backend, "python")
    made = Shown(f"{kernel.name}: its source", language, backend.generate(kernel.spec, kernel.contract))
    if isinstance(kernel.spec.source, Path):
        written = Shown(kernel.spec.source.name, language, kernel.spec.source.read_text())
        return [written, made] if made.text != written.text else [written]
    modules = {id(k.module.source): k.module.source for k in _cuda_kernels(kernel.spec.source)}
    return [made, *(Shown(m.name, "cuda", m.text) for m in modules.values())]


def _device_view(what: str) -> Callable[[Kernel, str], list[Shown]]:
    def view(kernel: Kernel, arch: str) -> list[Shown]:
        found = list(_cuda_kernels(kernel.spec.source))
        if not found:
            raise KernelRefusedError(
                f"{kernel.contract.qualname}: the {kernel.backend} kernel {kernel.name!r} launches no ow.cuda_module "
                f"kernel, so there is no {what} to show",
                fix="choose a kernel with --kernel, or another --what",
            )
        return [_of_device_code(what, *k.module.entry(arch, k.name)) for k in found]

    return view


def _of_device_code(what: str, code: DeviceCode, entry: EntryPoint) -> Shown:
    title = f"{entry.name}, {code.arch}"
    if what == "sass":
        return Shown(title, "sass", disassemble(code.file, entry.symbol))
    if what == "ptx":
        assert code.ptx is not None  # NVRTC gives both
        return Shown(title, "ptx", _ptx_of(code.ptx.read_text(), entry.symbol))
    return Shown(title, "text", _resources(entry))


def _ptx_of(ptx: str, symbol: str) -> str:
    """One kernel out of a PTX text, with its header."""
    head, *bodies = re.split(r"(?m)^\t// \.(?:globl|weak)\t", ptx)
    own = [b.partition("\n")[2] for b in bodies if b.split(None, 1)[0] == symbol]
    return "".join([head, *own]) if own else ptx


def _resources(entry: EntryPoint) -> str:
    r = entry.resources
    declared = f"{entry.name}({', '.join(p.type_name for p in entry.parameters)})"
    if r is None:
        return declared
    spilled = f"{r.spill_stores} bytes stored, {r.spill_loads} loaded" if r.spill_stores or r.spill_loads else "none"
    return "\n".join(
        [
            declared,
            f"  registers      {r.registers} a thread",
            f"  spills         {spilled}",
            f"  stack          {r.stack} bytes a thread",
            f"  shared memory  {r.static_shared} bytes a block, static",
        ]
    )


def _cuda_kernels(launcher: Any) -> Iterator[CudaKernel]:
    """The CUDA kernels that a launcher holds, and those of a module it holds that it names by a constant."""
    constants = {c for c in _constants(launcher) if isinstance(c, str)}
    for value in values_reached(launcher):
        if isinstance(value, CudaKernel):
            yield value
        elif isinstance(value, CudaModule):
            for name in sorted(constants):
                if name.split("<")[0] in value.defined:
                    yield value[name]


def _constants(function: Any) -> Iterator[Any]:
    waiting = [function.__code__] if isinstance(function, types.FunctionType) else []
    while waiting:
        code = waiting.pop()
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                waiting.append(constant)
            else:
                yield constant


# One line a view; each takes a kernel and an architecture.
VIEWS: dict[str, Callable[[Kernel, str], list[Shown]]] = {
    "source": _source,
    "ptx": _device_view("ptx"),
    "sass": _device_view("sass"),
    "resources": _device_view("resources"),
}
