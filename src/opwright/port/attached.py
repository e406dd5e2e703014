"""The kernels to compare: those of a target's operators that are in the original source, and the new ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opwright.errors import TargetError
from opwright.runtime.kernel import Kernel
from opwright.runtime.op import Op
from opwright.runtime.targets import load_target

__all__ = ["Pair", "attached"]


@dataclass(frozen=True)
class Pair:
    """Two kernels of one operator, by name."""

    operator: Op
    original: str
    ported: str


def attached(
    target: str, source: Path, made: Path, forms: Mapping[str, str], entry: str | None, include: Sequence[Path]
) -> list[Pair]:
    """Attach the new file wherever the original is attached.

    Args:
        forms: the functions that have a form for torch's stable ABI, with its name.
        entry: the function to attach to the target's only operator, if the original is not attached.

    Raises:
        TargetError: no operator of the target has a kernel in the source.
    """
    operators = load_target(target)
    if entry is not None:
        if len(operators) != 1:
            raise TargetError(f"{target} has {len(operators)} operators, and --entry names one", fix="write :operator")
        _attach(operators[0], source, entry, "original", {"abi": "aten"}, include)
    pairs = []
    for operator in operators:
        for name, kernel in list(operator.kernels.items()):
            if kernel.spec.source != source:
                continue
            spec = kernel.spec
            function = spec.entry.partition("<")[0].rpartition("::")[2]
            options = {k: v for k, v in spec.options.items() if k != "abi"}
            ported = _attach(
                operator, made, forms.get(function, spec.entry), f"{name}_stable", options, include, like=kernel
            )
            pairs.append(Pair(operator, name, ported))
    if not pairs:
        raise TargetError(
            f"no operator of {target} has a kernel in {source.name}",
            fix=f"attach it, as in op.cpp({source.name!r}, abi='aten'), or name its function with --entry",
        )
    return pairs


def _attach(
    operator: Op, file: Path, entry: str, name: str, options: Mapping[str, Any], include: Sequence[Path],
    like: Kernel | None = None,
) -> str:  # fmt: skip
    attach: Any = operator.cuda if file.suffix == ".cu" else operator.cpp
    flags = [*options.get("options", ()), *(f"-I{folder.resolve()}" for folder in include)]
    chosen = {**options, "options": list(dict.fromkeys(flags))} if flags else dict(options)
    if like is not None:
        chosen |= {"devices": like.spec.devices, "dtypes": like.spec.taken_dtypes, "when": like.spec.when}
    attach(file, name=name, entry=entry, **chosen)
    return name
