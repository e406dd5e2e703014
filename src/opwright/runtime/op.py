"""The operator of the public interface: ``@ow.op``, attaching kernels, choosing and explaining them."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, overload

import numpy as np
from typing_extensions import ParamSpec, TypeVar

from opwright.backends import get_backend
from opwright.backends.build_tools import build_tools
from opwright.backends.native.tracked_call import tracked_calls
from opwright.contract.binding import Binding, fill
from opwright.contract.define import make_contract
from opwright.contract.fingerprint import digest
from opwright.errors import KernelError
from opwright.results import Accepted, Crossover, Explanation, Part
from opwright.runtime import selection, tuned
from opwright.runtime.attach import make_spec
from opwright.runtime.base_op import BaseOp, OperatorKernel
from opwright.runtime.baselines import refuse_name
from opwright.runtime.call.guard import Guard
from opwright.runtime.call.native_guards import holds_natively, take_calls_of
from opwright.runtime.call.torch_ops import CALLED
from opwright.runtime.evidence import Evidence
from opwright.runtime.kernel import Kernel
from opwright.runtime.languages import REFERENCE
from opwright.runtime.parts import parts_of
from opwright.runtime.register import registration
from opwright.runtime.register.native_tracker import can_track_natively, track_natively
from opwright.runtime.register.rules import Rules
from opwright.runtime.register.setup_selection import selection_of
from opwright.runtime.size_tables import fastest_first

__all__ = ["Op", "defined_in", "explain", "op"]

P = ParamSpec("P", default=...)
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True, default=Any)
Arrays = np.ndarray[Any, Any] | tuple[np.ndarray[Any, Any], ...]
Autocast = Literal["lower", "float32", "promote"]


class Decorator(Protocol):
    """The type of ``ow.op(...)``. An operator with a reference in NumPy takes tensors as well as arrays, and returns
    the same kind, which the reference's annotations cannot express: for type checkers it takes anything."""

    @overload
    def __call__(self, reference: Callable[..., Arrays], /) -> Op: ...
    @overload
    def __call__(self, reference: Callable[P, R], /) -> Op[P, R]: ...


def op(
    qualname: str,
    *,
    where: Sequence[str] | str = (),
    random: bool | str = False,
    deterministic: bool = False,
    autocast: Autocast | None = None,
) -> Decorator:
    """Define an operator by a typed function, its reference implementation.

    Args:
        qualname: ``"namespace::name"``, the name in torch.
        where: conditions that sizes and ``int`` arguments satisfy, such as ``"hq % hk == 0"``, ``"k <= n"`` or
            ``"d in (64, 128)"``. Other calls are refused, and test inputs are chosen among those that satisfy them.
        random: True if the same arguments give different results; the name of an ``int`` argument if that is the seed,
            and kernels may draw other numbers from it than the reference. Results are compared by their statistics, and
            no gradient is derived.
        deterministic: True if the same arguments (and the same seed) have to give the same bits in every call, forward
            and backward: checks call each kernel many times, also beside other work and in each configuration. By
            default, sums may be added up in another order in each call.
        autocast: what it does with floating arguments under ``torch.autocast``: ``"lower"`` casts them to autocast's
            dtype (as for a matrix product), ``"float32"`` to float32, ``"promote"`` to the widest among them (float64
            stays). None leaves them unchanged.

    Returns:
        A decorator that makes an ``Op`` from the reference. It is called like the reference, is registered with torch
        as ``torch.ops.namespace.name``, and runs the reference until kernels are attached to it.

    The function's tensor arguments are annotated with jaxtyping shapes (``Float[Tensor, "*batch n"]``),
    on ``torch.Tensor`` or, for a reference written in NumPy, on ``np.ndarray``. Arguments that share an
    abstract dtype class (``Float``) share one dtype in a call.

    Raises:
        ContractError: something in the function cannot be expressed; the message names the argument.
        NameClashError: the name is taken.

    >>> import torch
    >>> from jaxtyping import Float
    >>> from torch import Tensor
    >>> import opwright as ow
    >>> @ow.op("doc::scale")
    ... def scale(x: Float[Tensor, "*n"], a: float) -> Float[Tensor, "*n"]:
    ...     return a * x
    >>> scale(torch.ones(2), 3.0)
    tensor([3., 3.])
    >>> torch.ops.doc.scale(torch.ones(2), 3.0)
    tensor([3., 3.])
    >>> @scale.python(name="by_addition", when=lambda x, a: a == 2.0)
    ... def _(x, a):
    ...     return x + x
    >>> print(scale.explain(torch.ones(2), 2.0))
    doc::scale would run 'by_addition' (python)
     → by_addition      python     runs
       reference        torch      no: a kernel was found before it
    """
    frame = inspect.currentframe()
    caller = frame.f_back if frame is not None else None
    scope = {**caller.f_globals, **caller.f_locals} if caller is not None else {}

    def decorate(reference: Callable[..., Any], /) -> Any:
        return Op(
            make_contract(qualname, reference, scope, autocast, where=where, random=random, deterministic=deterministic)
        )

    return decorate


class Op(BaseOp[P, R_co], Evidence):
    """A first-class PyTorch operator with any number of kernels.

    ``op(...)`` and ``torch.ops.namespace.name(...)`` do the same, except that only the latter returns outputs marked
    ``ow.saved_for_backward``. ``op.kernels["name"](...)`` runs one kernel. ``op.triton``, ``op.cuda``, ``op.cpp``,
    ``op.mojo``, ``op.max``, ``op.numpy`` and ``op.python`` attach kernels; ``op.register_fake``,
    ``op.register_autograd`` and others replace parts that are derived from the reference.

    Attributes:
        contract: name, typed shapes and reference.
        overload: torch's handle, ``torch.ops.namespace.name.default``.
        kernels: by name, in the order in which they are tried.
    """

    kernels: dict[str, Kernel]
    # Whether other operators that it calls by name go with it to another process.
    _brings_others = True
    # The tables of files (``use_tuning``).
    _exported: tuple[tuned.Exported, ...] = ()

    def __init__(self, contract: Any) -> None:
        self.kernels = {}
        self.baselines = {}
        self.properties = {}
        super().__init__(contract)

    def explain(self, *args: P.args, **kwargs: P.kwargs) -> Explanation:
        """The kernel that these arguments would run, and why the others would not run."""
        arguments = fill(self.contract, args, kwargs)
        return selection.explain(self.contract, self._candidates(), arguments, self._tuned)

    @property
    def parts(self) -> dict[str, Part]:
        """The origin of each part of the operator: derived, custom or missing."""
        custom = dict(self._rules.custom)
        if self._has_functional_form:
            custom = {**self.functional._rules.custom, **custom}
        return parts_of(self.contract, custom, list(self.kernels.values()))

    def flops(self, *args: P.args, **kwargs: P.kwargs) -> int:
        """Floating-point operations of a call with these arguments: from ``register_flops``, else counted on the
        reference (a multiply-add is 2)."""
        return self._rules.count_flops(fill(self.contract, args, kwargs))

    @property
    def _has_functional_form(self) -> bool:
        """Whether there is one besides this operator."""
        return vars(self).get("_functional") not in (None, self)

    # -- which kernel runs ------------------------------------------------------------------------------------------

    def _candidates(self) -> list[Kernel]:
        if self._only is None:
            return list(self.kernels.values())
        return [self.kernels[self._only]] if self._only != REFERENCE else []

    def _find_applicable(self, binding: Binding, arguments: Sequence[Any]) -> tuple[OperatorKernel, ...]:
        found = [k for k in self._candidates() if isinstance(k.applies_to(binding, arguments), Accepted)]
        return fastest_first(found, self._tuned.ranges, arguments)

    @contextlib.contextmanager
    def only(self, name: str) -> Iterator[None]:
        """A block in which calls run the kernel ``name`` (or ``"reference"``) if it is applicable, and no other kernel,
        for tests and comparisons. For several threads at once, and for backwards outside of the block, use
        ``restricted_to``."""
        self._refuse_unknown(name)
        if name == self._only:
            yield
            return
        before = self._only
        self._restrict(name)
        try:
            yield
        finally:
            self._restrict(before)

    def _refuse_unknown(self, name: str) -> None:
        if name != REFERENCE and name not in self.kernels:
            raise KernelError(
                f"{self.contract.qualname} has no kernel {name!r}", fix=f"it has {[*self.kernels, REFERENCE]}"
            )

    def _restrict(self, name: str | None) -> None:
        # Cached kernels are kept by restriction and stay valid; only guards and compiled code are cleared.
        self._only = name
        self._forget_guards()
        if self._has_functional_form:
            self.functional._changed()
        vars(self).pop("fingerprint", None)
        registration.changed(self)

    def restricted_to(self, kernel: str, /) -> Op[P, R_co]:
        """The same operator with only one kernel, under a name of its own (``namespace::name_kernel``).

        The restriction is valid in every thread and in backwards; torch.compile distinguishes the two. If the kernel
        is not applicable, the reference runs. Custom rules are those of this operator; a backward operator is
        restricted in the same way, if it has a kernel of that name.

        Raises:
            KernelError: there is no such kernel.
        """
        self._refuse_unknown(kernel)
        contract = self.contract.renamed(f"{self.contract.qualname}_{kernel}")
        made: Op[P, R_co] = Op(contract)
        if kernel != REFERENCE:
            made.kernels[kernel] = Kernel(self.kernels[kernel].spec, contract)
        made._rules.copy_from(self._rules, lambda backward: _restricted_backward(backward, kernel))
        if self._has_functional_form:
            form, other = made.functional, self.functional
            form._rules.copy_from(other._rules, lambda backward: _restricted_backward(backward, kernel))
        if "sharding" in self._rules.custom:
            registration.shard(contract, self._rules.custom["sharding"])
        made._changed()
        return made

    # -- tracking ---------------------------------------------------------------------------------------------------

    def _make_rules(self, contract: Any) -> Rules:
        return Rules(contract, selection_of)

    def _track(self, arguments: Sequence[Any], run: Callable[..., Any]) -> Callable[..., Any]:
        in_python = super()._track(arguments, run)
        if not can_track_natively(self._rules, arguments):
            return in_python
        if tracked_calls.loaded is not None:
            return track_natively(tracked_calls.loaded, self._rules, arguments, run, self._tracker)
        count = tracked_calls.counting(build_tools(), self)
        if count is None:
            return in_python

        def tracked_and_counted(*arguments: Any) -> Any:
            count()
            return in_python(*arguments)

        return tracked_and_counted

    def _holds(self, guard: Guard) -> Callable[..., bool]:
        return holds_natively(guard, self)

    # -- tuning -----------------------------------------------------------------------------------------------------

    @functools.cached_property
    def _tuned(self) -> tuned.Tuned:
        """The results of ``ow.tune`` for these kernels on this machine; read on first use."""
        machine = build_tools().machine
        own = tuned.load(self.contract.qualname, self._kernels_digest, machine)
        return tuned.with_exported(own, self._exported, self._kernels_digest)

    def _kernels_digest(self) -> str:
        return digest(self.contract.fingerprint, *(k.fingerprint for k in self.kernels.values()))

    def apply_tuning(self, tables: Sequence[Crossover]) -> Path:
        """Store tables of the fastest kernels by size. Calls use them from now on, also in later processes.

        Returns:
            The file with the tables, in the cache folder.
        """
        file = tuned.store(self.contract.qualname, self._kernels_digest(), build_tools().machine, tables)
        self._changed()
        return file

    def use_tuning(self, file: str | Path) -> None:
        """Use the tables of a file that ``opwright tune --export`` has written, on the devices that are in it.

        What ``opwright tune`` measures on a machine itself comes first there. Tables of other kernels are not used.

        Args:
            file: relative to the folder of the operator's module.

        Raises:
            CheckError: there is no such file, or it is something else.
        """
        beside = Path(self.contract.file).parent if self.contract.file is not None else Path.cwd()
        found = tuned.read_exported(beside / file)
        self._exported = tuple(one for one in found if one.op == self.contract.qualname)
        self._changed()

    def _shipped_tuning(self) -> tuple[Crossover, ...]:
        """The tables of ``use_tuning``, if they are for these kernels: what a package takes along."""
        return tuple(tuned.with_exported(tuned.Tuned(), self._exported, self._kernels_digest).tables.values())

    def _exported_tuning(self, tables: Sequence[Crossover]) -> tuned.Exported:
        """Tables in the form of such a file."""
        return tuned.Exported(self.contract.qualname, self._kernels_digest(), tuple(tables))

    def clear_tuning(self) -> bool:
        """Remove the stored tables of this operator for all versions of its kernels. Returns whether there were any."""
        found = tuned.clear(self.contract.qualname, build_tools().machine)
        self._changed()
        return found

    # -- attaching --------------------------------------------------------------------------------------------------

    def _attach(self, language: str, source: Any, options: Mapping[str, Any], **common: Any) -> Any:
        def attach(source: Callable[..., Any] | str | Path) -> Any:
            spec = make_spec(self.contract, language, source, options, **common)
            refuse_name(self.contract, f"op.{language}", spec.name, self.baselines, "a baseline")
            get_backend(language).validate(spec, self.contract)
            self.kernels[spec.name] = Kernel(spec, self.contract)
            self._changed()
            return source if callable(source) else self.kernels[spec.name]

        return attach if source is None else attach(source)

    # -- identity ---------------------------------------------------------------------------------------------------

    @property
    def _untuned_fingerprint(self) -> str:
        """The fingerprint without the tables of ``ow.tune``, in which machines differ."""
        return digest(
            self.contract.fingerprint, str(self._only), *self._rules.fingerprint, *self._untuned_fingerprints()
        )

    def _untuned_fingerprints(self) -> list[str]:
        kernels = [f"{k.name}={k.fingerprint}" for k in self.kernels.values()]
        if self._has_functional_form:
            kernels += self.functional._rules.fingerprint
        return kernels

    def _kernel_fingerprints(self) -> list[str]:
        tables = (
            repr(self._tuned.tables) if self._tuned.tables else ""
        )  # they determine which kernel torch.compile traces into
        return [*self._untuned_fingerprints(), tables]

    def _changed(self) -> None:
        vars(self).pop("_tuned", None)
        super()._changed()

    def __reduce__(self) -> tuple[Any, ...]:
        """By value (with cloudpickle): unpickling defines the operator in the other process.

        The state is separate from the constructor's arguments, so that operators may refer to each other, as
        ``sin`` and ``cos`` do in their backwards. Baselines are not included: they may hold a library's handles, and a
        worker does not need them.
        """
        specs = tuple(k.spec for k in self.kernels.values())
        functional = self.functional._rules.state() if self._has_functional_form else None
        return type(self), (self.contract,), (specs, self._rules.state(), functional, self.properties)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        specs, rules, functional, properties = state
        self._rules.restore(rules)
        if functional is not None:
            self.functional._rules.restore(functional)
        self.kernels = {s.name: Kernel(s, self.contract) for s in specs}
        self.properties = properties
        self._changed()

    def __repr__(self) -> str:
        return f"<operator {self.contract.call_form}, kernels: {', '.join(self.kernels) or 'none'}>"


take_calls_of(Op)
for _called in CALLED:
    take_calls_of(_called, owner="_operator")


def _restricted_backward(backward: BaseOp[..., Any], kernel: str) -> BaseOp[..., Any]:
    return backward.restricted_to(kernel) if isinstance(backward, Op) and kernel in backward.kernels else backward


def explain(operator: Op[P, Any], *args: P.args, **kwargs: P.kwargs) -> Explanation:
    """Print and return the kernel that a call would run, and why the others would not run."""
    explanation = operator.explain(*args, **kwargs)
    print(explanation)
    return explanation


def defined_in(namespace: dict[str, Any]) -> list[Op[..., Any]]:
    """The operators among a module's names, in the order of their definition."""
    found = {id(v): v for v in namespace.values() if isinstance(v, Op)}
    return sorted(found.values(), key=lambda o: inspect.unwrap(o.contract.function).__code__.co_firstlineno)
