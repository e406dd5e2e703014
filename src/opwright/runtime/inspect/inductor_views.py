"""What Inductor generates of a NumPy kernel or a reference: for this CPU, a GPU of this machine, or a named one."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from opwright.backends.build_tools import build_tools
from opwright.backends.inductor.stages import Generated, compiled, kernels_in
from opwright.backends.inductor.target_gpus import target_gpu
from opwright.backends.triton.stages import CompiledKernel
from opwright.contract.cases import arguments_of, parse_case
from opwright.contract.contract import Contract
from opwright.contract.dtypes import short
from opwright.errors import CheckError, KernelRefusedError
from opwright.internals.compiler import run_and_get_code
from opwright.results import Shown
from opwright.runtime.inspect.inductor_child import ask, compilable_of
from opwright.runtime.register import registration

__all__ = ["Asked", "default_arch", "generated", "stages", "typical"]


@dataclass(frozen=True)
class Asked:
    """For which GPU architecture ("" for what is here), and whether for sizes that have changed since a call before."""

    arch: str = ""
    dynamic: bool = False


def default_arch() -> str:
    gpus = build_tools().machine.gpus
    return gpus[0].arch if gpus else "sm_90"


def generated(contract: Contract, kernel: str, dtypes: Any, asked: Asked) -> list[Shown]:
    """The source of each kernel that Inductor generates: C++ for this CPU, or Triton for the architecture."""
    cases = _cases(contract, dtypes, asked.dynamic)
    here = not asked.arch or asked.arch in [g.arch for g in build_tools().machine.gpus]
    kernels = (
        _generate_here(contract, kernel, cases, asked.arch) if here else _elsewhere(contract, kernel, cases, asked)
    )
    title = f"{asked.arch}, {_sizes(contract, cases)}" if asked.arch else _sizes(contract, cases)
    return [Shown(f"{k.name}, {title}", k.language, k.text) for k in kernels]


def stages(contract: Contract, kernel: str, dtypes: Any, asked: Asked) -> list[CompiledKernel]:
    """What Triton makes of each kernel that Inductor generates. It needs no GPU, and asks none that is here."""
    cases = _cases(contract, dtypes, asked.dynamic)
    made = [k.made for k in _elsewhere(contract, kernel, cases, asked, run_triton=True) if k.made is not None]
    if not made:
        raise KernelRefusedError(
            f"{contract.qualname}:{kernel}: Inductor generates no Triton kernel, only calls of libraries",
            fix="use --what inductor to see them",
        )
    return made


def _elsewhere(
    contract: Contract, kernel: str, cases: tuple[str, ...], asked: Asked, *, run_triton: bool = False
) -> tuple[Generated, ...]:
    who, tools = f"{contract.qualname}:{kernel}", build_tools()
    gpu = target_gpu(asked.arch)
    if tools.machine.triton is None:
        raise KernelRefusedError(
            f"{who}: Inductor generates Triton for {asked.arch}, and Triton is not installed",
            fix="pip install opwright[triton], or leave --arch out (with --what inductor) to see the C++ for this CPU",
        )
    tools.notify(f"generating code of {who} for {asked.arch} (torch.compile, in a process of its own)")
    return ask(_operator(contract), kernel, gpu.arch, cases, run_triton=run_triton)


def _generate_here(contract: Contract, kernel: str, cases: tuple[str, ...], arch: str) -> Sequence[Generated]:
    """Whatever is generated is run as well: on a device that is here, nothing has to be made believe."""
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
    told = [
        ", ".join(_show_tensor(a) for a in _on_meta(contract, case) if isinstance(a, torch.Tensor)) for case in cases
    ]
    return " after ".join(f"for {t}" if i == 0 else t for i, t in enumerate(reversed(told)))


def _show_tensor(tensor: torch.Tensor) -> str:
    return f"{short(tensor.dtype)}{list(tensor.shape)}"


def _on_meta(contract: Contract, case: str) -> tuple[Any, ...]:
    return arguments_of(contract, parse_case(contract, case), "meta")


def typical(contract: Contract, dtypes: Any) -> tuple[Any, ...]:
    """Arguments of the sizes that are timed, or of moderate ones, on ``meta``."""
    return _on_meta(contract, _cases(contract, dtypes, dynamic=False)[-1])


def _cases(contract: Contract, dtypes: Any, dynamic: bool) -> tuple[str, ...]:
    """The case that is called; before it, if sizes are to be symbolic, one of other sizes. As in torch.compile, sizes
    that ``bench_sizes`` gives once stay what they are."""
    declared = _operator(contract).sizes_to_time if _operator(contract) is not None else {}
    later = {name: sizes[-1] for name, sizes in declared.items()}
    earlier = {name: sizes[-2] if len(sizes) > 1 else sizes[-1] for name, sizes in declared.items()}
    last = _case(contract, dtypes, later, 1024)
    return (_case(contract, dtypes, earlier, 768), last) if dynamic else (last,)


def _case(contract: Contract, dtypes: Any, sizes: dict[str, int], default: int) -> str:
    """Of sizes that fit together, if those do not."""
    dtype = [f"dtype={short(dtypes[0])}"] if dtypes else []
    named = [f"{name}={sizes.get(name, default)}" for name, _ in parse_case(contract, "").sizes]
    try:
        _on_meta(contract, " ".join(named + dtype))
        return " ".join(named + dtype)
    except CheckError:
        return " ".join(dtype)
