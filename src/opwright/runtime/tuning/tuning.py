"""The methods of an operator for the tables of ``ow.tune``."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

from opwright.backends.build_tools import build_tools
from opwright.contract.contract import Contract
from opwright.contract.fingerprint import digest
from opwright.results import Crossover
from opwright.runtime.kernel import Kernel
from opwright.runtime.tuning import tuned

__all__ = ["Tuning"]


class Tuning:
    """An operator whose kernels may have been timed by size."""

    contract: Contract
    kernels: Mapping[str, Kernel]
    # The tables of files (``use_tuning``).
    _exported: tuple[tuned.Exported, ...] = ()

    def _changed(self) -> None:
        """What a call runs may be different from now on."""
        vars(self).pop("_tuned", None)
        super()._changed()  # type: ignore[misc]  # of the operator, which this class is mixed into

    @functools.cached_property
    def _tuned(self) -> tuned.Tuned:
        """The results of ``ow.tune`` for these kernels on this machine; read on first use."""
        machine = build_tools().machine
        own = tuned.load(self.contract.qualname, self._kernels_digest, machine)
        return tuned.with_exported(own, self._exported, self._kernels_digest)

    def _kernels_digest(self) -> str:
        return digest(self.contract.fingerprint, *(k.fingerprint for k in self.kernels.values()))

    def apply_tuning(self, tables: Sequence[Crossover]) -> Path:
        """Store tables of the fastest kernels by size. Calls use them from now on, also in later processes.

        Returns:
            The file with the tables, in the cache folder.
        """
        file = tuned.store(self.contract.qualname, self._kernels_digest(), build_tools().machine, tables)
        self._changed()
        return file

    def use_tuning(self, file: str | Path) -> None:
        """Use the tables of a file that ``opwright tune --export`` has written, on the devices that are in it.

        What ``opwright tune`` measures on a machine itself comes first there. Tables of other kernels are not used.

        Args:
            file: relative to the folder of the operator's module.

        Raises:
            CheckError: there is no such file, or it is something else.
        """
        beside = Path(self.contract.file).parent if self.contract.file is not None else Path.cwd()
        found = tuned.read_exported(beside / file)
        self._exported = tuple(one for one in found if one.op == self.contract.qualname)
        self._changed()

    def _shipped_tuning(self) -> tuple[Crossover, ...]:
        """The tables of ``use_tuning``, if they are for these kernels: what a package takes along."""
        return tuple(tuned.with_exported(tuned.Tuned(), self._exported, self._kernels_digest).tables.values())

    def _exported_tuning(self, tables: Sequence[Crossover]) -> tuned.Exported:
        """Tables in the form of such a file."""
        return tuned.Exported(self.contract.qualname, self._kernels_digest(), tuple(tables))

    def clear_tuning(self) -> bool:
        """Remove the stored tables of this operator for all versions of its kernels. Returns whether there were any."""
        found = tuned.clear(self.contract.qualname, build_tools().machine)
        self._changed()
        return found
