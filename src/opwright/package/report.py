"""What ``opwright package`` says when it is done."""

from __future__ import annotations

from opwright.package.write import Packaged

__all__ = ["show_packaged"]


def show_packaged(made: Packaged) -> None:
    """Print what is in the package, what is not and why, and how to install it."""
    print(f"{made.folder}: {', '.join(made.operators)}")
    for kernel in made.shipped:
        where = kernel.record.get("library") or kernel.record.get("module") or "in the module"
        print(f"  {kernel.operator.contract.qualname} {kernel.spec.name} ({', '.join(kernel.spec.devices)}): {where}")
    for lost in made.left_out:
        print(f"  left out: {lost.qualname} {lost.kernel}: {lost.why}")
        if lost.instead:
            print(f"    → {lost.instead}")
    if not any(k.library for k in made.shipped):
        print("  no native kernel: the package is Python only, and the reference runs where no kernel does")
    what = made.wheel or made.folder
    # pip takes a bare name for one in its index.
    print(f"pip install {what if len(what.parts) > 1 else f'./{what}'}")
