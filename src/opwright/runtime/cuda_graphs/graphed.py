"""``ow.cuda_graphed``: a function, an operator or a module whose calls are replayed."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
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
from opwright.runtime.cuda_graphs.replay import Replayed, see_free_step
from opwright.runtime.cuda_graphs.step import PLAIN_CONSTANTS, CapturedStep, Work, refuse_subclasses

__all__ = ["CudaGraphed", "cuda_graphed"]

P = ParamSpec("P", default=...)
R = TypeVar("R", default=Any)


def cuda_graphed(function: Callable[P, R], /) -> CudaGraphed[P, R]:
    """Replay a function's calls as CUDA graphs: one launch forward, one backward.

    Graphs are captured at the first call of a kind: calls of a kind have the same sizes, dtypes, constants,
    requires_grad, autocast, stream, and parameter addresses. A graph has its own memory, so each call that is still in
    use needs its own pair of graphs: a sequence of twenty steps with one backward through all of them makes twenty
    pairs in the first iteration. A pair is used again when its backward has run, or can no longer run, and none of its
    outputs and gradients is referenced any more. So results in use are never overwritten, and gradients accumulate,
    which ``torch.cuda.make_graphed_callables`` does not guarantee.

    Args:
        function: an operator, a module, or a function of tensors and constants, in any nest of tuples, lists and
            dictionaries; it returns such a nest. Tensors that are ``nn.Parameter``, and a module's own parameters and
            buffers, are read in place, so that an optimiser's in-place steps take effect; all others are copied. Its
            Python code runs only during capture.

    Returns:
        A callable like the function, for any number of threads. Under ``torch.compile``, and within another capture, it
        is the function.
    """
    return CudaGraphed(function)


class Kind(NamedTuple):
    """Calls that can share graphs."""

    state: Any  # everything that matters and that the guard of the tensors does not compare
    holds: Callable[..., bool]  # whether tensors are like those of this kind
    steps: deque[Replayed]


class Call(NamedTuple):
    """The arguments of a call, flattened."""

    nest: tuple[tuple[Any, ...], dict[str, Any]]
    tensors: Sequence[Tensor]
    form: Any  # how arguments are nested, and the constants among them


class CudaGraphed(Generic[P, R]):
    """A function whose calls are replayed as CUDA graphs.

    Attributes:
        function: the function that is replayed.
    """

    function: Callable[P, R]

    def __init__(self, function: Callable[P, R], /) -> None:
        self.function = function
        self._module = ModuleTensors(function) if isinstance(function, nn.Module) else None
        self._kinds: list[Kind] = []
        self._lock = threading.Lock()  # else another thread might take the same step before its outputs are in use

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function.

        Raises:
            ArgumentError: a tensor is not on a GPU, is of a subclass, or is written by the function; an argument is
                neither a tensor nor a constant.
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
            parameters, buffers = self._module.tensors() if self._module is not None else ((), ())
            tensors = [*call.tensors, *parameters]
            replayed = self._free_step(call, tensors, buffers)
            see_free_step(replayed)
            outputs = replayed.run(*tensors)
        result: R = replayed.step.assemble(outputs)
        return result

    @property
    def captured(self) -> int:
        """The number of captured pairs of graphs."""
        return sum(len(kind.steps) for kind in self._kinds)

    def reset(self) -> None:
        """Drop all graphs. Their memory is freed when outputs and gradients in it are no longer referenced."""
        with self._lock:
            self._kinds.clear()

    @property
    def _name(self) -> str:
        name = getattr(self.function, "__qualname__", None) or repr(self.function).partition("\n")[0].rstrip("(")
        return str(name).rpartition("<locals>.")[2]

    # -- choosing graphs --------------------------------------------------------------------------------------------

    def _free_step(self, call: Call, tensors: Sequence[Tensor], buffers: Sequence[Tensor]) -> Replayed:
        kind = self._kind_of(call, tensors, buffers)
        for _ in range(len(kind.steps)):  # the one used first is free first
            kind.steps.rotate(-1)
            if kind.steps[-1].is_free():
                return kind.steps[-1]
        grad_mode = torch.is_grad_enabled()  # which leaving inference mode would change
        with torch.inference_mode(False), torch.set_grad_enabled(grad_mode):
            kind.steps.append(Replayed(CapturedStep(self._work(call, tensors, buffers))))
        return kind.steps[-1]

    def _kind_of(self, call: Call, tensors: Sequence[Tensor], buffers: Sequence[Tensor]) -> Kind:
        in_place = _read_in_place(call, tensors)
        state = (
            call.form,
            torch.is_grad_enabled(),
            torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda"),
            current_stream(tensors[0].get_device()) if tensors and tensors[0].is_cuda else None,
            [t.data_ptr() for t, is_in_place in zip(tensors, in_place, strict=True) if is_in_place],
            [b.data_ptr() for b in buffers],
            self._module.modes() if self._module is not None else None,
        )
        given = (*tensors, *buffers)
        kind = self._known_kind(state, given)
        if kind is None:  # a guard refuses a tensor that is passed twice, as a first h and c may be
            given = _as_distinct_objects(given)
            kind = self._known_kind(state, given)
        if kind is not None:
            return kind
        if not tensors:
            raise ArgumentError(f"{self._name} was called without a tensor", fix="call it without graphs")
        refuse_subclasses(tensors)
        needs_gpu(self._name, tensors)
        any_strides = [*(not is_in_place for is_in_place in in_place), *(False for _ in buffers)]
        self._kinds.append(Kind(state, guard_tensors(given, any_strides), deque()))
        return self._kinds[-1]

    def _known_kind(self, state: Any, tensors: Sequence[Tensor]) -> Kind | None:
        return next((kind for kind in self._kinds if kind.state == state and kind.holds(*tensors)), None)

    def _work(self, call: Call, tensors: Sequence[Tensor], buffers: Sequence[Tensor]) -> Work:
        function: Callable[..., Any] = self.function
        module = self._module

        def run(own: Sequence[Tensor]) -> Any:
            remaining = iter(own)
            args, kwargs = tree.map_tensors(lambda _: next(remaining), call.nest)
            return function(*args, **kwargs) if module is None else module.call(list(remaining), args, kwargs)

        return Work(self._name, run, tensors, _read_in_place(call, tensors), buffers)

    def __reduce__(self) -> tuple[Any, ...]:
        return CudaGraphed, (self.function,)  # a copy captures its own

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
