"""What an operator is to its caller: something that is called, and whose rules can be replaced.

Opwright's own operators (``op.Op``) and those of a shipped package (``package/shipped``) differ in the kernels that
they have, and not in this.

A call goes one of three ways. *Guarded*: it is like an earlier call, and runs what was found for that one. *Plain*:
nobody else takes part in it, so it is checked against the contract and runs the first applicable kernel. Any other goes
through torch's dispatcher, which calls back what was registered (``register/registration.py``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol

from torch.compiler import is_dynamo_compiling
from typing_extensions import ParamSpec, TypeVar

from opwright.contract.binding import Binding, bind, fill
from opwright.contract.contract import Contract
from opwright.contract.fingerprint import digest
from opwright.errors import ArgumentError, KernelError, NameClashError
from opwright.internals.dispatch import is_intercepted
from opwright.runtime.call.argument_utils import gpu_of
from opwright.runtime.call.arrays import call_on_arrays, holds_arrays, traced_on_arrays
from opwright.runtime.call.fast_path import GuardableKernel, GuardedCall, guard_call, is_plain_call, static_key
from opwright.runtime.languages import Languages
from opwright.runtime.register import registration
from opwright.runtime.register.autograd_function import make_tracker
from opwright.runtime.register.backward_operator import BackwardOperator
from opwright.runtime.register.registration import Registrable
from opwright.runtime.register.rules import Rules

__all__ = ["BaseOp", "OperatorKernel"]

# Of the reference: its parameters and its result. ``Op`` alone means any.
P = ParamSpec("P", default=...)
R_co = TypeVar("R_co", covariant=True, default=Any)
Part = TypeVar("Part", bound=Callable[..., Any])
# How many kinds of calls an operator recognises at once: a loop over the layers of a model has a few.
_MOST_GUARDS = 8
# How many shapes are remembered, with the kernels for them: a bound, should sizes change with every call.
_MOST_SHAPES = 4096


class OperatorKernel(GuardableKernel, Protocol):
    """A kernel, as an operator sees it."""

    def traceable(self) -> Callable[..., Any] | None: ...
    @property
    def fingerprint(self) -> str: ...


class BaseOp(Languages, Generic[P, R_co]):
    """An operator that can be called. Subclasses say which kernels there are, and which are applicable."""

    contract: Contract
    # torch's handle of it: ``torch.ops.namespace.name.default``.
    overload: Any

    def __init__(self, contract: Contract) -> None:
        self.contract = contract
        self._rules = Rules(contract)
        self._only: str | None = None  # the kernel that calls are restricted to
        self._is_retired = False
        self._guarded_calls: tuple[GuardedCall, ...] = ()
        # Shapes, dtypes and devices that were checked before, with the kernels that are applicable to them.
        self._remembered: dict[Any, tuple[OperatorKernel, ...]] = {}
        # A reference in NumPy: calls may come with arrays, and give arrays back.
        self._takes_arrays = contract.signature.language == "numpy"
        # So many positional arguments are all of them; no number is, where some go by keyword only.
        self._arity = -1 if contract.signature.keyword_only else len(contract.signature.arguments)
        functools.update_wrapper(self, contract.function)
        self.overload = registration.register(
            Registrable(self, self._rules, self._run, self._traceable_kernel, lambda: self.fingerprint, self._retire)
        )

    # -- calling ------------------------------------------------------------------------------------------------

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run the operator: the arguments and the result are those of its reference, without outputs that are saved
        for the backward.

        Raises:
            ArgumentError: an argument disagrees with the contract.
        """
        if is_dynamo_compiling():
            return self.contract.visible(self._traced(args, kwargs))  # type: ignore[no-any-return]
        # A guard is made of filled arguments, so what equals them needs no filling.
        arguments: Any = args if not kwargs and len(args) == self._arity else fill(self.contract, args, kwargs)
        guarded_calls = self._guarded_calls
        if guarded_calls and not is_intercepted():
            for holds, run in guarded_calls:
                if holds(*arguments):
                    return run(*arguments)  # type: ignore[no-any-return]
        if self._takes_arrays and holds_arrays(arguments):
            return call_on_arrays(self, self.contract, fill(self.contract, args, kwargs))  # type: ignore[no-any-return]
        return self.contract.visible(self._call_unguarded(args, kwargs))  # type: ignore[no-any-return]

    def with_saved(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call it, and get all of its outputs: those too that are saved for the backward, as from ``torch.ops``."""
        if is_dynamo_compiling():
            return self._traced(args, kwargs)
        if self._takes_arrays and holds_arrays(args):
            return call_on_arrays(self.with_saved, self.contract, fill(self.contract, args, kwargs))
        return self._call_unguarded(args, kwargs)

    def _traced(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return traced_on_arrays(self.overload, args, kwargs) if self._takes_arrays else self.overload(*args, **kwargs)

    def _call_unguarded(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A plain call, or one through the dispatcher; leaves a guard behind for the next one like it."""
        arguments = fill(self.contract, args, kwargs)
        if is_plain_call(arguments):
            kernels = self._applicable_kernels(arguments)
            result = self._run_first(kernels, arguments)
            self._guard(arguments, kernels, None)
            return result
        result = self._through_dispatcher(*self.contract.signature.split(arguments))
        if is_plain_call(arguments, autograd_tracked=True):
            self._guard(arguments, self._applicable_kernels(arguments), self._tracker)
        return result

    def _through_dispatcher(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return self.overload(*args, **kwargs)
        except RuntimeError:
            # The dispatcher judges types first, in its own words. Say it in the contract's, if it was that.
            bind(self.contract, fill(self.contract, args, kwargs))
            raise

    def _run(self, arguments: Sequence[Any]) -> Any:
        """What the dispatcher calls: a kernel or the reference, beneath autograd."""
        return self._run_first(self._applicable_kernels(arguments), arguments)

    def _run_first(self, kernels: Sequence[OperatorKernel], arguments: Sequence[Any]) -> Any:
        device = gpu_of(arguments)
        for kernel in kernels:
            if kernel.when is None or kernel.when(*arguments):
                return kernel.launch(arguments, device)
        return self._run_reference(*arguments)

    def _run_reference(self, *arguments: Any) -> Any:
        return self.contract.pack(self.contract.reference(arguments))

    def _guard(
        self, arguments: Sequence[Any], kernels: Sequence[OperatorKernel], track: Callable[..., Any] | None
    ) -> None:
        guarded = guard_call(arguments, kernels, self._run_reference, track)
        if guarded is None:
            return
        signature = self.contract.signature
        if track is None and signature.visible < len(signature.returns):  # a tracker gives what the caller gets
            run, visible = guarded.run, self.contract.visible
            guarded = guarded._replace(run=lambda *arguments: visible(run(*arguments)))
        self._guarded_calls = (guarded, *self._guarded_calls[: _MOST_GUARDS - 1])

    @functools.cached_property
    def _tracker(self) -> Callable[..., Any]:
        return make_tracker(self._rules)

    # -- kernels ------------------------------------------------------------------------------------------------

    def _applicable_kernels(self, arguments: Sequence[Any]) -> tuple[OperatorKernel, ...]:
        """The kernels for these shapes, dtypes and devices, in the order in which they are asked, once the arguments
        agree with the contract. Each one's own ``when`` is still to be asked."""
        if self._is_retired:
            raise self._retired_error()
        key = (self._only, static_key(arguments))
        try:
            found = self._remembered.get(key)
        except TypeError:  # unhashable, so of a kind that no argument has: an array, a dictionary
            bind(self.contract, arguments)
            raise
        if found is None:
            found = self._find_applicable(bind(self.contract, arguments), arguments)
            if len(self._remembered) >= _MOST_SHAPES:
                self._remembered.clear()
            self._remembered[key] = found
        return found

    def _find_applicable(self, binding: Binding, arguments: Sequence[Any]) -> tuple[OperatorKernel, ...]:
        raise NotImplementedError

    def _traceable_kernel(self, arguments: Sequence[Any]) -> Callable[..., Any] | None:
        """What would run on these arguments in a form that torch.compile may trace into, if it has one."""
        kernels = self._find_applicable(bind(self.contract, arguments), arguments)
        try:
            kernel = next((k for k in kernels if k.when is None or k.when(*arguments)), None)
        except ArgumentError:
            raise
        except RuntimeError:
            return None  # a `when` that looks at addresses or values: it is decided when the call runs
        return kernel.traceable() if kernel is not None else None

    # -- custom rules -------------------------------------------------------------------------------------------

    def register_fake(self, function: Part) -> Part:
        """Replace the derived fake: takes the operator's arguments, returns tensors like its outputs."""
        self._rules.replace("fake", function)
        self._changed()
        return function

    def register_autograd(
        self,
        backward: Callable[..., Any] | BaseOp[..., Any],
        /,
        *,
        setup_context: Callable[..., None] | None = None,
    ) -> None:
        """Replace the derived gradient, as ``torch.library.register_autograd`` does.

        Args:
            backward: ``backward(ctx, *grads)``; returns a gradient, or None, for each positional argument. Or a
                backward operator, with a contract and kernels of its own, whose parameters say what it needs: the
                gradients of the outputs, then by name arguments and outputs (``result``, ``result0``, …).
            setup_context: ``setup_context(ctx, inputs, output)``, with ``keyword_only_inputs`` besides if the
                operator has keyword-only arguments; saves on ``ctx`` what the backward needs. ``output`` has the
                saved-for-backward outputs too.

        Raises:
            SignatureMismatchError: an operator's parameters or outputs are not those of a backward of this one.
        """
        if isinstance(backward, BaseOp):
            if setup_context is not None:
                raise KernelError(
                    f"{self.contract.qualname}: register_autograd was given the operator {backward.contract.qualname} "
                    "and a setup_context",
                    fix="drop setup_context: what is saved follows from the operator's parameters",
                )
            backward = BackwardOperator(self.contract, backward)
            setup_context = backward.setup_context
        self._rules.replace_gradient(backward, setup_context)
        self._changed()

    def register_vmap(self, function: Part) -> Part:
        """Replace the derived vmap rule: ``function(info, in_dims, *args)`` returns ``(output, out_dims)``."""
        self._rules.replace("vmap", function)
        self._changed()
        return function

    def register_flops(self, function: Part) -> Part:
        """Replace the derived FLOP count: takes the operator's arguments (tensors), returns a number.

        ``torch.utils.flop_counter.FlopCounterMode`` shows it.
        """
        self._rules.replace("flops", function)
        self._changed()
        return function

    def register_sharding(self, function: Part) -> Part:
        """Replace the derived DTensor placements, as ``torch.distributed.tensor.experimental.register_sharding`` does.

        Args:
            function: takes the operator's arguments (tensors as DTensor's descriptions of them); returns a list of
                (output placements, argument placements) that are acceptable, None for an argument that is no tensor.
        """
        self._rules.replace("sharding", function)
        self._changed()
        registration.shard(self.contract, function)
        return function

    # -- identity -----------------------------------------------------------------------------------------------

    @functools.cached_property
    def fingerprint(self) -> str:
        """Changes when the reference, a custom rule or a kernel does."""
        return digest(
            self.contract.fingerprint, str(self._only), *self._rules.fingerprint, *self._kernel_fingerprints()
        )

    def _kernel_fingerprints(self) -> list[str]:
        raise NotImplementedError

    def _changed(self) -> None:
        """What was remembered of this operator's kernels and rules holds no more."""
        self._remembered.clear()
        self._guarded_calls = ()
        vars(self).pop("fingerprint", None)
        registration.changed(self)

    def _retire(self) -> None:
        """Another definition took this one's name: calls say so, rather than give an old result.

        (The dispatcher's entry is gone; what the overload's handle points to is undefined.)
        """
        self._is_retired = True
        self._guarded_calls = ()
        self.overload = self._refuse_retired

    def _refuse_retired(self, *_: Any, **__: Any) -> Any:
        raise self._retired_error()

    def _retired_error(self) -> NameClashError:
        return NameClashError(
            f"{self.contract.qualname} was defined anew after this object was made",
            fix=f"use the new one: import it again, or call torch.ops.{self.contract.qualname.replace('::', '.')}",
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> BaseOp[P, R_co]:
        return self  # as for a function: a copied torch module goes on calling the same operator
