"""Selects the kernels of a package and their form, and the reason for each that is left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opwright.backends import get_backend
from opwright.backends.base import KernelSpec
from opwright.backends.build_tools import BuildTools
from opwright.backends.native.abi import ATEN, abi_of
from opwright.backends.native.aten_headers import includes_python, needs_all_headers
from opwright.backends.native.host_function import Member
from opwright.backends.native.registrations import without_registrations
from opwright.backends.reachable import values_reached
from opwright.errors import KernelRefusedError
from opwright.package.native import NativeBuilds
from opwright.package.sources import UserModules
from opwright.runtime.kernel import Kernel
from opwright.runtime.op import Op

__all__ = ["LeftOut", "ShippedKernel", "ship_kernels"]


@dataclass(frozen=True)
class ShippedKernel:
    """A kernel in the package: its record in the manifest, and its library if it is native."""

    operator: Op
    spec: KernelSpec
    record: dict[str, Any]
    library: Path | None = None

    @property
    def holds_for_one_torch(self) -> bool:
        """Whether its library runs only on the version of torch that it was built with."""
        return self.library is not None and abi_of(self.spec) is ATEN

    @property
    def holds_for_one_python(self) -> bool:
        """Whether its library uses Python's own interface, which no stable ABI covers."""
        source = self.spec.source
        if not self.holds_for_one_torch or not isinstance(source, Path):
            return False
        text = without_registrations(source.read_text(errors="replace"), source)
        return includes_python(text) or needs_all_headers(text)


@dataclass(frozen=True)
class LeftOut:
    """A kernel that is not in the package."""

    qualname: str
    kernel: str
    language: str
    why: str
    instead: str = ""


def ship_kernels(
    operators: Sequence[Op], modules: UserModules, tools: BuildTools, march: str
) -> Iterator[ShippedKernel | LeftOut]:
    """Yield each kernel of the operators, built if it is native."""
    every = [(kernel.spec, operator.contract) for operator in operators for kernel in operator.kernels.values()]
    builds = NativeBuilds(tools, march)
    for operator in operators:
        for kernel in operator.kernels.values():
            yield _ship(operator, kernel, every, modules, builds)


def _ship(
    operator: Op, kernel: Kernel, every: Sequence[Member], modules: UserModules, builds: NativeBuilds
) -> ShippedKernel | LeftOut:
    spec, qualname = kernel.spec, operator.contract.qualname
    record: dict[str, Any] = {"backend": spec.backend, "devices": list(spec.devices)}
    if spec.argument_dtypes:
        why = "takes other dtypes of single arguments, which packages do not have"
        return LeftOut(qualname, spec.name, spec.backend, why, "say it with when=")
    if isinstance(spec.source, Path) and spec.backend in ("cpp", "cuda"):
        try:
            others = [(one, its) for one, its in every if one is not spec and one.is_built_with(spec)]
            built = builds.build(operator.contract, spec, others)
        except KernelRefusedError as error:
            return LeftOut(
                qualname,
                spec.name,
                spec.backend,
                error.message.removeprefix(f"{qualname}:{spec.name}: "),
                error.fix or "",
            )
        native = {"library": f"native/{built.name}", "symbol": built.symbol, "schema": built.schema}
        return ShippedKernel(operator, spec, record | native, built.file)
    if (reasons := get_backend(spec.backend).not_packaged) is not None:
        return LeftOut(qualname, spec.name, spec.backend, *reasons)
    if isinstance(spec.source, Path):
        relative = modules.name_of(spec.source)
        if relative is None:
            return LeftOut(
                qualname,
                spec.name,
                spec.backend,
                f"{spec.source.name} is outside of {modules.folder.name}",
                "move it beside the module",
            )
        module = ".".join(filter(None, (modules.package, modules.base, relative)))
        return ShippedKernel(operator, spec, record | {"module": module, "entry": spec.entry})
    needs = [type(v).__name__ for v in values_reached(spec.source) if _is_of_opwright(v)]
    if needs:
        return LeftOut(
            qualname, spec.name, spec.backend, f"uses opwright's {needs[0]} when it runs", "write it without"
        )
    return ShippedKernel(operator, spec, record)  # the user's module attaches it, also in the package


def _is_of_opwright(value: Any) -> bool:
    module = type(value).__module__
    return module.startswith("opwright.") and not module.startswith("opwright.gallery.") and not isinstance(value, Op)
