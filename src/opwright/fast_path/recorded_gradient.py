"""Records a gradient, so that later ones like it run without Python (``operations.py``).

The gradient that is derived from a reference runs the reference again and differentiates it, which in Python takes
several times as long as its operations. After some gradients of calls with the same guard, their operations are
recorded, without those of the forward that no gradient needs. So are the operations of a registered backward, which may
call other operators by their names, and the call of a backward operator.

A recording is kept only if all that the code depends on is known (``known_code.py``): functions of torch, called by
attribute of ``torch`` or ``torch.nn.functional`` or as methods of tensors, arithmetic, constants, and the user's own
functions made of these. It is kept only if it gives the same bits as Python did just before. It is used while
everything that the code names is as it was, and some of its runs are made both ways and compared.
"""

from __future__ import annotations

import builtins
import inspect
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F

from opwright.contract.contract import Contract
from opwright.fast_path.extension import FastCalls, Watched
from opwright.fast_path.known_code import Known, UnknownCode, is_constant, members_of, watched_names
from opwright.fast_path.operations import Unrecordable, record
from opwright.fast_path.verify import difference
from opwright.internals.autograd import saved_tensors_hooks
from opwright.internals.dispatch import is_plain_call
from opwright.internals.operators import OPERATIONS

__all__ = ["GradientRecorder", "RecordableGradient", "unknown_in"]

# Recording takes some milliseconds. What is called with ever new sizes is not worth it.
_GRADIENTS_BEFORE = 10
_MOST_OF_A_GUARD = 8
_MOST_OF_AN_OPERATOR = 64
_MOST_OPERATIONS = 256
# The maximum size of all results. A comparison holds two or three copies of them at once, and a GPU needs longer for
# larger ones than Python does.
_MOST_BYTES = 1 << 28

# What names of torch mean to a recording: operations on tensors, in C, which the dispatcher shows. Those that ask for a
# setting, draw numbers or read values are no operations, or have no result on tensors without values.
_METADATA = (
    "shape", "dtype", "device", "ndim", "size", "dim", "numel", "stride", "is_floating_point", "is_complex", "T", "mT",
    "H", "mH", "real", "imag", "view", "reshape", "view_as", "reshape_as", "expand", "expand_as", "repeat", "unfold",
    "contiguous", "to", "type_as", "float", "double", "half", "bfloat16", "int", "long", "bool", "new_zeros",
    "new_ones", "new_full", "new_empty", "masked_fill_", "add_", "sub_", "mul_", "div_", "copy_", "zero_", "fill_",
    "__getitem__",
)  # fmt: skip
_ATTRIBUTES: Mapping[str, Any] = {
    **{
        name: inspect.getattr_static(torch.Tensor, name)
        for name in (*_METADATA, *OPERATIONS)
        if hasattr(torch.Tensor, name) and not name.startswith("_")
    },
    **dict.fromkeys(("append", "extend", "saved_tensors", "needs_input_grad")),
}
_BUILTINS = {
    name: vars(builtins)[name]
    for name in (
        "len", "min", "max", "int", "float", "complex", "bool", "range", "tuple", "list", "abs", "sum", "zip",
        "enumerate", "isinstance", "all", "any", "reversed", "sorted", "divmod", "round", "slice", "dict", "pow",
        "ValueError", "TypeError", "RuntimeError", "AssertionError", "NotImplementedError",
    )
}  # fmt: skip
# Functions in Python around operations; nothing but their arguments matters to them.
_FUNCTIONAL = (
    "relu", "silu", "gelu", "softplus", "softmax", "log_softmax", "softmin", "sigmoid", "tanh", "elu", "celu", "selu",
    "leaky_relu", "logsigmoid", "hardtanh", "hardswish", "hardsigmoid", "mish", "relu6", "softsign", "tanhshrink",
    "layer_norm", "rms_norm", "linear", "normalize", "pad", "one_hot", "conv1d", "conv2d", "mse_loss", "l1_loss", "glu",
    "scaled_dot_product_attention",
)  # fmt: skip
_FUNCTIONS = {
    **members_of(torch, (n for n in OPERATIONS if not n.startswith("_"))),
    **members_of(torch, ("Tensor", "einsum", "norm")),
    **members_of(F, _FUNCTIONAL),
    **members_of(math, [name for name in vars(math) if not name.startswith("_")]),
}


class RecordableGradient(Protocol):
    """What a recording takes of an operator's gradient (``runtime.register.gradients.Gradient``)."""

    recordings: int  # how often it was tried

    @property
    def computed_by(self) -> Any: ...
    @property
    def backward_operator(self) -> Any: ...
    @property
    def selection(self) -> Any: ...
    def traceable_gradients(
        self, values: Sequence[Any], needs_input_grad: Sequence[Any], grads: Sequence[Any]
    ) -> Sequence[Any]: ...


class GradientRecorder:
    """Sees the gradients of the calls of one guard, and records them.

    Args:
        is_tensor: for each argument of the calls, whether it is a tensor.

    Attributes:
        recordings: native operations, what must be unchanged for them, and the saved values that are no tensors.
    """

    def __init__(
        self, contract: Contract, gradient: RecordableGradient, is_tensor: Sequence[bool], calls: FastCalls
    ) -> None:
        self.recordings: list[tuple[Any, tuple[Watched, ...], tuple[Any, ...]]] = []
        self._contract = contract
        self._gradient = gradient
        self._is_tensor = is_tensor
        self._calls = calls
        self._remaining = _GRADIENTS_BEFORE

    def see(self, values: Sequence[Any], needs: Sequence[bool], grads: Sequence[Any], found: Sequence[Any]) -> None:
        """A gradient was computed in Python: ``found``, one or None for each positional argument."""
        self._remaining = max(self._remaining - 1, 0)
        if self._remaining or any(g is None for g in grads) or not _is_repeatable_now((*values, *grads)):
            return
        if not _is_on or len(self.recordings) >= _MOST_OF_A_GUARD or self._gradient.recordings >= _MOST_OF_AN_OPERATOR:
            return
        if not _is_small(found) or self._is_recorded(values, grads):
            return  # the latter was computed to verify a recording
        self._gradient.recordings += 1
        try:
            self._record(values, needs, grads, found)
        except Exception:  # whatever it is, the gradient itself was found
            self._gradient.recordings = _MOST_OF_AN_OPERATOR
        self._remaining = _GRADIENTS_BEFORE

    def _is_recorded(self, values: Sequence[Any], grads: Sequence[Any]) -> bool:
        inputs, others = _split(values, grads)
        return any(o == others and self._calls.run_operations(r, inputs) is not None for r, _, o in self.recordings)

    def _record(self, values: Sequence[Any], needs: Sequence[bool], grads: Sequence[Any], found: Sequence[Any]) -> None:
        watched, operators = _uses(self._contract, self._gradient)
        inputs, others = _split(values, grads)
        if not all(map(is_constant, others)):  # such as a list, or an enumeration's member, which has attributes
            raise Unrecordable("it saves a value that may change")

        def of_fakes(fakes: list[torch.Tensor]) -> Sequence[torch.Tensor | None]:
            left = iter(fakes)
            fake_values = [next(left) if isinstance(value, torch.Tensor) else value for value in values]
            return self._of_tensors(self._gradient.traceable_gradients(fake_values, needs, [*left]))

        operations = self._calls.operations_of(record(of_fakes, inputs, _MOST_OPERATIONS, operators), inputs)
        again = self._calls.run_operations(operations, inputs)
        if again is None or difference(again, self._of_tensors(found)) is not None:
            raise Unrecordable("its operations alone give something else")
        self.recordings.append((operations, watched, others))

    def is_same(self, found: Sequence[Any], expected: Sequence[Any]) -> bool:
        """Whether two results are the same to the bit."""
        try:
            return difference(found, expected) is None
        except Exception:  # memory ran out, or somebody has replaced what the comparison uses
            return False

    def drop(self, is_wrong: bool) -> None:
        """Drop what was recorded, because a result differed from Python's.

        Args:
            is_wrong: Python gives the same result each time: then recording ends in this process. Else the gradient
                differs from call to call.
        """
        global _is_on
        self.recordings.clear()
        self._gradient.recordings = _MOST_OF_AN_OPERATOR
        if is_wrong and _is_on:
            _is_on = False
            warnings.warn(
                f"opwright: the recorded gradient of {self._contract.qualname} differs from the gradient in Python. "
                "Gradients run in Python from now on, in this process. Please report the operator; "
                "OPWRIGHT_FAST_CALLS=0 switches recording off.",
                stacklevel=2,
            )

    def _of_tensors(self, gradients: Sequence[Any]) -> list[Any]:
        """Those of arguments that are tensors. What follows the positional arguments has none."""
        all_of_them = [*gradients, *[None] * len(self._is_tensor)]
        return [g for g, is_one in zip(all_of_them, self._is_tensor, strict=False) if is_one]


def _split(values: Sequence[Any], grads: Sequence[Any]) -> tuple[list[torch.Tensor], tuple[Any, ...]]:
    """The inputs of a recording, and the saved values that are no tensors."""
    tensors = [value for value in (*values, *grads) if isinstance(value, torch.Tensor)]
    return [tensor.detach() for tensor in tensors], tuple(v for v in values if not isinstance(v, torch.Tensor))


def _is_small(gradients: Sequence[Any]) -> bool:
    """Whether a comparison may hold copies of them. The size of a sparse one is not known."""
    tensors = [g for g in gradients if isinstance(g, torch.Tensor)]
    return all(g.layout is torch.strided for g in tensors) and sum(g.nbytes for g in tensors) <= _MOST_BYTES


# Gradients are recorded in this process until one differs.
_is_on = True


def _is_repeatable_now(arguments: Sequence[Any]) -> bool:
    """Whether nothing but the operations matters: no second derivative, no mode, no hooks that would see what is saved,
    no capture of a CUDA graph."""
    if torch.is_grad_enabled() or torch.is_anomaly_enabled() or not is_plain_call(arguments):
        return False
    if saved_tensors_hooks() is not None:
        return False
    return not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


# -- what a gradient depends on --------------------------------------------------------------------------------------


def _uses(
    contract: Contract, gradient: RecordableGradient
) -> tuple[tuple[Watched, ...], Mapping[Any, Callable[..., Any]]]:
    """What the code of a gradient uses: names to watch, and operators of ours by torch's overloads.

    Raises:
        Unrecordable: it may depend on more.
    """
    if gradient.backward_operator is not None:
        return (), _by_overload([gradient.backward_operator])
    is_reference = gradient.computed_by is contract.function
    if is_reference and (contract.random or contract.signature.mutated or contract.signature.language != "torch"):
        raise Unrecordable("it is random, writes its arguments, or is in NumPy")
    operators: list[Any] = []

    def accepts(value: Any) -> Iterable[Watched] | None:
        if is_reference or not _is_operator(value):
            return None
        operators.append(value)
        return ()

    try:
        watched = watched_names(gradient.computed_by, _known(accepts, _names_on_ctx(gradient)))
    except UnknownCode as reason:
        raise Unrecordable(str(reason)) from None
    return watched, _by_overload(operators)


def _known(accepts: Callable[[Any], Iterable[Watched] | None], of_ctx: Iterable[str] = ()) -> Known:
    return Known(_FUNCTIONS, _BUILTINS, torch.Tensor, {**dict.fromkeys(of_ctx), **_ATTRIBUTES}, accepts)


def _names_on_ctx(gradient: RecordableGradient) -> Iterable[str]:
    """The attributes of ``ctx`` that have numbers of the call, or constants. A tensor has none of these names."""
    if gradient.selection is None:
        return ()
    names = (*gradient.selection.attributes, *gradient.selection.constants)
    return [name for name in names if not hasattr(torch.Tensor, name)]


def unknown_in(function: Any) -> str | None:
    """Why a function is not recorded, as far as its code says; None if nothing in it is unknown."""
    try:
        watched_names(function, _known(lambda value: None))
    except UnknownCode as reason:
        return str(reason)
    return None


def _by_overload(operators: Sequence[Any]) -> dict[Any, Callable[..., Any]]:
    return {each.overload: each for each in operators if _is_pure(each.contract)}


def _is_operator(value: Any) -> bool:
    """An operator of ours: ``BaseOp``, which this file cannot import."""
    return isinstance(getattr(value, "contract", None), Contract) and hasattr(value, "overload")


def _is_pure(contract: Contract) -> bool:
    """Whether calls by position with the same arguments give the same results, and do nothing else."""
    signature = contract.signature
    return not (contract.random or signature.mutated or signature.groups or signature.keyword_only)
