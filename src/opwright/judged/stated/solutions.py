"""Folders of sources as functions of an operator's arguments: the file of such a candidate has a ``Solution``."""

from __future__ import annotations

import functools
import importlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from opwright import tree
from opwright.contract.shapes.dims import evaluate
from opwright.errors import KernelError

__all__ = ["Solution", "in_order"]

_COMPILED = (".cu", ".cpp", ".cc", ".cxx", ".c")


@dataclass
class Solution:
    """A function in a folder of sources: Python, or C++ and CUDA that torch compiles.

    Args:
        folder, entry: the folder, and ``file::function``.
        inputs: the dims of each argument, as text; None for a number.
        outputs: by name, the dtype and the dims.
        writes_outputs: the function takes the outputs after the inputs, and writes them.
        flags: options for the compiler of CUDA.
    """

    folder: str
    entry: str
    inputs: Sequence[str | None]
    outputs: Mapping[str, tuple[str, str]]
    writes_outputs: bool = False
    flags: Sequence[str] = ()

    def __call__(self, *arguments: Any) -> Any:
        if not self.writes_outputs:
            return in_order(self._function(*arguments), list(self.outputs))
        outputs = self._allocated(arguments)
        self._function(*arguments, *outputs)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    @functools.cached_property
    def _function(self) -> Callable[..., Any]:
        file, _, symbol = self.entry.partition("::")
        module = self._imported(file) if file.endswith(".py") else self._compiled()
        if not hasattr(module, symbol):
            raise KernelError(f"{file} must define {symbol!r}", fix="correct entry_point")
        function: Callable[..., Any] = getattr(module, symbol)
        return function

    def _imported(self, file: str) -> Any:
        """The module of a Python file, which finds the other files with relative imports and with absolute ones."""
        folder, before = Path(self.folder), list(sys.path)
        sys.path[:0] = [str(folder.parent), self.folder]
        try:
            return importlib.import_module(".".join((folder.name, *Path(file).with_suffix("").parts)))
        finally:
            sys.path[:] = before

    def _compiled(self) -> Any:
        from torch.utils import cpp_extension  # it warns without a GPU

        sources = [str(f) for f in sorted(Path(self.folder).rglob("*")) if f.suffix in _COMPILED]
        return cpp_extension.load(
            name=re.sub(r"\W", "_", Path(self.folder).name),
            sources=sources,
            extra_include_paths=[self.folder],
            extra_cuda_cflags=list(self.flags),
        )

    def _allocated(self, arguments: Sequence[Any]) -> list[torch.Tensor]:
        sizes = dict[str, int]()
        for dims, value in zip(self.inputs, arguments, strict=True):
            if dims is not None:
                sizes |= {dim: size for dim, size in zip(dims.split(), value.shape, strict=True) if dim.isidentifier()}
        device = next((t.device for t in tree.tensors(arguments)), torch.device("cpu"))
        return [
            torch.empty([evaluate(dim, sizes) for dim in dims.split()], dtype=getattr(torch, dtype), device=device)
            for dtype, dims in self.outputs.values()
        ]


def in_order(returned: Any, names: Sequence[str]) -> Any:
    """What a function returns as an operator's outputs: a tensor, or a tuple of them in the order of their names."""
    if isinstance(returned, dict):
        returned = [returned[name] for name in names]
    if isinstance(returned, list | tuple):
        return returned[0] if len(returned) == 1 else tuple(returned)
    return returned
