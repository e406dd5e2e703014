"""Runs a call both compiled and in NumPy, and compares results, effects and times."""

from __future__ import annotations

import contextvars
import functools
import inspect
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch

from opwright import tree
from opwright.backends.numpy.choice import NUMPY
from opwright.backends.numpy.finishing import Finishing, finish_values, learn, with_same
from opwright.backends.numpy.identities import Arguments, same_objects
from opwright.backends.numpy.state import State, outer_values
from opwright.contract.dtypes import element_bytes
from opwright.contract.numpy.comparison import Outcome, copied, difference, is_foreign_array, tolerance_of
from opwright.errors import CompileError, OpwrightError

__all__ = ["Both", "Call", "after_failure", "run_all", "run_numpy_too", "runs_in_numpy", "times_of"]

# While it is set, compiled functions that a function calls run in NumPy, too.
runs_in_numpy: contextvars.ContextVar[bool] = contextvars.ContextVar("opwright_runs_in_numpy", default=False)
# How long ways are measured: longer where their times are within a factor of each other. In a block, one way is called
# again and again.
_ENOUGH_SECONDS, _CLOSE_SECONDS, _CLOSE = 0.3, 1.2, 1.5
_MOST_ROUNDS, _WAIT_SECONDS, _BLOCK_SECONDS, _MOST_CALLS = 12, 0.04, 0.15, 4
_FEWEST_ROUNDS = 4  # of short calls: what else the machine does for a moment must not decide


class Call:
    """One call of a function, which can be run several ways.

    Attributes:
        names: the arguments by name.
        single: ``default_float_dtype="float32"``.
        before: what the call may change, as it was; None until ``save``.
        numpys_seconds: the shortest time of its runs in NumPy.
    """

    def __init__(self, function: Callable[..., Any], args: Any, keywords: dict[str, Any], *, single: bool) -> None:
        self.function = function
        self.args = args
        self.keywords = keywords
        self.single = single
        self.before: State | None = None
        self.numpys_seconds = math.inf
        leaves = tree.leaves((args, keywords))
        self.tolerance = tolerance_of(leaves)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        # Fake tensors and those on ``meta`` have none: such calls cannot run in NumPy.
        self.has_values = not any(t.is_meta or type(t) not in (torch.Tensor, torch.nn.Parameter) for t in tensors)
        self.has_tensors = any(isinstance(leaf, torch.Tensor) or is_foreign_array(leaf) for leaf in leaves)

    def save(self) -> State:
        """Save what the call may change, once."""
        if self.before is None:
            self.before = State(self.args, self.keywords, *outer_values(self.function))
        return self.before

    def undo(self) -> None:
        """Put what the call has changed back."""
        if self.before is not None and self.before.changed():
            self.before.restore()

    def run(self, way: Callable[..., Any]) -> Any:
        """Run it one way."""
        return way(*self.args, **self.keywords)

    def in_numpy(self) -> Any:
        """Run it in NumPy: on the memory of tensors that are on a CPU, else on a copy, from which changes go back."""
        args, keywords = self.args, self.keywords
        copies: list[tuple[torch.Tensor, np.ndarray[Any, Any]]] = []
        if self.has_tensors:
            arrays = functools.partial(_as_array, copies=copies)
            args, keywords = tree.map_leaves(arrays, (tuple(args), keywords))
        token, start = runs_in_numpy.set(True), time.perf_counter()
        try:
            return self.function(*args, **keywords)
        finally:
            self.numpys_seconds = min(self.numpys_seconds, time.perf_counter() - start)
            runs_in_numpy.reset(token)
            for tensor, array in copies:
                _write_back(tensor, array)

    def bound(self) -> dict[str, Any]:
        """The arguments by name."""
        try:
            return dict(inspect.signature(self.function).bind(*self.args, **self.keywords).arguments)
        except (TypeError, ValueError):  # a function in C has no signature to inspect
            return {**{str(i): a for i, a in enumerate(self.args)}, **self.keywords}

    @property
    def names(self) -> dict[int, str]:
        """The argument that an object is or belongs to, by the object's id."""
        return {id(leaf): name for name, value in self.bound().items() for leaf in (value, *tree.leaves(value))}


@dataclass(frozen=True)
class Both:
    """What both ways gave.

    Attributes:
        result: the result for the caller: NumPy's; the compiled one for tensors, which may have gradients.
        finishing: what to change in compiled results, such as numbers that are arrays without dims in NumPy.
        difference: what is different, "" if nothing is.
    """

    result: Any
    finishing: Finishing | None
    difference: str


def _as_array(value: Any, copies: list[tuple[torch.Tensor, np.ndarray[Any, Any]]]) -> Any:
    """A tensor as an array; one of other memory is added to ``copies``."""
    if is_foreign_array(value):
        return np.from_dlpack(value)
    if not isinstance(value, torch.Tensor):
        return value
    tensor = value.detach()
    if tensor.is_cpu and not (tensor.is_conj() or tensor.is_neg()):
        return tensor.numpy()
    known = next((array for other, array in copies if other is value), None)
    array = tensor.cpu().resolve_conj().resolve_neg().numpy() if known is None else known
    if known is None:
        copies.append((value, array))
    return array


def _write_back(tensor: torch.Tensor, array: np.ndarray[Any, Any]) -> None:
    """Write a changed copy into its tensor; one that has not changed must not count as written for autograd."""
    if not torch.equal(element_bytes(torch.from_numpy(array)), element_bytes(tensor.cpu())):
        tensor.detach().copy_(torch.from_numpy(array))


@dataclass(frozen=True)
class CompiledRun:
    """What a call has given and changed that ran compiled."""

    came: Any
    outcome: Outcome
    effects: dict[int, Any]
    wrote_objects: bool

    @staticmethod
    def of(call: Call, came: Any) -> CompiledRun:
        """The call has just run, and given ``came``."""
        before = call.save()
        effects = {id(t): copied(_contents(t)) for t in before.targets()}
        return CompiledRun(came, Outcome.of(came, before.arrays()), effects, bool(before.changed_objects()))


def run_all(call: Call, ways: dict[str, Callable[..., Any]]) -> dict[str, Both | Exception]:
    """Run a call compiled in each way, and then once in NumPy, whose effects remain.

    Raises:
        Exception: whatever the function raises in NumPy.
    """
    call.save()
    runs: dict[str, CompiledRun | Exception] = {}
    for name, way in ways.items():
        call.undo()
        try:
            runs[name] = CompiledRun.of(call, call.run(way))
        except Exception as error:
            runs[name] = error
    call.undo()
    numpys = call.in_numpy()
    return {
        name: _failed(call, run, numpys) if isinstance(run, Exception) else against_numpy(call, run, numpys)
        for name, run in runs.items()
    }


def run_numpy_too(call: Call, came: Any) -> Both:
    """Run a call in NumPy that has run compiled, and compare."""
    run = CompiledRun.of(call, came)
    call.undo()
    return against_numpy(call, run, call.in_numpy())


def against_numpy(call: Call, run: CompiledRun, numpys: Any) -> Both:
    """Compare what a call gave compiled with what NumPy has given just now."""
    before = call.save()
    ours, expected = run.outcome, Outcome.of(numpys, before.arrays())
    finishing, found = None, ""
    if not call.has_tensors:
        ours, borrowed = ours.with_own_memory(expected)
        finishing = learn(expected.result, ours.result, borrowed)
        arguments = Arguments(call.args, call.keywords)
        same, is_certain, found = same_objects(numpys, arguments, {id(target) for target in before.targets()})
        finishing = with_same(finishing, same, is_certain and not arguments.may_be_stored_again())
    found = _compare(call, expected, ours, finishing) or _compare_effects(call, run) or found
    # With single precision by default, dtypes are not NumPy's.
    return Both(run.came if call.has_tensors or call.single else numpys, finishing, found)


def after_failure(call: Call, failure: Exception) -> NoReturn:
    """Raise what a call raises in NumPy, else why its compiled form failed."""
    call.undo()
    numpys = call.in_numpy()
    raise _failed(call, failure, numpys)


def _failed(call: Call, failure: Exception, numpys: Any) -> Exception:
    if isinstance(failure, OpwrightError):
        if isinstance(failure, CompileError):
            failure.result = numpys
        return failure
    error = CompileError(
        f"{_name(call)}: compiled, it raised {type(failure).__name__}, and NumPy did not: {failure}",
        fix='call the function itself on such arguments, or write it differently; mode="numpy" never compiles',
    )
    error.result, error.__cause__ = numpys, failure
    return error


def _compare(call: Call, expected: Outcome, ours: Outcome, finishing: Finishing | None) -> str:
    came = finish_values(finishing, ours.result)
    found = difference(expected.result, came, single=call.single, coarsest=call.tolerance, classes=not call.has_tensors)
    if found or call.has_tensors:
        return found
    for i, (theirs, own) in enumerate(zip(expected.shared, ours.shared, strict=False)):
        if theirs != own:
            return _shared_otherwise(call, i, theirs, own)
    if expected.together != ours.together:
        return "results share memory with one another in NumPy, or here, and not in the other"
    return ""


def _shared_otherwise(call: Call, i: int, theirs: Sequence[Any], own: Sequence[Any]) -> str:
    names, arrays = call.names, call.save().arrays()

    def of(shared: Sequence[Any]) -> str:
        named = [names.get(id(arrays[j]), "an array from outside") for j, _ in shared]
        return f"a view of {', '.join(named)}" if named else "an array of its own"

    if [j for j, _ in theirs] == [j for j, _ in own]:
        return f"array {i} of the result is another part of {of(own).removeprefix('a view of ')} than NumPy's"
    return f"array {i} of the result is {of(own)}, NumPy's {of(theirs)}; .copy() makes it its own"


def _compare_effects(call: Call, run: CompiledRun) -> str:
    names = call.names
    written = next(iter(call.save().changed_objects()), None)
    if written is not None or run.wrote_objects:
        what = f"the {type(written).__name__} {names.get(id(written), 'from outside')}"
        if written is None or not hasattr(written, "__len__"):
            what = f"something other than an array ({getattr(written, 'name', '') or type(written).__name__})"
        return f"it writes to {what}, which compiled code does not; return the new value instead"
    for target in call.save().targets():
        expected, ours = copied(_contents(target)), run.effects[id(target)]
        name = names.get(id(target), f"a {type(target).__name__} from outside")
        found = difference(
            expected,
            ours,
            single=call.single,
            coarsest=call.tolerance,
            classes=False,
            where=f"{name}, which it writes,",
        )
        if found:
            return found
    return ""


def _contents(target: Any) -> Any:
    if isinstance(target, np.random.Generator):
        return repr(target.bit_generator.state)
    if hasattr(target, "cell_contents"):
        return None
    if isinstance(target, np.ndarray | torch.Tensor | list | dict | set):
        return target
    return {k: v for k, v in vars(target).items() if isinstance(v, bool | int | float | str | np.generic)}


def _name(call: Call) -> str:
    return str(getattr(call.function, "__qualname__", call.function))


def times_of(call: Call, ways: dict[str, Callable[..., Any]]) -> dict[str, float]:
    """The shortest time of each way in seconds, NumPy's among them; effects are undone.

    The ways take turns of several calls, until they have taken some tenths of a second together, or a second where
    their times are close. Each has threads of its own (OpenBLAS's, OpenMP's, Numba's), which spin for some 30 ms after
    a call. They would slow down the next way, which does not happen where a program uses one of them: each turn waits.
    """
    after, begin = State(call.save().targets()), time.perf_counter()
    runs: dict[str, Callable[[], Any]] = {
        **{name: functools.partial(call.run, way) for name, way in ways.items()},
        NUMPY: call.in_numpy,
    }
    shortest = dict.fromkeys(runs, math.inf)
    for rounds in range(1, _MOST_ROUNDS + 1):
        for name, run in runs.items():
            time.sleep(_WAIT_SECONDS)
            shortest[name] = min(shortest[name], *_block(call, run))
        fastest, second = sorted(shortest.values())[:2]
        is_close = second < _CLOSE * fastest
        enough = _CLOSE_SECONDS if is_close or rounds < _FEWEST_ROUNDS else _ENOUGH_SECONDS
        if time.perf_counter() - begin > enough:
            break
    after.restore()
    # Also those that were compared: something may have slowed NumPy down for as long as was measured here.
    shortest[NUMPY] = min(shortest[NUMPY], call.numpys_seconds)
    return shortest


def _block(call: Call, run: Callable[[], Any]) -> Iterator[float]:
    """The seconds of each of several calls, one after the other."""
    begin = time.perf_counter()
    for _ in range(_MOST_CALLS):
        call.undo()
        start = time.perf_counter()
        run()
        yield time.perf_counter() - start
        if time.perf_counter() - begin > _BLOCK_SECONDS:
            break
