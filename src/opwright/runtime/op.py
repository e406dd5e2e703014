"""The operator of the public interface: attaching kernels, choosing and explaining them."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torch.compiler import is_dynamo_compiling
from typing_extensions import ParamSpec, TypeVar

from opwright.backends import get_backend
from opwright.contract.binding import Binding, fill
from opwright.contract.fingerprint import digest
from opwright.contract.overlap import overlap_check
from opwright.errors import ArgumentError, KernelError
from opwright.fast_path.compiled_calls import take_calls_of_overload
from opwright.fast_path.extension import GuardedCall, fast_calls_extension, take_calls_of
from opwright.fast_path.learning import Learner, Learning, are_same, received, run_of
from opwright.fast_path.setup_selection import selection_of
from opwright.fast_path.switch import Mode, mode
from opwright.fast_path.tracker import Tracker
from opwright.fast_path.verify import call_both_ways
from opwright.internals.registration import registered_kernels
from opwright.languages import LANGUAGES
from opwright.results import Accepted, Explanation, Part
from opwright.runtime import selection
from opwright.runtime.attach import make_spec
from opwright.runtime.base_op import BaseOp, OperatorKernel
from opwright.runtime.baselines import refuse_name
from opwright.runtime.call.argument_utils import gpu_of
from opwright.runtime.call.launch import prepare_visible
from opwright.runtime.evidence import Evidence
from opwright.runtime.kernel import Kernel
from opwright.runtime.languages import REFERENCE
from opwright.runtime.parts import parts_of
from opwright.runtime.register import registration
from opwright.runtime.register.autograd_function import gradient_for_each, gradient_name, make_tracker
from opwright.runtime.register.rules import Rules
from opwright.runtime.tuning.size_tables import fastest_first
from opwright.runtime.tuning.tuning import Tuning

__all__ = ["Op", "defined_in", "explain"]

P = ParamSpec("P", default=...)
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True, default=Any)

_COMMON_OPTIONS = frozenset({"name", "entry", "devices", "dtypes", "when"})
# Attributes of an operator that tools use, and nobody types.
_OF_TOOLS = frozenset({
    "adopted", "apply_tuning", "backward_launches_triton", "baselines", "clear_tuning", "fingerprint", "has_fake",
    "may_share_memory", "properties",
})  # fmt: skip


class Op(Tuning, BaseOp[P, R_co], Evidence):
    """A first-class PyTorch operator with any number of kernels.

    ``op(...)`` and ``torch.ops.namespace.name(...)`` do the same, except that only the latter returns outputs marked
    ``ow.saved_for_backward``. ``op.kernels["name"](...)`` runs one kernel. ``op.triton``, ``op.cuda``, ``op.cpp``,
    ``op.mojo``, ``op.numpy`` and ``op.python`` attach kernels; ``op.register_fake``,
    ``op.register_autograd`` and others replace parts that are derived from the reference.

    Attributes:
        contract: name, typed shapes and reference.
        overload: torch's handle, ``torch.ops.namespace.name.default``.
        kernels: by name, in the order in which they are tried.
    """

    kernels: dict[str, Kernel]
    # What ``ow.adopt`` was given: its name, whether it has a fake, and whether its results may be views of arguments.
    adopted, has_fake, may_share_memory = "", True, False
    # Whether other operators that it calls by name go with it to another process.
    _brings_others = True

    def __init__(self, contract: Any) -> None:
        self.kernels = {}
        self.baselines = {}
        self.properties = {}
        self._learner = Learner(contract)
        super().__init__(contract)
        self._registered_kernels = registered_kernels(contract.qualname)
        self._tracker = Tracker(
            contract,
            lambda: self._rules.gradient,
            gradient_name(contract),
            lambda: make_tracker(self._rules),
            functools.partial(gradient_for_each, contract),
        )

    if not TYPE_CHECKING:  # type checkers do not know what other packages add

        def __getattr__(self, name: str) -> Any:
            """The method of a language that another package adds, called as ``op.python`` is."""
            if name.startswith("_") or name not in LANGUAGES.added:
                return super().__getattr__(name)

            def attach(source: Any = None, /, **options: Any) -> Any:
                common = {key: options.pop(key) for key in _COMMON_OPTIONS & options.keys()}
                return self._attach(name, source, options, **common)

            return attach

    def __dir__(self) -> list[str]:
        """What a user types: without the parts that tools use."""
        return [name for name in super().__dir__() if name not in _OF_TOOLS]

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
                f"{self.contract.qualname}: the kernel must be one of {[*self.kernels, REFERENCE]}, got {name!r}",
                fix="name one of them, or attach it",
            )

    def _restrict(self, name: str | None) -> None:
        # Cached kernels are kept by restriction and stay valid; only guards and compiled code are cleared.
        self._only = name
        self._learner.forget()
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

    # -- fast calls ---------------------------------------------------------------------------------------------

    def _make_rules(self, contract: Any) -> Rules:
        return Rules(contract, selection_of)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        if kwargs and self._learner.takes_positional and not is_dynamo_compiling():
            call: Any = self
            return call(*fill(self.contract, args, kwargs))  # type: ignore[no-any-return]  # may be like an earlier one
        return super().__call__(*args, **kwargs)

    __call__.__doc__ = BaseOp.__call__.__doc__

    def _call(self, arguments: tuple[Any, ...]) -> Any:
        """Call the operator through the dispatcher, and let later calls like this one skip it."""
        if mode() is Mode.VERIFY:
            return call_both_ways(self.contract, self._learner, arguments, self._call_and_learn)
        return self._call_and_learn(arguments)

    def _call_and_learn(self, arguments: tuple[Any, ...]) -> Any:
        signature = self.contract.signature
        learning = self._learner.begin(arguments, may_be_tracked=not signature.mutated and not signature.returns_list)
        if learning is None:
            return super()._call(arguments)
        with received.watching() as calls:
            result = super()._call(arguments)
        is_own = bool(calls) and calls[0][0] is self and are_same(calls[0][1], arguments)
        registered = registered_kernels(self.contract.qualname)
        if is_own and registered is not None and registered == self._registered_kernels:
            self._learn(learning)
        return result

    def _guarded_call(self, *arguments: Any) -> GuardedCall | None:
        """The fast call that converted arguments would take; None if no call like it has been learned."""
        extension = fast_calls_extension.loaded
        return None if extension is None else extension.find_guarded(self._learner, arguments)

    def _run(self, arguments: Sequence[Any]) -> Any:
        received.note(self, arguments)
        return super()._run(arguments)

    def _learn(self, call: Learning) -> None:
        """Learn a call that has succeeded, and in which the dispatcher passed the arguments on as they were."""
        arguments, general = call.arguments, self._learner.is_last
        kernels = cast("tuple[Kernel, ...]", self._applicable_kernels(arguments))
        run = run_of(kernels, arguments, gpu_of(arguments), self._run_reference, specialise=not general)
        any_size = not self._tuned.ranges and (general or all(k.is_for_any_size() for k in kernels))
        if self.contract.signature.mutated:
            run = _checked(overlap_check(self.contract, arguments), run)
        if call.tracked:
            tracked = self._tracker.tracking(call.extension, arguments, run)
            if tracked is None:
                return
            run = tracked
        else:
            run = prepare_visible(run, self.contract)
        self._learner.learn(call, run, kernels, self.contract.qualname, any_size=any_size)

    def _traced_now(self) -> None:
        signature = self.contract.signature
        if signature.visible == len(signature.returns):  # torch.ops also returns what is saved for the backward
            self._dispatch = take_calls_of_overload(self.overload, self, self._is_as_dispatched)

    def _is_as_dispatched(self, arguments: tuple[Any, ...]) -> bool:
        """Whether positional arguments are complete, and need no conversion."""
        signature = self.contract.signature
        if signature.keyword_only or len(arguments) != len(signature.arguments):
            return False
        try:
            return are_same(fill(self.contract, arguments, {}), arguments)
        except ArgumentError:
            return False

    def _retire(self) -> None:
        self._learner.forget()
        super()._retire()

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
        # Tables determine which kernel torch.compile traces into.
        return [*self._untuned_fingerprints(), repr(self._tuned.tables) if self._tuned.tables else ""]

    def _changed(self) -> None:
        super()._changed()
        self._learner.forget()  # last: another thread's call may have learned from what was there before

    def _by_value(self) -> tuple[Any, ...]:
        """What ``__reduce__`` returns for a pickle that defines the operator in the other process
        (``serialization.py``).

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


take_calls_of(Op, owner="_learner")


def _checked(check: Callable[..., None], run: Callable[..., Any]) -> Callable[..., Any]:
    def checked(*arguments: Any) -> Any:
        check(*arguments)
        return run(*arguments)

    return checked


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
