"""Registers an operator with torch. Only this file uses ``torch.library``.

Every part is registered once, as a function that looks up the current rule, so a custom rule takes effect without a
new registration. Redefining an operator destroys the old registration and resets torch.compile's caches, which would
otherwise use an old gradient or shape, because their key is the operator's name (seen on torch 2.11 to 2.15).

``Library.define`` and ``impl`` take functions for single dispatch keys, such as autograd's and autocast's, which
``torch.library.custom_op`` makes itself. The fake and vmap are registered by the same public functions as there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from opwright.contract.contract import Contract
from opwright.contract.fingerprint import digest
from opwright.contract.overlap import overlap_check
from opwright.contract.signature import Kind
from opwright.errors import NameClashError
from opwright.internals import registration as torch_registration
from opwright.internals.autograd import HAS_AUTOGRAD_KEYS, without_enclosing_transforms
from opwright.internals.compiler import export_is_tracing, functional_tracing, only_shapes_are_wanted, reset_compiled
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
from opwright.runtime.register.in_place import autograd_in_place, refuse_gradients, transforms_in_place
from opwright.runtime.register.rules import Rules
from opwright.runtime.register.vjp_operator import VjpOperator, vjp_name, vjp_schema

__all__ = ["Registrable", "Registration", "changed", "custom_rule", "find", "register", "registered", "shard"]


@dataclass(frozen=True, eq=False)
class Registrable:
    """The parts of an operator that are registered with torch.

    Attributes:
        operator: the ``Op`` object.
        rules: its fake, gradient, vmap rule and FLOPs.
        run: runs a kernel or the reference on arguments in signature order, below autograd and the dispatcher.
        traceable_kernel: the kernel for these arguments in a form that torch.compile may trace into; None keeps the
            operator opaque.
        fingerprint: a digest of everything that compiled code may depend on.
        retire: called when another definition replaces this one.
        traced: called when torch.compile, or another user of fake tensors, traces the operator.
    """

    operator: Any
    rules: Rules
    run: Callable[[Sequence[Any]], Any]
    traceable_kernel: Callable[[Sequence[Any]], Callable[..., Any] | None]
    fingerprint: Callable[[], str]
    retire: Callable[[], None]
    traced: Callable[[], None]

    @property
    def contract(self) -> Contract:
        return self.rules.contract


@dataclass
class Registration:
    """One registered operator."""

    registrable: Registrable
    library: torch.library.Library
    overload: Any
    # Whether torch.compile (or another user of fake tensors) has traced it.
    traced: bool = False

    def destroy(self) -> None:
        """Undo the registration, and drop code that was compiled with the operator."""
        _reset_compiled(self)
        self.registrable.retire()  # before the dispatcher forgets what fast calls compare
        torch.utils.flop_counter.flop_registry.pop(self.overload.overloadpacket, None)
        torch_registration.remove_decomposition(self.overload)
        torch_registration.remove_sharding(self.overload)
        if not torch_registration.destroy(self.library):
            raise NameClashError(
                f"{self.registrable.contract.qualname} is defined already, and torch {torch.__version__} cannot remove "
                "a definition",
                fix="restart Python",
            )


# The handles with which opwright's registrations can be undone.
_registered: dict[str, Registration] = {}
# The package of this file: a shipped package has a copy of it, and its own part of torch.compile's keys.
_OURS = __name__.partition(".")[0]
# What operators are traced into; another number makes torch.compile's caches miss what was traced before.
_FORM_OF_GRAPHS = 2


def register(registrable: Registrable) -> Any:
    """Register an operator. It replaces an earlier one of the same name from the same file.

    Returns:
        The ``OpOverload`` in ``torch.ops``.

    Raises:
        NameClashError: the name belongs to another library, or to an operator in another file.
    """
    contract = registrable.contract
    _refuse_taken(contract)
    _destroy_earlier(contract)
    library = torch.library.Library(contract.namespace, "FRAGMENT")
    try:
        overload = _define(registrable, library)
    except BaseException:
        torch_registration.destroy(library)
        raise
    _registered[contract.qualname] = Registration(registrable, library, overload)
    return overload


def _destroy_earlier(contract: Contract) -> None:
    """Undo an earlier definition of an operator, and that of its functional form."""
    forms = [name for name, r in _registered.items() if r.registrable.contract.functional_of == contract.qualname]
    for name in (contract.qualname, *forms):
        if name in _registered:
            _registered.pop(name).destroy()


def _parts_of(contract: Contract) -> dict[str, str]:
    """The names that an operator registers, with what each one is."""
    names = {contract.name: "", vjp_name(contract): "the gradient"}
    form = contract.functional
    if form is not None and form is not contract:
        names |= {form.name: "the functional form", vjp_name(form): "the gradient of the functional form"}
    return names


def _refuse_taken(contract: Contract) -> None:
    """Refuse an operator if its name, or that of a part of it, belongs to another one."""
    earlier = _registered.get(contract.qualname)
    if earlier is not None:
        _refuse_other_origin(earlier.registrable.contract, contract)
    own = _parts_of(earlier.registrable.contract) if earlier is not None else {}
    for name, part in _parts_of(contract).items():
        if name not in own and hasattr(getattr(torch.ops, contract.namespace), name):
            needed = f" ({part} of {contract.qualname} would have this name)" if part else ""
            raise NameClashError(
                f"{contract.namespace}::{name} is already registered with torch{needed}",
                fix="choose another name, preferably in your own namespace",
            )


def _refuse_other_origin(earlier: Contract, new: Contract) -> None:
    if earlier.functional_of != new.functional_of:
        raise NameClashError(
            f"{new.qualname} is the functional form of {earlier.functional_of or new.functional_of}, and an operator "
            "of its own",
            fix="rename one of them",
        )
    if earlier.module != new.module and earlier.file != new.file:
        raise NameClashError(
            f"{new.qualname} is defined twice: in {earlier.file} and in {new.file}",
            fix="rename one of them, or import the existing one",
        )


def find(qualname: str) -> Any | None:
    """The opwright operator with this name, or None."""
    registration = _registered.get(qualname)
    return registration.registrable.operator if registration else None


def registered() -> list[Any]:
    """All opwright operators of this process, in the order of their definition."""
    return [registration.registrable.operator for registration in _registered.values()]


def changed(operator: Any) -> None:
    """An operator's kernels or rules have changed: drop code that this process compiled with it."""
    registration = _registered.get(operator.contract.qualname)
    if registration is not None and registration.registrable.operator is operator:
        _reset_compiled(registration)


def custom_rule(contract: Contract, part: str) -> Callable[..., Any] | None:
    """The function that replaces a derived part of a registered operator; None if it is derived."""
    return _registered[contract.qualname].registrable.rules.custom.get(part)


def shard(contract: Contract, function: Callable[..., Any]) -> None:
    """Register an operator's placements with DTensor."""
    from torch.distributed.tensor.experimental import register_sharding

    register_sharding(_registered[contract.qualname].overload)(function)


def _reset_compiled(registration: Registration) -> None:
    if registration.traced:
        reset_compiled()
    registration.traced = False


def _prepare_for_tracing(registrable: Registrable, overload: Any) -> None:
    """Prevent torch.compile's caches on disk from using code that was compiled for other references.

    The digest of all operators goes into ``torch.compiler.config.cache_key_tag``, which is part of every cache key.
    Tracing calls an operator's fake before any key is computed, so this is early enough, and late enough for everything
    that a reference uses to be defined.
    """
    from torch.compiler import config

    torch_registration.keep_opaque_in_inductor(overload)
    _registered[registrable.contract.qualname].traced = True
    registrable.traced()
    parts = [f"{name}={r.registrable.fingerprint()}" for name, r in sorted(_registered.items())]
    others = [p for p in config.cache_key_tag.split() if not p.startswith(f"{_OURS}:")]
    config.cache_key_tag = " ".join([*others, f"{_OURS}:{digest(str(_FORM_OF_GRAPHS), *parts)}"])


def _define(registrable: Registrable, library: torch.library.Library) -> Any:
    contract, rules = registrable.contract, registrable.rules
    signature, name = contract.signature, contract.name
    tags = (torch.Tag.pt2_compliant_tag, *[torch.Tag.nondeterministic_seeded] * (contract.random is True))
    library.define(name + contract.schema, tags=tags)
    if not signature.mutated:
        _define_vjp(contract, library)
    overload = getattr(getattr(torch.ops, contract.namespace), name).default

    every, is_plain = len(signature.arguments), not contract.classes and not signature.keyword_only

    def in_order(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        if is_plain and len(args) == every:
            return tuple(args)
        # The dispatcher drops arguments that equal their defaults.
        missing = signature.positional[len(args) :]
        positional = (*args, *(kwargs.get(a.name, a.default) for a in missing))
        return tuple(
            contract.with_members((*positional, *(kwargs.get(a.name, a.default) for a in signature.keyword_only)))
        )

    run_kernel, writes_without_keys = registrable.run, bool(signature.mutated) and not HAS_AUTOGRAD_KEYS

    def run(*args: Any, **kwargs: Any) -> Any:
        if not has_forward_mode and forward_mode_is_on():
            raise NotImplementedError(
                f"{contract.qualname} has no forward-mode derivative: {_why_no_forward_mode(contract)}\n  → "
                f"call its reference instead, {name}.contract.function"
            )
        if writes_without_keys:
            refuse_gradients(contract, args)
        if conjugates_are_ignored():
            return run_with_lazy_conjugates(run_kernel, in_order(args, kwargs))
        return run_kernel(in_order(args, kwargs))

    def fake(*args: Any, **kwargs: Any) -> Any:
        _prepare_for_tracing(registrable, overload)
        arguments = in_order(args, kwargs)
        if signature.mutated:
            overlap_check(contract, arguments)(*arguments)
        return rules.fake(arguments)

    def decomposition(*args: Any, **kwargs: Any) -> Any:
        # DTensor derives placements from it, and ``run_decompositions`` uses it. Fake tensors with symbolic sizes use
        # it instead of the fake, so tracing is prepared here too, and the fake answers if only shapes are wanted.
        _prepare_for_tracing(registrable, overload)
        if only_shapes_are_wanted():
            return rules.fake(in_order(args, kwargs))
        return contract.pack(contract.traceable(in_order(args, kwargs)))

    def flops(*args: Any, out_val: Any = None, **kwargs: Any) -> int:
        return rules.count_flops(in_order(args, kwargs))

    has_forward_mode = _has_own_function(contract)
    library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(contract.qualname, fake, lib=library)
    torch.utils.flop_counter.register_flop_formula(overload.overloadpacket, get_raw=True)(flops)
    if signature.mutated:
        _register_in_place(registrable, overload, in_order, library)
        return overload
    _register_gradient(rules, overload, in_order, library)
    if contract.autocast is not None:
        for device_type, key in KEYS.items():
            library.impl(name, kernel_for_autocast(contract, overload, device_type), key)
    # Fake tensors with symbolic sizes would use it instead of the fake; DTensor would communicate placed parts again.
    if not (signature.data_dependent or contract.random or signature.groups):
        torch_registration.register_decomposition(overload, decomposition)
    _trace_into_kernels(registrable, library, in_order)
    return overload


def _has_own_function(contract: Contract) -> bool:
    """Whether the gradient is opwright's own ``autograd.Function``, which does not support lists. torch's does,
    but not inside ``torch.func``, and it silently drops the tangents of forward mode (torch 2.11 to 2.15)."""
    return HAS_AUTOGRAD_KEYS and not _has_list(contract)


def _has_list(contract: Contract) -> bool:
    lists = (a.kind is Kind.TENSOR_LIST for a in contract.signature.arguments)
    return contract.signature.returns_list or any(lists)


def _why_no_forward_mode(contract: Contract) -> str:
    if _has_list(contract):
        return "torch drops the tangents of tensors in lists"
    return f"torch {torch.__version__} lacks private APIs for it (`opwright doctor` lists them)"


def _register_gradient(rules: Rules, overload: Any, in_order: InOrder, library: torch.library.Library) -> None:
    """Register the gradient and the vmap rule: as opwright's own ``autograd.Function``, or through torch.library."""
    contract = rules.contract
    if _has_own_function(contract):
        function = make_function(rules, overload, in_order)
        autograd = kernel_for_autograd(rules, overload, in_order)
        library.impl(contract.name, autograd, "Autograd", with_keyset=True)
        transforms = kernel_for_transforms(contract, in_order, function)
        library.impl(contract.name, transforms, "FuncTorchDynamicLayerFrontMode")
        return

    def setup_context(ctx: Any, inputs: Any, output: Any, keyword_only_inputs: Any = None) -> None:
        rules.setup_context(ctx, in_order(inputs, keyword_only_inputs or {}), output)

    def backward(ctx: Any, *grads: Any) -> Any:
        found = tuple(rules.gradient.backward(ctx, grads))
        # Without gradients for defaults that the dispatcher dropped: for lists, torch before 2.15 compares the counts.
        return found[: len(ctx.needs_input_grad)]

    def vmap(info: Any, in_dims: Any, *args: Any, **kwargs: Any) -> Any:
        dims = (*in_dims, *(None,) * (len(contract.signature.arguments) - len(in_dims)))
        with without_enclosing_transforms():
            return run_with_default_keys(rules.vmap, info, dims, in_order(args, kwargs))

    qualname = contract.qualname
    torch.library.register_autograd(qualname, backward, setup_context=setup_context, lib=library)
    torch.library.register_vmap(qualname, vmap, lib=library)


def _register_in_place(
    registrable: Registrable, overload: Any, in_order: InOrder, library: torch.library.Library
) -> None:
    """What an operator that writes its arguments does under autograd and transforms. torch.compile functionalises it,
    and writes the arguments themselves where nothing else needs their old values."""
    contract = registrable.contract

    def functional() -> Any:
        return None if contract.functional is None else registrable.operator.functional.overload

    if HAS_AUTOGRAD_KEYS:
        library.impl(
            contract.name, autograd_in_place(contract, overload, in_order, functional), "Autograd", with_keyset=True
        )
    library.impl(contract.name, transforms_in_place(contract, in_order, functional), "FuncTorchDynamicLayerFrontMode")


def _trace_into_kernels(registrable: Registrable, library: torch.library.Library, in_order: InOrder) -> None:
    """Let torch.compile trace into kernels, if it can, as ``torch.library.triton_op`` does.

    AOTAutograd calls the operator in functionalisation. Export keeps it opaque, so that an
    exported program stays high-level and can be serialised.
    """
    tracing = functional_tracing()
    if tracing is None:
        return

    def functionalise(mode: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if any(t not in tracing.plain_types for t in types):
            return NotImplemented  # a subclass handles the operator first
        kernel = None if export_is_tracing() else registrable.traceable_kernel(in_order(args, kwargs))
        if kernel is None:
            return mode.__torch_dispatch__(func, types, args, kwargs)
        with mode:
            return kernel(*in_order(args, kwargs))

    torch.library.register_torch_dispatch(registrable.contract.qualname, tracing.mode, functionalise, lib=library)


def _define_vjp(contract: Contract, library: torch.library.Library) -> None:
    """Register the derived backward as a separate operator."""
    name = vjp_name(contract)
    qualname = f"{contract.namespace}::{name}"
    operator = VjpOperator(contract)
    library.define(name + vjp_schema(contract), tags=(torch.Tag.pt2_compliant_tag,))
    library.impl(name, operator.run, "CompositeExplicitAutograd")
    torch.library.register_fake(qualname, operator.fake, lib=library)
    torch.library.register_autograd(qualname, operator.backward, setup_context=operator.setup_context, lib=library)
