"""Tasks whose functions take one nest of tensors: ``generate_input(**case)``, ``ref_kernel(data)``,
``custom_kernel(data)``. Their files import each other by name."""

from __future__ import annotations

import ast
import contextlib
import functools
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from opwright import tree
from opwright.errors import KernelError
from opwright.internals.compiler import fake_tensors
from opwright.internals.tensors import version_of
from opwright.judged.own_modules import imported, own_modules

__all__ = ["DataTask"]

_KEPT = 4


@dataclass(frozen=True)
class _Data:
    """What a task generates: a nest whose tensors have no memory, and which of its leaves are for the result."""

    nest: Any
    buffers: frozenset[int]

    def with_tensors(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The nest with these tensors, and with new memory for results.

        Raises:
            KernelError: the task makes no tensors of these sizes.
        """
        leaves, given = tree.leaves(self.nest), iter(tensors)
        device = tensors[0].device if tensors else torch.device("cpu")
        for i, leaf in enumerate(leaves):
            if i in self.buffers:
                leaves[i] = torch.empty(leaf.shape, dtype=leaf.dtype, device=device)
            elif isinstance(leaf, torch.Tensor):
                leaves[i] = next(given)
                if leaves[i].shape != leaf.shape:
                    raise KernelError(
                        f"an argument must have the shape {list(leaf.shape)}, got {list(leaves[i].shape)}",
                        fix="use the sizes of generate_input",
                    )
        return tree.rebuild(self.nest, leaves)

    def result_of(self, returned: Any) -> Any:
        """The tensors that a function returns. The format compares values of any dtype: a result has the dtype and the
        shape of the tensor for results, and is no float64 if no argument is."""
        parts = tuple(returned) if isinstance(returned, tuple) else returned  # torch's own named tuples are others
        outputs = [self._converted(t) for t in tree.tensors(parts)]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _converted(self, output: torch.Tensor) -> torch.Tensor:
        leaves = tree.leaves(self.nest)
        meant = [leaves[i] for i in self.buffers if leaves[i].numel() == output.numel()]
        if len(meant) == 1:
            return output.to(meant[0].dtype).reshape(meant[0].shape)
        is_wider = all(t.dtype is not torch.float64 for t in tree.tensors(self.nest))
        return output.float() if is_wider and output.dtype is torch.float64 else output


class DataTask:
    """A task in a folder with its files.

    Args:
        folder: the folder.
        case: the arguments of ``generate_input``.
    """

    def __init__(self, folder: str, case: Mapping[str, Any]) -> None:
        self._folder, self._case = Path(folder), dict(case)
        self._data = functools.lru_cache(_KEPT)(self._data_of)

    def inputs(self) -> list[torch.Tensor]:
        """The tensors that the task generates; without memory, where new tensors have none."""
        probe = torch.empty(0)
        if type(probe) is torch.Tensor and not probe.is_meta:
            leaves = tree.leaves(_generated(self._folder, self._case, fake=False)[0])
        else:
            leaves = [
                torch.empty(t.shape, dtype=t.dtype) if _is_tensor(t) else t for t in tree.leaves(self._data().nest)
            ]
        return [t for i, t in enumerate(leaves) if _is_tensor(t) and i not in self._buffers]

    def reference(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The result of ``ref_kernel``. Of arguments without memory that it cannot compute with, it is that of the
        task's own inputs, without memory."""
        data = self._data()
        nest = data.with_tensors(tensors)
        try:
            return data.result_of(_in_thread(lambda: self._called(nest)))
        except Exception:  # the task's own code may raise anything
            if not any(_has_no_memory(t) for t in tensors):
                raise
        own = _in_thread(lambda: self.reference(self.inputs()))
        return tree.map_tensors(lambda t: torch.empty(t.shape, dtype=t.dtype), own)

    def _called(self, nest: Any) -> Any:
        """``ref_kernel`` of a nest. A module that it constructs draws parameters, which do not change the result: what
        looks for random numbers does not see those of another thread."""
        with _settings_kept(), torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return _reference(self._folder)["ref_kernel"](nest)

    def submission(self, file: str) -> Callable[..., Any]:
        """``custom_kernel`` of a file as a function of the tensors, and of the constants of the case."""
        load = functools.cache(lambda: imported(self._folder, Path(file)).custom_kernel)

        def custom_kernel(*tensors: torch.Tensor, **constants: int) -> Any:
            data = self._data(**constants)
            return data.result_of(load()(data.with_tensors(tensors)))

        custom_kernel.takes_constants = True  # type: ignore[attr-defined]
        return custom_kernel

    def _data_of(self, **constants: int) -> _Data:
        """What ``generate_input`` returns with some constants."""
        case = {**self._case, **constants}
        try:
            nest, _ = _generated(self._folder, case, fake=True)
        except Exception:  # it reads values; the task's own code may raise anything
            nest, _ = _generated(self._folder, case, fake=False)
        return _Data(nest, self._buffers)

    @functools.cached_property
    def _buffers(self) -> frozenset[int]:
        return _generated(self._folder, self._case, fake=False)[1]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _has_no_memory(tensor: torch.Tensor) -> bool:
    return type(tensor) is not torch.Tensor or tensor.is_meta


def _generated(folder: Path, case: Mapping[str, Any], *, fake: bool) -> tuple[Any, frozenset[int]]:
    """What ``generate_input`` returns, and which leaves are tensors that nothing was written to.

    Raises:
        KernelError: it raises an exception.
    """

    def generate() -> tuple[Any, frozenset[int]]:
        with torch.random.fork_rng(devices=[]), fake_tensors() if fake else _Empty() as empty:
            nest = _reference(folder)["generate_input"](**case)
        if not isinstance(empty, _Empty):
            return tree.map_tensors(lambda t: torch.empty(t.shape, dtype=t.dtype, device="meta"), nest), frozenset()
        return nest, empty.unwritten(tree.leaves(nest))

    try:
        generated: tuple[Any, frozenset[int]] = _in_thread(generate)
    except Exception as error:  # the task's own code may raise anything
        raise KernelError(f"generate_input raised {type(error).__name__}: {error}", fix="correct the task") from None
    return generated


def _in_thread(function: Callable[[], Any]) -> Any:
    """What a function returns in a thread of its own: modes under which nothing is computed belong to a thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


@contextlib.contextmanager
def _settings_kept() -> Iterator[None]:
    """A block that leaves torch's settings as they were: some references set them, and set back others."""
    name = "CUBLAS_WORKSPACE_CONFIG"
    before, variable = torch.are_deterministic_algorithms_enabled(), os.environ.get(name)
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns)
        os.environ.pop(name, None)
        os.environ |= {name: variable} if variable is not None else {}


class _Empty(torch.overrides.TorchFunctionMode):
    """Remembers the tensors that were allocated and not filled."""

    def __init__(self) -> None:
        super().__init__()
        self._made: list[torch.Tensor] = []

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        returned = function(*args, **(kwargs or {}))
        if function in (torch.empty, torch.empty_like, torch.empty_strided, torch.Tensor.new_empty):
            self._made.append(returned)
        return returned

    def unwritten(self, tensors: Sequence[Any]) -> frozenset[int]:
        """The positions of those tensors that still are as they were allocated."""
        made = {t.data_ptr() for t in self._made if version_of(t) == 0 and t.numel()}
        return frozenset(i for i, t in enumerate(tensors) if isinstance(t, torch.Tensor) and t.data_ptr() in made)


@functools.cache
def _reference(folder: Path) -> Mapping[str, Any]:
    """The names of ``reference.py``. Its inputs are made on the CPU; what it computes is where its arguments are."""
    file = folder / "reference.py"
    module = types.ModuleType("reference")
    module.__file__ = str(file)
    with own_modules(folder):
        sys.modules["reference"] = module  # dataclasses look it up
        tree_ = _OnCpu().visit(ast.parse(file.read_text(), str(file)))
        exec(compile(ast.fix_missing_locations(tree_), str(file), "exec"), vars(module))
    return vars(module)


class _OnCpu(ast.NodeTransformer):
    """Writes ``"cpu"`` in the place of ``"cuda"`` in functions that generate inputs; everywhere, without a GPU."""

    def __init__(self) -> None:
        self._is_inside = not torch.cuda.is_available()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        before, self._is_inside = self._is_inside, self._is_inside or node.name.startswith("generate")
        self.generic_visit(node)
        self._is_inside = before
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.copy_location(ast.Constant("cpu"), node) if self._is_inside and node.value == "cuda" else node
