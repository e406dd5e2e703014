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
from opwright.runtime.cuda_graphs.step import PLAIN_CONSTANTS, CapturedStep, Work, refuse_subclasses

__all__ = ["CudaGraphed", "cuda_graphed"]

P = ParamSpec("P", default=...)
R = TypeVar("R", default=Any)


def cuda_graphed(function: Callable[P, R], /) -> CudaGraphed[P, R]:
    """Replay a function's calls as CUDA graphs: one launch forward, one backward.

    Graphs are captured when a call of its kind comes first: the same sizes, dtypes, constants, wanted gradients,
    autocast, stream, and parameters at the same addresses. A graph works on memory of its own, so each call that is
    still needed has one to itself: a sequence of twenty steps that goes back through all of them makes twenty pairs of
    graphs, in the first iteration. A pair is used again when its backward has run, or cannot be asked for any more,
    and nobody holds an output or a gradient of its. So results never change under their holder, and gradients
    accumulate, which ``torch.cuda.make_graphed_callables`` does not promise.

    Args:
        function: an operator, a module, or a function of tensors and constants, in any nest of tuples, lists and
            dictionaries; it returns such a nest. Tensors that are ``nn.Parameter``, and a module's own parameters and
            buffers, are read where they are, so that an optimiser's steps in place are seen; all others are copied.
            What it does in Python happens only when it is captured.

    Returns:
        A callable like the function, for any number of threads. Under ``torch.compile``, and within another capture, it
        is the function.
    """
    return CudaGraphed(function)


class Kind(NamedTuple):
    """Calls that the same graphs can serve."""

    state: Any  # all that matters besides what the guard asks of the tensors
    holds: Callable[..., bool]  # whether tensors are like those of this kind
    steps: deque[CapturedStep]


class Call(NamedTuple):
    """The arguments of a call, taken apart."""

    nest: tuple[tuple[Any, ...], dict[str, Any]]
    tensors: Sequence[Tensor]
    form: Any  # how arguments are nested, and the constants among them


class CudaGraphed(Generic[P, R]):
    """What ``cuda_graphed`` returns.

    Attributes:
        function: the function that is replayed.
    """

    function: Callable[P, R]

    def __init__(self, function: Callable[P, R], /) -> None:
        self.function = function
        self._module = ModuleTensors(function) if isinstance(function, nn.Module) else None
        self._kinds: list[Kind] = []
        self._lock = threading.Lock()  # until its outputs are lent, another thread might take the same step

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function.

        Raises:
            ArgumentError: a tensor is not on a GPU, is of a subclass, or is written by the function; an argument is
                neither a tensor nor a constant.
            CudaGraphError: a ``torch.func`` transform is around the call, or the function cannot be captured.
        """
        if torch.compiler.is_compiling() or is_capturing():
            return self.function(*args, **kwargs)
        if transforms_are_on():
            raise CudaGraphError(
                f"{self._name}: torch.func cannot look into CUDA graphs", fix="call it without graphs there"
            )
        call = _take_apart(self._name, args, kwargs)
        with self._lock:
            parameters, buffers = self._module.tensors() if self._module is not None else ((), ())
            tensors = [*call.tensors, *parameters]
            step = self._free_step(call, tensors, buffers)
            outputs = _replay(step, *tensors) if step.has_backward else step.run(tensors)
        result: R = step.assemble(outputs)
        return result

    @property
    def captured(self) -> int:
        """How many calls there are graphs for."""
        return sum(len(kind.steps) for kind in self._kinds)

    def reset(self) -> None:
        """Forget all graphs. Their memory is freed when nobody holds what was lent of it."""
        with self._lock:
            self._kinds.clear()

    @property
    def _name(self) -> str:
        name = getattr(self.function, "__qualname__", None) or repr(self.function).partition("\n")[0].rstrip("(")
        return str(name).rpartition("<locals>.")[2]

    # -- which graphs -----------------------------------------------------------------------------------------------

    def _free_step(self, call: Call, tensors: Sequence[Tensor], buffers: Sequence[Tensor]) -> CapturedStep:
        kind = self._kind_of(call, tensors, buffers)
        for _ in range(len(kind.steps)):  # the one that was lent first is free first
            kind.steps.rotate(-1)
            if kind.steps[-1].is_free():
                return kind.steps[-1]
        records = torch.is_grad_enabled()  # which leaving inference mode would change
        with torch.inference_mode(False), torch.set_grad_enabled(records):
            kind.steps.append(CapturedStep(self._work(call, tensors, buffers)))
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
        # A guard does not know a tensor that is given twice, as a first h and c may be.
        for asked in ((*tensors, *buffers), _as_objects_of_their_own((*tensors, *buffers))):
            for kind in self._kinds:
                if kind.state == state and kind.holds(*asked):
                    return kind
        if not tensors:
            raise ArgumentError(f"{self._name} is given no tensor", fix="call it without graphs")
        refuse_subclasses(tensors)
        needs_gpu(self._name, tensors)
        any_strides = [*(not is_in_place for is_in_place in in_place), *(False for _ in buffers)]
        self._kinds.append(Kind(state, guard_tensors(asked, any_strides), deque()))
        return self._kinds[-1]

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


def _take_apart(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    nest = (args, kwargs)
    if not kwargs and all(isinstance(a, Tensor) for a in args):
        return Call(nest, args, len(args))
    leaves = tree.leaves(nest)
    for leaf in leaves:
        if not isinstance(leaf, (Tensor, *PLAIN_CONSTANTS)):
            raise ArgumentError(
                f"{name} is given a {type(leaf).__name__}, and CUDA graphs take tensors and constants",
                fix="pass the tensors in it, or call it without graphs",
            )
    # By what they print, which tells 0.0 from -0.0 and 1 from True, and NaN from no NaN.
    constants = [None if isinstance(leaf, Tensor) else (type(leaf), repr(leaf)) for leaf in leaves]
    return Call(nest, [leaf for leaf in leaves if isinstance(leaf, Tensor)], (tree.form(nest), constants))


def needs_gpu(name: str, tensors: Sequence[Tensor]) -> None:
    """Refuse tensors that are not all on one GPU."""
    devices = {str(t.device) for t in tensors}
    if len(devices) > 1 or not tensors[0].is_cuda:
        raise ArgumentError(
            f"{name}: CUDA graphs need every tensor on one GPU, and they are on {', '.join(sorted(devices))}",
            fix="move the module and its inputs there, or call it without graphs",
        )


def _read_in_place(call: Call, tensors: Sequence[Tensor]) -> list[bool]:
    """Parameters are: those among the arguments, and a module's, which come after these."""
    return [i >= len(call.tensors) or isinstance(t, nn.Parameter) for i, t in enumerate(tensors)]


def _as_objects_of_their_own(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [t.view_as(t) if any(t is other for other in tensors[:i]) else t for i, t in enumerate(tensors)]


class Replay(torch.autograd.Function):
    """A call, as autograd sees it."""

    @staticmethod
    def forward(ctx: Any, step: CapturedStep, *tensors: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.step = step
        outputs = step.run(tensors)
        ctx.lease = step.lease()
        if not all(step.is_differentiable):
            both = zip(outputs, step.is_differentiable, strict=True)
            ctx.mark_non_differentiable(*[output for output, is_differentiable in both if not is_differentiable])
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *output_gradients: Tensor | None) -> Any:
        if torch.is_grad_enabled():  # at once: torch would take what follows for a constant
            raise CudaGraphError(
                "create_graph=True: CUDA graphs have no second derivatives", fix="call it without graphs there"
            )
        return None, *ctx.step.run_backward(ctx.lease, output_gradients)


# Past Function.apply's own look for torch.func, which was refused above.
_replay: Callable[..., Any] = getattr(super(torch.autograd.Function, Replay), "apply", Replay.apply)
