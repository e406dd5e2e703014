"""The views of ``opwright show``: a kernel's source, and its compiled code for a target architecture."""

from __future__ import annotations

import inspect
import re
import tempfile
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from opwright.backends import get_backend
from opwright.backends.build_tools import build_tools
from opwright.backends.cuda.launches import kernels_launched
from opwright.backends.cuda.module import CudaKernel, CudaModule, cuda_module
from opwright.backends.gpu.device_code import DeviceCode, EntryPoint, Resources
from opwright.backends.gpu.sass import disassemble
from opwright.backends.native.disassembly import disassemble_host
from opwright.backends.reachable import values_reached
from opwright.backends.triton.stages import STAGES, CompiledKernel, compile_launches
from opwright.contract.contract import Contract
from opwright.errors import KernelRefusedError, TargetError
from opwright.languages import LANGUAGES
from opwright.results import Shown
from opwright.runtime.inspect.inductor_views import ViewOptions, default_arch, generated, stages, typical
from opwright.runtime.kernel import Kernel
from opwright.runtime.languages import REFERENCE
from opwright.runtime.op import Op
from opwright.runtime.targets import load_target

# The views of the Triton code that Inductor generates.
_GENERATED_VIEWS = ("triton", *STAGES, "sass", "resources")

__all__ = ["VIEWS", "all_of", "refuse_unknown", "show_cuda_file", "show_kernel", "show_reference", "views_of"]


def views_of(
    targets: Sequence[str],
    what: str,
    kernels: Sequence[str],
    arch: str,
    instances: tuple[str, ...],
    dynamic: bool = False,
) -> Iterator[tuple[str, Shown]]:
    """The views of every selected kernel, each with its name: ``ns::op:kernel``, or a ``.cu`` file.

    Raises:
        TargetError: there is no such file, operator or kernel.
        CompileError: torch.compile cannot trace the function.
        KernelRefusedError: a kernel that is selected by name has no such view, or no kernel has.
    """
    for target in targets:
        if not target.endswith(".cu"):
            for operator in load_target(target):
                yield from _views_of_operator(operator, what, kernels, ViewOptions(arch, dynamic))
        elif Path(target).is_file():
            yield from ((target, shown) for shown in show_cuda_file(Path(target), what, arch, instances))
        else:
            raise TargetError(
                f"a target must be a file that exists, or a module, got {target!r}", fix="name a .cu or .py file"
            )


def refuse_unknown(operator: Op, kernels: Sequence[str]) -> None:
    """Raise TargetError for the first name of a kernel that the operator does not have."""
    if unknown := [k for k in kernels if k not in (*operator.kernels, REFERENCE)]:
        known = [*operator.kernels, REFERENCE]
        raise TargetError(
            f"{operator.contract.qualname}: the kernel must be one of {known}, got {unknown[0]!r}",
            fix="name one of them, or attach it",
        )


def _views_of_operator(
    operator: Op, what: str, kernels: Sequence[str], options: ViewOptions
) -> Iterator[tuple[str, Shown]]:
    """Without a selection, kernels without such a view are skipped, if at least one has it."""
    qualname = operator.contract.qualname
    refuse_unknown(operator, kernels)
    refused: list[KernelRefusedError] = []
    for name, kernel in operator.kernels.items():
        if kernels and name not in kernels:
            continue
        try:
            yield from ((f"{qualname}:{name}", shown) for shown in VIEWS[what](kernel, options))
        except KernelRefusedError as error:
            refused.append(error)
    shows_reference = what == "inductor" or (what in _GENERATED_VIEWS and not operator.kernels)
    if REFERENCE in kernels or (shows_reference and not kernels):
        reference_views = show_reference(operator.contract, what, options.arch, options.dynamic)
        yield from ((f"{qualname}:{REFERENCE}", shown) for shown in reference_views)
    elif refused and (kernels or len(refused) == len(operator.kernels)):
        raise refused[0]


def all_of(views: Sequence[tuple[str, Shown]], kernel: str) -> tuple[str, str]:
    """All views of one kernel as one text, with the kernel's name."""
    own = [(of, shown) for of, shown in views if of.rpartition(":")[2] == kernel]
    if not own:
        raise TargetError(f"there is nothing to show of {kernel!r}", fix="--diff takes two kernels of one operator")
    return own[0][0], "\n".join(shown.text.rstrip() for _, shown in own)


def show_kernel(kernel: Kernel, what: str, arch: str, dynamic: bool = False) -> list[Shown]:
    """One view of a kernel.

    Args:
        what: a key of ``VIEWS``.
        arch: such as ``sm_90``, for views of compiled code; "" for this machine's.
        dynamic: show Inductor's code for dynamic sizes.

    Raises:
        CompileError: torch.compile cannot trace a NumPy kernel.
        KernelRefusedError: this kernel has no such view, or a tool for it is missing.
    """
    return VIEWS[what](kernel, ViewOptions(arch, dynamic))


def show_reference(contract: Contract, what: str, arch: str, dynamic: bool = False) -> list[Shown]:
    """One view of an operator's reference: its source, or Inductor's code for it.

    Raises:
        CompileError: torch.compile cannot trace it.
        KernelRefusedError: a reference has no such view.
    """
    options = ViewOptions(arch, dynamic)
    if what == "source":
        return [Shown("the reference", "python", inspect.getsource(contract.function))]
    if what == "inductor":
        return generated(contract, REFERENCE, None, options)
    if what == "triton":
        return generated(contract, REFERENCE, None, _for_a_gpu(options))
    if what not in _GENERATED_VIEWS:
        raise KernelRefusedError(f"{contract.qualname}: there is no {what} of a reference", fix="use --what inductor")
    options = _for_a_gpu(options)
    return [_of_triton(what, made, options.arch) for made in stages(contract, REFERENCE, None, options)]


def show_cuda_file(file: Path, what: str, arch: str, instances: tuple[str, ...]) -> list[Shown]:
    """A view of the kernels of a ``.cu`` file that belongs to no operator."""
    if what == "source":
        return [Shown(file.name, "cuda", file.read_text())]
    module = cuda_module(file.resolve(), instances=instances)
    code = module.compile(arch or default_arch())
    if not code.entries:
        raise KernelRefusedError(
            f"{file.name} has only templates, and none was instantiated",
            fix=f'add --instance "{module.defined[0]}<...>" (repeatable)',
        )
    return [_of_device_code(what, code, entry) for entry in code.entries]


def _source(kernel: Kernel, options: ViewOptions) -> list[Shown]:
    backend = get_backend(kernel.backend)
    language = LANGUAGES[kernel.backend].syntax
    made = Shown(f"{kernel.name}: its source", language, backend.generate(kernel.spec, kernel.contract))
    if isinstance(kernel.spec.source, Path):
        written = Shown(kernel.spec.source.name, language, kernel.spec.source.read_text())
        return [written, made] if made.text != written.text else [written]
    modules = {id(k.module.source): k.module.source for k in _cuda_kernels(kernel.spec.source)}
    return [made, *(Shown(m.name, "cuda", m.text) for m in modules.values())]


def _inductor(kernel: Kernel, options: ViewOptions) -> list[Shown]:
    if kernel.backend != "numpy":
        raise KernelRefusedError(
            f"{kernel.contract.qualname}: the {kernel.backend} kernel {kernel.name!r} is not compiled by Inductor",
            fix="choose a NumPy kernel, or the reference with --kernel reference",
        )
    return generated(kernel.contract, kernel.name, kernel.spec.dtypes, options)


def _triton_source(kernel: Kernel, options: ViewOptions) -> list[Shown]:
    """A Triton kernel's own source, or Inductor's Triton code for a NumPy kernel."""
    return _source(kernel, options) if kernel.backend == "triton" else _inductor(kernel, _for_a_gpu(options))


def _triton_view(what: str) -> Callable[[Kernel, ViewOptions], list[Shown]]:
    def view(kernel: Kernel, options: ViewOptions) -> list[Shown]:
        options = _for_a_gpu(options)
        if kernel.backend == "numpy":
            made = stages(kernel.contract, kernel.name, kernel.spec.dtypes, options)
        elif kernel.backend == "triton":
            launcher = get_backend("triton").compile(kernel.spec, kernel.contract, build_tools()).payload
            made = compile_launches(
                launcher, kernel.contract, typical(kernel.contract, kernel.spec.dtypes), options.arch
            )
        else:
            raise KernelRefusedError(
                f"{kernel.contract.qualname}: the {kernel.backend} kernel {kernel.name!r} is not Triton, "
                f"so there is no {what} to show",
                fix="choose a kernel with --kernel, or another --what",
            )
        return [_of_triton(what, m, options.arch) for m in made]

    return view


def _for_a_gpu(options: ViewOptions) -> ViewOptions:
    return options if options.arch else replace(options, arch=default_arch())


def _of_triton(what: str, made: CompiledKernel, arch: str) -> Shown:
    title = f"{made.name}({made.called}), {arch}"
    if what in STAGES:
        if what not in made.stages:
            raise KernelRefusedError(
                f"{made.name}: Triton compiles Gluon kernels without the stage {what}", fix="use another --what"
            )
        return Shown(title, {"ptx": "ptx", "llir": "llvm"}.get(what, "text"), made.stages[what])
    with tempfile.TemporaryDirectory() as folder:
        if what == "resources":
            return Shown(title, "text", _resources_text(made.name, made.resources(arch, Path(folder))))
        cubin = Path(folder) / f"{made.name}.cubin"
        cubin.write_bytes(made.cubin)
        return Shown(title, "sass", disassemble(cubin, made.name))


def _asm(kernel: Kernel, options: ViewOptions) -> list[Shown]:
    if kernel.backend != "cpp":
        raise KernelRefusedError(
            f"{kernel.contract.qualname}: the {kernel.backend} kernel {kernel.name!r} is not compiled for the CPU",
            fix="choose a C++ kernel with --kernel, or another --what",
        )
    artifact = get_backend("cpp").compile(kernel.spec, kernel.contract, build_tools())
    assert artifact.file is not None  # compile always makes one
    source = Path(str(kernel.spec.source)).read_text()
    return [Shown(f"{kernel.name}, {build_tools().machine.cpu}", "asm", disassemble_host(artifact.file, source))]


def _device_view(what: str) -> Callable[[Kernel, ViewOptions], list[Shown]]:
    of_triton = _triton_view(what)

    def view(kernel: Kernel, options: ViewOptions) -> list[Shown]:
        if kernel.backend in ("triton", "numpy"):
            return of_triton(kernel, options)
        arch = options.arch or default_arch()
        found = _launched_or_named(kernel)
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
    declared = f"{entry.name}({', '.join(p.type_name for p in entry.parameters)})"
    return Shown(title, "text", _resources_text(declared, entry.resources))


def _ptx_of(ptx: str, symbol: str) -> str:
    """One kernel out of a PTX text, with its header."""
    head, *bodies = re.split(r"(?m)^\t// \.(?:globl|weak)\t", ptx)
    own = [b.partition("\n")[2] for b in bodies if b.split(None, 1)[0] == symbol]
    return "".join([head, *own]) if own else ptx


def _resources_text(declared: str, r: Resources | None) -> str:
    if r is None:
        return declared
    spilled = f"{r.spill_stores} bytes stored, {r.spill_loads} loaded" if r.spill_stores or r.spill_loads else "none"
    shared = f"{r.static_shared} bytes per block, static"
    if r.dynamic_shared is not None:
        shared = f"{r.static_shared + r.dynamic_shared} bytes per block, {r.dynamic_shared} of them dynamic"
    return "\n".join(
        [
            declared,
            f"  registers      {r.registers} per thread",
            f"  spills         {spilled}",
            f"  stack          {r.stack} bytes per thread",
            f"  shared memory  {shared}",
        ]
    )


def _launched_or_named(kernel: Kernel) -> list[CudaKernel]:
    """The CUDA kernels that a launcher launches for each of its dtypes, and others that it names."""
    found: list[CudaKernel] = []
    if isinstance(kernel.spec.source, types.FunctionType) and kernel.backend == "cuda":
        for dtype in kernel.spec.dtypes or [None]:
            arguments = typical(kernel.contract, [dtype] if dtype else None)
            found += kernels_launched(kernel.spec.source, kernel.contract, arguments)
    found += _cuda_kernels(kernel.spec.source)
    return list({(id(k.module), k.name): k for k in found}.values())


def _cuda_kernels(launcher: Any) -> Iterator[CudaKernel]:
    """The CUDA kernels that a launcher uses, and those that it takes from a module by a constant name."""
    constants = {c for c in _constants(launcher) if isinstance(c, str)}
    for value in values_reached(launcher):
        if isinstance(value, CudaKernel):
            yield value
        elif isinstance(value, CudaModule):
            for name in sorted(constants):
                if name.split("<")[0] in value.defined and _is_whole(name, value):
                    yield value[name]


def _is_whole(name: str, module: CudaModule) -> bool:
    """Whether a constant names a kernel, and is no part of a name that is composed, such as ``add<``."""
    return name.endswith(">") if "<" in name else not module.source.defining(name).is_template(name)


def _constants(function: Any) -> Iterator[Any]:
    waiting = [function.__code__] if isinstance(function, types.FunctionType) else []
    while waiting:
        code = waiting.pop()
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                waiting.append(constant)
            else:
                yield constant


# One line per view; each takes a kernel and the options.
VIEWS: dict[str, Callable[[Kernel, ViewOptions], list[Shown]]] = {
    "source": _source,
    "inductor": _inductor,
    "triton": _triton_source,
    "ttir": _triton_view("ttir"),
    "ttgir": _triton_view("ttgir"),
    "llir": _triton_view("llir"),
    "asm": _asm,
    "ptx": _device_view("ptx"),
    "sass": _device_view("sass"),
    "resources": _device_view("resources"),
}
