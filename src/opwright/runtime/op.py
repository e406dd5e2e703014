"""The operator as a person holds it: defined by ``@ow.op``, called, given kernels, asked about itself."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from opwright.backends import BACKENDS, get_backend
from opwright.contract.binding import bind, fill
from opwright.contract.contract import Contract, make_contract
from opwright.contract.fingerprint import digest, fingerprint
from opwright.errors import ArgumentError, KernelError, NameClashError
from opwright.results import Accepted, Crossover, Explanation, Part
from opwright.runtime import registration, selection, tuned
from opwright.runtime.attach import Attach, make_spec
from opwright.runtime.baselines import Baseline, make_baseline, refuse_name
from opwright.runtime.calls import Calls, CallsThatSave
from opwright.runtime.kernel import Kernel
from opwright.runtime.parts import parts_of
from opwright.runtime.plan import static_key
from opwright.runtime.tools import build_tools

__all__ = ["Op", "explain", "op"]


def op(qualname: str, *, autocast: str | None = None) -> Callable[[Callable[..., Any]], Op]:
    """Define an operator by a typed function whose body is its meaning.

    Args:
        qualname: ``"namespace::name"``, as torch will know it.
        autocast: what it does with floating arguments under ``torch.autocast``: ``"lower"`` casts them to autocast's
            dtype (as for a matrix product), ``"float32"`` to float32, ``"promote"`` to the widest among them (float64
            stays). None takes them as they come.

    The function's tensor arguments are annotated with jaxtyping shapes (``Float[Tensor, "*batch n"]``),
    on ``torch.Tensor`` or, for a meaning written in NumPy, on ``np.ndarray``. Arguments that share an
    abstract dtype class (``Float``) share one dtype in a call.

    Raises:
        ContractError: something in the function cannot be expressed; the message names the argument.
        NameClashError: the name is taken.
    """
    caller = sys._getframe(1)
    scope = {**caller.f_globals, **caller.f_locals}

    def decorate(function: Callable[..., Any]) -> Op:
        contract = make_contract(qualname, function, scope, autocast)
        saves = contract.signature.visible < len(contract.signature.returns)
        return (OpThatSaves if saves else Op)(contract)

    return decorate


class Op(Calls):
    """A first-class PyTorch operator with any number of kernels.

    ``op(...)`` and ``torch.ops.namespace.name(...)`` do the same, but that only the latter gives outputs marked
    ``ow.saved``. ``op.kernels["name"](...)`` runs one kernel. ``op.triton``, ``op.cpp``, ``op.numpy``, ``op.python``
    and the other languages' names attach kernels.
    """

    def __init__(self, contract: Contract) -> None:
        super().__init__(contract)
        self.kernels: dict[str, Kernel] = {}
        self.baselines: dict[str, Baseline] = {}
        self.declared_sizes: dict[str, tuple[int, ...]] = {}
        self._only: str | None = None
        self._overrides: dict[str, Callable[..., Any]] = {}
        self._setup_context: Callable[..., Any] | None = None
        # Shapes, dtypes and devices that were checked before, with the kernels that fit them.
        self._seen: dict[Any, tuple[Kernel, ...]] = {}
        functools.update_wrapper(self, contract.function)
        self.overload = registration.register(self)

    def _fitting(self, arguments: Sequence[Any]) -> tuple[Kernel, ...]:
        """The kernels for these shapes, dtypes and devices, in order, once the arguments agree with the contract."""
        key = (self._only, static_key(arguments))
        try:
            fitting = self._seen.get(key)
        except TypeError:  # unhashable, so of a kind that no argument has: an array, a dictionary
            bind(self.contract, arguments)
            raise
        if fitting is None:
            binding = bind(self.contract, arguments)
            fitting = tuple(k for k in self._candidates() if isinstance(k.fits(binding, arguments), Accepted))
            fitting = selection.in_order(fitting, arguments, self.tuned)
            if len(self._seen) >= 4096:  # a bound, should sizes change with every call
                self._seen.clear()
            self._seen[key] = fitting
        return fitting

    def _candidates(self) -> list[Kernel]:
        if self._only is None:
            return list(self.kernels.values())
        return [self.kernels[self._only]] if self._only != selection.REFERENCE else []

    @contextlib.contextmanager
    def only(self, name: str) -> Iterator[None]:
        """Within this block, calls run the kernel ``name`` (or ``"reference"``) where its domain holds, and
        no other kernel: for tests and comparisons. Not for several threads at once."""
        if name != selection.REFERENCE and name not in self.kernels:
            raise KernelError(
                f"{self.contract.qualname} has no kernel {name!r}",
                fix=f"it has {[*self.kernels, selection.REFERENCE]}",
            )
        if name == self._only:
            yield
            return
        before = self._only
        self._restrict(name)
        try:
            yield
        finally:
            self._restrict(before)

    def _restrict(self, name: str | None) -> None:
        # What is remembered of each restriction stays valid: only compiled code has to go, if there is any.
        self._only = name
        self._plans = ()
        vars(self).pop("fingerprint", None)
        registration.changed(self)

    def _changed(self) -> None:
        """What was remembered of this operator's kernels and parts holds no more."""
        self._seen.clear()
        self._plans = ()
        vars(self).pop("fingerprint", None)
        vars(self).pop("tuned", None)
        registration.changed(self)

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """Which kernel these arguments would run, and why each other one would not."""
        arguments = fill(self.contract, args, kwargs)
        return selection.explain(self.contract, self._candidates(), arguments, self.tuned)

    @functools.cached_property
    def tuned(self) -> tuned.Tuned:
        """What ``ow.tune`` found for these kernels on this machine; looked up when first needed."""
        return tuned.load(self.contract.qualname, self._kernels_digest, build_tools().machine)

    def _kernels_digest(self) -> str:
        return digest(self.contract.fingerprint, *(k.fingerprint for k in self.kernels.values()))

    def follow(self, tables: Sequence[Crossover]) -> Path:
        """Keep tables of which kernel is fastest where; calls follow them from now on, in later processes too."""
        file = tuned.store(self.contract.qualname, self._kernels_digest(), build_tools().machine, tables)
        self._changed()
        return file

    def forget_tuning(self) -> bool:
        """Remove what ``follow`` kept, for all kernels that this operator ever had; whether there was anything."""
        found = tuned.clear(self.contract.qualname, build_tools().machine)
        self._changed()
        return found

    # -- kernels ------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Attach:
        if name in BACKENDS:
            return functools.partial(self._attach, name)
        raise AttributeError(
            f"{type(self).__name__} has no attribute {name!r}; the languages are {', '.join(BACKENDS)}"
        )

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *BACKENDS]

    def _attach(
        self,
        backend_name: str,
        source: Callable[..., Any] | str | Path | None = None,
        /,
        *,
        name: str | None = None,
        entry: str | None = None,
        devices: Sequence[str] | None = None,
        dtypes: Sequence[torch.dtype] | None = None,
        when: Callable[..., bool] | None = None,
        **options: Any,
    ) -> Any:
        def attach(source: Callable[..., Any] | str | Path) -> Any:
            spec = make_spec(self.contract, backend_name, source, name, entry, devices, dtypes, when, options)
            refuse_name(self.contract, f"op.{backend_name}", spec.name, self.baselines, "a baseline")
            get_backend(backend_name).validate(spec, self.contract)
            self.kernels[spec.name] = Kernel(spec, self.contract)
            self._changed()
            return source if callable(source) else self.kernels[spec.name]

        return attach if source is None else attach(source)

    def baseline(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        devices: Sequence[str] | None = None,
        dtypes: Sequence[torch.dtype] | None = None,
    ) -> Any:
        """Name something to be compared with, such as a vendor's library: ``opwright bench`` times it beside the
        meaning, and checks what it returns. Calls never choose it.

        Args:
            function: takes the operator's arguments, returns what the operator returns.
            name: how tables call it (default: the function's own name).
            devices, dtypes: where it is timed (default: everywhere).

        Raises:
            KernelError, SignatureMismatchError: a name that is taken, or other parameters than the operator's.
        """

        def attach(function: Callable[..., Any]) -> Callable[..., Any]:
            found = make_baseline(self.contract, function, name, devices, dtypes)
            refuse_name(self.contract, "op.baseline", found.name, self.kernels, "a kernel")
            self.baselines[found.name] = found
            return function

        return attach if function is None else attach(function)

    # -- for benchmarks, and what is known of its parts -------------------------------------------------

    def bench_sizes(self, **sizes: Sequence[int]) -> None:
        """The sizes that ``opwright bench`` times by default: lists by dim, taken in step.

        ``kmeans.bench_sizes(n=(10**4, 10**6), d=(2,), k=(8,))`` times two cases; a shorter list repeats its last.
        """
        known = {
            d.name for a in self.contract.signature.arguments if a.tensor for d in a.tensor.dims if hasattr(d, "name")
        }
        for name, listed in sizes.items():
            if name not in known:
                raise KernelError(
                    f"{self.contract.qualname} has no dim {name!r}", fix=f"its dims are {sorted(map(str, known))}"
                )
            if not listed:
                raise KernelError(
                    f"{self.contract.qualname}: bench_sizes got no size for {name!r}", fix="give at least one"
                )
        self.declared_sizes = {name: tuple(listed) for name, listed in sizes.items()}

    @property
    def parts(self) -> dict[str, Part]:
        """Where each part of the operator comes from: derived, hand-written or missing."""
        return parts_of(self.contract, self._overrides, list(self.kernels.values()))

    # -- what registration asks for -----------------------------------------------------------------------

    @functools.cached_property
    def fingerprint(self) -> str:
        """Changes when the meaning, a hand-written part or a kernel does."""
        overrides = [f"{name}={fingerprint(f)}" for name, f in sorted(self._overrides.items())]
        kernels = [f"{k.name}={k.fingerprint}" for k in self.kernels.values()]
        tables = repr(self.tuned.tables) if self.tuned.tables else ""  # they decide what torch.compile traces into
        return digest(
            self.contract.fingerprint, str(self._only), *overrides, fingerprint(self._setup_context), *kernels, tables
        )

    def traceable_kernel(self, arguments: Sequence[Any]) -> Callable[..., Any] | None:
        try:
            kernel = selection.choose(self.contract, self._candidates(), arguments, self.tuned)
        except ArgumentError:
            raise
        except RuntimeError:
            return None  # a `when` that looks at addresses or values: it is decided when the call runs
        return kernel.traceable() if kernel is not None else None

    def __reduce__(self) -> tuple[Any, ...]:
        """By value (with cloudpickle): unpickling defines the operator in the other process.

        The state travels apart from what makes the object, so that operators may refer to each other, as
        ``sin`` and ``cos`` do in their backwards. Baselines stay behind: they may hold a library's handles, and a
        worker has no use for them.
        """
        specs = tuple(k.spec for k in self.kernels.values())
        return type(self), (self.contract,), (specs, dict(self._overrides), self._setup_context)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        specs, self._overrides, self._setup_context = state
        self.kernels = {s.name: Kernel(s, self.contract) for s in specs}
        self._changed()

    def retire(self) -> None:
        """Another definition took this one's name: calls say so, rather than give an old result.

        (The dispatcher's entry is gone; what the overload's handle points to is undefined.)
        """
        self.overload = self._refuse_retired
        self._plans = ()
        vars(self)["_fitting"] = self._refuse_retired

    def _refuse_retired(self, *_: Any, **__: Any) -> Any:
        raise NameClashError(
            f"{self.contract.qualname} was defined anew after this object was made",
            fix=f"use the new one: import it again, or call torch.ops.{self.contract.qualname.replace('::', '.')}",
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Op:
        return self  # as for a function: a copied torch module goes on calling the same operator

    def __repr__(self) -> str:
        return f"<operator {self.contract.call_form}, kernels: {', '.join(self.kernels) or 'none'}>"


class OpThatSaves(CallsThatSave, Op):
    """An operator with outputs for its backward (``ow.saved``), which its caller does not get."""


def explain(operator: Op, *args: Any, **kwargs: Any) -> Explanation:
    """Print, and return, which kernel a call would run and why each other one would not."""
    explanation = operator.explain(*args, **kwargs)
    print(explanation)
    return explanation


def defined_in(namespace: dict[str, Any]) -> list[Op]:
    """The operators among a module's names, in the order of their definition."""
    found = {id(v): v for v in namespace.values() if isinstance(v, Op)}
    return sorted(found.values(), key=lambda o: inspect.unwrap(o.contract.function).__code__.co_firstlineno)
