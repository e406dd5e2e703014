"""Making an operator known to torch. This is the only file that touches ``torch.library``.

Every part is registered once, as a trampoline that looks the current rule up: a custom rule takes effect without a new
registration. Redefining an operator destroys the old registration, and tells torch.compile's caches, which otherwise
serve a stale gradient or a stale shape: they do not know what is behind an operator's name (seen on torch 2.11, 2.13
and 2.15).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from opwright.contract.contract import Contract
from opwright.contract.fingerprint import digest
from opwright.contract.signature import Kind
from opwright.errors import NameClashError
from opwright.internals import registration as torch_registration
from opwright.internals.autograd import HAS_AUTOGRAD_KEYS, without_enclosing_transforms
from opwright.internals.compiler import export_is_tracing, functional_tracing, reset_compiled
from opwright.internals.dispatch import (
    conjugates_are_ignored,
    forward_mode_is_on,
    run_with_default_keys,
    run_with_lazy_conjugates,
)
from opwright.runtime.register.autocast import KEYS, kernel_for_autocast
from opwright.runtime.register.autograd_function import (
    InOrder,
    kernel_for_autograd,
    kernel_for_transforms,
    make_function,
)
from opwright.runtime.register.rules import Rules
from opwright.runtime.register.vjp_operator import VjpOperator, vjp_name, vjp_schema

__all__ = ["Registrable", "Registration", "changed", "find", "register", "shard"]


@dataclass(frozen=True, eq=False)
class Registrable:
    """What torch has to know of an operator.

    Attributes:
        operator: the object that a user holds.
        rules: its fake, gradient, vmap rule and FLOPs.
        run: a kernel or the reference, on arguments in signature order, past autograd and the dispatcher.
        traceable_kernel: the kernel for these arguments in a form that torch.compile may trace into; None keeps the
            operator opaque.
        fingerprint: changes with anything that compiled code may depend on.
        retire: called when another definition takes the name.
    """

    operator: Any
    rules: Rules
    run: Callable[[Sequence[Any]], Any]
    traceable_kernel: Callable[[Sequence[Any]], Callable[..., Any] | None]
    fingerprint: Callable[[], str]
    retire: Callable[[], None]

    @property
    def contract(self) -> Contract:
        return self.rules.contract


@dataclass
class Registration:
    """One operator's presence in the dispatcher."""

    registrable: Registrable
    library: torch.library.Library
    overload: Any
    # Whether torch.compile (or anything else that uses fake tensors) has looked at it.
    traced: bool = False

    def destroy(self) -> None:
        """Take it back, with everything that was compiled around it."""
        _reset_compiled(self)
        torch.utils.flop_counter.flop_registry.pop(self.overload.overloadpacket, None)
        torch_registration.remove_decomposition(self.overload)
        torch_registration.remove_sharding(self.overload)
        if not torch_registration.destroy(self.library):
            raise NameClashError(
                f"{self.registrable.contract.qualname} is defined already, and torch {torch.__version__} cannot take a "
                "definition back",
                fix="start Python anew",
            )
        self.registrable.retire()


# The handles by which our own registrations can be undone; what is registered lives in the dispatcher.
_registered: dict[str, Registration] = {}
# Whose operators they are: a shipped package has a copy of this file, and its own part of torch.compile's keys.
_OURS = __name__.partition(".")[0]


def register(registrable: Registrable) -> Any:
    """Register an operator, in place of an earlier one of the same name from the same file.

    Returns:
        The ``OpOverload`` that ``torch.ops`` will find.

    Raises:
        NameClashError: the name belongs to another library, or to another file of ours.
    """
    contract = registrable.contract
    earlier = _registered.get(contract.qualname)
    if earlier is not None:
        _refuse_other_file(earlier.registrable.contract, contract)
        earlier.destroy()
        del _registered[contract.qualname]
    else:
        _refuse_taken(contract)
    library = torch.library.Library(contract.namespace, "FRAGMENT")
    try:
        overload = _define(registrable, library)
    except BaseException:
        torch_registration.destroy(library)
        raise
    _registered[contract.qualname] = Registration(registrable, library, overload)
    return overload


def _refuse_other_file(earlier: Contract, new: Contract) -> None:
    if earlier.module != new.module and earlier.file != new.file:
        raise NameClashError(
            f"{new.qualname} is defined twice: in {earlier.file} and in {new.file}",
            fix="rename one of them, or import the one that is already there",
        )


def _refuse_taken(contract: Contract) -> None:
    for name in (contract.name, vjp_name(contract)):
        if hasattr(getattr(torch.ops, contract.namespace), name):
            needed = "" if name == contract.name else f" (the gradient of {contract.qualname} would be called so)"
            raise NameClashError(
                f"{contract.namespace}::{name} is already registered with torch{needed}",
                fix="choose another name, best in a namespace of your own",
            )


def find(qualname: str) -> Any | None:
    """The operator of ours that is registered under a name."""
    registration = _registered.get(qualname)
    return registration.registrable.operator if registration else None


def changed(operator: Any) -> None:
    """An operator's kernels or rules are others now: drop what this process compiled around it, if anything."""
    registration = _registered.get(operator.contract.qualname)
    if registration is not None and registration.registrable.operator is operator:
        _reset_compiled(registration)


def shard(contract: Contract, function: Callable[..., Any]) -> None:
    """Tell DTensor which placements an operator can take."""
    from torch.distributed.tensor.experimental import register_sharding

    register_sharding(_registered[contract.qualname].overload)(function)


def _reset_compiled(registration: Registration) -> None:
    if registration.traced:
        reset_compiled()
    registration.traced = False


def _prepare_for_tracing(registrable: Registrable, overload: Any) -> None:
    """Keep torch.compile's caches on disk from serving what was compiled for other references.

    The digest of all our operators goes into ``torch.compiler.config.cache_key_tag``, which is part of every
    key of theirs. Tracing calls an operator's fake before any key is computed, so this is early enough, and
    late enough for all that a reference reaches to be defined.
    """
    from torch.compiler import config

    torch_registration.keep_opaque_in_inductor(overload)
    _registered[registrable.contract.qualname].traced = True
    parts = [f"{name}={r.registrable.fingerprint()}" for name, r in sorted(_registered.items())]
    others = [p for p in config.cache_key_tag.split() if not p.startswith(f"{_OURS}:")]
    config.cache_key_tag = " ".join([*others, f"{_OURS}:{digest(*parts)}"])


def _define(registrable: Registrable, library: torch.library.Library) -> Any:
    contract, rules = registrable.contract, registrable.rules
    signature, name = contract.signature, contract.name
    library.define(name + contract.schema, tags=(torch.Tag.pt2_compliant_tag,))
    _define_vjp(contract, library)
    overload = getattr(getattr(torch.ops, contract.namespace), name).default

    def in_order(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        # The dispatcher drops arguments that equal their defaults.
        missing = signature.positional[len(args) :]
        given = (*args, *(kwargs.get(a.name, a.default) for a in missing))
        return (*given, *(kwargs.get(a.name, a.default) for a in signature.keyword_only))

    def run(*args: Any, **kwargs: Any) -> Any:
        if not carries_tangents and forward_mode_is_on():
            raise NotImplementedError(
                f"{contract.qualname} has no forward-mode derivative: {_why_no_tangents(contract)}\n  → "
                f"call its reference there, {name}.contract.function"
            )
        if conjugates_are_ignored():
            return run_with_lazy_conjugates(registrable.run, in_order(args, kwargs))
        return registrable.run(in_order(args, kwargs))

    def fake(*args: Any, **kwargs: Any) -> Any:
        _prepare_for_tracing(registrable, overload)
        return rules.fake(in_order(args, kwargs))

    def decomposition(*args: Any, **kwargs: Any) -> Any:
        # DTensor takes placements from it, and ``run_decompositions`` uses it. Fake tensors with symbolic sizes go
        # through it as well, past the fake, so what has to be done before something is compiled is done here too.
        _prepare_for_tracing(registrable, overload)
        return contract.pack(contract.traceable(in_order(args, kwargs)))

    def flops(*args: Any, out_val: Any = None, **kwargs: Any) -> int:
        return rules.count_flops(in_order(args, kwargs))

    carries_tangents = _has_function_of_its_own(contract)
    library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(contract.qualname, fake, lib=library)
    _register_gradient(rules, overload, in_order, library)
    if contract.autocast is not None:
        for device_type, key in KEYS.items():
            library.impl(name, kernel_for_autocast(contract, overload, device_type), key)
    torch.utils.flop_counter.register_flop_formula(overload.overloadpacket, get_raw=True)(flops)
    torch_registration.register_decomposition(overload, decomposition)
    _trace_into_kernels(registrable, library, in_order)
    return overload


def _has_function_of_its_own(contract: Contract) -> bool:
    """Whether its gradient is an ``autograd.Function`` of our own. Such a one does not look into lists: torch's does,
    but not inside ``torch.func``, and it drops the tangents of forward mode without a word (torch 2.11 to 2.15)."""
    return HAS_AUTOGRAD_KEYS and not _has_list(contract)


def _has_list(contract: Contract) -> bool:
    return any(a.kind is Kind.TENSOR_LIST for a in contract.signature.arguments)


def _why_no_tangents(contract: Contract) -> str:
    if _has_list(contract):
        return "torch drops the tangents of tensors in lists"
    return f"torch {torch.__version__} lacks what it needs (`opwright doctor` lists it)"


def _register_gradient(rules: Rules, overload: Any, in_order: InOrder, library: torch.library.Library) -> None:
    """The gradient and the vmap rule: as an ``autograd.Function`` of our own, else as torch.library registers them."""
    contract = rules.contract
    if _has_function_of_its_own(contract):
        function = make_function(rules, overload, in_order)
        autograd = kernel_for_autograd(contract, overload, in_order, function)
        library.impl(contract.name, autograd, "Autograd", with_keyset=True)
        transforms = kernel_for_transforms(contract, in_order, function)
        library.impl(contract.name, transforms, "FuncTorchDynamicLayerFrontMode")
        return

    def setup_context(ctx: Any, inputs: Any, output: Any, keyword_only_inputs: Any = None) -> None:
        rules.setup_context(ctx, in_order(inputs, keyword_only_inputs or {}), output)

    def backward(ctx: Any, *grads: Any) -> Any:
        found = tuple(rules.gradient.backward(ctx, grads))
        # No gradient for a default that the dispatcher dropped: torch before 2.15 counts, if there is a list.
        return found[: len(ctx.needs_input_grad)]

    def vmap(info: Any, in_dims: Any, *args: Any, **kwargs: Any) -> Any:
        dims = (*in_dims, *(None,) * (len(contract.signature.arguments) - len(in_dims)))
        with without_enclosing_transforms():
            return run_with_default_keys(rules.vmap, info, dims, in_order(args, kwargs))

    qualname = contract.qualname
    torch.library.register_autograd(qualname, backward, setup_context=setup_context, lib=library)
    torch.library.register_vmap(qualname, vmap, lib=library)


def _trace_into_kernels(registrable: Registrable, library: torch.library.Library, in_order: InOrder) -> None:
    """Show torch.compile the inside of kernels that it can trace, as ``torch.library.triton_op`` does.

    Functionalisation is where AOTAutograd meets the operator. Export keeps it opaque, so that an
    exported program stays high-level and can be serialised.
    """
    tracing = functional_tracing()
    if tracing is None:
        return

    def functionalise(mode: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if any(t not in tracing.plain_types for t in types):
            return NotImplemented  # a subclass goes first, and sees the operator
        kernel = None if export_is_tracing() else registrable.traceable_kernel(in_order(args, kwargs))
        if kernel is None:
            return mode.__torch_dispatch__(func, types, args, kwargs)
        with mode:
            return kernel(*in_order(args, kwargs))

    torch.library.register_torch_dispatch(registrable.contract.qualname, tracing.mode, functionalise, lib=library)


def _define_vjp(contract: Contract, library: torch.library.Library) -> None:
    """Register the derived backward as an operator of its own."""
    name = vjp_name(contract)
    qualname = f"{contract.namespace}::{name}"
    operator = VjpOperator(contract)
    library.define(name + vjp_schema(contract), tags=(torch.Tag.pt2_compliant_tag,))
    library.impl(name, operator.run, "CompositeExplicitAutograd")
    torch.library.register_fake(qualname, operator.fake, lib=library)
    torch.library.register_autograd(qualname, operator.backward, setup_context=operator.setup_context, lib=library)
