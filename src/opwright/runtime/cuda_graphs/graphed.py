"""``ow.cuda_graphed``: a function, an operator or a module whose calls are replayed."""

from __future__ import annotations

import functools
import threading
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple

import torch
from torch import Tensor, nn
from typing_extensions import ParamSpec, TypeVar

from opwright import tree
from opwright.errors import ArgumentError, CudaGraphError
from opwright.internals.cuda import current_stream
from opwright.internals.dispatch import transforms_are_on
from opwright.internals.guards import guard_tensors
from opwright.runtime.cuda_graphs.graph import is_capturing
from opwright.runtime.cuda_graphs.module_tensors import ModuleTensors
from opwright.runtime.cuda_graphs.places import Places
from opwright.runtime.cuda_graphs.replay import Replayed, see_free_step
from opwright.runtime.cuda_graphs.step import PLAIN_CONSTANTS, CapturedStep, refuse_subclasses
from opwright.runtime.cuda_graphs.warm_up import Work

__all__ = ["HELD_RESULTS", "CudaGraphed", "cuda_graphed"]

P = ParamSpec("P", default=...)
R = TypeVar("R", default=Any)


# Without gradients, the results of so many calls of a kind are the graphs' own memory; further ones are copies.
HELD_RESULTS = 8
# The kinds of calls that are kept and differ only in what a variable or an attribute is; the oldest is dropped.
_KINDS_ALIKE = 8


def cuda_graphed(function: Callable[P, R], /, *, max_pairs: int = 64) -> CudaGraphed[P, R]:
    """Replay a function's calls as CUDA graphs: one launch forward, one backward.

    Graphs are captured at the first call of a kind: calls of a kind have the same sizes, dtypes, constants,
    requires_grad, autocast, stream, and parameter addresses. A graph has its own memory, so each call that is still in
    use needs its own pair of graphs: a sequence of twenty steps with one backward through all of them makes twenty
    pairs in the first iteration. A pair is used again when its backward has run, or can no longer run, and none of its
    outputs and gradients is referenced any more. So results in use are never overwritten, and gradients accumulate,
    which ``torch.cuda.make_graphed_callables`` does not guarantee.

    The number of pairs is bounded. Without gradients, the results of 8 calls of a kind are graph memory; further
    results are copies. With gradients, each call whose backward is pending needs its own pair; beyond ``max_pairs``,
    the function runs without graphs. One warning reports each case.

    The function may read tensors and constants besides its arguments: variables of its closure, globals, defaults, and
    attributes of modules and objects. The graphs keep these tensors alive. If you assign another value to one of them,
    or replace a module, a hook or a method, the next call is captured anew. Every replay sees an in-place write to a
    tensor on the GPU. A call is refused if the function reads a tensor whose variable or attribute opwright does not
    find, or if it changes a variable or an attribute that it reads.

    A replay does not notice changes of these values, so pass them as arguments:

    - constants that Python code gets by a computed name, from a set, an iterator or a file, from a container of more
      than 1,000 items, or from a call such as ``random.random()``
    - values in a NumPy array
    - settings and functions of torch
    - tensors that a kernel other than Triton's reads without an operator of torch, if opwright does not find their
      variable

    Args:
        function: an operator, a module, or a function of tensors and constants, in any nest of tuples, lists and
            dictionaries; it returns such a nest. Tensors that are ``nn.Parameter``, and a module's own parameters and
            buffers, are read in place, so that an optimiser's in-place steps take effect; all others are copied. If it
            returns an argument itself, so does a replay; it must not return a view of one. Its Python code runs only
            during capture.
        max_pairs: the largest number of pairs of graphs for calls of a kind.

    Returns:
        A callable like the function, for any number of threads. Under ``torch.compile``, and within another capture, it
        is the function.

    Raises:
        ArgumentError: ``max_pairs`` is less than 1.
    """
    return CudaGraphed(function, max_pairs=max_pairs)


@dataclass(eq=False)
class Kind:
    """Calls that can share graphs.

    Attributes:
        state: everything that matters and that the guard of the tensors does not compare.
        accepts: whether tensors are like those of this kind.
        steps: the captured pairs of graphs.
        copying: the pair whose results are copied.
        places: where tensors and constants besides the arguments come from.
    """

    state: Any
    accepts: Callable[..., bool]
    steps: deque[Replayed] = field(default_factory=deque)
    copying: Replayed | None = None
    places: list[Places] = field(default_factory=list)

    def holds(self) -> bool:
        """Whether nothing that its graphs read has been replaced."""
        return all(map(Places.hold, self.places))

    def change(self) -> str:
        """A place that has changed."""
        return next(filter(None, (places.change() for places in self.places)), "a value")

    def free_step(self) -> Replayed | None:
        """A step that nobody uses."""
        for _ in range(len(self.steps)):  # the one used first is free first
            self.steps.rotate(-1)
            if self.steps[-1].is_free():
                return self.steps[-1]
        return None


class Call(NamedTuple):
    """The arguments of a call, flattened."""

    nest: tuple[tuple[Any, ...], dict[str, Any]]
    tensors: Sequence[Tensor]
    form: Any  # how arguments are nested, and the constants among them


class CudaGraphed(Generic[P, R]):
    """A function whose calls are replayed as CUDA graphs.

    Attributes:
        function: the function that is replayed.
        max_pairs: the largest number of pairs of graphs for calls of a kind.
    """

    function: Callable[P, R]

    def __init__(self, function: Callable[P, R], /, *, max_pairs: int = 64) -> None:
        if max_pairs < 1:
            raise ArgumentError(f"max_pairs must be at least 1, got {max_pairs}", fix="leave it out for 64 pairs")
        self.function = function
        self.max_pairs = max_pairs
        self._warned: set[str] = set()
        self._module = ModuleTensors(function) if isinstance(function, nn.Module) else None
        self._kinds: list[Kind] = []
        self._lock = threading.Lock()  # else another thread might take the same step before its outputs are in use

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function.

        Raises:
            ArgumentError: a tensor is not on a GPU, is of a subclass, or is written by the function; an argument is
                neither a tensor nor a constant; the function returns a view of an argument, reads a tensor that
                opwright does not find, or changes what it reads.
            CudaGraphError: the call is within a ``torch.func`` transform, or the function cannot be captured.
        """
        if torch.compiler.is_compiling() or is_capturing():
            return self.function(*args, **kwargs)
        if transforms_are_on():
            raise CudaGraphError(
                f"{self._name}: torch.func cannot trace CUDA graphs", fix="call it without graphs there"
            )
        call = _flatten(self._name, args, kwargs)
        with self._lock:
            tensors, replayed, copies = self._choose(call)
            if replayed is not None:
                see_free_step(replayed)
                outputs = replayed.run_for_copies(tensors) if copies else replayed.run(*tensors)
        if replayed is None:
            return self.function(*args, **kwargs)
        result: R = replayed.step.assemble(outputs, tensors)
        return result

    @property
    def captured(self) -> int:
        """The number of captured pairs of graphs."""
        return sum(len(kind.steps) + (kind.copying is not None) for kind in self._kinds)

    def reset(self) -> None:
        """Drop all graphs. Their memory is freed when outputs and gradients in it are no longer referenced."""
        with self._lock:
            self._kinds.clear()

    @property
    def _name(self) -> str:
        name = getattr(self.function, "__qualname__", None) or repr(self.function).partition("\n")[0].rstrip("(")
        return str(name).rpartition("<locals>.")[2]

    # -- choosing graphs --------------------------------------------------------------------------------------------

    def _choose(self, call: Call) -> tuple[Sequence[Tensor], Replayed | None, bool]:
        """The call's tensors; the step for it, None if the function is to run; and whether its results are copied."""
        tensors, buffers = self._tensors(call)
        kind, like = self._known_kind(self._state(call, tensors, buffers), (*tensors, *buffers))
        if kind is None:
            if self._module is not None:
                self._module.look_again()
                tensors, buffers = self._tensors(call)
            kind = self._new_kind(call, tensors, buffers, like)
        step = kind.free_step()
        if step is not None:
            return tensors, step, False
        is_tracked = bool(kind.steps) and kind.steps[0].step.backward is not None
        if len(kind.steps) < (self.max_pairs if is_tracked else min(HELD_RESULTS, self.max_pairs)):
            step = self._capture(kind, call, tensors, buffers)
            kind.steps.append(step)
            return tensors, step, False
        if is_tracked:
            self._warn(
                f"{self._name}: {len(kind.steps)} calls with gradients are still in use, and each has its own pair of "
                "CUDA graphs. Further calls run without graphs. To replay them, run the backward and drop the results "
                "earlier, or pass a larger max_pairs to ow.cuda_graphed."
            )
            return tensors, None, False
        self._warn(
            f"{self._name}: the results of {len(kind.steps)} calls are still in use, and each holds the memory of its "
            "CUDA graph. Further results are copies. To avoid the copying, drop results that you no longer need."
        )
        if kind.copying is None:
            kind.copying = self._capture(kind, call, tensors, buffers)
        return tensors, kind.copying, True

    def _capture(self, kind: Kind, call: Call, tensors: Sequence[Tensor], buffers: Sequence[Tensor]) -> Replayed:
        grad_mode = torch.is_grad_enabled()  # which leaving inference mode would change
        with torch.inference_mode(False), torch.set_grad_enabled(grad_mode):
            step = CapturedStep(self._work(kind, call, tensors, buffers))
        if step.places not in kind.places:
            kind.places.append(step.places)
        return Replayed(step)

    def _tensors(self, call: Call) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """The tensors that the graphs take, and the module's buffers."""
        parameters, buffers = self._module.tensors() if self._module is not None else ((), ())
        return [*call.tensors, *parameters], buffers

    def _state(self, call: Call, tensors: Sequence[Tensor], buffers: Sequence[Tensor]) -> Any:
        in_place = _read_in_place(call, tensors)
        return (
            call.form,
            torch.is_grad_enabled(),
            torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda"),
            current_stream(tensors[0].get_device()) if tensors and tensors[0].is_cuda else None,
            [t.data_ptr() for t, is_in_place in zip(tensors, in_place, strict=True) if is_in_place],
            [b.data_ptr() for b in buffers],
            self._module.modes() if self._module is not None else None,
        )

    def _known_kind(self, state: Any, tensors: Sequence[Tensor]) -> tuple[Kind | None, list[Kind]]:
        """The kind of a call, and kinds that would be it if a variable or an attribute had not changed."""
        like = [kind for kind in self._kinds if kind.state == state and kind.accepts(*tensors)]
        if not like:  # a guard refuses a tensor that is passed twice, as a first h and c may be
            tensors = _as_distinct_objects(tensors)
            like = [kind for kind in self._kinds if kind.state == state and kind.accepts(*tensors)]
        return next((kind for kind in like if kind.holds()), None), like

    def _new_kind(self, call: Call, tensors: Sequence[Tensor], buffers: Sequence[Tensor], like: Sequence[Kind]) -> Kind:
        if not tensors:
            raise ArgumentError(f"{self._name} was called without a tensor", fix="call it without graphs")
        refuse_subclasses(tensors)
        needs_gpu(self._name, tensors)
        if len(like) >= _KINDS_ALIKE:
            self._warn(
                f"{self._name} is captured again whenever {like[-1].change()} changes, and a capture takes longer than "
                "a call without graphs. Pass the value as an argument, or call the function without graphs."
            )
            self._kinds.remove(like[0])
        any_strides = [*(not is_in_place for is_in_place in _read_in_place(call, tensors)), *(False for _ in buffers)]
        guard = guard_tensors(_as_distinct_objects((*tensors, *buffers)), any_strides)
        self._kinds.append(Kind(self._state(call, tensors, buffers), guard))
        return self._kinds[-1]

    def _warn(self, message: str) -> None:
        """Warn, once for each kind of message."""
        kind = message.rpartition(". ")[2]
        if kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(message, stacklevel=4)

    def _work(self, kind: Kind, call: Call, tensors: Sequence[Tensor], buffers: Sequence[Tensor]) -> Work:
        function: Callable[..., Any] = self.function
        module = self._module

        def run(own: Sequence[Tensor]) -> Any:
            remaining = iter(own)
            args, kwargs = tree.map_tensors(lambda _: next(remaining), call.nest)
            return function(*args, **kwargs) if module is None else module.call(list(remaining), args, kwargs)

        in_place = _read_in_place(call, tensors)
        return Work(self._name, run, tensors, in_place, buffers, function, tuple(kind.places))

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(CudaGraphed, max_pairs=self.max_pairs), (self.function,)  # a copy captures its own

    def __repr__(self) -> str:
        return f"<CUDA graphs of {self._name}, {self.captured} captured>"


def _flatten(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    nest = (args, kwargs)
    if not kwargs and all(isinstance(a, Tensor) for a in args):
        return Call(nest, args, len(args))
    leaves = tree.leaves(nest)
    for leaf in leaves:
        if not isinstance(leaf, (Tensor, *PLAIN_CONSTANTS)):
            raise ArgumentError(
                f"{name} was called with a {type(leaf).__name__}, but CUDA graphs take tensors and constants only",
                fix="pass the tensors in it, or call it without graphs",
            )
    # By repr, which distinguishes 0.0 from -0.0 and 1 from True, and is equal for NaN.
    constants = [None if isinstance(leaf, Tensor) else (type(leaf), repr(leaf)) for leaf in leaves]
    return Call(nest, [leaf for leaf in leaves if isinstance(leaf, Tensor)], (tree.form(nest), constants))


def needs_gpu(name: str, tensors: Sequence[Tensor]) -> None:
    """Refuse tensors that are not all on one GPU."""
    devices = {str(t.device) for t in tensors}
    if len(devices) > 1 or not tensors[0].is_cuda:
        raise ArgumentError(
            f"{name}: CUDA graphs need every tensor on one GPU, but they are on {', '.join(sorted(devices))}",
            fix="move the module and its inputs there, or call it without graphs",
        )


def _read_in_place(call: Call, tensors: Sequence[Tensor]) -> list[bool]:
    """Whether each tensor is read in place: parameters among the arguments, and a module's, which follow these."""
    own = (type(t) is not Tensor and isinstance(t, nn.Parameter) for t in call.tensors)
    return [*own, *[True] * (len(tensors) - len(call.tensors))]


def _as_distinct_objects(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(t.view_as(t) if any(t is other for other in tensors[:i]) else t for i, t in enumerate(tensors))
