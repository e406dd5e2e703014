"""Runs a computation exactly, or with chosen rounding errors: modes that see every operation of torch.

A NumPy function on arrays is one step to them: only its inputs are rounded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from opwright import tree
from opwright.checks.comparison.attention import FusedAttentionInSteps
from opwright.checks.comparison.decisions import Decisions
from opwright.internals.compiler import DispatchMode
from opwright.internals.process_groups import waited
from opwright.internals.registration import writes_arguments
from opwright.internals.tensors import memory_of

__all__ = ["Operations", "Perturbation", "exactly", "lowered", "perturbed", "recorded", "to_double"]


@dataclass
class Operations:
    """What a computation consists of.

    Attributes:
        rounding: the name and the result's dtype of each operation that rounds, in order.
        last: the positions of those that nothing but results follow from.
        are_seen: False if no operation of torch ran, as in a NumPy function.
        follow_from_values: whether others may run for other values, as some were read.
    """

    rounding: list[tuple[str, torch.dtype]] = field(default_factory=list)
    last: frozenset[int] = frozenset()
    are_seen: bool = False
    follow_from_values: bool = False
    # Whether attention may be among them, fused: it is done in steps.
    attends: bool = True


_WIDE = {torch.float32: torch.float64, torch.complex64: torch.complex128}


def to_double(values: Any) -> Any:
    """Floating tensors as float64 (complex as complex128)."""

    def convert(t: torch.Tensor) -> torch.Tensor:
        if t.is_complex():
            return t.to(torch.complex128)
        return t.double() if t.is_floating_point() else t

    return tree.map_tensors(convert, values)


@contextlib.contextmanager
def exactly() -> Iterator[None]:
    """A block in which what is float32 is float64: constants, new tensors, and conversions (``x.float()``).

    Conversions to narrower types stay, as a reference that quantises means them.
    """
    with _default_double(), _Exactly():
        yield


def recorded(run: Callable[[], Sequence[torch.Tensor]]) -> Operations:
    """The operations of a computation."""
    mode, attention = _Recording(), FusedAttentionInSteps()
    with mode, attention:
        results = run()
    mode.operations.last = mode.only_in(results)
    mode.operations.attends = attention.was_called
    return mode.operations


@dataclass(frozen=True)
class Perturbation:
    """A run with errors.

    Attributes:
        arguments: in float64, with errors.
    """

    arguments: Any
    _mode: _Perturbed

    @property
    def has_same_operations(self) -> bool:
        """After the run: whether its operations were the recorded ones."""
        return self._mode.has_same_operations()


@contextlib.contextmanager
def perturbed(
    arguments: Any, operations: Operations, fallback: float, finest: float, seed: int, *, are_exact: bool = False
) -> Iterator[Perturbation]:
    """A block like ``exactly``, in which each result has a random relative error: at least ``finest``, and as large as
    the eps of the dtype in which the same operation gave it in ``operations``. Not so the last operations' results: the
    tolerance counts their rounding by itself.

    Args:
        fallback: the error if the operations are others than the recorded ones.
        are_exact: whether decisions on the arguments, and on what follows exactly from them, are made without errors.
    """
    mode = _Perturbed(operations, fallback, finest, seed)
    # Before the mode begins: it would count these among the computation's operations.
    disturbed = tree.map_tensors(lambda t: mode.disturbed_argument(t, is_exact=are_exact), to_double(arguments))
    # That mode sees each operation, also those of this one.
    in_steps = FusedAttentionInSteps() if operations.attends else contextlib.nullcontext()
    with _default_double(), mode, in_steps:
        yield Perturbation(disturbed, mode)


@contextlib.contextmanager
def lowered(round_to: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """A block like ``exactly``, in which a function rounds each floating result."""
    with _default_double(), _Lowered(round_to):
        yield


@contextlib.contextmanager
def _default_double() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _is_floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _converts(func: Any) -> bool:
    """Whether an operation moves, chooses or converts data, so that it rounds nothing that it computes."""
    return bool(func.is_view) or func.overloadpacket.__name__ in _EXACT


_EXACT = frozenset({
    "_to_copy", "abs", "all_gather_into_tensor", "all_gather_into_tensor_coalesced", "all_to_all_single", "amax",
    "amin", "arange", "broadcast", "cat", "ceil", "clamp", "clamp_max", "clamp_min", "clone", "constant_pad_nd",
    "contiguous", "copy_", "detach", "empty", "empty_like", "eye", "fill", "flip", "floor", "full", "full_like",
    "gather", "index", "index_put", "index_select", "masked_fill", "masked_select", "max", "maximum", "min", "minimum",
    "neg", "new_empty", "new_zeros", "ones", "ones_like", "relu", "repeat", "roll", "round", "scatter", "sign", "sort",
    "stack", "take", "topk", "tril", "triu", "trunc", "wait_tensor", "where", "zeros", "zeros_like",
})  # fmt: skip


class _Exactly(DispatchMode):  # type: ignore[misc]
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.after(func, _run_widened(func, args, kwargs))

    def after(self, func: Any, out: Any) -> Any:
        """What an operation gives in place of its result."""
        return out


def _run_widened(func: Any, args: Any, kwargs: Any) -> Any:
    kwargs = dict(kwargs or {})
    if kwargs.get("dtype") in _WIDE:
        kwargs["dtype"] = _WIDE[kwargs["dtype"]]
    if not writes_arguments(func) and not func.is_view:
        args, kwargs = tree.map_tensors(_widened, (args, kwargs))
    return waited(func, func(*args, **kwargs))


def _widened(t: torch.Tensor) -> torch.Tensor:
    return t.to(_WIDE[t.dtype]) if t.dtype in _WIDE else t


# The tags of operations that give numbers of Python, or results whose sizes are not known before.
_READS_VALUES = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})


class _Recording(DispatchMode):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.operations = Operations()
        # The rounding operations that gave what is in a storage, and those whose results others have used.
        self._origins: dict[tuple[str, int], frozenset[int]] = {}
        self._used: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        sources = self._origins_of([args, kwargs])
        out = waited(func, func(*args, **(kwargs or {})))
        self.operations.are_seen = True
        self.operations.follow_from_values |= not _READS_VALUES.isdisjoint(func.tags)
        floating = [t for t in tree.tensors(out) if _is_floating(t)]
        if floating and not _converts(func):
            widest = max((t.dtype for t in floating), key=lambda d: torch.finfo(d).eps)
            self._used |= sources
            sources = frozenset({len(self.operations.rounding)})
            self.operations.rounding.append((str(func), widest))
        self._origins |= {memory_of(t): sources for t in floating}
        return out

    def only_in(self, results: Sequence[torch.Tensor]) -> frozenset[int]:
        """The operations of which only results follow."""
        return self._origins_of(list(results)) - self._used

    def _origins_of(self, values: Any) -> frozenset[int]:
        known = (self._origins.get(memory_of(t), frozenset()) for t in tree.tensors(values))
        return frozenset().union(*known)


class _Perturbed(_Exactly):
    def __init__(self, operations: Operations, fallback: float, finest: float, seed: int) -> None:
        super().__init__()
        self._remaining = iter(enumerate(operations.rounding))
        self._last = operations.last
        self._fallback, self._finest = fallback, finest
        self._same = True
        self._generator = torch.Generator().manual_seed(seed)
        self._addend: torch.Tensor | None = None
        self._decisions = Decisions()

    def has_same_operations(self) -> bool:
        """Whether as many operations as recorded, and the same ones, have run."""
        return self._same and next(self._remaining, None) is None

    def disturbed_argument(self, t: torch.Tensor, *, is_exact: bool) -> torch.Tensor:
        """An argument with errors; decisions on one that is exact are made without them."""
        found = self.disturb(t, self._finest)
        if is_exact and t.is_floating_point():
            self._decisions.know(found, t)
        return found

    def disturb(self, t: torch.Tensor, relative: float, least: float = 0.0) -> torch.Tensor:
        """A tensor with relative errors, and absolute ones of the smallest number of a dtype, which matter where
        results underflow."""
        if not _is_floating(t):
            return t
        noise = self._noise(t.shape)
        found = t * noise.mul(relative).add_(1)
        return (found.add_(noise, alpha=least) if least else found).to(t.dtype)

    def after(self, func: Any, out: Any) -> Any:
        if _converts(func) or not any(map(_is_floating, tree.tensors(out))):
            return out
        of_result, of_term, least = self._errors_of(str(func))

        def with_errors(t: torch.Tensor) -> torch.Tensor:
            t = self.disturb(t, of_result, least)
            if self._addend is None:
                return t
            # The other term may be rounded before it is added: it is not larger than the sum and the addend together.
            return t + of_term * self._noise(t.shape) * (self._addend + t.abs())

        if not writes_arguments(func):
            return tree.map_tensors(with_errors, out)
        for written in filter(_is_floating, tree.tensors(out)):
            written.copy_(with_errors(written))
        return out

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self._addend = _addend_of(name, args, kwargs)
        if name.startswith(_OF_MATRICES) and _is_floating(args[0]):
            args = (self._off_by_others(args[0], name), *args[1:])
        elif name in _CHOOSES and _is_floating(args[0]):
            args = (self._without_equal_zeros(args[0]), *args[1:])
        out = super().__torch_dispatch__(func, types, args, kwargs)
        out = self._decisions.decided(_run_widened, func, args, kwargs or {}, out)
        if name in _BOUNDED and _is_floating(out):
            out = out + self._noise(out.shape) * self._finest
        elif name in _TIMES_BOUNDED and _is_floating(out):
            out = out + self._noise(out.shape) * self._finest * args[0].abs()
        elif name.startswith("_fft_"):
            dims = tuple(args[1])
            out = tree.map_tensors(lambda t: self._off_by_the_mean(t, dims), out)
        elif name.startswith(("upsample_", "_upsample_", "grid_sampler_")):
            # Coordinates are rounded, so that weights are off by as much as the largest coordinate is.
            out = tree.map_tensors(self._off_by_coordinates, out)
        elif name.endswith(("_backward", "_log_softmax_backward_data")) and args and isinstance(args[0], torch.Tensor):
            # The derivative of an activation may be computed from its result, to an absolute error.
            out = tree.map_tensors(lambda t: self._beside(t, args[0]), out)
        return out

    def _off_by_others(self, t: torch.Tensor, name: str) -> torch.Tensor:
        """A batch of matrices with the errors that a backward stable algorithm makes in them."""
        if t.dim() < 2 or not t.numel():
            return t
        size = t.abs().nan_to_num(0.0, 0.0)
        if "cholesky" in name and t.shape[-1] == t.shape[-2]:
            root = size.diagonal(dim1=-2, dim2=-1).sqrt()
            of = root.unsqueeze(-1) * root.unsqueeze(-2)
        else:
            of = size.square().sum((-2, -1) if "svd" in name or "eig" in name else -2, keepdim=True).sqrt()
        return t + self._noise(t.shape) * self._finest * of

    def _without_equal_zeros(self, t: torch.Tensor) -> torch.Tensor:
        """Zeros are equal to each other, too, and no relative error changes that."""
        return torch.where(t == 0, (1e-300 * self._noise(t.shape)).to(t.dtype), t)

    def _off_by_the_mean(self, t: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
        """Each sum of a Fourier transform is off by as much as all of them are in the mean."""
        if not _is_floating(t) or not t.numel():
            return t
        mean = t.abs().square().mean(dims, keepdim=True).sqrt().nan_to_num(0.0, 0.0, 0.0)
        return t + self._noise(t.shape) * self._finest * mean

    def _off_by_coordinates(self, t: torch.Tensor) -> torch.Tensor:
        if not _is_floating(t) or not t.numel():
            return t
        largest = t.abs().nan_to_num(0.0, 0.0).amax(tuple(range(2, t.dim())), keepdim=True)  # what is mixed, at most
        return t + self._noise(t.shape) * self._finest * max(t.shape) * largest

    def _beside(self, gradient: torch.Tensor, incoming: torch.Tensor) -> torch.Tensor:
        if gradient.shape != incoming.shape or not _is_floating(gradient):
            return gradient
        return gradient + self._noise(gradient.shape) * self._finest * incoming.abs()

    def _noise(self, shape: torch.Size) -> torch.Tensor:
        """Random numbers from -1 to 1."""
        return torch.empty(shape, dtype=torch.float64).uniform_(-1, 1, generator=self._generator)

    def _errors_of(self, name: str) -> tuple[float, float, float]:
        """The relative error of an operation's results and of a term in it, and the smallest number of their dtype."""
        position, (recorded_name, dtype) = next(self._remaining, (-1, ("", torch.float32)))
        self._same = self._same and recorded_name == name
        limits = torch.finfo(dtype)
        own = max(self._finest, limits.eps if self._same else self._fallback)
        of_result = self._finest if self._same and position in self._last else own
        # A GPU may take what is below the smallest normal number of float32 for zero, and multiply later.
        flushes = limits.tiny < 1e-30
        return of_result, own, limits.tiny if flushes else limits.tiny * limits.eps


# Functions with results of about 1, which many kernels compute to an absolute error, as 1 - sigmoid(-x); and logarithms
# of sums of about 1.
_BOUNDED = frozenset({"sigmoid", "tanh", "erf", "erfc", "exp", "sin", "cos", "_log_softmax", "logsumexp"})


# The argument times such a function.
_TIMES_BOUNDED = frozenset({"gelu", "mish", "silu"})


# Factorisations, and what follows from them. Their errors are those of a matrix that is off a little: by a share of the
# roots of its diagonal (Cholesky), of its columns' norms (LU, QR), or of its own norm (eigenvalues and singular
# values). Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., theorems 10.3, 9.3 and 19.4; Golub
# and Van Loan, Matrix Computations, 4th ed., sections 8.3 and 8.6. A triangular system's are errors of each element.
_OF_MATRICES = (
    "cholesky", "geqrf", "lu_", "orgqr", "ormqr",
    *(f"{prefix}{name}"
      for name in ("cholesky", "det", "eig", "householder", "inv", "ldl", "lstsq", "lu", "matrix_exp", "pinv", "qr",
                   "slogdet", "solve_ex", "svd")
      for prefix in ("linalg_", "_linalg_")),
)  # fmt: skip


# Operations that give places, of equal values any.
_CHOOSES = frozenset({
    "argmax", "argmin", "argsort", "cummax", "cummin", "kthvalue", "max", "median", "min", "nanmedian", "sort", "topk",
})  # fmt: skip


# Operations that add a term, which they compute themselves, to their first argument; ``x.add(y, alpha=2)`` is one, too.
_FUSED = frozenset({"addbmm", "addcdiv", "addcmul", "addmm", "addmv", "addr", "baddbmm", "lerp"})


def _addend_of(name: str, args: Any, kwargs: Any) -> torch.Tensor | None:
    """The magnitudes of a term that an operation adds, and may round before."""
    if name == "_softmax_backward_data":  # the incoming gradient times the result, from which their sum is subtracted
        term = args[0].double() * args[1].double()
    else:
        fused = name.rstrip("_") in _FUSED or "alpha" in (kwargs or {})
        term = args[0] if fused and _is_floating(args[0]) else None
    return None if term is None else torch.abs(term)


class _Lowered(_Exactly):
    def __init__(self, round_to: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self._round_to = round_to

    def after(self, func: Any, out: Any) -> Any:
        if _converts(func) or writes_arguments(func):
            return out
        return tree.map_tensors(lambda t: self._round_to(t) if _is_floating(t) else t, out)
