"""What ``opwright show`` prints of a kernel: its source, and what compilers make of it for a named architecture."""

from __future__ import annotations

import importlib
import inspect
import re
import tempfile
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from opwright.backends import get_backend, numpy_trace
from opwright.backends.device_code import DeviceCode, EntryPoint, Resources
from opwright.backends.host_asm import disassemble_host
from opwright.backends.reach import values_reached
from opwright.backends.sass import disassemble
from opwright.backends.triton_stages import STAGES, CompiledKernel, compile_launches
from opwright.contract.cases import arguments_of, parse_case
from opwright.contract.contract import Contract
from opwright.contract.numpy_rules import FloatDefault
from opwright.errors import CheckError, KernelRefusedError, TargetError
from opwright.results import Shown
from opwright.runtime import registration
from opwright.runtime.cuda_module import CudaKernel, CudaModule, cuda_module
from opwright.runtime.kernel import Kernel
from opwright.runtime.op import Op
from opwright.runtime.selection import REFERENCE
from opwright.runtime.targets import load_target
from opwright.runtime.tools import build_tools

__all__ = ["VIEWS", "all_of", "show_cuda_file", "show_kernel", "show_reference", "views_of"]


def views_of(
    targets: Sequence[str], what: str, kernels: Sequence[str], arch: str, instances: tuple[str, ...]
) -> Iterator[tuple[str, Shown]]:
    """The views of every kernel that is asked for, each with what it is of: ``ns::op:kernel``, or a ``.cu`` file.

    Raises:
        TargetError: there is no such file, operator or kernel.
        KernelRefusedError: what is asked for by name has no such view, or nothing has.
    """
    for target in targets:
        if not target.endswith(".cu"):
            for operator in load_target(target):
                yield from _views_of_operator(operator, what, kernels, arch)
        elif Path(target).is_file():
            yield from ((target, shown) for shown in show_cuda_file(Path(target), what, arch, instances))
        else:
            raise TargetError(f"there is no file {target!r}", fix="name a .cu or .py file, or a module")


def _views_of_operator(operator: Op, what: str, kernels: Sequence[str], arch: str) -> Iterator[tuple[str, Shown]]:
    """Without a choice of kernels, those that have no such view are passed over, as long as one has."""
    qualname = operator.contract.qualname
    if unknown := [k for k in kernels if k not in (*operator.kernels, REFERENCE)]:
        raise TargetError(f"{qualname} has no kernel {unknown[0]!r}", fix=f"it has {[*operator.kernels, REFERENCE]}")
    refused: list[KernelRefusedError] = []
    for name, kernel in operator.kernels.items():
        if kernels and name not in kernels:
            continue
        try:
            yield from ((f"{qualname}:{name}", shown) for shown in show_kernel(kernel, what, arch))
        except KernelRefusedError as error:
            refused.append(error)
    if REFERENCE in kernels or (what == "inductor" and not kernels):
        of_meaning = show_reference(operator.contract, what, arch)
        yield from ((f"{qualname}:{REFERENCE}", shown) for shown in of_meaning)
    elif refused and (kernels or len(refused) == len(operator.kernels)):
        raise refused[0]


def all_of(views: Sequence[tuple[str, Shown]], kernel: str) -> tuple[str, str]:
    """All that there is to show of one kernel, as one text, with what it is of."""
    own = [(of, shown) for of, shown in views if of.rpartition(":")[2] == kernel]
    if not own:
        raise TargetError(f"there is nothing to show of {kernel!r}", fix="--diff takes two kernels of one operator")
    return own[0][0], "\n".join(shown.text.rstrip() for _, shown in own)


def show_kernel(kernel: Kernel, what: str, arch: str) -> list[Shown]:
    """One view of a kernel.

    Args:
        what: a key of ``VIEWS``.
        arch: such as ``sm_90``, for views of compiled code; "" for this machine's.

    Raises:
        KernelRefusedError: this kernel has no such view, or a tool for it is missing.
    """
    return VIEWS[what](kernel, arch)


def show_reference(contract: Contract, what: str, arch: str) -> list[Shown]:
    """One view of an operator's meaning: its source, or what Inductor makes of it.

    Raises:
        KernelRefusedError: a meaning has no such view.
    """
    if what == "source":
        return [Shown("the meaning", "python", inspect.getsource(contract.function))]
    if what != "inductor":
        raise KernelRefusedError(f"{contract.qualname}: there is no {what} of a meaning", fix="use --what inductor")
    return _generated(contract, contract.function, contract.signature.language, arch, None)


def show_cuda_file(file: Path, what: str, arch: str, instances: tuple[str, ...]) -> list[Shown]:
    """A view of the kernels of a ``.cu`` file that belongs to no operator."""
    if what == "source":
        return [Shown(file.name, "cuda", file.read_text())]
    module = cuda_module(file.resolve(), instances=instances)
    code = module.compile(arch or _default_arch())
    if not code.entries:
        raise KernelRefusedError(
            f"{file.name} holds only templates, and none was instantiated",
            fix=f'add --instance "{module.defined[0]}<...>" (repeatable)',
        )
    return [_of_device_code(what, code, entry) for entry in code.entries]


def _source(kernel: Kernel, arch: str) -> list[Shown]:
    backend = get_backend(kernel.backend)
    language = {"cpp": "cpp", "cuda": "cuda", "mojo": "mojo", "max": "mojo"}.get(kernel.backend, "python")
    made = Shown(f"{kernel.name}: its source", language, backend.generate(kernel.spec, kernel.contract))
    if isinstance(kernel.spec.source, Path):
        written = Shown(kernel.spec.source.name, language, kernel.spec.source.read_text())
        return [written, made] if made.text != written.text else [written]
    modules = {id(k.module.source): k.module.source for k in _cuda_kernels(kernel.spec.source)}
    return [made, *(Shown(m.name, "cuda", m.text) for m in modules.values())]


def _inductor(kernel: Kernel, arch: str) -> list[Shown]:
    if kernel.backend != "numpy":
        raise KernelRefusedError(
            f"{kernel.contract.qualname}: the {kernel.backend} kernel {kernel.name!r} is not compiled by Inductor",
            fix="choose a NumPy kernel, or the meaning with --kernel reference",
        )
    default = kernel.spec.options.get("float_default", "float64")
    return _generated(kernel.contract, kernel.spec.source, "numpy", arch, kernel.spec.dtypes, default)


def _generated(
    contract: Contract, function: Any, language: str, arch: str, dtypes: Any, float_default: FloatDefault = "float64"
) -> list[Shown]:
    """C++ for this machine's CPU, or Triton for its GPU, if that is the ``arch`` that was asked for."""
    if arch and arch not in [g.arch for g in build_tools().machine.gpus]:
        raise KernelRefusedError(
            f"Inductor generates code for a GPU that it can ask, and there is no {arch} here",
            fix="leave --arch out to see the C++ for this CPU, or use a machine with that GPU",
        )
    from torch._inductor.utils import run_and_get_code

    arguments = _typical(contract, dtypes, "cuda" if arch else "cpu")

    def compile_(f: Callable[..., Any]) -> Callable[..., Any]:
        if language == "torch":
            return torch.compile(f, fullgraph=True)
        return numpy_trace.compile_whole(f, float_default=float_default)

    def run(*values: Any) -> Any:
        split = len(contract.signature.positional)
        named = [a.name for a in contract.signature.keyword_only]
        return function(*values[:split], **dict(zip(named, values[split:], strict=True)))

    compiled = numpy_trace.on_tensors(run, contract.name, compile_) if language == "numpy" else compile_(run)
    config: Any = importlib.import_module("torch.compiler.config")

    with config.patch(force_disable_caches=True), torch.no_grad():
        _, texts = run_and_get_code(compiled, *arguments)
    what = ", ".join(_show_tensor(a) for a in arguments if isinstance(a, torch.Tensor))
    return [Shown(f"{name}, for {what}", kind, text) for t in texts for name, kind, text in _kernels_in(t)]


def _show_tensor(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype}{list(tensor.shape)}".removeprefix("torch.")


def _kernels_in(text: str) -> list[tuple[str, str, str]]:
    """The kernels in what Inductor wrote, or all of it where it only calls libraries."""
    cpp = re.findall(r"(?ms)^(\w+) = async_compile\.cpp_pybinding\(.*?r?'''(.*?)'''\)", text)
    gpu = re.findall(r"(?ms)^(\w+) = async_compile\.triton\('\w+', '''(.*?)'''", text)
    found = [(n, "cpp", t.strip("\n")) for n, t in cpp] + [(n, "python", t.strip("\n")) for n, t in gpu]
    return found or [("calls of libraries", "python", text)]


def _typical(contract: Contract, dtypes: Any, device: str) -> tuple[Any, ...]:
    """Arguments of the sizes that are timed, or of moderate ones; of sizes that fit together, if those do not."""
    operator: Any = registration.find(contract.qualname)
    declared = {n: s[-1] for n, s in getattr(operator, "declared_sizes", {}).items()}
    dtype = [f"dtype={dtypes[0]}".replace("torch.", "")] if dtypes else []
    large = [f"{name}={declared.get(name, 1024)}" for name, _ in parse_case(contract, "").sizes]
    try:
        return arguments_of(contract, parse_case(contract, " ".join(large + dtype)), device)
    except CheckError:
        return arguments_of(contract, parse_case(contract, " ".join(dtype)), device)


def _triton_source(kernel: Kernel, arch: str) -> list[Shown]:
    """A Triton kernel's own source; of a NumPy kernel, the Triton that Inductor generates for this machine's GPU."""
    if kernel.backend == "triton":
        return _source(kernel, arch)
    return _inductor(kernel, arch or _default_arch())


def _triton_view(what: str) -> Callable[[Kernel, str], list[Shown]]:
    def view(kernel: Kernel, arch: str) -> list[Shown]:
        if kernel.backend != "triton":
            raise KernelRefusedError(
                f"{kernel.contract.qualname}: the {kernel.backend} kernel {kernel.name!r} is not Triton, "
                f"so there is no {what} to show",
                fix="choose a kernel with --kernel, or another --what",
            )
        launcher = get_backend("triton").compile(kernel.spec, kernel.contract, build_tools()).payload
        arguments = _typical(kernel.contract, kernel.spec.dtypes, "meta")
        chosen = arch or _default_arch()
        return [_of_triton(what, m, chosen) for m in compile_launches(launcher, kernel.contract, arguments, chosen)]

    return view


def _of_triton(what: str, made: CompiledKernel, arch: str) -> Shown:
    title = f"{made.name}({made.called}), {arch}"
    if what in STAGES:
        return Shown(title, {"ptx": "ptx", "llir": "llvm"}.get(what, "text"), made.stages[what])
    with tempfile.TemporaryDirectory() as folder:
        if what == "resources":
            return Shown(title, "text", _resources_text(made.name, made.resources(arch, Path(folder))))
        cubin = Path(folder) / f"{made.name}.cubin"
        cubin.write_bytes(made.cubin)
        return Shown(title, "sass", disassemble(cubin, made.name))


def _asm(kernel: Kernel, arch: str) -> list[Shown]:
    if kernel.backend != "cpp":
        raise KernelRefusedError(
            f"{kernel.contract.qualname}: the {kernel.backend} kernel {kernel.name!r} is not compiled for the CPU",
            fix="choose a C++ kernel with --kernel, or another --what",
        )
    artifact = get_backend("cpp").compile(kernel.spec, kernel.contract, build_tools())
    assert artifact.file is not None  # compile always makes one
    source = Path(str(kernel.spec.source)).read_text()
    return [Shown(f"{kernel.name}, {build_tools().machine.cpu}", "asm", disassemble_host(artifact.file, source))]


def _device_view(what: str) -> Callable[[Kernel, str], list[Shown]]:
    of_triton = _triton_view(what)

    def view(kernel: Kernel, arch: str) -> list[Shown]:
        if kernel.backend == "triton":
            return of_triton(kernel, arch)
        arch = arch or _default_arch()
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
    declared = f"{entry.name}({', '.join(p.type_name for p in entry.parameters)})"
    return Shown(title, "text", _resources_text(declared, entry.resources))


def _ptx_of(ptx: str, symbol: str) -> str:
    """One kernel out of a PTX text, with its header."""
    head, *bodies = re.split(r"(?m)^\t// \.(?:globl|weak)\t", ptx)
    own = [b.partition("\n")[2] for b in bodies if b.split(None, 1)[0] == symbol]
    return "".join([head, *own]) if own else ptx


def _default_arch() -> str:
    gpus = build_tools().machine.gpus
    return gpus[0].arch if gpus else "sm_90"


def _resources_text(declared: str, r: Resources | None) -> str:
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
