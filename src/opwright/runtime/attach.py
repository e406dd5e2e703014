"""From ``op.triton(...)`` and its like to a kernel's record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from opwright.backends import get_backend
from opwright.backends.base import KernelSpec
from opwright.contract.contract import Contract
from opwright.errors import KernelError
from opwright.runtime.given import kernel_name
from opwright.runtime.selection import REFERENCE

__all__ = ["Attach", "make_spec"]


class Attach(Protocol):
    """``op.triton``, ``op.cpp`` …: attaches one kernel; a decorator unless it is given the source."""

    def __call__(
        self,
        source: Callable[..., Any] | str | Path | None = None,
        /,
        *,
        name: str | None = None,
        entry: str | None = None,
        devices: Sequence[str] | None = None,
        dtypes: Sequence[torch.dtype] | None = None,
        when: Callable[..., bool] | None = None,
        **options: Any,
    ) -> Any: ...


def make_spec(
    contract: Contract,
    backend_name: str,
    source: Callable[..., Any] | str | Path,
    name: str | None,
    entry: str | None,
    devices: Sequence[str] | None,
    dtypes: Sequence[torch.dtype] | None,
    when: Callable[..., bool] | None,
    options: dict[str, Any],
) -> KernelSpec:
    """One kernel's record from what its author wrote.

    Raises:
        KernelError: an option, a source or a file that makes no sense, with what there is instead.
    """
    backend, where = get_backend(backend_name), f"{contract.qualname}: op.{backend_name}"
    if unknown := set(options) - backend.options:
        raise KernelError(
            f"{where} has no option {sorted(unknown)[0]!r}",
            fix=f"it takes name, entry, devices, dtypes, when{''.join(f', {o}' for o in sorted(backend.options))}",
        )
    kind = "callable" if callable(source) else "file"
    if kind not in backend.takes:
        raise KernelError(f"{where} was given a {kind}", fix=f"give it a {' or a '.join(sorted(backend.takes))}")
    chosen, own_name = kernel_name(backend_name, source, name)
    if chosen == REFERENCE:
        raise KernelError(f"{where}: {chosen!r} is what the meaning itself is called", fix="choose another name")
    return KernelSpec(
        name=chosen,
        backend=backend_name,
        source=source if callable(source) else _find_file(contract, source, backend.suffixes, where),
        entry=entry or own_name or contract.name,
        devices=tuple(devices or backend.default_devices),
        dtypes=tuple(dtypes) if dtypes is not None else None,
        when=when,
        options=options,
    )


def _find_file(contract: Contract, source: str | Path, suffixes: tuple[str, ...], where: str) -> Path:
    beside = Path(contract.file).parent if contract.file else Path.cwd()
    tried = [beside / source, Path.cwd() / source]
    found = next((p.resolve() for p in tried if p.is_file()), None)
    if found is None:
        raise KernelError(f"{where}: there is no file {str(source)!r}", fix=f"looked in {beside} and {Path.cwd()}")
    if found.suffix not in suffixes:
        raise KernelError(
            f"{where} takes {' or '.join(suffixes)} files, not {found.name!r}", fix="use its own language"
        )
    return found
