"""Views of Inductor's code for a NumPy kernel or a reference: for this CPU, a GPU of this machine, or a target GPU."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from opwright.backends.build_tools import build_tools
from opwright.backends.inductor.stages import Generated, compiled, kernels_in
from opwright.backends.inductor.target_gpus import target_gpu
from opwright.backends.triton.stages import CompiledKernel
from opwright.contract.contract import Contract
from opwright.contract.dtypes import short
from opwright.contract.inputs.arguments import arguments_of
from opwright.contract.inputs.case import Size, show_size
from opwright.contract.inputs.text import parse_case
from opwright.errors import CheckError, KernelRefusedError
from opwright.internals.compiler import run_and_get_code
from opwright.results import Shown
from opwright.runtime.inspect.inductor_child import compilable_of, generate_in_child
from opwright.runtime.register import registration

__all__ = ["ViewOptions", "default_arch", "generated", "stages", "typical"]


@dataclass(frozen=True)
class ViewOptions:
    """The GPU architecture of a view ("" for this machine), and whether for dynamic sizes."""

    arch: str = ""
    dynamic: bool = False


def default_arch() -> str:
    gpus = build_tools().machine.gpus
    return gpus[0].arch if gpus else "sm_90"


def generated(contract: Contract, kernel: str, dtypes: Any, options: ViewOptions) -> list[Shown]:
    """The source of each kernel that Inductor generates: C++ for this CPU, or Triton for the architecture."""
    cases = _cases(contract, dtypes, options.dynamic)
    here = not options.arch or options.arch in [g.arch for g in build_tools().machine.gpus]
    kernels = (
        _generate_here(contract, kernel, cases, options.arch) if here else _elsewhere(contract, kernel, cases, options)
    )
    title = f"{options.arch}, {_sizes(contract, cases)}" if options.arch else _sizes(contract, cases)
    return [Shown(f"{k.name}, {title}", k.language, k.text) for k in kernels]


def stages(contract: Contract, kernel: str, dtypes: Any, options: ViewOptions) -> list[CompiledKernel]:
    """Compile each of Inductor's Triton kernels with Triton. No GPU is needed or used."""
    cases = _cases(contract, dtypes, options.dynamic)
    made = [k.made for k in _elsewhere(contract, kernel, cases, options, run_triton=True) if k.made is not None]
    if not made:
        raise KernelRefusedError(
            f"{contract.qualname}:{kernel}: Inductor generates no Triton kernel, only calls of libraries",
            fix="use --what inductor to see them",
        )
    return made


def _elsewhere(
    contract: Contract, kernel: str, cases: tuple[str, ...], options: ViewOptions, *, run_triton: bool = False
) -> tuple[Generated, ...]:
    who, tools = f"{contract.qualname}:{kernel}", build_tools()
    gpu = target_gpu(options.arch)
    if tools.machine.triton is None:
        raise KernelRefusedError(
            f"{who}: Inductor generates Triton for {options.arch}, and Triton is not installed",
            fix="pip install opwright[triton], or leave --arch out (with --what inductor) to see the C++ for this CPU",
        )
    tools.notify(f"generating code of {who} for {options.arch} (torch.compile, in a process of its own)")
    return generate_in_child(_operator(contract), kernel, gpu.arch, cases, run_triton=run_triton)


def _generate_here(contract: Contract, kernel: str, cases: tuple[str, ...], arch: str) -> Sequence[Generated]:
    """Generate code for a device of this machine, and run it."""
    device = "cuda" if arch else "cpu"
    calls = [arguments_of(contract, parse_case(contract, c), device) for c in cases]
    function = compiled(compilable_of(_operator(contract), kernel))
    config: Any = importlib.import_module("torch.compiler.config")

    def call_all() -> None:
        for arguments in calls:
            function(*arguments)

    with config.patch(force_disable_caches=True), torch.no_grad():
        texts = run_and_get_code(call_all)
    if texts is None:
        raise KernelRefusedError(
            f"torch {torch.__version__} does not show what it generates", fix="use TORCH_LOGS=output_code"
        )
    return kernels_in(texts[-1])


def _operator(contract: Contract) -> Any:
    return registration.find(contract.qualname)


def _sizes(contract: Contract, cases: tuple[str, ...]) -> str:
    texts = [
        ", ".join(_show_tensor(a) for a in _on_meta(contract, case) if isinstance(a, torch.Tensor)) for case in cases
    ]
    return " after ".join(f"for {t}" if i == 0 else t for i, t in enumerate(reversed(texts)))


def _show_tensor(tensor: torch.Tensor) -> str:
    return f"{short(tensor.dtype)}{list(tensor.shape)}"


def _on_meta(contract: Contract, case: str) -> tuple[Any, ...]:
    return arguments_of(contract, parse_case(contract, case), "meta")


def typical(contract: Contract, dtypes: Any) -> tuple[Any, ...]:
    """Arguments of the sizes for benchmarks, or of moderate sizes, on ``meta``."""
    return _on_meta(contract, _cases(contract, dtypes, dynamic=False)[-1])


def _cases(contract: Contract, dtypes: Any, dynamic: bool) -> tuple[str, ...]:
    """The case to call; for dynamic sizes, preceded by one of other sizes. As in torch.compile, sizes
    for which ``sizes`` has one value stay constant."""
    declared = contract.own_inputs.sizes
    later = {name: sizes[-1] for name, sizes in declared.items()}
    earlier = {name: sizes[-2] if len(sizes) > 1 else sizes[-1] for name, sizes in declared.items()}
    last = _case(contract, dtypes, later, 1024)
    return (_case(contract, dtypes, earlier, 768), last) if dynamic else (last,)


def _case(contract: Contract, dtypes: Any, sizes: Mapping[str, Size], default: int) -> str:
    """A case of these sizes; of default sizes, if these contradict the contract."""
    dtype = [f"dtype={short(dtypes[0])}"] if dtypes else []
    named = [f"{name}={show_size(sizes.get(name, default))}" for name, _ in parse_case(contract, "").sizes]
    try:
        _on_meta(contract, " ".join(named + dtype))
        return " ".join(named + dtype)
    except CheckError:
        return " ".join(dtype)
