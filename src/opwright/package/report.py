"""The output of ``opwright package``."""

from __future__ import annotations

import torch

from opwright.package.stable_abi import AbiAudit
from opwright.package.wheel import Audit
from opwright.package.write import Packaged

__all__ = ["show_packaged"]


def show_packaged(made: Packaged) -> None:
    """Print the contents of the package, what was left out and why, and how to install it."""
    print(f"{made.folder}: {', '.join(made.operators)}")
    for kernel in made.shipped:
        where = kernel.record.get("library") or kernel.record.get("module") or "in the module"
        print(f"  {kernel.operator.contract.qualname} {kernel.spec.name} ({', '.join(kernel.spec.devices)}): {where}")
    for qualname, devices in made.tuned_on.items():
        if devices:
            print(f"  {qualname}: with the tuning of {', '.join(devices)}")
        else:
            print(f"  {qualname}: without tuning, as its tables are for other kernels\n    → tune again, with --export")
    for omitted in made.left_out:
        print(f"  left out: {omitted.qualname} {omitted.kernel}: {omitted.why}")
        if omitted.instead:
            print(f"    → {omitted.instead}")
    for kernel in filter(lambda k: k.holds_for_one_torch, made.shipped):
        uses = f"{kernel.operator.contract.qualname} {kernel.spec.name} uses ATen (abi='aten')"
        print(f"  {uses}: this package requires the torch that it was built with, {torch.__version__}")
    if not any(k.library for k in made.shipped):
        print("  no native kernel: the package is Python only, and the reference runs if no kernel is applicable")
    for licence in made.licence_files:
        print(f"  licence: {licence}")
    for folder in made.layout:
        print(f"  for kernels.get_local_kernel: {folder}")
    if made.audited is not None:
        _show_audit(made.audited)
    if made.abi is not None:
        _show_abi(made.abi)
    what = made.wheel or made.folder
    # pip looks for a bare name in its index.
    print(f"pip install {what if len(what.parts) > 1 else f'./{what}'}")


def _show_audit(audit: Audit) -> None:
    if not audit.tool:
        print(f"  not audited: {audit.not_audited}")
        return
    bundled = f"; copied into it: {', '.join(audit.bundled)}" if audit.bundled else ""
    print(f"  audited by {audit.tool}: {audit.tag}, torch's libraries excluded{bundled}")


def _show_abi(audit: AbiAudit) -> None:
    if audit.not_audited:
        print(f"  torch's stable ABI: not audited: {audit.not_audited}")
    if not audit.tool:
        return
    beyond = [f"{name} uses {len(found)} names of one release" for name, found in audit.unstable.items() if found]
    print(f"  torch's stable ABI: {audit.tool}: {'; '.join(beyond) or 'the libraries use nothing else of torch'}")
