"""Makes the record of a kernel that is attached to an operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from opwright.backends import get_backend
from opwright.backends.base import KernelSpec
from opwright.contract.contract import Contract
from opwright.contract.dtypes import TakenDtypes, short
from opwright.errors import KernelError
from opwright.languages import LANGUAGES
from opwright.runtime.languages import REFERENCE, kernel_name

__all__ = ["make_spec"]


def make_spec(
    contract: Contract,
    language: str,
    source: Callable[..., Any] | str | Path,
    options: Mapping[str, Any],
    *,
    name: str | None = None,
    entry: str | None = None,
    devices: Sequence[str] | None = None,
    dtypes: TakenDtypes = None,
    when: Callable[..., bool] | None = None,
) -> KernelSpec:
    """Make one kernel's record from the arguments with which it is attached.

    Args:
        options: the language's own options.

    Raises:
        KernelError: an invalid source or file, with the valid ones.
    """
    _refuse_language(contract, language, source)
    backend, where = get_backend(language), f"{contract.qualname}: op.{language}"
    kind = "callable" if callable(source) else "file"
    if kind not in backend.takes:
        taken = " or a ".join(sorted(backend.takes))
        raise KernelError(f"{where} must be given a {taken}, got a {kind}", fix=f"pass a {taken}")
    if kind == "callable" and entry is not None:
        raise KernelError(
            f"{where}: entry must be left out with a callable, got {entry!r}", fix="leave it out, or pass a file"
        )
    chosen, own_name = kernel_name(language, source, name)
    if chosen == REFERENCE:
        raise KernelError(
            f"{where}: name must differ from the reference's, got {chosen!r}", fix="pass another one with name="
        )
    of_arguments = dtypes if isinstance(dtypes, Mapping) else {}
    of_all = None if isinstance(dtypes, Mapping) else dtypes
    _refuse_places(devices or (), of_all or (), where)
    for argument, listed in of_arguments.items():
        _refuse_argument(contract, argument, listed, where)
    return KernelSpec(
        name=chosen,
        backend=language,
        source=source if callable(source) else _find_file(contract, source, backend.suffixes, where),
        entry=entry or own_name or contract.name,
        devices=tuple(devices or backend.default_devices),
        dtypes=tuple(of_all) if of_all is not None else None,
        argument_dtypes={argument: tuple(listed) for argument, listed in of_arguments.items()},
        when=when,
        options={option: value for option, value in options.items() if value is not None},
    )


def _refuse_places(devices: Sequence[str], dtypes: Sequence[torch.dtype], where: str) -> None:
    """Refuse devices and dtypes that no tensor has: such a kernel would never run, without a word."""
    for device in devices:
        try:
            torch.device(device)
        except (RuntimeError, TypeError):
            raise KernelError(
                f"{where}: devices must be types of torch's devices, got {device!r}",
                fix="write devices=['cpu', 'cuda']",
            ) from None
    for dtype in dtypes:
        if not isinstance(dtype, torch.dtype):
            raise KernelError(
                f"{where}: dtypes must be of type torch.dtype, got {dtype!r}", fix="write dtypes=[torch.float32]"
            )


def _refuse_argument(contract: Contract, name: str, dtypes: Sequence[torch.dtype], where: str) -> None:
    """Refuse dtypes that no call has: of an argument that is no tensor, or that its annotation does not admit."""
    tensors = {a.name: a.tensor for a in contract.signature.arguments if a.tensor}
    if name not in tensors:
        raise KernelError(
            f"{where}: dtypes must be of arguments that are tensors, got {name!r}", fix=f"use {', '.join(tensors)}"
        )
    _refuse_places((), dtypes, where)
    if not dtypes or (others := set(dtypes) - set(tensors[name].dtypes)):
        got = ", ".join(sorted(map(short, others))) if dtypes else "none"
        raise KernelError(
            f"{where}: dtypes of {name!r} must be some of those of {tensors[name]}, got {got}",
            fix=f"use {', '.join(map(short, tensors[name].dtypes))}",
        )


def _find_file(contract: Contract, source: str | Path, suffixes: tuple[str, ...], where: str) -> Path:
    if "\n" in str(source):
        raise KernelError(f"{where} must be given the name of a file, got source text", fix="write it to a file")
    beside = Path(contract.file).parent if contract.file else Path.cwd()
    tried = [beside / source, Path.cwd() / source]
    found = next((p.resolve() for p in tried if p.is_file()), None)
    if found is None:
        raise KernelError(
            f"{where} must be given a file that exists, got {str(source)!r}",
            fix=f"write the file to {beside}, or to {Path.cwd()}",
        )
    if found.suffix not in suffixes:
        raise KernelError(
            f"{where} must be given a {' or '.join(suffixes)} file, got {found.name!r}",
            fix="attach it with the method of its language",
        )
    return found


def _refuse_language(contract: Contract, language: str, source: Any) -> None:
    """Refuse a kernel in a language that cannot write arguments, or whose outputs are allocated before it runs, for an
    operator that needs that."""
    backend, signature = get_backend(language), contract.signature
    mutated, data_dependent = signature.mutated, signature.data_dependent
    if data_dependent and not backend.allocates_itself:
        able = [name for name in LANGUAGES if get_backend(name).allocates_itself]
        raise KernelError(
            f"{contract.qualname}: op.{language} kernels get their outputs allocated, but the size "
            f"{min(data_dependent)!r} is known only when they have run",
            fix=f"write the kernel with {', '.join(able)}",
        )
    if contract.signature.returns_list and not callable(source) and language != "triton":
        raise KernelError(
            f"{contract.qualname}: an op.{language} kernel in a file returns tensors, and this operator a list of them",
            fix="write the kernel as a Python function, or launch it from one",
        )
    if mutated and not backend.mutates:
        able = [name for name in LANGUAGES if get_backend(name).mutates]
        raise KernelError(
            f"{contract.qualname}: op.{language} kernels return their results, but this operator writes its argument "
            f"{contract.signature.arguments[mutated[0]].name!r}",
            fix=f"write the kernel with {', '.join(able)}, or make the operator return the new value",
        )
