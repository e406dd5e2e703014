"""The base class of operators: calling them, and replacing their rules.

Opwright's own operators (``op.Op``) and those of a shipped package (``package/shipped``) share it; they differ in their
kernels.

A call converts its arguments, and goes through torch's dispatcher, which calls the registered functions
(``register/registration.py``). Opwright's own operators also make fast calls (``fast_path/``).
"""

from __future__ import annotations

import functools
import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol

from torch.compiler import is_dynamo_compiling
from typing_extensions import ParamSpec, TypeVar

from opwright.backends.triton.tracing import kernels_reached
from opwright.contract.binding import Binding, bind, fill
from opwright.contract.contract import Contract
from opwright.contract.fingerprint import digest
from opwright.contract.overlap import overlap_check
from opwright.contract.process_group import name_of_group
from opwright.errors import ArgumentError, KernelError, NameClashError
from opwright.runtime.call.argument_utils import gpu_of
from opwright.runtime.call.arrays import call_on_arrays, holds_arrays, traced_on_arrays
from opwright.runtime.call.on_copies import OnCopies
from opwright.runtime.call.static_key import static_key
from opwright.runtime.languages import Languages
from opwright.runtime.register import registration
from opwright.runtime.register.backward_operator import BackwardOperator
from opwright.runtime.register.registration import Registrable
from opwright.runtime.register.rules import Rules

__all__ = ["BaseOp", "OperatorKernel"]

# The parameters and the result of the reference. ``Op`` alone stands for any.
P = ParamSpec("P", default=...)
R_co = TypeVar("R_co", covariant=True, default=Any)
Part = TypeVar("Part", bound=Callable[..., Any])
# The number of cached shapes with their kernels: a bound, should sizes change with every call.
_MOST_CACHED_SHAPES = 4096


class OperatorKernel(Protocol):
    """The interface of a kernel for an operator."""

    @property
    def when(self) -> Callable[..., bool] | None: ...
    def launch(self, arguments: Sequence[Any], device: int | None) -> Any: ...
    def traceable(self) -> Callable[..., Any] | None: ...
    @property
    def fingerprint(self) -> str: ...


class BaseOp(Languages, Generic[P, R_co]):
    """An operator that can be called. Subclasses define its kernels, and which are applicable."""

    contract: Contract
    # torch's handle: ``torch.ops.namespace.name.default``.
    overload: Any

    def __init__(self, contract: Contract) -> None:
        self.contract = contract
        self._rules = self._make_rules(contract)
        self._only: str | None = None  # the kernel that calls are restricted to
        self._is_retired = False
        # Shapes, dtypes and devices that were checked before, with their applicable kernels.
        self._applicable_by_key: dict[Any, tuple[OperatorKernel, ...]] = {}
        # A reference in NumPy: calls may pass arrays, and then return arrays.
        self._takes_arrays = contract.signature.language == "numpy"
        self._groups = contract.signature.groups
        self._group_names = tuple(contract.signature.arguments[i].name for i in self._groups)
        functools.update_wrapper(self, contract.function)
        self.overload = self._register()
        self._dispatch = self.overload  # what calls the dispatcher
        self._functional = self._make_functional()

    def _register(self) -> Any:
        """Register the operator with torch. Returns torch's handle."""
        return registration.register(
            Registrable(
                self,
                self._rules,
                self._run,
                self._traceable_kernel,
                lambda: self.fingerprint,
                self._retire,
                self._traced_now,
            )
        )

    def _make_functional(self) -> BaseOp[..., Any] | None:
        form = self.contract.functional
        if form is None or form is self.contract:
            return self if form is not None else None
        return FunctionalOp(self, form)

    @property
    def functional(self) -> BaseOp[..., Any]:
        """The operator that returns new values instead of writing its arguments, after its other outputs. It has the
        same kernels, which run on copies. An operator that writes none is its own functional form.

        Raises:
            KernelError: what it writes is a list of tensors, or optional, so that the number of results is not fixed.
        """
        if self._functional is None:
            raise KernelError(
                f"{self.contract.qualname} writes a list of tensors or an optional one, and has no functional form",
                fix="return the new values instead of writing them, if it needs a derivative",
            )
        return self._functional

    # -- calling ------------------------------------------------------------------------------------------------

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run the operator: the arguments and the result are those of its reference, without outputs that are saved
        for the backward.

        Raises:
            ArgumentError: an argument disagrees with the contract.
        """
        return self.contract.visible(self.with_saved(*args, **kwargs))  # type: ignore[no-any-return]

    def with_saved(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the operator and return all outputs, including saved-for-backward outputs, like ``torch.ops``."""
        if is_dynamo_compiling():
            return self._traced(args, kwargs)
        arguments = fill(self.contract, args, kwargs)
        if self._takes_arrays and holds_arrays(arguments):
            return call_on_arrays(self.with_saved, self.contract, arguments)
        return self._call(arguments)

    def _traced(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._groups:
            args = tuple([name_of_group(a) if i in self._groups else a for i, a in enumerate(args)])
            kwargs = {n: name_of_group(a) if n in self._group_names else a for n, a in kwargs.items()}
        return traced_on_arrays(self.overload, args, kwargs) if self._takes_arrays else self.overload(*args, **kwargs)

    def _call(self, arguments: tuple[Any, ...]) -> Any:
        """Call the operator through the dispatcher, with converted arguments in signature order."""
        args, kwargs = self.contract.signature.split(arguments)
        try:
            return self._dispatch(*args, **kwargs)
        except RuntimeError:
            # The dispatcher checks types first. If that was the error, bind() raises it in terms of the contract.
            bind(self.contract, arguments)
            raise

    def _run(self, arguments: Sequence[Any]) -> Any:
        """Run a kernel or the reference below autograd, called by the dispatcher."""
        return self._run_first(self._applicable_kernels(arguments), arguments)

    def _run_first(self, kernels: Sequence[OperatorKernel], arguments: Sequence[Any]) -> Any:
        if self.contract.signature.mutated:
            overlap_check(self.contract, arguments)(*arguments)
        device = gpu_of(arguments)
        for kernel in kernels:
            if kernel.when is None or kernel.when(*arguments):
                result = kernel.launch(arguments, device)
                return result if self.contract.has_form(result) else self.contract.refuse_form(result)
        return self._run_reference(*arguments)

    def _run_reference(self, *arguments: Any) -> Any:
        if self.contract.signature.mutated:
            return self.contract.pack(self.contract.run_in_place(arguments))
        return self.contract.pack(self.contract.reference(arguments))

    def _make_rules(self, contract: Contract) -> Rules:
        return Rules(contract)

    # -- kernels ------------------------------------------------------------------------------------------------

    def _applicable_kernels(self, arguments: Sequence[Any]) -> tuple[OperatorKernel, ...]:
        """The applicable kernels for these shapes, dtypes and devices, in order, after checking the arguments
        against the contract. Each kernel's own ``when`` is not yet evaluated."""
        if self._is_retired:
            raise self._retired_error()
        key, known = (self._only, static_key(self.contract, arguments)), self._applicable_by_key
        try:
            found = known.get(key)
        except TypeError:  # unhashable, so of a type that no argument has: an array, a dictionary
            bind(self.contract, arguments)
            raise
        if found is None:
            found = self._find_applicable(bind(self.contract, arguments), arguments)
            if len(known) >= _MOST_CACHED_SHAPES:
                known.clear()
            known[key] = found
        return found

    def _find_applicable(self, binding: Binding, arguments: Sequence[Any]) -> tuple[OperatorKernel, ...]:
        raise NotImplementedError

    def _traceable_kernel(self, arguments: Sequence[Any]) -> Callable[..., Any] | None:
        """The kernel for these arguments in a form that torch.compile may trace into; None if it has none."""
        kernels = self._find_applicable(bind(self.contract, arguments), arguments)
        try:
            kernel = next((k for k in kernels if k.when is None or k.when(*arguments)), None)
        except ArgumentError:
            raise
        except RuntimeError:
            return None  # a `when` that reads addresses or values: it is evaluated when the call runs
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
                backward operator, with its own contract and kernels, whose parameters are what it needs: the
                gradients of the outputs, then by name arguments and outputs (``result``, ``result0``, …).
            setup_context: ``setup_context(ctx, inputs, output)``, also with ``keyword_only_inputs`` if the
                operator has keyword-only arguments; saves on ``ctx`` what the backward needs. ``output`` includes
                saved-for-backward outputs.

        Raises:
            SignatureMismatchError: the backward operator's parameters or outputs do not match this operator.

        The backward of an operator that writes its arguments is that of its functional form, whose outputs are followed
        by the new values.
        """
        if self.contract.signature.mutated:
            self.functional.register_autograd(backward, setup_context=setup_context)
            self._changed()
            return
        if isinstance(backward, BaseOp):
            if setup_context is not None:
                raise KernelError(
                    f"{self.contract.qualname}: register_autograd was given the operator {backward.contract.qualname} "
                    "and a setup_context",
                    fix="drop setup_context: the operator's parameters determine what is saved",
                )
            backward = BackwardOperator(self.contract, backward)
            setup_context = backward.setup_context
        self._rules.replace_gradient(backward, setup_context)
        self._changed()

    @property
    def backward_launches_triton(self) -> bool:
        """Whether the gradient is a registered function that launches Triton kernels."""
        return next(kernels_reached(self._rules.custom.get("autograd")), None) is not None

    def register_vmap(self, function: Part) -> Part:
        """Replace the derived vmap rule: ``function(info, in_dims, *args)`` returns ``(output, out_dims)``."""
        if self.contract.signature.mutated:
            return self.functional.register_vmap(function)
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
                (output placements, argument placements) that are acceptable, None for an argument that is not a tensor.
        """
        self._rules.replace("sharding", function)
        self._changed()
        registration.shard(self.contract, function)
        return function

    # -- identity -----------------------------------------------------------------------------------------------

    @functools.cached_property
    def fingerprint(self) -> str:
        """A digest of the reference, the custom rules and the kernels."""
        return digest(
            self.contract.fingerprint, str(self._only), *self._rules.fingerprint, *self._kernel_fingerprints()
        )

    def _kernel_fingerprints(self) -> list[str]:
        raise NotImplementedError

    def _changed(self) -> None:
        """Clear the caches that depend on this operator's kernels and rules."""
        self._applicable_by_key = {}  # another one: a thread may still write what it has found into the old one
        vars(self).pop("fingerprint", None)
        registration.changed(self)
        functional = vars(self).get("_functional")
        if functional is not None and functional is not self:
            functional._changed()

    def _retire(self) -> None:
        """Make calls raise, because another definition has replaced this one.

        (The dispatcher's entry is removed, so the overload's handle is invalid.)
        """
        self._is_retired = True
        self.overload = self._dispatch = self._refuse_retired

    def _traced_now(self) -> None:
        """torch.compile, or another user of fake tensors, traces the operator."""

    def _refuse_retired(self, *_: Any, **__: Any) -> Any:
        raise self._retired_error()

    def _retired_error(self) -> NameClashError:
        return NameClashError(
            f"{self.contract.qualname} was redefined after this object was created",
            fix=f"use the new one: import it again, or call torch.ops.{self.contract.qualname.replace('::', '.')}",
        )

    # -- copies, which are the operator itself, as of a function ------------------------------------------------

    def __copy__(self) -> BaseOp[P, R_co]:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> BaseOp[P, R_co]:
        return self

    def __reduce__(self) -> str | tuple[Any, ...]:
        """By module and name: unpickling imports the module.

        Raises:
            PicklingError: the module has no name for this operator.
        """
        name, module = str(vars(self)["__qualname__"]), sys.modules.get(self.__module__)
        names = [name, *(n for n, value in list(vars(module).items()) if value is self)] if module else []
        for each in names:
            found: Any = module
            for part in each.split("."):
                found = getattr(found, part, None)
            if found is self:
                return each
        raise pickle.PicklingError(
            f"{self.contract.qualname} cannot be pickled: operators are pickled by module and name, and "
            f"{self.__module__}.{name} is {'another object' if '<locals>' not in name else 'defined in a function'}\n"
            "  → define it at the top level of a module, or give it a name there"
        )


class FunctionalOp(BaseOp[P, R_co]):
    """The functional form of an operator that writes its arguments: its kernels run on copies of them."""

    def __init__(self, operator: BaseOp[..., Any], contract: Contract) -> None:
        self._operator = operator
        super().__init__(contract)

    def _find_applicable(self, binding: Binding, arguments: Sequence[Any]) -> tuple[OperatorKernel, ...]:
        operator = self._operator
        return tuple(OnCopies(k, operator.contract) for k in operator._find_applicable(binding, arguments))

    def _kernel_fingerprints(self) -> list[str]:
        return self._operator._kernel_fingerprints()

    def __reduce__(self) -> str | tuple[Any, ...]:
        return getattr, (self._operator, "functional")

    def _attach(self, *_: Any, **__: Any) -> Any:
        raise KernelError(
            f"{self.contract.qualname} has the kernels of {self._operator.contract.qualname}",
            fix="attach it to the operator that writes its arguments",
        )

    def __repr__(self) -> str:
        return f"<operator {self.contract.call_form}: {self._operator.contract.qualname} on copies>"
