"""Runs a computation exactly, or with chosen rounding errors: modes that see every operation of torch.

A NumPy function on arrays is one step to them: only its inputs are rounded.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from opwright import tree
from opwright.checks.comparison.attention import FusedAttentionInSteps
from opwright.checks.comparison.decisions import Decisions
from opwright.checks.comparison.magnitudes import terms_of_group_norm
from opwright.checks.comparison.operations import MULTIPLIES, Operations, is_floating, only_moves
from opwright.internals.compiler import DispatchMode
from opwright.internals.process_groups import waited
from opwright.internals.registration import writes_arguments

__all__ = ["Errors", "Perturbation", "exactly", "is_in_float32", "lowered", "multiplies", "perturbed", "to_double"]


def is_in_float32(number: float) -> bool:
    """Whether float32 has a number, so that every kernel gets the same one."""
    return not math.isfinite(number) or float(torch.tensor(number, dtype=torch.float32)) == number


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


@dataclass(frozen=True)
class Errors:
    """How large the errors of a run are.

    Attributes:
        finest: the least relative error of each result.
        fallback: the error if the operations are others than the recorded ones.
        of_numbers: the relative error of the floats among the arguments that float32 does not have.
        exact_steps: the positions of operations without errors of their dtype.
        in_tf32: whether products of float32 matrices have operands in TF32.
        decides_exactly: whether decisions on the arguments, and on what follows exactly from them, are made without
            errors.
    """

    finest: float
    fallback: float
    of_numbers: float = 0.0
    exact_steps: frozenset[int] = frozenset()
    decides_exactly: bool = False
    in_tf32: bool = False


@contextlib.contextmanager
def perturbed(arguments: Any, operations: Operations, errors: Errors, seed: int) -> Iterator[Perturbation]:
    """A block like ``exactly``, in which each result has a random relative error: at least the finest one, and as large
    as the eps of the dtype in which the same operation gave it in ``operations``. Not so the last operations' results:
    the tolerance counts their rounding by itself.
    """
    mode = _Perturbed(operations, errors, seed)
    # Before the mode begins: it would count these among the computation's operations.
    disturbed = tree.map_leaves(mode.disturbed_argument, to_double(arguments))
    # That mode sees each operation, also those of this one.
    in_steps = FusedAttentionInSteps() if operations.attends else contextlib.nullcontext()
    with _default_double(), mode, in_steps:
        yield Perturbation(disturbed, mode)


def multiplies(operation: str) -> bool:
    """Whether an operation, by its name such as ``aten.mm.default``, is a product of matrices or a convolution."""
    return operation.partition(".")[2].partition(".")[0] in _OPERANDS


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
    if multiplies(str(func)):
        args = _of_one_dtype(args)
    return waited(func, func(*args, **kwargs))


def _of_one_dtype(args: Any) -> Any:
    """Operands as a product takes them: one that the reference converts to a narrow dtype stays so, unlike others."""
    dtypes = {t.dtype for t in tree.tensors(args) if t.is_floating_point()}
    if len(dtypes) < 2:
        return args
    widest = functools.reduce(torch.promote_types, dtypes)
    return tree.map_tensors(lambda t: t.to(widest) if t.is_floating_point() else t, args)


def _widened(t: torch.Tensor) -> torch.Tensor:
    return t.to(_WIDE[t.dtype]) if t.dtype in _WIDE else t


class _Perturbed(_Exactly):
    def __init__(self, operations: Operations, errors: Errors, seed: int) -> None:
        super().__init__()
        self._operations, self._errors = operations, errors
        self._finest = errors.finest
        self._position = 0  # of the next operation that rounds
        self._same = True
        self._generator = torch.Generator().manual_seed(seed)
        self._addend: torch.Tensor | None = None
        self._decisions = Decisions()

    def has_same_operations(self) -> bool:
        """Whether as many operations as recorded, and the same ones, have run."""
        return self._same and self._position == len(self._operations.rounding)

    def disturbed_argument(self, value: Any) -> Any:
        """An argument with errors; decisions on one that is exact are made without them."""
        if type(value) is float and self._errors.of_numbers and not is_in_float32(value):
            return value * (1 + self._errors.of_numbers * float(self._noise(torch.Size(()))))
        if not isinstance(value, torch.Tensor):
            return value
        found = self.disturb(value, self._finest)
        if self._errors.decides_exactly and value.is_floating_point():
            self._decisions.know(found, value)
        return found

    def disturb(self, t: torch.Tensor, relative: float, least: float = 0.0) -> torch.Tensor:
        """A tensor with relative errors, and absolute ones of the smallest number of a dtype, which matter where
        results underflow."""
        if not is_floating(t):
            return t
        noise = self._noise(t.shape)
        found = t * noise.mul(relative).add_(1)
        return (found.add_(noise, alpha=least) if least else found).to(t.dtype)

    def after(self, func: Any, out: Any) -> Any:
        if only_moves(func) or not any(map(is_floating, tree.tensors(out))):
            return out
        of_each = iter(self._errors_of(str(func), sum(map(is_floating, tree.tensors(out)))))

        def with_errors(t: torch.Tensor) -> torch.Tensor:
            if not is_floating(t):
                return t
            of_result, of_term, least = next(of_each)
            t = self.disturb(t, of_result, least)
            if self._addend is None:
                return t
            # The other term may be rounded before it is added: it is not larger than the sum and the addend together.
            return t + of_term * self._noise(t.shape) * (self._addend + t.abs())

        if not writes_arguments(func):
            return tree.map_tensors(with_errors, out)
        for written in filter(is_floating, tree.tensors(out)):
            written.copy_(with_errors(written))
        return out

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self._addend = _addend_of(name, args, kwargs)
        if name.startswith(_OF_MATRICES) and is_floating(args[0]):
            args = (self._off_by_others(args[0], name), *args[1:])
        elif name in _CHOOSES and is_floating(args[0]):
            args = (self._without_ties(args[0]), *args[1:])
        if name in _OPERANDS:
            args = self._with_narrow_operands(func, args, _OPERANDS[name])
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if name == "_to_copy" and (kwargs or {}).get("dtype") in _WIDE and is_floating(args[0]):
            out = self._converted(out)
        out = self._decisions.decided(_run_widened, func, args, kwargs or {}, out)
        if name in _BOUNDED and is_floating(out):
            out = out + self._noise(out.shape) * self._finest
        elif name in _TIMES_BOUNDED and is_floating(out):
            out = out + self._noise(out.shape) * self._finest * args[0].abs()
        elif name == "native_group_norm" and is_floating(args[0]):
            terms = terms_of_group_norm(args[0], args[1], out[2])
            out = (out[0] + self._noise(terms.shape) * self._finest * terms, *out[1:])
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

    def _with_narrow_operands(self, func: Any, args: Any, places: tuple[int, ...]) -> Any:
        """The operands of a product: in the dtype to which the reference has converted them, or one of them in that
        from which the other was converted. Tensor cores take both in one dtype, as FlashAttention (Dao et al., 2022)
        gives them its weights. Those of float32 may be in TF32, if that is stated."""
        known, position = self._operations, self._position
        if position >= len(known.rounding) or known.rounding[position][0] != str(func):
            return args
        given = list(args)
        for place, eps in known.narrow_operands.get(position, {}).items():
            given[place] = self.disturb(given[place], eps / 2)  # it is rounded once
        if self._errors.in_tf32 and known.rounding[position][1][0] in _WIDE:
            for place in places:
                given[place] = self._cut_off(given[place])
        return tuple(given)

    def _cut_off(self, t: torch.Tensor) -> torch.Tensor:
        """An operand as tensor cores take it, which ignore the last bits of what is not rounded before."""
        return (t * self._noise(t.shape).add_(1).mul_(-_EPS_OF_TF32 / 2).add_(1)).to(t.dtype)

    def _converted(self, t: torch.Tensor) -> torch.Tensor:
        """What was converted to float32, where all else has float64's errors."""
        eps = torch.finfo(torch.float32).eps
        return self.disturb(t, eps) if self._finest < eps else t

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

    def _without_ties(self, t: torch.Tensor) -> torch.Tensor:
        """Zeros and infinities, which no relative error tells apart. Torch takes NaN for the largest number."""
        noise = self._noise(t.shape)
        t = torch.where(t == 0, (1e-300 * noise).to(t.dtype), t)
        if t.is_complex() or bool(t.isfinite().all()):
            return t
        infinite, nan = (torch.finfo(t.dtype).max * (noise * 0.004 + share) for share in (0.98, 0.995))
        return torch.where(t.isinf(), t.sign() * infinite.to(t.dtype), torch.where(t.isnan(), nan.to(t.dtype), t))

    def _off_by_the_mean(self, t: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
        """Each sum of a Fourier transform is off by as much as all of them are in the mean."""
        if not is_floating(t) or not t.numel():
            return t
        mean = t.abs().square().mean(dims, keepdim=True).sqrt().nan_to_num(0.0, 0.0, 0.0)
        return t + self._noise(t.shape) * self._finest * mean

    def _off_by_coordinates(self, t: torch.Tensor) -> torch.Tensor:
        if not is_floating(t) or not t.numel():
            return t
        largest = t.abs().nan_to_num(0.0, 0.0).amax(tuple(range(2, t.dim())), keepdim=True)  # what is mixed, at most
        return t + self._noise(t.shape) * self._finest * max(t.shape) * largest

    def _beside(self, gradient: torch.Tensor, incoming: torch.Tensor) -> torch.Tensor:
        if gradient.shape != incoming.shape or not is_floating(gradient):
            return gradient
        return gradient + self._noise(gradient.shape) * self._finest * incoming.abs()

    def _noise(self, shape: torch.Size) -> torch.Tensor:
        """Random numbers from -1 to 1."""
        return torch.empty(shape, dtype=torch.float64).uniform_(-1, 1, generator=self._generator)

    def _errors_of(self, name: str, count: int) -> list[tuple[float, float, float]]:
        """For each floating result of an operation, its relative error, that of a term in it, and the smallest number
        of its dtype."""
        position, known = self._position, self._operations
        self._position += 1
        recorded_name, dtypes = known.rounding[position] if position < len(known.rounding) else ("", ())
        self._same = self._same and recorded_name == name and len(dtypes) == count
        is_exact = self._same and position in self._errors.exact_steps
        is_last = self._same and position in known.last
        found = []
        for dtype in dtypes if self._same else [torch.float32] * count:
            limits = torch.finfo(dtype)
            own = max(self._finest, limits.eps if self._same else self._errors.fallback)
            own = self._finest if is_exact else own
            # A GPU may take what is below the smallest normal number of float32 for zero, and multiply later.
            flushes = limits.tiny < 1e-30
            least = limits.tiny if flushes else limits.tiny * limits.eps
            found.append((self._finest if is_last else own, own, least))
        return found


# The places of the operands of products, which tensor cores may take in TF32.
_OPERANDS = {
    **{name: (first, first + 1) for name, first in MULTIPLIES.items()},
    "convolution": (0, 1), "convolution_backward": (0, 1, 2),
}  # fmt: skip
_EPS_OF_TF32 = 2.0**-10


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
        term = args[0] if fused and is_floating(args[0]) else None
    return None if term is None else torch.abs(term)


class _Lowered(_Exactly):
    def __init__(self, round_to: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self._round_to = round_to

    def after(self, func: Any, out: Any) -> Any:
        if only_moves(func) or writes_arguments(func):
            return out
        return tree.map_tensors(lambda t: self._round_to(t) if is_floating(t) else t, out)
