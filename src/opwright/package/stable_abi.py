"""Has a package's libraries audited for torch's stable ABI, by torch-abi-audit, which reads their symbols."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opwright.errors import CompileError

__all__ = ["AbiAudit", "audit_abi"]


@dataclass(frozen=True)
class AbiAudit:
    """What the audit found.

    Attributes:
        tool: its name and version; "" if there was no audit, and ``not_audited`` says why.
        unstable: for each library, what it uses of torch that only one release is sure to have.
    """

    tool: str = ""
    unstable: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    not_audited: str = ""

    def to_json(self) -> dict[str, Any]:
        """The record in the wheel's metadata: of each library, how many such names it uses."""
        return {"tool": self.tool, "unstable_symbols": {name: len(found) for name, found in self.unstable.items()}}


def audit_abi(package: Path, *, one_torch: bool) -> AbiAudit:
    """Audit the libraries in a package's folder.

    Args:
        one_torch: the package requires one release of torch, so that its libraries may use ATen.

    Raises:
        CompileError: a library of a package for several releases uses more of torch than the stable ABI, or cannot be
            read.
    """
    if importlib.util.find_spec("torch_abi_audit") is None:
        return AbiAudit(not_audited="torch-abi-audit is not installed (pip install torch-abi-audit)")
    tool = f"torch-abi-audit {importlib.metadata.version('torch-abi-audit')}"
    command = [sys.executable, "-m", "torch_abi_audit.cli", str(package.resolve()), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        log = done.stdout + done.stderr
        raise CompileError(f"{tool} cannot read {package.name}\n{log.strip()[-1500:]}", log=log, fix="report it there")
    unstable = _unstable_symbols(json.loads(done.stdout), package)
    wrong = {name: found for name, found in unstable.items() if found}
    if wrong and not one_torch:
        told = "".join(f"\n  {name}: {', '.join(found[:5])}" for name, found in wrong.items())
        raise CompileError(
            f"{tool}: these libraries use more of torch than its stable ABI, and would need one release of it{told}",
            fix="attach their kernels with abi='aten', or rewrite them (opwright port)",
        )
    return AbiAudit(tool, unstable)


def _unstable_symbols(report: Mapping[str, Any], package: Path) -> dict[str, tuple[str, ...]]:
    libraries = [*report["extensions"], *report["bundled_libs"]]
    return {
        str(Path(each["path"]).relative_to(package.resolve())): tuple(map(str, each["torch"]["unstable_symbols"]))
        for each in libraries
    }
