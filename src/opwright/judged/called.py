"""The reference and the candidates of a task, called with the operator's arguments; what contract files consist of.

A class is constructed again for each combination of constants, which are read from the sizes of the arguments. Its
parameters and buffers are arguments of the operator. A candidate gets the same values in its own.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from opwright import tree
from opwright.backends.build_tools import build_tools
from opwright.contract.shapes.relations import parse_relation
from opwright.errors import KernelError
from opwright.judged.calling.as_on_gpu import as_on_gpu, placed
from opwright.judged.calling.filled_modules import FilledModule
from opwright.judged.calling.parameters import Tensors, state_of
from opwright.judged.shown import Place, Shown
from opwright.judged.sources import Source, load_candidate

__all__ = ["CalledTask", "parameters_of", "without_running_tasks"]

_Made = TypeVar("_Made")
_MODULES_KEPT = 4
# Of a constant that is halved for a sample.
_SMALLEST = 4
# Whether this process may run the code of tasks.
_runs_tasks = [True]


@contextlib.contextmanager
def without_running_tasks() -> Iterator[None]:
    """A block in which this process runs no code of a task: its operators are only named, and checked by others."""
    before, _runs_tasks[0] = _runs_tasks[0], False
    try:
        yield
    finally:
        _runs_tasks[0] = before


class CalledTask:
    """A task as a contract file states it.

    Args:
        file: the reference's file.
        reference: the class or the function in it.
        inputs, constructor: the functions in it that return the arguments of a call and of a constructor.
        seed: before each of them.
        constants: the constants that differ from call to call, each with the argument and the axis that has its size,
            or a size that follows from it.
        state: the names of parameters and buffers that are arguments, after the arguments of a call.
        has_fixed_state: whether modules have parameters and buffers besides.
        scalars: the arguments of a call that are no tensors, by position.
        loads_state: whether the format gives parameters to a candidate with ``load_state_dict``.
        shares_names: whether a candidate's code finds the names of the reference's file.
        layouts: of the tensors of a call that the task makes in another layout than contiguous, by position: their
            axes, the one with the largest steps first; none if other sizes have no such layout.
    """

    def __init__(
        self, file: str, reference: str, *, inputs: str, constructor: str = "", seed: int = 42,
        constants: Mapping[str, Place] | None = None, state: Sequence[str] = (),
        scalars: Mapping[int, Any] | None = None, loads_state: bool = False,
        shares_names: bool = False, has_fixed_state: bool = False, layouts: Mapping[int, Sequence[int]] | None = None,
    ) -> None:  # fmt: skip
        self._source = Source(Path(file))
        self._reference, self._inputs, self._constructor, self._seed = reference, inputs, constructor, seed
        self._constants, self._state, self._scalars = constants or {}, tuple(state), scalars or {}
        self._loads_state, self._shares_names, self._layouts = loads_state, shares_names, layouts or {}
        self._shown = {name: Shown.at(name, place) for name, place in self._constants.items()}
        self._names_at = functools.lru_cache(_MODULES_KEPT)(self._run)
        self._has_fixed_state = has_fixed_state
        self._module_at = functools.lru_cache(_MODULES_KEPT)(self._constructed)
        self._fixed_state_like = functools.lru_cache(_MODULES_KEPT)(self._made_fixed_state)

    def _run(self, constants: tuple[tuple[str, int], ...]) -> dict[str, Any]:
        if not _runs_tasks[0]:
            raise KernelError(
                "the process of a command must not run the code of a task", fix="report this: it is a bug"
            )
        return self._source.run(dict(constants))

    # --- the reference ---

    def reference(self, *arguments: torch.Tensor) -> Any:
        """The reference's result. Buffers that it updates are those of a copy."""
        constants = self._constants_of(arguments)
        inputs, state = self._parted(arguments)
        inputs = self._with_scalars(inputs)
        if not self._constructor:
            return self._names_at(constants)[self._reference](*inputs)
        module = self._module_at(constants)
        buffers = {name for name, _ in module.named_buffers()}
        whole = {**self._fixed_state(constants, state), **dict(zip(self._state, state, strict=True))}
        values = {name: value.clone() if name in buffers else value for name, value in whole.items()}
        return torch.func.functional_call(module, values, tuple(inputs))

    def samples(self, largest: int, where: Sequence[str] = ()) -> list[tuple[torch.Tensor, ...]]:
        """The task's own inputs and parameters. If they have more than ``largest`` elements, those of smaller
        constants: the largest that may be is halved until they fit. None if no constants are small enough.

        Args:
            where: relations that the constants satisfy.
        """
        if not _runs_tasks[0]:
            return []
        relations = [parse_relation(text) for text in where]
        values = {name: self._source.constants[name] for name in self._constants}
        while True:
            constants = tuple(values.items())
            with torch.device("meta"):
                size = self._elements(constants)
            if size <= largest:
                return [self._own_arguments(constants)]
            smaller = [
                each
                for name, value in values.items()
                if value >= _SMALLEST and (half := self._halved(name, value)) < value
                for each in [{**values, name: half}]
                if all(relation.holds(self._sizes(each)) for relation in relations)
            ]
            if not smaller:
                return []
            values = min(smaller, key=lambda each: max(each.values()))

    def _halved(self, name: str, value: int) -> int:
        """Half of a constant's value, as the size shows it that it has."""
        return self._value(name, self._shown[name].size(value // 2))

    def drawn(self, number: int) -> Callable[..., torch.Tensor]:
        """Draws one argument of a call as the task does, for ``ow.inputs.drawn_by``; counted among the tensors."""

        def made(names: Mapping[str, Any]) -> torch.Tensor:
            return [t for t in names[self._inputs]() if isinstance(t, torch.Tensor)][number]

        return self._drawer(made)

    def drawn_state(self, name: str) -> Callable[..., torch.Tensor]:
        """Makes a buffer as the constructor does, with another seed, for ``ow.inputs.drawn_by``."""

        def made(names: Mapping[str, Any]) -> torch.Tensor:
            return state_of(names[self._reference](*names[self._constructor]()))[name].detach()

        return self._drawer(made)

    def _drawer(self, made: Callable[[Mapping[str, Any]], torch.Tensor]) -> Callable[..., torch.Tensor]:
        parameters = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in ("shape", "generator")]
        parameters += [inspect.Parameter(s.dim, inspect.Parameter.KEYWORD_ONLY) for s in self._shown.values()]

        def draw(shape: Any, generator: torch.Generator, **sizes: int) -> torch.Tensor:
            values = ((name, self._value(name, int(sizes[shown.dim]))) for name, shown in self._shown.items())
            names = self._names_at(tuple(values))
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(int(torch.randint(1 << 31, (), generator=generator)))
                return made(names).cpu()

        draw.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return draw

    def _elements(self, constants: tuple[tuple[str, int], ...]) -> int:
        return sum(t.numel() for t in tree.tensors(self._own_arguments(constants)))

    def _own_arguments(self, constants: tuple[tuple[str, int], ...]) -> tuple[Any, ...]:
        names = self._names_at(constants)
        torch.manual_seed(self._seed)
        inputs = [value for i, value in enumerate(names[self._inputs]()) if i not in self._scalars]
        state = state_of(self._module(constants)) if self._constructor else {}
        arguments = (*inputs, *(state[name] for name in self._state))
        return tuple(tree.map_tensors(torch.Tensor.detach, arguments))

    # --- candidates ---

    def candidate(self, file: str, entry: str, version: str = "") -> Callable[..., Any]:
        """A candidate as a function of the operator's arguments. Its file is run by the first call.

        Args:
            version: changes with the candidate and with its reference, so that no earlier verdict is taken for it.
        """
        path = Path(file)
        names = _once(functools.partial(load_candidate, path))
        own, refused = functools.cache(lambda: frozenset(names())), [""]

        @functools.lru_cache(_MODULES_KEPT)
        def modules_of(constants: tuple[tuple[str, int], ...], device: torch.device) -> FilledModule:
            def construct() -> torch.nn.Module:
                with contextlib.nullcontext() if device.type == "cuda" else placed():
                    arguments = self._constructor_arguments(constants)
                    torch.manual_seed(self._seed)
                    module: torch.nn.Module = names()[entry](*arguments)
                    return module

            return FilledModule(
                lambda: _in_new_thread(construct).to(device),
                lambda: self._module_at(constants),
                self._loads_state,
            )

        def candidate(*arguments: Any) -> Any:
            passed = [self._as_the_task_makes_it(i, value) for i, value in enumerate(arguments)]
            given = tree.tensors(passed)
            inputs, state = self._parted(passed)
            with torch.no_grad(), _own_extensions(path), _as_published(given):
                function, at = names()[entry], self._constants_of(arguments)
                assert isinstance(version, str)  # a function that does not name it would not have it in its fingerprint
                if self._shares_names:
                    others = self._names_at(at)
                    names().update({name: others[name] for name in others.keys() - own()})
                if self._constructor:
                    modules = modules_of(at, given[0].device)
                    varied = dict(zip(self._state, state, strict=True))
                    function = modules.given({**self._fixed_state(at, state), **varied})
                    refused[:] = [modules.refused_state]
                takes_constants = getattr(function, "takes_constants", False)
                constants = dict(at) if takes_constants else {}
                returned = function(*self._with_scalars(inputs), **constants)
            return tree.map_tensors(functools.partial(_fresh, given=given), returned)

        candidate.refused_state = lambda: refused[0]  # type: ignore[attr-defined]
        return candidate

    # --- shared ---

    def _constructed(self, constants: tuple[tuple[str, int], ...]) -> torch.nn.Module:
        return _in_new_thread(lambda: self._module(constants))

    def _module(self, constants: tuple[tuple[str, int], ...]) -> torch.nn.Module:
        arguments = self._constructor_arguments(constants)
        torch.manual_seed(self._seed)
        module: torch.nn.Module = self._names_at(constants)[self._reference](*arguments)
        return module

    def _fixed_state(self, constants: tuple[tuple[str, int], ...], state: Sequence[torch.Tensor]) -> Tensors:
        """The other parameters and buffers, on the device and in the dtype of those that are arguments."""
        return self._fixed_state_like(constants, state[0].device, state[0].dtype) if self._has_fixed_state else {}

    def _made_fixed_state(
        self, constants: tuple[tuple[str, int], ...], device: torch.device, dtype: torch.dtype
    ) -> Tensors:
        with _usual_dtype():  # while results are computed in float64, a constructor would draw other numbers
            state = state_of(self._constructed(constants))
        own = state[self._state[0]].dtype
        fixed = {name: t for name, t in state.items() if name not in self._state}

        def converted() -> Tensors:
            return {name: t.detach().to(device, dtype if t.dtype == own else t.dtype) for name, t in fixed.items()}

        return _in_new_thread(converted)

    def _constructor_arguments(self, constants: tuple[tuple[str, int], ...]) -> list[Any]:
        torch.manual_seed(self._seed)
        return list(self._names_at(constants)[self._constructor]())

    def _as_the_task_makes_it(self, position: int, value: Any) -> Any:
        """An argument in the layout that the task gives it: a sample has it already."""
        axes = self._layouts.get(position)
        if axes is None:
            return tree.map_tensors(torch.Tensor.contiguous, value)
        as_is = not axes or not value.is_contiguous()
        return value if as_is else value.permute(axes).contiguous().permute([*map(axes.index, range(len(axes)))])

    def _with_scalars(self, tensors: Sequence[Any]) -> list[Any]:
        listed = list(tensors)
        for i, value in self._scalars.items():
            listed.insert(i, value)
        return listed

    def _constants_of(self, arguments: Sequence[torch.Tensor]) -> tuple[tuple[str, int], ...]:
        places = self._constants.items()
        return tuple((name, self._value(name, int(arguments[at[0]].shape[at[1]]))) for name, at in places)

    def _sizes(self, values: Mapping[str, int]) -> dict[str, int]:
        """The sizes that show some constants, by the names of dims."""
        return {shown.dim: shown.size(values[name]) for name, shown in self._shown.items()}

    def _value(self, name: str, size: int) -> int:
        """The value of a constant that a size shows."""
        shown = self._shown[name]
        value = size if shown.is_itself else shown.value(size, self._source.constants[name])
        if value is None:
            raise KernelError(f"{shown.text} must be the size {size} for some {name}, got none", fix="use another size")
        return value

    def _parted(self, arguments: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        """The arguments of a call, and those that are parameters and buffers."""
        count = len(arguments) - len(self._state)
        return arguments[:count], arguments[count:]


def _once(load: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """Load at most once. After an error, a second try would raise another one: torch takes a failed build for done."""
    outcome = list[dict[str, Any] | Exception]()

    def loaded() -> dict[str, Any]:
        if not outcome:
            try:
                outcome.append(load())
            except Exception as error:
                outcome.append(error)
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return outcome[0]

    return loaded


@contextlib.contextmanager
def _usual_dtype() -> Iterator[None]:
    """A block in which new tensors are in float32, as when a task's file runs by itself."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _in_new_thread(construct: Callable[[], _Made]) -> _Made:
    """What a function makes, such as a module. Modes that get the operations of a call do not get those of a thread.
    Torch's generator is left as it was."""
    found = list[_Made | BaseException]()

    def run() -> None:
        try:
            with torch.random.fork_rng(devices=[]):
                found.append(construct())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


@contextlib.contextmanager
def _own_extensions(file: Path) -> Iterator[None]:
    """A block in which torch builds a candidate's extensions in a folder of its own: those of other candidates have the
    same names."""
    name, before = "TORCH_EXTENSIONS_DIR", os.environ.get("TORCH_EXTENSIONS_DIR")
    os.environ[name] = _folder_of_extensions(file)
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@functools.cache
def _folder_of_extensions(file: Path) -> str:
    return str(build_tools().cache.root / "extensions" / hashlib.sha256(file.read_bytes()).hexdigest()[:16])


@contextlib.contextmanager
def _as_published(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """A block in which a published file, and the extensions that it compiles, run on the tensors' device."""
    if any(t.is_cuda for t in tensors) and torch.cuda.is_available():
        yield
    else:
        from opwright.backends.cuda.inline_extensions import simulated_extensions  # torch's module warns without a GPU

        with simulated_extensions(), as_on_gpu():
            yield


def _fresh(output: torch.Tensor, given: Sequence[torch.Tensor]) -> torch.Tensor:
    """A result as an operator returns it: contiguous, in memory of its own. No format asks that of a candidate.

    Raises:
        KernelError: it is of a class of its own, which may compute when it is read.
    """
    if type(output) not in (torch.Tensor, torch.nn.Parameter):
        raise KernelError(
            f"a result must be a torch.Tensor, got a {type(output).__name__}", fix="return a plain tensor"
        )
    output = output.detach().contiguous()
    pointers = {t.untyped_storage().data_ptr() for t in given}
    return output.clone() if output.untyped_storage().data_ptr() in pointers else output


def parameters_of(function: Callable[..., Any], count: int) -> list[str]:
    """Names for the arguments of a call, from the function that takes them."""
    try:
        named = [p.name for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_POSITIONAL]
    except (TypeError, ValueError):
        named = []
    return [named[i] if i < len(named) else f"x{i}" for i in range(count)]
